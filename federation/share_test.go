package federation

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// drawMember returns a View with enough endpoints for shares to divide them. Some addresses are claimed by more
// than one cluster, some workloads in both families.
func drawMember(t *rapid.T, c Cluster) *View {
	v := &View{
		Ports:     []ServicePort{{Number: 80, Name: "http", Target: 8080}},
		LocalOnly: rapid.Float64().Draw(t, "local") < .2,
	}
	hinted, dual := rapid.Float64().Draw(t, "hinted") < .3, rapid.Float64().Draw(t, "dual") < .3
	n := rapid.IntRange(0, 12).Draw(t, "endpoints")
	s := &Slice{Name: "v4", Ports: []Port{port(8080, "http")}}
	six := &Slice{Name: "v6", Ports: s.Ports}
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 0, c[0], byte(i)})
		if i == 0 {
			a = addr("10.0.0.1")
		}
		e := &Endpoint{
			Addr:        a,
			Ready:       rapid.Float64().Draw(t, "ready") < .8,
			Terminating: rapid.Float64().Draw(t, "terminating") < .3,
			Node:        NameOf(rapid.SampledFrom(nodes).Draw(t, "node")),
			Zone:        NameOf(rapid.SampledFrom(zones).Draw(t, "zone")),
			Workload:    podOf(fmt.Sprint(i), Template{}),
		}
		if hinted {
			e.Detail = &Detail{Hints: []string{rapid.SampledFrom(zones[1:]).Draw(t, "hint")}}
		}
		s.Endpoints = append(s.Endpoints, e)
		if dual && rapid.Float64().Draw(t, "too") < .7 {
			other := *e
			other.Addr = netip.AddrFrom16([16]byte{0xfd, 14: c[0], 15: byte(i)})
			other.Ready = other.Ready != (rapid.Float64().Draw(t, "differs") < .1)
			six.Endpoints = append(six.Endpoints, &other)
		}
	}
	v.Slices = []*Slice{s, six}
	return v
}

// What clients get under a policy is what the model gives them, wherever they are; all of a bucket and sixteenth
// get the same; and an explanation keeps exactly that. A Service of which anything is ready has an address for
// everybody, unless it is Local.
func TestGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, m := NewStore(), &model{clusters: map[Cluster]*modelCluster{}, listed: true}
		s.MarkClustersListed()
		composition := &Composition{Union: true}
		ready, localOnly := false, false
		for _, c := range clusters {
			s.AddCluster(c, Expectation{})
			w, k := s.NewWriter(c), &modelCluster{views: map[Service]*View{}, complete: true, state: Live}
			m.clusters[c] = k
			for _, svc := range []Service{plain, other} {
				if svc == other && rapid.Float64().Draw(t, "second") < .7 {
					continue
				}
				k.views[svc] = drawMember(t, c)
				w.Set(svc, k.views[svc])
				n, _ := k.views[svc].Count()
				ready = ready || n > 0
				localOnly = localOnly || k.views[svc].LocalOnly && c == "local"
				composition.Members = append(composition.Members, MemberRef{Ref{c, svc}, c == "local"})
			}
			w.MarkSynced()
			k.state = rapid.SampledFrom([]ClusterState{Live, Live, Stale}).Draw(t, "state")
			s.SetState(c, k.state)
			k.policy = policy.ForCluster{
				WhenStale: rapid.SampledFrom(whenStale).Draw(t, "when"),
				Drained:   rapid.SampledFrom([]uint8{0, 0, 0, 35, 100}).Draw(t, "drained"),
				Region:    rapid.SampledFrom([]string{"", "eu"}).Draw(t, "region"),
			}
			s.SetPolicy(c, k.policy)
		}
		v := &View{
			Composition: composition,
			Policy:      drawPolicy(t),
			Ports:       []ServicePort{{Number: 80, Name: "http", Target: 8080}},
		}
		m.clusters["local"].views[fed] = v
		s.NewWriter("local").Set(fed, v)
		w := s.Watch(Ref{"local", fed})
		defer w.Close()
		snapshot, _ := w.Load()
		q := rapid.SampledFrom([]Query{{Port: 80, IPv6: true}, {Port: 80}}).Draw(t, "query")
		x := Select(snapshot, q, nil)
		place := Place{
			Node: rapid.SampledFrom(nodes).Draw(t, "at node"), Zone: rapid.SampledFrom(zones).Draw(t, "at zone"),
		}
		for range 3 {
			place.Bucket = uint8(rapid.IntRange(0, policy.Buckets-1).Draw(t, "bucket"))
			place.Sixteenth = uint8(rapid.IntRange(0, policy.Buckets-1).Draw(t, "sixteenth"))
			set := x.At(x.Reduce(place), nil)
			if got, want := text(set), m.answer(Ref{"local", fed}, q, place); !maps.Equal(got, want) {
				t.Fatalf("clients at %v get\n%v, want\n%v\nby %+v", place, got, want, x.Division(place).Shares())
			}
			if full := x.At(place, nil); !maps.Equal(text(full), text(set)) {
				t.Fatal("Reduce leaves out what the answer depends on")
			}
			if ready && !localOnly && q.IPv6 && set.Empty() { // without IPv6, what is ready may be out of reach
				t.Fatalf("never empty: clients at %v get nothing", place)
			}
			explains(t, snapshot, q, place, set)
		}
	})
}

