package endpointslice

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"unique"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// What is written is what Get answers: for each port of a federated Service, what kube-proxy makes of the slices is
// what a client gets, of the same cluster and with the same identity. Zones and members with internalTrafficPolicy:
// Local, where the client's place decides, are not drawn; a union that is Local is, since kube-proxy knows its own
// node. Of such a union a stream decides among the claims on the client's node, and a slice among all: what is
// claimed twice is left out there.
func TestSlicesSayWhatStreamsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScene("home", "east", "west")
		for _, cluster := range []string{"home", "east", "west"} {
			writer := s.writers[cluster]
			for _, name := range []string{"bb", "other"} {
				if rapid.Float64Range(0, 1).Draw(t, "there") < .8 {
					v := &federation.View{Ports: drawPorts(t), Slices: drawSlices(t)}
					writer.Set(federation.Service{Namespace: "ns", Name: name}, v)
				}
			}
			writer.MarkSynced()
			if rapid.Float64Range(0, 1).Draw(t, "stale") < .3 {
				s.SetState(federation.Cluster(cluster), federation.Stale)
			}
		}
		svc, snapshot := s.drawUnion(t)
		groups, _ := federatedGroups(svc, snapshot, "linkerd", ours, true)
		plan := planFor(svc, groups, nil)
		for _, p := range svc.ports {
			for _, node := range []string{"", "n1", "n2"} {
				want := answered(snapshot, p, node)
				got := asKubeProxyHas(t, plan.create, p, node, snapshot.LocalOnly())
				if snapshot.LocalOnly() {
					deleteContested(want, snapshot)
					deleteContested(got, snapshot)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("port %s %d/%s on node %q (-stream +slices):\n%s", p.Name, p.Port, p.Protocol, node, diff)
				}
			}
		}
	})
}

func drawPorts(t *rapid.T) []federation.ServicePort {
	return rapid.SampledFrom([][]federation.ServicePort{
		{{Number: 80, Name: "http", Target: 8080}},
		{{Number: 80, Name: "web"}, {Number: 81, Name: "http", Target: 9090}},
		{{Number: 80, Protocol: federation.UDP, Name: "http", Target: 8080}},
		{{Number: 80, Name: "http", Target: 8080}, {Number: 80, Protocol: federation.UDP, Name: "web", Target: 9090}},
		{{Number: 81, Name: "http"}, {Number: 443, Protocol: federation.SCTP, Name: "web", Target: 8080}},
	}).Draw(t, "ports")
}

func drawSlices(t *rapid.T) (all []*federation.Slice) {
	for i := range rapid.IntRange(0, 3).Draw(t, "slices") {
		s := &federation.Slice{Name: fmt.Sprintf("s%d", i)}
		for _, name := range []string{"http", "web"} {
			if rapid.Float64Range(0, 1).Draw(t, name) < .7 {
				number := rapid.SampledFrom([]uint16{8080, 9090}).Draw(t, "number")
				protocol := federation.Transport(max(0, rapid.IntRange(-2, 2).Draw(t, "protocol"))) // TCP as a rule
				s.Ports = append(s.Ports, federation.Port{Number: number, Protocol: protocol, Name: name})
			}
		}
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			s.Endpoints = append(s.Endpoints, drawEndpoint(t))
		}
		all = append(all, s)
	}
	return all
}

func drawEndpoint(t *rapid.T) *federation.Endpoint {
	likely := func(what string) bool { return rapid.Float64Range(0, 1).Draw(t, what) < .7 }
	e := &federation.Endpoint{
		Addr:  netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 4).Draw(t, "address"))}),
		Ready: likely("ready"), Serving: likely("serving"), Terminating: !likely("terminating"),
		Copied: !likely("copied"),
	}
	if likely("workload") {
		cohort := federation.Cohort{Namespace: "ns"}
		if !likely("pod") {
			cohort.Kind = federation.ExternalWorkload
		}
		template := federation.Template{ServiceAccount: "bb"}
		if likely("meshed") {
			template.ControlPlane = "linkerd"
		}
		cohort.Template = unique.Make(template)
		e.Workload = new(cohort.Workload(rapid.SampledFrom([]string{"p1", "p2", "p3"}).Draw(t, "name")))
		if e.Workload.Kind() == federation.Pod {
			e.Node = federation.NameOf(fmt.Sprintf("n%d", 1+e.Addr.As4()[3]%2)) // an address is on one node
		}
	}
	return e
}

