package linkerd

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	httppb "github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fingerpost/fingerpost/federation/profile"
)

// The exact message of case L01, but for the name and the references.
func TestAppendProfile(t *testing.T) {
	t.Parallel()
	status := func(first, last uint32) *profile.Response {
		return &profile.Response{Status: &profile.StatusRange{Min: first, Max: last}}
	}
	p := &profile.Profile{Routes: []profile.Route{
		{
			Name: "route1",
			Condition: &profile.Request{All: []*profile.Request{
				{Method: "GET"}, {Not: &profile.Request{Path: "/private/.*"}},
			}},
			Responses: []profile.ResponseClass{{Condition: status(500, 599), Failure: true}},
		},
		{
			Name:      "route2",
			Condition: &profile.Request{Path: "/login"},
			Responses: []profile.ResponseClass{{
				Condition: &profile.Response{Any: []*profile.Response{status(500, 599), status(420, 420)}},
				Failure:   true,
			}},
		},
	}}
	want := &pb.DestinationProfile{}
	if err := prototext.Unmarshal([]byte(`
		routes {
		  condition { all {
		    matches { method { registered: GET } }
		    matches { not { path { regex: "/private/.*" } } }
		  } }
		  response_classes { condition { status { min: 500 max: 599 } } is_failure: true }
		  metrics_labels { key: "route" value: "route1" }
		}
		routes {
		  condition { path { regex: "/login" } }
		  response_classes {
		    condition { any {
		      matches { status { min: 500 max: 599 } }
		      matches { status { min: 420 max: 420 } }
		    } }
		    is_failure: true
		  }
		  metrics_labels { key: "route" value: "route2" }
		}
		retry_budget { retry_ratio: 0.2 min_retries_per_second: 10 ttl { seconds: 10 } }
	`), want); err != nil {
		t.Fatal(err)
	}
	got := &pb.DestinationProfile{}
	appendProfile(got, p, 80)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("case L01 (-want +got):\n%s", diff)
	}
}

func TestAppendProfileOfNothing(t *testing.T) {
	t.Parallel()
	want := &pb.DestinationProfile{RetryBudget: &pb.RetryBudget{
		RetryRatio:          0.2,
		MinRetriesPerSecond: 10,
		Ttl:                 durationpb.New(10 * time.Second),
	}}
	for _, p := range []*profile.Profile{nil, {}} {
		got := &pb.DestinationProfile{}
		appendProfile(got, p, 80)
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%v (-want +got):\n%s", p, diff)
		}
	}
}

func TestAppendProfileBudgetAndOverrides(t *testing.T) {
	t.Parallel()
	got := &pb.DestinationProfile{FullyQualifiedName: "web.ns.svc.cluster.local"}
	appendProfile(got, &profile.Profile{
		Routes: []profile.Route{{
			Name:      "slow",
			Condition: &profile.Request{Path: "/"},
			Retryable: true,
			Timeout:   200 * time.Millisecond,
		}},
		RetryBudget: &profile.RetryBudget{Ratio: 0.5, MinRetriesPerSecond: 5},
		Overrides: []profile.Override{
			{Authority: "a.ns.svc.cluster.local:8080", Weight: 9000},
			{Authority: "b.ns.svc.cluster.local", Weight: 500},
			{Authority: "2001:db8::1", Weight: 300},
			{Authority: "[2001:db8::1]", Weight: 200},
		},
	}, 7070)
	want := &pb.DestinationProfile{
		FullyQualifiedName: "web.ns.svc.cluster.local",
		Routes: []*pb.Route{{
			Condition:     &pb.RequestMatch{Match: &pb.RequestMatch_Path{Path: &pb.PathMatch{Regex: "/"}}},
			MetricsLabels: map[string]string{"route": "slow"},
			IsRetryable:   true,
			Timeout:       &durationpb.Duration{Nanos: 200_000_000},
		}},
		RetryBudget: &pb.RetryBudget{RetryRatio: 0.5, MinRetriesPerSecond: 5}, // a ttl of 0 is not sent
		DstOverrides: []*pb.WeightedDst{
			{Authority: "a.ns.svc.cluster.local:8080", Weight: 9000},
			{Authority: "b.ns.svc.cluster.local:7070", Weight: 500},
			{Authority: "[2001:db8::1]:7070", Weight: 300},
			{Authority: "[2001:db8::1]:7070", Weight: 200},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRequestMatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		from *profile.Request
		want string
	}{
		{"one field is its own match", &profile.Request{Path: "/x"}, `path { regex: "/x" }`},
		{
			"all alone", &profile.Request{All: []*profile.Request{{Path: "/x"}}},
			`all { matches { path { regex: "/x" } } }`,
		},
		{
			"several fields are all of them, in order",
			&profile.Request{
				All: []*profile.Request{{Path: "/1"}}, Any: []*profile.Request{{Path: "/2"}},
				Not:    &profile.Request{Path: "/3"},
				Method: "get", Path: "/4",
			},
			`all {
			   matches { all { matches { path { regex: "/1" } } } }
			   matches { any { matches { path { regex: "/2" } } } }
			   matches { method { registered: GET } }
			   matches { not { path { regex: "/3" } } }
			   matches { path { regex: "/4" } }
			 }`,
		},
		{"an unknown method", &profile.Request{Method: "foo"}, `method { unregistered: "FOO" }`},
	} {
		want := &pb.RequestMatch{}
		if err := prototext.Unmarshal([]byte(test.want), want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, requestMatch(test.from), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
	for _, nothing := range []*profile.Request{nil, {}, {Not: &profile.Request{}}} {
		if got := requestMatch(nothing); got != nil {
			t.Errorf("%v: %v, want nil", nothing, got)
		}
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "HEAD", "TRACE"} {
		got := method(name)
		if _, ok := got.GetType().(*httppb.HttpMethod_Registered_); !ok || got.GetRegistered().String() != name {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestResponseMatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		from *profile.Response
		want string
	}{
		{"an open end", &profile.Response{Status: &profile.StatusRange{Min: 200}}, `status { min: 200 }`},
		{
			"several fields are all of them, in order",
			&profile.Response{
				All:    []*profile.Response{{Status: &profile.StatusRange{Min: 201}}},
				Any:    []*profile.Response{{Status: &profile.StatusRange{Min: 202}}},
				Not:    &profile.Response{Status: &profile.StatusRange{Min: 404}},
				Status: &profile.StatusRange{Min: 400, Max: 499},
			},
			`all {
			   matches { all { matches { status { min: 201 } } } }
			   matches { any { matches { status { min: 202 } } } }
			   matches { status { min: 400 max: 499 } }
			   matches { not { status { min: 404 } } }
			 }`,
		},
	} {
		want := &pb.ResponseMatch{}
		if err := prototext.Unmarshal([]byte(test.want), want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, responseMatch(test.from), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
	for _, nothing := range []*profile.Response{nil, {}} {
		if got := responseMatch(nothing); got != nil {
			t.Errorf("%v: %v, want nil", nothing, got)
		}
	}
}
