package linkerd

import (
	"net"
	"strconv"
	"strings"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	httppb "github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fingerpost/fingerpost/federation/profile"
)

// defaultBudget holds where no ServiceProfile has another one.
var defaultBudget = profile.RetryBudget{Ratio: 0.2, MinRetriesPerSecond: 10, TTL: 10 * time.Second}

// appendProfile adds to a message what a ServiceProfile has about a Service at a port: routes, retry
// budget, overrides. A nil from adds the default.
func appendProfile(to *pb.DestinationProfile, from *profile.Profile, port uint16) {
	if from == nil {
		from = &profile.Profile{}
	}
	for i := range from.Routes {
		to.Routes = append(to.Routes, route(&from.Routes[i]))
	}

	budget := from.RetryBudget
	if budget == nil {
		budget = &defaultBudget
	}
	to.RetryBudget = &pb.RetryBudget{
		RetryRatio: budget.Ratio, MinRetriesPerSecond: budget.MinRetriesPerSecond, Ttl: duration(budget.TTL),
	}

	for _, o := range from.Overrides {
		override := &pb.WeightedDst{Authority: withPort(o.Authority, port), Weight: o.Weight}
		to.DstOverrides = append(to.DstOverrides, override)
	}
}

func route(r *profile.Route) *pb.Route {
	to := &pb.Route{
		Condition:     requestMatch(r.Condition),
		MetricsLabels: map[string]string{"route": r.Name},
		IsRetryable:   r.Retryable,
		Timeout:       duration(r.Timeout),
	}
	for _, c := range r.Responses {
		class := &pb.ResponseClass{Condition: responseMatch(c.Condition), IsFailure: c.Failure}
		to.ResponseClasses = append(to.ResponseClasses, class)
	}
	return to
}

// requestMatch returns nil for a condition without a field. Several fields become one match of all of
// them; their order is fixed, so that equal profiles are equal messages.
func requestMatch(request *profile.Request) *pb.RequestMatch {
	if request == nil {
		return nil
	}
	var fields []*pb.RequestMatch
	if request.All != nil {
		fields = append(fields, &pb.RequestMatch{Match: &pb.RequestMatch_All{All: requestSeq(request.All)}})
	}
	if request.Any != nil {
		fields = append(fields, &pb.RequestMatch{Match: &pb.RequestMatch_Any{Any: requestSeq(request.Any)}})
	}

	if request.Method != "" {
		fields = append(fields, &pb.RequestMatch{Match: &pb.RequestMatch_Method{Method: method(request.Method)}})
	}
	if not := requestMatch(request.Not); not != nil {
		fields = append(fields, &pb.RequestMatch{Match: &pb.RequestMatch_Not{Not: not}})
	}
	if request.Path != "" {
		path := &pb.PathMatch{Regex: request.Path}
		fields = append(fields, &pb.RequestMatch{Match: &pb.RequestMatch_Path{Path: path}})
	}

	switch len(fields) {
	case 0:
		return nil
	case 1:
		return fields[0]
	default:
		return &pb.RequestMatch{Match: &pb.RequestMatch_All{All: &pb.RequestMatch_Seq{Matches: fields}}}
	}
}

func requestSeq(rs []*profile.Request) *pb.RequestMatch_Seq {
	return &pb.RequestMatch_Seq{Matches: encodeEach(rs, requestMatch)}
}

// encodeEach encodes each condition of a list, and leaves out those of which nothing is left.
func encodeEach[C, M any](conditions []*C, encode func(*C) *M) (matches []*M) {
	for _, c := range conditions {
		if m := encode(c); m != nil {
			matches = append(matches, m)
		}
	}
	return matches
}

// responseMatch does for responses what requestMatch does for requests.
func responseMatch(response *profile.Response) *pb.ResponseMatch {
	if response == nil {
		return nil
	}
	var fields []*pb.ResponseMatch
	if response.All != nil {
		fields = append(fields, &pb.ResponseMatch{Match: &pb.ResponseMatch_All{All: responseSeq(response.All)}})
	}
	if response.Any != nil {
		fields = append(fields, &pb.ResponseMatch{Match: &pb.ResponseMatch_Any{Any: responseSeq(response.Any)}})
	}

	if response.Status != nil {
		codes := &pb.HttpStatusRange{Min: response.Status.Min, Max: response.Status.Max}
		fields = append(fields, &pb.ResponseMatch{Match: &pb.ResponseMatch_Status{Status: codes}})
	}
	if not := responseMatch(response.Not); not != nil {
		fields = append(fields, &pb.ResponseMatch{Match: &pb.ResponseMatch_Not{Not: not}})
	}

	switch len(fields) {
	case 0:
		return nil
	case 1:
		return fields[0]
	default:
		return &pb.ResponseMatch{Match: &pb.ResponseMatch_All{All: &pb.ResponseMatch_Seq{Matches: fields}}}
	}
}

func responseSeq(rs []*profile.Response) *pb.ResponseMatch_Seq {
	return &pb.ResponseMatch_Seq{Matches: encodeEach(rs, responseMatch)}
}

func method(name string) *httppb.HttpMethod {
	name = strings.ToUpper(name)
	if number, ok := httppb.HttpMethod_Registered_value[name]; ok {
		return &httppb.HttpMethod{
			Type: &httppb.HttpMethod_Registered_{Registered: httppb.HttpMethod_Registered(number)},
		}
	}
	return &httppb.HttpMethod{Type: &httppb.HttpMethod_Unregistered{Unregistered: name}}
}

// duration returns nil for 0, which is not set.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// withPort adds a port to an authority that has none.
func withPort(authority string, port uint16) string {
	if _, _, err := net.SplitHostPort(authority); err == nil {
		return authority
	}
	return net.JoinHostPort(strings.Trim(authority, "[]"), strconv.Itoa(int(port)))
}
