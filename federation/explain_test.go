package federation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each question is planted with one reason, and the answer must name that one.
func TestExplain(t *testing.T) {
	store := NewStore()
	for _, c := range []Cluster{"local", "east", "west", "south"} {
		store.AddCluster(c, Expectation{})
	}
	pod := func(name string) *Workload { return podOf(name, Template{}) }
	ready := func(ip, name string) *Endpoint { return &Endpoint{Addr: addr(ip), Ready: true, Workload: pod(name)} }
	on := func(node string, e *Endpoint) *Endpoint { e.Node = NameOf(node); return e }
	hinted := func(zone string, e *Endpoint) *Endpoint {
		e.Zone, e.Detail = NameOf(zone), &Detail{Hints: []string{zone}}
		return e
	}
	view := func(endpoints ...*Endpoint) *View {
		return &View{
			Ports:  []ServicePort{{Number: 80, Name: "http", Target: 8080}},
			Slices: []*Slice{{Name: "s", Ports: []Port{{Number: 8080, Name: "http"}}, Endpoints: endpoints}},
		}
	}

	publish := func(c Cluster, views map[Service]*View) {
		writer := store.NewWriter(c)
		for svc, v := range views {
			writer.Set(svc, v)
		}
		writer.MarkSynced()
	}
	notReady, host, six := ready("10.0.0.2", "p2"), ready("10.0.0.3", "p3"), ready("fd00::1", "p1")
	notReady.Ready = false
	host.Detail = &Detail{Hostname: "h"}
	onNode := view(on("n1", ready("10.0.0.1", "p1")), on("n2", ready("10.0.0.2", "p2")),
		&Endpoint{Addr: addr("10.0.0.9"), Ready: true})
	onNode.LocalOnly = true
	targetless := view(ready("10.0.0.1", "p1"))
	targetless.Slices[0].Ports = []Port{{Number: 9090, Name: "metrics"}}
	scaled, partly := view(), view(ready("10.0.0.1", "p1"))
	scaled.Slices[0].Ports = nil // as Kubernetes leaves it
	partly.Slices = append(partly.Slices, &Slice{Name: "old"})
	union := func(members ...MemberRef) *View {
		return &View{
			Ports:       []ServicePort{{Number: 80, Name: "http", Target: 0}},
			Composition: &Composition{Union: true, Members: members},
		}
	}
	named := func(name string) Service { return Service{"ns", name} }
	publish("local", map[Service]*View{
		named("plain"):      view(ready("10.0.0.1", "p1"), notReady, host, six),
		named("local"):      onNode,
		named("hinted"):     view(hinted("z1", ready("10.0.0.1", "p1")), hinted("z2", ready("10.0.0.2", "p2"))),
		named("targetless"): targetless,
		named("scaled"):     scaled,
		named("partly"):     partly,
		named("alias"):      {ExternalName: true},
		named("fed"): union(
			MemberRef{Ref{"local", named("plain")}, true}, MemberRef{Ref{"east", named("plain")}, false},
			MemberRef{Ref{"west", named("plain")}, false},
			MemberRef{Ref{"south", named("plain")}, false}, MemberRef{Ref{"ghost", named("plain")}, false},
			MemberRef{Ref{"local", named("alias")}, true},
			MemberRef{Ref{"east", named("nothing")}, false},
		),
	})
	publish("east", map[Service]*View{named("plain"): view(ready("10.0.0.1", "other"), ready("10.1.0.1", "e1"))})
	undeclared := view(ready("10.2.0.1", "w1"))
	undeclared.Ports[0].Number = 81
	publish("west", map[Service]*View{named("plain"): undeclared})
	store.MarkClustersListed()
	store.SetState("east", Stale)

	for name, c := range map[string]struct {
		service string
		query   Query
		at      Place
		want    []string
	}{
		"readiness": {
			"plain",
			Query{Port: 80, IPv6: false},
			Place{},
			[]string{"10.0.0.1 included", "10.0.0.2 not ready", "10.0.0.3 included", "fd00::1 IPv6 off"},
		},
		"dual stack": {
			"plain",
			Query{Port: 80, IPv6: true},
			Place{},
			[]string{"10.0.0.1 reached over IPv6", "10.0.0.2 not ready", "10.0.0.3 included", "fd00::1 included"},
		},
		"an instance": {
			"plain",
			Query{Port: 80, Hostname: "h"},
			Place{},
			[]string{"10.0.0.1 other hostname", "10.0.0.2 not ready", "10.0.0.3 included", "fd00::1 other hostname"},
		},
		"a Local policy": {"local", Query{Port: 80}, Place{Node: "n2"}, []string{
			"10.0.0.1 other node, Service is Local", "10.0.0.2 included", "10.0.0.9 not a Pod, Service is Local",
		}},
		"zone hints": {
			"hinted",
			Query{Port: 80},
			Place{Zone: "z2"},
			[]string{"10.0.0.1 topology hints: other zone", "10.0.0.2 included"},
		},
		"hints for a zone without endpoints": {
			"hinted", Query{Port: 80}, Place{Zone: "z3"}, []string{"10.0.0.1 included", "10.0.0.2 included"},
		},
		"a port that leads nowhere": {
			"targetless", Query{Port: 80}, Place{}, []string{"local/targetless/s port not in slice"},
		},
		"a Service that is scaled to zero": {
			"scaled", Query{Port: 80}, Place{}, []string{"local/scaled no endpoints"},
		},
		"a slice that was left without ports": {"partly", Query{Port: 80}, Place{}, []string{"10.0.0.1 included"}},
		"a Service that is not there": {
			"missing", Query{Port: 80}, Place{}, []string{"local/missing no such Service"},
		},
		"an ExternalName": {"alias", Query{Port: 80}, Place{}, []string{"local/alias ExternalName"}},
		"members of a federated Service": {"fed", Query{Port: 80}, Place{}, []string{
			"10.0.0.1 included", "10.0.0.2 not ready", "10.0.0.3 included", "fd00::1 IPv6 off",
			"10.0.0.1 duplicate of local p1", "10.1.0.1 included",
			"west/plain port not declared", "south/plain cluster not synced yet",
			"ghost/plain cluster not linked", "local/alias ExternalName",
			"east/nothing no such Service",
		}},
	} {
		watch := store.Watch(Ref{"local", named(c.service)})
		snapshot, _ := watch.Load()
		watch.Close()
		var got []string
		for _, v := range Explain(snapshot, c.query, c.at) {
			what := string(v.Member.Origin.Cluster) + "/" + v.Member.Origin.Name
			switch {
			case v.Endpoint != nil:
				what = v.Endpoint.Addr.String()
			case v.Slice != nil:
				what += "/" + v.Slice.Name
			}
			what += " " + v.Reason.String()
			if v.Winner != nil {
				what += " of " + string(v.Winner.Origin().Cluster) + " " + v.Winner.Endpoint.Workload.Name
			}
			got = append(got, what)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
