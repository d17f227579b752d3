package view

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unique"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/federation"
)

// What follows from kinds that cannot be listed stays while that is so, and goes once they are listed without it. The
// facts of other Tables do not wait.
func TestUnlistedKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := federation.NewStore()
		store.AddCluster("c", federation.Expectation{Local: true})
		ip, vm := netip.MustParseAddr("10.0.0.1"), federation.Service{Namespace: "ns", Name: "vm"}
		cohort := federation.Cohort{
			Kind: federation.ExternalWorkload, Namespace: "ns", Template: unique.Make(federation.Template{}),
		}
		workload := new(cohort.Workload("vm"))
		store.Nodes.NewWriter("c").Set("n", federation.Node{Zone: "z"})
		resident := federation.Resident{Workload: workload}
		store.Addresses.NewWriter("c").Set(ip, &federation.Address{Residents: []federation.Resident{resident}})
		store.Externals.NewWriter("c").Set(vm, federation.External{Workload: workload})
		store.Servers.NewWriter("c").Set(vm, federation.OpaqueServer{Port: 80})
		store.Profiles.NewWriter("c").Set(vm, nil)

		facts := func() string {
			_, node := store.Nodes.Get("c", "n")
			_, address := store.Addresses.Get("c", ip)
			_, external := store.Externals.Get("c", vm)
			_, server := store.Servers.Get("c", vm)
			_, profile := store.Profiles.Get("c", vm)
			known := map[string]bool{
				"node": node, "address": address, "external": external, "server": server, "profile": profile,
			}
			maps.DeleteFunc(known, func(_ string, is bool) bool { return !is })
			return strings.Join(slices.Sorted(maps.Keys(known)), " ")
		}
		r := NewReconciler(logr.Discard(), "c", Options{Local: true})
		kind := func(of objectKind) Input {
			return r.Inputs()[slices.IndexFunc(r.Inputs(), func(k Input) bool { return k.of == of })]
		}
		r.Begin(store.NewWriter("c"), &store.Facts, kind(kindNode), kind(kindExternal), kind(kindServer))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()

		for _, step := range []struct {
			listed objectKind
			want   string
		}{
			{kindProfile, "address external node server"}, // it was listed from the beginning
			{kindNode, "address external server"},
			{kindServer, "address external"},
			{kindExternal, ""},
		} {
			r.Listed(kind(step.listed))
			synctest.Wait()
			if got := facts(); got != step.want {
				t.Errorf("when kind %d is listed there are %q, want %q", step.listed, got, step.want)
			}
		}
		cancel()
		<-done
	})
}

// What is published of a Server is read again as the same one.
func TestPublishedServers(t *testing.T) {
	for _, spec := range []string{
		`{podSelector: {}, port: 80, proxyProtocol: opaque}`,
		`{podSelector: {matchLabels: {app: db, tier: ""}}, port: sql, proxyProtocol: opaque}`,
		`{externalWorkloadSelector: {matchLabels: {app: db}}, port: 80, proxyProtocol: opaque}`,
		`{podSelector: {matchExpressions: [{key: a.io/b, operator: In, values: [x, w, ""]},
			{key: c, operator: NotIn, values: [z]}, {key: d, operator: Exists}, {key: e, operator: DoesNotExist}]},
			port: 65535, proxyProtocol: opaque}`,
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
		var of map[string]any
		if err := yaml.Unmarshal([]byte(strings.ReplaceAll(spec, "\t", " ")), &of); err != nil {
			t.Fatal(err)
		}
		u.Object["spec"] = of
		record, err := newServerRecord(u, &omissions{})
		if err != nil || record == nil {
			t.Fatalf("%s: %v", spec, err)
		}
		again, err := publishedServer(record.fact())
		if err != nil || again.fact() != record.fact() || again.port != record.port {
			t.Errorf("%s: %+v, then %+v, %v", spec, record.fact(), again, err)
		}
		for _, of := range []string{"", "app=db", "app=db,tier=", "a.io/b=x,d=1", "a.io/b=,c=z,d=1"} {
			set := podLabels{"pod", labelSet(of)}
			if again.pods.Matches(set) != record.pods.Matches(set) ||
				again.externals.Matches(set) != record.externals.Matches(set) {
				t.Errorf("%s, read again, does not select the same of %q", spec, of)
			}
		}
	}
}

// A Server of a file or of another replica is bounded as one of an API server is, and one that cannot be read is none.
func TestPublishedServersAreBounded(t *testing.T) {
	many := strings.Repeat("a,", maxRequirements) + "a"
	var values []string
	for n := range maxValues + 1 {
		values = append(values, fmt.Sprint("b", n))
	}
	large := "a in (" + strings.Join(values, ",") + ")"
	for _, text := range []string{many, large, "a in (", "a=" + strings.Repeat("b", maxLabel+1)} {
		for _, f := range []federation.OpaqueServer{
			{Pods: federation.Selector{Text: text, Given: true}},
			{Externals: federation.Selector{Text: text, Given: true}},
		} {
			if s, err := publishedServer(f); err == nil {
				t.Errorf("%.40q is read as %.40q", text, s.fact().Pods.Text+s.fact().Externals.Text)
			}
		}
	}
}