// A client that asks for one instance gets it, wherever it is (G37).
func TestHostnamesAreNotDivided(t *testing.T) {
	s := policedStore(t, &policy.Service{Prefer: []policy.Tier{{Local: true}, {Others: true}}}, map[Cluster]int{
		"local": 3, "east": 3,
	})
	if got := held(s, Query{Port: 80}, Place{}); len(got) != 3 {
		t.Errorf("clients of the Service get %v", got)
	}
	if got := held(s, Query{Port: 80, Hostname: "east-1"}, Place{}); !slices.Equal(got, []string{"10.101.0.1:8080"}) {
		t.Errorf("clients of the instance east-1 get %v", got)
	}
}

// Clients may name any node: those on which nothing of a Local member runs share one division.
func TestDivisionsOfNodes(t *testing.T) {
	s := policedStore(t, &policy.Service{Prefer: []policy.Tier{{Local: true}, {Others: true}}}, map[Cluster]int{
		"local": 1, "east": 3,
	})
	v := *s.View(Ref{"local", plain})
	endpoint := *v.Slices[0].Endpoints[0]
	endpoint.Node, endpoint.Workload = NameOf("n1"), podOf("", Template{})
	v.LocalOnly = true
	v.Slices = []*Slice{{Name: "s", Ports: v.Slices[0].Ports, Endpoints: []*Endpoint{&endpoint}}}
	s.NewWriter("local").Set(plain, &v)
	w := s.Watch(Ref{"local", fed})
	defer w.Close()
	snapshot, _ := w.Load()
	x := Select(snapshot, Query{Port: 80}, nil)
	for i := range 1000 {
		if got := x.At(Place{Node: fmt.Sprint("made-up-", i)}, nil); got.Len() != 3 {
			t.Fatalf("a client on another node gets %v", text(got))
		}
	}
	if got := x.At(Place{Node: "n1"}, nil); got.Len() != 1 {
		t.Errorf("a client on the node of the endpoint gets %v", text(got))
	}
	if n := len(x.divisions.byNode); n != 2 {
		t.Errorf("%d divisions are kept", n)
	}
}