// drawUnion is the federated Service in home.
func (s *scene) drawUnion(t *rapid.T) (*serviceRecord, *federation.Snapshot) {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: rapid.Permutation([]corev1.ServicePort{
			{Name: "http", Port: 80},
			{Name: "web", Port: 80, Protocol: corev1.ProtocolUDP},
			{Name: "more", Port: 81},
			{Name: "signal", Port: 443, Protocol: corev1.ProtocolSCTP},
		}).Draw(t, "of the union")[:rapid.IntRange(1, 4).Draw(t, "how many")],
	}}
	if rapid.Float64Range(0, 1).Draw(t, "local") < .2 {
		svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	svc.Namespace, svc.Name, svc.UID = "ns", "bb-federated", "uid"
	svc.Annotations = map[string]string{
		view.OptIn: view.Enabled, view.MembersKey: "bb,other,bb@east,bb@west,other@west,bb@home",
	}
	s.writers["home"].Set(federation.Service{Namespace: "ns", Name: "bb-federated"}, view.Of("home", svc, nil))
	kept, _ := newServiceRecord(svc)
	w := s.Watch(federation.Ref{Cluster: "home", Service: federation.Service{Namespace: "ns", Name: "bb-federated"}})
	defer w.Close()
	snapshot, _ := w.Load()
	return kept, snapshot
}

// deleteContested deletes the addresses that several endpoints claim.
func deleteContested(all map[string]string, s *federation.Snapshot) {
	claims := map[netip.Addr]int{}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, slice := range m.View.Slices {
			for _, e := range slice.Endpoints {
				claims[e.Addr]++
			}
		}
	}
	maps.DeleteFunc(all, func(addr, _ string) bool { return claims[netip.MustParseAddrPort(addr).Addr()] > 1 })
}

// answered is what a client on a node gets of a port: of the cluster, with the identity of another cluster's.
func answered(s *federation.Snapshot, port corev1.ServicePort, node string) map[string]string {
	protocol, _ := federation.TransportOf(string(port.Protocol))
	asked, _ := s.View.PortOf(uint16(port.Port), protocol)
	only, v := *s, *s.View
	v.Ports, only.View = []federation.ServicePort{asked}, &v // who asks names a number: leave one protocol of it
	q := federation.Query{Port: asked.Number, ControlPlane: "linkerd"}
	all := map[string]string{}
	for c := range federation.Select(&only, q, nil).At(federation.Place{Node: node}, nil).All() {
		of := string(c.Origin().Cluster)
		if w := c.Endpoint.Workload; w != nil && !c.Origin().Home {
			of += " " + w.Identity("linkerd", c.Origin().TrustDomain)
		} else if !c.Origin().Home {
			of += " "
		}
		all[c.Addr.String()] = of
	}
	return all
}

// asKubeProxyHas is what kube-proxy on a node makes of slices for a port: it finds the endpoints by the port's name and
// protocol, and takes those that are ready; each must stand once, or chance would decide about it.
func asKubeProxyHas(
	t *rapid.T, all []*discoveryv1.EndpointSlice, asked corev1.ServicePort, node string, local bool,
) map[string]string {
	has, seen := map[string]string{}, map[string]bool{}
	for _, es := range all {
		for _, p := range es.Ports {
			if *p.Name != asked.Name || *p.Protocol != protocolOf(asked.Protocol) {
				continue
			}
			for _, e := range es.Endpoints {
				addr := fmt.Sprintf("%s:%d", e.Addresses[0], *p.Port)
				if seen[addr] {
					t.Fatalf("%s stands twice at port %s", addr, asked.Name)
				}
				seen[addr] = true
				isNear := e.NodeName != nil && *e.NodeName == node
				if !*e.Conditions.Ready || local && !isNear {
					continue
				}
				has[addr] = es.Labels[SourceLabel]
				if es.Labels[SourceLabel] != "home" {
					has[addr] += " " + es.Annotations[linkerd.RemoteGatewayIdentityAnnotation]
				}
			}
		}
	}
	return has
}

