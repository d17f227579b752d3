package app_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/serving"
)

// annotationPrefix is that of the annotations of traffic policy.
const annotationPrefix = "federation.fingerpost.io/"

// annotate sets annotations of an object, as another client: NAME=VALUE, or NAME- to remove one. A name without a slash
// is ours.
func (s *scenario) annotate(cluster, kind, name string, args []string) {
	s.t.Helper()
	namespace, of := namespaced(name)
	o := s.network.Server(cluster).Find(kind, namespace, of)
	if s.needs(o != nil, "annotate: cluster %s has no %s %s", cluster, kind, name); o == nil {
		return
	}
	all := o.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	for _, arg := range args {
		key, value, set := strings.Cut(arg, "=")
		key, removed := strings.CutSuffix(key, "-")
		if set == removed {
			s.t.Fatalf("annotate: %s is neither NAME=VALUE nor NAME-", arg)
		}
		if !strings.Contains(key, "/") {
			key = annotationPrefix + key
		}
		if delete(all, key); set {
			all[key] = value
		}
	}
	o.SetAnnotations(all)
	s.network.Server(cluster).Apply(o)
}

// nodeOf returns a node that no cluster has, whose clients are in a bucket, and so in the sixteenth of that number:
// crowd-1, crowd-2 and so on is tried.
func nodeOf(bucket int) string {
	for n := 1; ; n++ {
		if name := fmt.Sprintf("crowd-%d", n); int(policy.BucketOf(name)) == bucket {
			return name
		}
	}
}

// crowd opens a stream for a client of each bucket. What they receive is not in the transcript; see spread.
func (s *scenario) crowd(name, authority string, args []string) {
	s.t.Helper()
	for bucket := range policy.Buckets {
		request, via := s.request("crowd", authority, args)
		request.Token = fmt.Sprintf(`{"ns":"shop","nodeName":%q}`, nodeOf(bucket))
		st := proxy.Open(s.t.Context(), s.connect(via), request, nil)
		s.streams[fmt.Sprintf("%s#%02d", name, bucket)] = st
		s.crowds[name] = append(s.crowds[name], st)
	}
}

// spread prints how many clients of a crowd hold how many addresses of which cluster, most of them first. With the name
// of a cluster it prints how many of its ready addresses there are in all that some of the clients hold.
func (s *scenario) spread(name string, of []string) {
	s.t.Helper()
	if len(of) > 0 {
		owner, ready := s.owners()
		held := map[netip.AddrPort]bool{}
		for _, st := range s.crowds[name] {
			for _, a := range addressesHeld(st) {
				held[a] = held[a] || owner[a] == of[0]
			}
		}
		maps.DeleteFunc(held, func(_ netip.AddrPort, is bool) bool { return !is })
		s.saw(name, fmt.Sprintf("%s: %d of %d are used", of[0], len(held), ready[of[0]]))
		return
	}
	clients := s.holdings(name)
	lines := sortedKeys(clients)
	slices.SortStableFunc(lines, func(a, b string) int { return clients[b] - clients[a] })
	for _, line := range lines {
		s.saw(name, fmt.Sprintf("%d hold %s", clients[line], line))
	}
}

const gone = "gone" // the cluster of addresses that no slice has

// holdings returns how many clients of a crowd hold what, as CLUSTER=COUNT, this cluster first.
func (s *scenario) holdings(name string) map[string]int {
	s.t.Helper()
	owner, _ := s.owners()
	statuses, _ := s.first().Registry.Statuses()
	names := []string{home}
	for _, name := range sortedKeys(statuses) {
		if name != home {
			names = append(names, name)
		}
	}
	names = append(names, gone)
	clients := map[string]int{}
	for _, st := range s.crowds[name] {
		count := map[string]int{}
		for _, a := range addressesHeld(st) {
			count[cmp.Or(owner[a], gone)]++
		}
		var parts []string
		for _, cluster := range names {
			if count[cluster] > 0 {
				parts = append(parts, fmt.Sprintf("%s=%d", cluster, count[cluster]))
			}
		}
		clients[cmp.Or(strings.Join(parts, " "), "nothing")]++
	}
	return clients
}