// Addresses are divided each once: the cluster of the first claim that is ready has one. A claim that is
// not ready counts for each cluster that may have it soon, unless the cluster has it already.
func TestDivide(t *testing.T) {
	s := policedStore(t, &policy.Service{Weights: []policy.Weight{{Cluster: "east", Weight: 1}}}, map[Cluster]int{
		"local": 0, "east": 0, "west": 0,
	})
	w := s.Watch(Ref{"local", fed})
	defer w.Close()
	snapshot, _ := w.Load()
	var claims []Claim
	claim := func(of Cluster, a string, as Endpoint) {
		i := slices.IndexFunc(snapshot.Members, func(m *Member) bool { return m.Origin.Cluster == of })
		as.Addr = addr(a)
		claims = append(claims, Claim{Member: snapshot.Members[i], Slice: &Slice{Endpoints: []*Endpoint{&as}}})
	}
	ready, waiting, terminating := Endpoint{Ready: true}, Endpoint{}, Endpoint{Terminating: true}
	claim("east", "10.0.0.2", ready)
	claim("east", "10.0.0.1", ready)
	claim("east", "10.0.0.1", ready)
	claim("west", "10.0.0.1", ready)
	claim("west", "10.0.0.1", waiting)
	claim("east", "10.0.0.2", waiting)
	claim("west", "10.0.0.3", waiting)
	claim("west", "10.0.0.3", waiting)
	claim("west", "10.0.0.4", terminating)
	claim("local", "10.0.0.5", ready)
	got := map[string]string{}
	for _, c := range snapshot.Divide(claims).Portions {
		text := fmt.Sprintf("%d/%d gets %d:", c.Ready, c.All, c.Share.Share)
		for _, e := range c.Choose(c.Rounded(), 0) {
			text += " " + e.Addr.String()
		}
		got[c.Cluster] = text
	}
	want := map[string]string{
		"east": "2/2 gets 65536: 10.0.0.1:0 10.0.0.2:0", "west": "0/2 gets 0:", "local": "1/1 gets 0:",
	}
	if !maps.Equal(got, want) {
		t.Errorf("clusters have %v, want %v", got, want)
	}
}

// A plain Service and one that stands for one other are not divided, whatever is in force for their clusters.
func TestOnlyUnionsAreDivided(t *testing.T) {
	s := policedStore(t, nil, map[Cluster]int{"east": 2})
	s.NewWriter("local").Set(mirror, &View{
		Ports:       []ServicePort{{Number: 80, Name: "http", Target: 8080}},
		Composition: &Composition{Members: []MemberRef{{Ref: Ref{"east", plain}}}},
		Policy:      &policy.Service{Prefer: []policy.Tier{{Local: true}}, WhenStale: policy.Drop},
	})
	s.SetState("east", Stale)
	s.SetPolicy("east", policy.ForCluster{Drained: 100, WhenStale: policy.Drop})
	for _, ref := range []Ref{{"local", mirror}, {"east", plain}, {"local", fed}} {
		w := s.Watch(ref)
		snapshot, _ := w.Load()
		if x := Select(snapshot, Query{Port: 80}, nil); x.At(Place{}, nil).Len() != 2 {
			t.Errorf("clients of %v get %v", ref, text(x.At(Place{}, nil)))
		}
		w.Close()
	}
}

// policedStore has a federated Service with so many ready endpoints in each cluster.
func policedStore(t *testing.T, p *policy.Service, endpoints map[Cluster]int) *Store {
	t.Helper()
	s := NewStore()
	v := &View{
		Ports:       []ServicePort{{Number: 80, Name: "http", Target: 8080}},
		Composition: &Composition{Union: true},
		Policy:      p,
	}
	s.MarkClustersListed()
	for _, c := range slices.Sorted(maps.Keys(endpoints)) {
		s.AddCluster(c, Expectation{})
		slice := &Slice{Name: "s", Ports: []Port{port(8080, "http")}}
		for i := range endpoints[c] {
			slice.Endpoints = append(slice.Endpoints, &Endpoint{
				Addr:  netip.AddrFrom4([4]byte{10, c[0], byte(i >> 8), byte(i)}),
				Ready: true, Detail: &Detail{Hostname: fmt.Sprintf("%s-%d", c, i)},
			})
		}
		w := s.NewWriter(c)
		w.Set(plain, &View{Ports: v.Ports, Slices: []*Slice{slice}})
		w.MarkSynced()
		v.Composition.Members = append(v.Composition.Members, MemberRef{Ref: Ref{c, plain}, Filtered: c == "local"})
	}
	s.AddCluster("local", Expectation{})
	s.NewWriter("local").Set(fed, v)
	return s
}

func held(s *Store, q Query, p Place) (addrs []string) {
	w := s.Watch(Ref{"local", fed})
	defer w.Close()
	snapshot, _ := w.Load()
	for c := range Select(snapshot, q, nil).At(p, nil).All() {
		addrs = append(addrs, c.Addr.String())
	}
	return addrs
}