// A slice and a stream never give one address to two clusters, whatever policy divides the traffic. Of a Service with
// one port and one family both divide the same, and if as many endpoints count, in the same parts.
func TestOneClusterHasAnAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScene("home", "east", "west")
		for _, cluster := range []string{"home", "east", "west"} {
			writer := s.writers[cluster]
			v := &federation.View{
				Ports:  []federation.ServicePort{{Number: 80, Name: "http", Target: 8080}},
				Slices: []*federation.Slice{{Name: "s", Ports: []federation.Port{{Number: 8080, Name: "http"}}}},
			}
			for range rapid.IntRange(0, 6).Draw(t, "endpoints") {
				v.Slices[0].Endpoints = append(v.Slices[0].Endpoints, drawEndpoint(t))
			}
			writer.Set(bb, v)
			writer.MarkSynced()
			if rapid.Float64Range(0, 1).Draw(t, "stale") < .3 {
				s.SetState(federation.Cluster(cluster), federation.Stale)
			}
		}
		notes := maps.Clone(federatedEverywhere)
		for key, value := range rapid.SampledFrom([]map[string]string{
			{}, {"prefer": "east > *"}, {"prefer": "local > *", "capacity": "2"}, {"weights": "east=70,west=30"},
		}).Draw(t, "policy") { // none, or one that leaves out endpoints
			notes["federation.fingerpost.io/"+key] = value
		}
		svc, snapshot := s.union(notes)
		groups, _ := federatedGroups(svc, snapshot, "linkerd", ours, true)
		written := map[string]string{}
		for _, g := range groups {
			for _, e := range g.endpoints {
				if before, twice := written[e.Addresses[0]]; twice {
					t.Fatalf("%s is of %s and of %s", e.Addresses[0], before, g.source)
				}
				written[e.Addresses[0]] = g.source
			}
		}
		x := federation.Select(snapshot, federation.Query{Port: 80, ControlPlane: "linkerd"}, nil)
		divideAlike(t, svc, snapshot, x.Answer(federation.Place{}, nil).Division())
		for bucket := range uint8(16) {
			for c := range x.At(federation.Place{Bucket: bucket}, nil).All() {
				a := c.Endpoint.Addr.String()
				if of, both := written[a]; both && of != string(c.Origin().Cluster) {
					t.Fatalf("%s is of %s in a stream, and of %s in a slice", a, c.Origin().Cluster, of)
				}
			}
		}
	})
}

// divideAlike checks that slices divide the addresses of IPv4 like streams. A stream counts each endpoint that may be
// ready soon, also if an address has several.
func divideAlike(t *rapid.T, svc *serviceRecord, snapshot *federation.Snapshot, stream *federation.Division) {
	claims := newClaims(svc, snapshot, "linkerd", ours.ownerOf)
	slice := divisionsOf(svc, snapshot, ours.ownerOf, claims)[discoveryv1.AddressTypeIPv4]
	if slice == nil {
		slice = snapshot.Divide(nil)
	}
	sameAmounts := true
	for i, c := range slice.Portions {
		has := stream.Portions[i]
		if got, want := addressesOf(c), addressesOf(has); c.Cluster != has.Cluster || !slices.Equal(got, want) {
			t.Fatalf("%s has %v in slices, and %s %v in streams", c.Cluster, got, has.Cluster, want)
		}
		sameAmounts = sameAmounts && c.All == has.All
	}
	diff := cmp.Diff(stream.Shares(), slice.Shares(), cmp.AllowUnexported(policy.Share{}))
	if sameAmounts && diff != "" {
		t.Fatalf("shares (-stream +slices):\n%s", diff)
	}
}

func addressesOf(c *federation.Portion) (all []netip.Addr) {
	for _, e := range c.Entries {
		all = append(all, e.Addr.Addr())
	}
	return all
}

// What a stream has of one cluster may be of a family that the readers of slices do not see: each family has what
// serves in it.
func TestFamiliesAreDividedForThemselves(t *testing.T) {
	s := newScene("home", "east", "west")
	s.holds("west", "10.2.0.1", "10.2.0.2")
	s.holds("east", "10.1.0.1", "10.1.0.2", "fd00:1::1", "fd00:1::2")
	s.holds("home", "10.0.0.1", "fd00::1")
	s.complete("home", "east", "west")
	notes := maps.Clone(federatedEverywhere)
	notes[policy.PreferKey] = "west > east > *"
	svc, snapshot := s.union(notes)
	svc.families = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	groups, _ := federatedGroups(svc, snapshot, "linkerd", ours, true)
	got := map[string]int{}
	for _, g := range groups {
		got[g.source+" "+string(g.family)] += len(g.endpoints)
	}
	if want := map[string]int{"west IPv4": 2, "east IPv6": 2}; !maps.Equal(got, want) {
		t.Errorf("slices have %v, want %v", got, want)
	}
}