// lose deletes an endpoint of a cluster's Service that the last client of a crowd holds, and prints how many addresses
// that client then adds and removes: which one it is follows from a hash.
func (s *scenario) lose(name, cluster, service string) {
	s.t.Helper()
	client := s.crowds[name][len(s.crowds[name])-1]
	before := addressesHeld(client)
	namespace, of := splitName(service)
	for _, slice := range s.network.Server(cluster).List(sliceResource) {
		endpoints, _, _ := unstructured.NestedSlice(slice.Object, "endpoints")
		i := slices.IndexFunc(endpoints, func(e any) bool {
			addr, _, _ := unstructured.NestedStringSlice(e.(map[string]any), "addresses")
			return slices.ContainsFunc(before, func(a netip.AddrPort) bool { return a.Addr().String() == addr[0] })
		})
		if slice.GetNamespace() != namespace || slice.GetLabels()[discoveryv1.LabelServiceName] != of || i < 0 {
			continue
		}
		slice = slice.DeepCopy()
		if err := unstructured.SetNestedSlice(slice.Object, slices.Delete(endpoints, i, i+1), "endpoints"); err != nil {
			s.t.Fatal(err)
		}
		s.network.Server(cluster).Apply(slice)
		elapse(settle)
		after := addressesHeld(client)
		without := func(all []netip.AddrPort) func(netip.AddrPort) bool {
			return func(a netip.AddrPort) bool { return slices.Contains(all, a) }
		}
		added := len(slices.DeleteFunc(slices.Clone(after), without(before)))
		removed := len(slices.DeleteFunc(slices.Clone(before), without(after)))
		s.saw(name, fmt.Sprintf("add %d, remove %d", added, removed))
		return
	}
	s.t.Fatalf("lose: the client holds no endpoint of %s in %s", service, cluster)
}

func addressesHeld(st *proxy.Stream) (all []netip.AddrPort) {
	for _, a := range st.Holds() {
		all = append(all, a.Addr)
	}
	return all
}

// equal prints how many clients of two crowds hold the same as the one of their bucket.
func (s *scenario) equal(one, other string) {
	same := 0
	for bucket, st := range s.crowds[one] {
		if slices.Equal(addressesHeld(st), addressesHeld(s.crowds[other][bucket])) {
			same++
		}
	}
	fmt.Fprintf(&s.out, "%d of %d hold the same\n", same, len(s.crowds[one]))
}

// until lets time pass until a time since the script began, at midnight.
func (s *scenario) until(since string) {
	s.t.Helper()
	now := time.Now().UTC()
	left := now.Truncate(24*time.Hour).Add(s.duration(since)).Sub(now) - settle
	if left < 0 {
		s.t.Fatalf("until: it is %s already", now.Format(time.TimeOnly))
	}
	elapse(left)
}

// explain prints what becomes of each address for a client, as 'fingerpost explain' does.
func (s *scenario) explain(authority string, args []string) {
	s.t.Helper()
	lines := map[string]int{}
	for _, c := range s.explanation(authority, args).Claims {
		lines[c.Cluster+": "+c.Why]++
	}
	for _, line := range sortedKeys(lines) {
		fmt.Fprintf(&s.out, "%d of %s\n", lines[line], line)
	}
}

// traffic prints how a Service's traffic is divided between clusters.
func (s *scenario) traffic(authority string, args []string) {
	s.t.Helper()
	for _, c := range s.explanation(authority, args).Traffic {
		gets := ""
		if math.Abs(c.Gets-c.Share) > .1 {
			gets = fmt.Sprintf(" gets=%.4g%%", c.Gets)
		}
		fmt.Fprintf(&s.out, "%s tier=%d share=%.4g%%%s given=%d of %d: %s\n",
			c.Cluster, c.Tier, c.Share, gets, c.Given, c.Ready, c.Why)
	}
}

// explanation returns that of a Service for a client, on a node if one is named.
func (s *scenario) explanation(authority string, args []string) *discovery.Explanation {
	s.t.Helper()
	client := serving.Client{}
	for _, arg := range args {
		client.Node = strings.TrimPrefix(arg, "node=")
	}
	x, err := s.first().Discovery.Explain(authority, client)
	if err != nil {
		s.t.Fatal(err)
	}
	return x
}

// owners returns which cluster each address of shop is in, and how many ready ones each has.
func (s *scenario) owners() (of map[netip.AddrPort]string, ready map[string]int) {
	s.t.Helper()
	of, ready = map[netip.AddrPort]string{}, map[string]int{}
	clusters, _ := s.first().Registry.Statuses()
	for name := range clusters {
		for _, slice := range decode[discoveryv1.EndpointSlice](s, name, sliceResource) {
			if slice.Namespace != shop || slice.Labels[discoveryv1.LabelManagedBy] != "" {
				continue
			}
			for _, e := range slice.Endpoints {
				addr := netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*slice.Ports[0].Port))
				if of[addr] = name; *e.Conditions.Ready {
					ready[name]++
				}
			}
		}
	}
	return of, ready
}
