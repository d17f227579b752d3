package federation

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
	"unique"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// A small world, so that collisions are the rule.
var (
	clusters = []Cluster{"local", "east", "west"}
	plain    = Service{"ns", "a"}
	other    = Service{"ns", "b"}
	fed      = Service{"ns", "a-federated"}
	mirror   = Service{"ns", "a-east"}
	services = []Service{plain, other, fed, mirror}
	queries  = []Query{
		{Port: 80, IPv6: true},
		{Port: 80, IPv6: true},
		{Port: 81, IPv6: true},
		{Port: 80},
		{Port: 80, Hostname: "h", IPv6: true},
		{Port: 99, IPv6: true},
		{Port: 80, IPv6: true, ControlPlane: "linkerd"},
		{Port: 80, IPv6: true, ZoneWeights: true},
	}
	zones = []string{"", "z1", "z2"}
	nodes = []string{"", "n1", "n2"}

	whenStale = []policy.WhenStale{policy.Unset, policy.Last, policy.Drop}
)

func drawView(t *rapid.T, svc Service) *View {
	v := &View{
		LocalOnly:    rapid.Float64().Draw(t, "local") < .2,
		ExternalName: rapid.Float64().Draw(t, "external") < .05,
		Opaque:       rapid.SampledFrom([]Ports{{}, {}, PortsOf(), PortsOf(PortRange{80, 80})}).Draw(t, "opaque"),
		Ports: rapid.SampledFrom([][]ServicePort{
			{{80, TCP, "http", 0, ""}},
			{{80, TCP, "http", 8080, ""}},
			{{80, TCP, "http", 8080, ""}, {81, TCP, "alt", 8081, ""}},
			{{80, TCP, "", 0, ""}},
			{{80, TCP, "web", 8080, ""}},
			{{80, TCP, "http", 0, "h2c"}},
			{{80, TCP, "http", 0, "http"}, {81, TCP, "alt", 8081, "h2c"}},
			{{80, TCP, "alt", 8080, ""}},
			{{80, UDP, "http", 8080, ""}},
			{{80, TCP, "alt", 0, ""}, {80, UDP, "http", 0, ""}},
			{{80, UDP, "http", 0, ""}, {80, SCTP, "alt", 8081, ""}},
			nil,
		}).Draw(t, "ports"),
	}
	if svc == fed {
		v.Policy = drawPolicy(t)
	}
	// Hints count only where every address has some.
	hinted := rapid.SampledFrom([]string{"all", "none", "some"}).Draw(t, "hinted")
	for _, name := range []string{"s1", "s2"} {
		if rapid.Float64().Draw(t, name) < .8 {
			v.Slices = append(v.Slices, drawSlice(t, name, hinted))
		}
	}
	if (svc == fed || svc == mirror) && rapid.Float64().Draw(t, "composed") < .9 {
		v.Composition = &Composition{Union: svc == fed}
		all := []MemberRef{
			{Ref{"local", plain}, true},
			{Ref{"local", other}, rapid.Bool().Draw(t, "filtered")},
			{Ref{"east", plain}, false},
			{Ref{"west", plain}, false},
			{Ref{"ghost", plain}, false},
		}
		n := 1
		if v.Composition.Union {
			n = rapid.IntRange(0, len(all)).Draw(t, "members")
		}
		v.Composition.Members = rapid.Permutation(all).Draw(t, "terms")[:n]
	} else if rapid.Float64().Draw(t, "malformed") < .05 {
		v.Malformed = "it is"
	}
	return v
}

// drawPolicy returns the policy of a Service; nil for none.
func drawPolicy(t *rapid.T) *policy.Service {
	local, others := policy.Tier{Local: true}, policy.Tier{Others: true}
	return rapid.SampledFrom([]*policy.Service{
		nil, nil, nil,
		{Prefer: []policy.Tier{local, others}},
		{Prefer: []policy.Tier{{Clusters: []string{"west"}}, local}, Capacity: 6},
		{Prefer: []policy.Tier{{Region: true}, others}},
		{Weights: []policy.Weight{{Cluster: "east", Weight: 3}, {Cluster: "local", Weight: 1}}},
		{WhenStale: policy.Drop},
	}).Draw(t, "policy")
}

func drawSlice(t *rapid.T, name, hinted string) *Slice {
	s := &Slice{
		Name: name,
		Ports: rapid.SampledFrom([][]Port{
			{port(8080, "http")},
			{port(8080, "http")},
			{port(8080, "http"), port(8081, "alt")},
			{port(8080, "")},
			{{Number: 8080, Protocol: UDP, Name: "http"}, {Number: 8080, Protocol: SCTP, Name: "alt"}},
			{{Number: 8081, Protocol: UDP, Name: "http"}, port(8080, "alt")},
			nil,
		}).Draw(t, "targets"),
	}
	for range rapid.IntRange(1, 4).Draw(t, "n") {
		e := &Endpoint{
			Addr: rapid.SampledFrom([]netip.Addr{
				addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.3"), addr("fd00::1"), addr("fd00::2"),
			}).Draw(t, "addr"),
			Ready:       rapid.Float64().Draw(t, "ready") < .8,
			Serving:     rapid.Float64().Draw(t, "serving") < .8,
			Terminating: rapid.Float64().Draw(t, "terminating") < .2,
			Copied:      rapid.Float64().Draw(t, "copied") < .2,
			Zone:        NameOf(rapid.SampledFrom(zones).Draw(t, "zone")),
		}
		detail := &Detail{Hostname: rapid.SampledFrom([]string{"", "h"}).Draw(t, "hostname")}
		if hinted == "all" || hinted == "some" && rapid.Bool().Draw(t, "has hint") {
			detail.Hints = []string{rapid.SampledFrom(zones[1:]).Draw(t, "hint")}
		}
		e.Detail = detail.OrNone()
		if rapid.Bool().Draw(t, "pod") {
			cohort := Cohort{
				Kind:      rapid.SampledFrom([]WorkloadKind{Pod, Pod, ExternalWorkload}).Draw(t, "kind"),
				Namespace: "ns",
			}
			name := rapid.SampledFrom([]string{"p1", "p2", "p3"}).Draw(t, "pod")
			cohort.Template = unique.Make(Template{
				ControlPlane: rapid.SampledFrom([]string{"", "linkerd", "another"}).Draw(t, "mesh"),
			})
			e.Workload = new(cohort.Workload(name))
			e.Node = NameOf(rapid.SampledFrom(nodes).Draw(t, "node"))
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// touch changes one thing about one endpoint of v, or which there are.
func touch(t *rapid.T, v *View) {
	if len(v.Slices) == 0 || len(v.Slices[0].Endpoints) == 0 {
		t.Skip("nothing to touch")
	}
	s := v.Slices[0]
	switch e := s.Endpoints[0]; rapid.IntRange(0, 7).Draw(t, "field") {
	case 0:
		e.Zone = NameOf(e.Zone.String() + "x")
	case 1:
		e.Ready = !e.Ready
	case 2:
		e.Detail = &Detail{Hints: []string{"z2"}, Hostname: e.Hostname(), Mirror: e.Mirror()}
	case 3:
		e.Detail = &Detail{Hints: e.Hints(), Hostname: e.Hostname(), Mirror: &Mirror{Identity: "gateway"}}
	case 4:
		e.Workload = podOf("p9", Template{})
	case 5:
		s.Ports = []Port{{Number: 9090, Name: "http"}}
	case 6:
		s.Endpoints = slices.Insert(s.Endpoints, rapid.IntRange(0, len(s.Endpoints)).Draw(t, "at"),
			drawSlice(t, "s1", "some").Endpoints...)
	case 7:
		if s.Endpoints = slices.Delete(s.Endpoints, 0, 1); len(s.Endpoints) == 0 {
			s.Endpoints = nil
		}
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// clone returns an equal View without a pointer in common.
func clone(v *View) *View {
	n := *v
	n.Slices = nil
	for _, s := range v.Slices {
		c := &Slice{Name: s.Name, Ports: slices.Clone(s.Ports)}
		for _, e := range s.Endpoints {
			d := *e
			if e.Workload != nil {
				w := *e.Workload
				d.Workload = &w
			}
			if e.Detail != nil {
				detail := *e.Detail
				d.Detail = &detail
			}
			c.Endpoints = append(c.Endpoints, &d)
		}
		n.Slices = append(n.Slices, c)
	}
	if v.Composition != nil {
		c := *v.Composition
		n.Composition = &c
	}
	return &n
}

// reader is a stream: it holds what it was sent, and comes back when it likes.
type reader struct {
	ref       Ref
	query     Query
	place     Place
	watch     *Watch
	selection *Selection // of its last visit: the base of the next
	last      *Set
	answer    *Answer // that last is of
	holds     map[netip.AddrPort]string

	declaration *Declaration // what it has loaded, by value, and the channel that it waits on
	declared    <-chan struct{}

	versions uint64
	frozen   *Set // a copy of last, by value
}

func (r *reader) read(t *rapid.T, m *model) {
	snapshot, _ := r.watch.Load()
	if snapshot.Version < r.versions {
		t.Fatalf("version went back from %d to %d", r.versions, snapshot.Version)
	}
	r.versions = snapshot.Version
	if r.last != nil && !slices.Equal(describeAll(r.last), describeAll(r.frozen)) {
		t.Fatal("immutability: a Set changed after it was handed out")
	}

	next := Select(snapshot, r.query, r.selection)
	answer := next.Answer(next.Reduce(r.place), r.answer)
	set := answer.Set
	if answer.Snapshot != snapshot || answer.Version != snapshot.Version {
		t.Fatal("one answer: it is of another Snapshot")
	}
	if want := m.state(r.ref, set.Len()); answer.State != want {
		t.Fatalf("the answer is %s, want %s", answer.State, want)
	}
	fresh := Select(snapshot, r.query, nil)
	if anew := text(fresh.At(fresh.Reduce(r.place), nil)); !maps.Equal(anew, text(set)) {
		t.Fatalf("purity: what a Set was computed from shows\nanew: %v\nhere: %v", anew, text(set))
	}
	if full := next.At(r.place, nil); !maps.Equal(text(full), text(set)) {
		t.Fatal("Reduce leaves out what the answer depends on")
	}
	if r.last != nil && set != r.last && maps.Equal(text(set), text(r.last)) {
		t.Fatal("an equal Set lost its pointer")
	}

	if snapshot.Declared(r.query.Port) == 0 {
		query, served := r.query, map[netip.AddrPort]*Endpoint{}
		query.Port = 0
		for e := range Select(snapshot, query, nil).At(r.place, nil).All() {
			served[e.At(r.query.Port)] = e.Endpoint
		}
		for e := range set.All() {
			// The Set may be an earlier one, with an equal endpoint of another slice.
			if other := served[e.Addr]; other == nil || !other.equalAt(r.query.Port, e.Endpoint) {
				t.Fatalf("%s is not served at a port that is not declared", e.Addr)
			}
		}
		if len(served) != set.Len() {
			t.Fatalf("%d addresses at a port that is not declared, and %d at any", set.Len(), len(served))
		}
	}

	explains(t, snapshot, r.query, r.place, set)

	add, remove := Diff(r.last, set)
	for _, a := range remove {
		if _, held := r.holds[a]; !held {
			t.Fatalf("a removal of %s, which is not held", a)
		}
		delete(r.holds, a)
	}
	for _, e := range add {
		if r.holds[e.Addr] == describe(e) {
			t.Fatalf("what is held is sent again: %s", describe(e))
		}
		r.holds[e.Addr] = describe(e)
	}
	r.selection, r.last, r.answer = next, set, answer
	r.frozen = deepCopy(set)
	if want := m.answer(r.ref, r.query, r.place); !maps.Equal(r.holds, want) {
		t.Fatalf("replay: the reader of %v %v at %v\nholds %v\nwant  %v", r.ref, r.query, r.place, r.holds, want)
	}
}

// follow loads the Declaration, as one who waits for nothing else does.
func (r *reader) follow(t *rapid.T, m *model) {
	var woken bool
	select {
	case <-r.declared:
		woken = true
	default:
	}
	first, before := r.declared == nil, r.declaration
	var d *Declaration
	if d, r.declared = r.watch.Declaration(); d != nil {
		r.declaration = &Declaration{d.ExternalName, slices.Clone(d.Ports), d.Opaque, slices.Clone(d.Imported)}
	} else {
		r.declaration = nil
	}
	if same := reflect.DeepEqual(before, r.declaration); !first && woken == same {
		t.Fatalf("declaration: a reader of %v is woken: %v; from %v to %v", r.ref, woken, before, r.declaration)
	}
	var want *Declaration
	if v := m.view(r.ref); v != nil {
		want = &Declaration{v.ExternalName, slices.Clone(v.Ports), v.Opaque, m.imported(r.ref)}
	}
	if !reflect.DeepEqual(r.declaration, want) {
		t.Fatalf("declaration: %v is %v, want %v", r.ref, r.declaration, want)
	}
}

func describeAll(s *Set) (out []string) {
	for e := range s.All() {
		out = append(out, describe(e))
	}
	return out
}

func deepCopy(s *Set) *Set {
	var entries []*Entry
	for e := range s.All() {
		n, o, end := *e.Entry, *e.origin, *e.Endpoint
		n.origin, n.Endpoint = &o, &end
		entries = append(entries, &n)
	}
	return &Set{entries: entries, size: s.Len(), lens: s.lens}
}

// openWriter is a ClusterWriter that was returned, fenced ones included: they keep trying.
type openWriter struct {
	*ClusterWriter
	alive bool
}

// explains fails if an explanation does not give every claim of the members one Verdict, or keeps other
// claims than set has.
func explains(t *rapid.T, s *Snapshot, q Query, l Place, set *Set) {
	kept := map[netip.AddrPort]string{}
	covered := map[*Endpoint]int{} // of the first slice that it stands in
	for _, v := range Explain(s, q, l) {
		claims := []*Endpoint{v.Endpoint}
		if v.Endpoint == nil {
			if claims = nil; v.Slice != nil {
				claims = v.Slice.Endpoints
			} else if v.Member.View != nil {
				for _, slice := range v.Member.View.Slices {
					claims = append(claims, slice.Endpoints...)
				}
			}
		}
		for _, e := range claims {
			covered[e]++
		}
		if v.Reason == Kept {
			if _, twice := kept[v.Entry.Addr]; twice {
				t.Fatalf("explain: %s is kept twice", v.Entry.Addr)
			}
			kept[v.Entry.Addr] = describe(set.lens.choice(v.Entry))
		}
		if v.Reason == Duplicate && (v.Winner.Addr != v.Entry.Addr) {
			t.Fatalf("explain: %s loses to %s", v.Entry.Addr, v.Winner.Addr)
		}
	}
	if want := text(set); !maps.Equal(kept, want) {
		t.Fatalf("explain keeps %v\nthe Set is   %v", kept, want)
	}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, slice := range m.View.Slices {
			for _, e := range slice.Endpoints {
				if covered[e]--; covered[e] < 0 {
					t.Fatalf("explain lacks %v", *e)
				}
			}
		}
	}
	for e, n := range covered {
		if n != 0 {
			t.Fatalf("explain lacks, or has too often, %d entries of %v", n, *e)
		}
	}
}

// TestLaws runs a Store beside the model: replay, explain, purity, succession, reference count,
// silence, immutability, ignorance, index, declaration, and at the end absence and empty.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, m := NewStore(), &model{clusters: map[Cluster]*modelCluster{}}
		writers := map[Cluster][]*openWriter{}
		silence := func(c Cluster) {
			for _, v := range writers[c] {
				v.alive = false
			}
		}
		var readers []*reader
		drawCluster := func(t *rapid.T) Cluster { return rapid.SampledFrom(clusters).Draw(t, "cluster") }
		drawWriter := func(t *rapid.T, c Cluster) *openWriter {
			if len(writers[c]) == 0 {
				t.Skip("it has no writer yet")
			}
			return rapid.SampledFrom(writers[c]).Draw(t, "writer")
		}
		// quiet runs f and fails if it wakes a reader.
		quiet := func(t *rapid.T, what string, f func()) {
			var woken []<-chan struct{}
			for _, r := range readers {
				_, superseded := r.watch.Load()
				woken = append(woken, superseded)
			}
			f()
			for _, w := range woken {
				select {
				case <-w:
					t.Fatalf("silence: %s woke a reader", what)
				default:
				}
			}
		}
		expect := func(t *rapid.T, c Cluster) {
			domain := rapid.SampledFrom([]string{"one", "two"}).Draw(t, "domain")
			e := Expectation{TrustDomain: domain, Since: time.Unix(1, 0)}
			s.AddCluster(c, e)
			if m.clusters[c] == nil {
				m.clusters[c] = &modelCluster{views: map[Service]*View{}}
			}
			m.clusters[c].domain = domain
			quiet(t, "the same expectation", func() { s.AddCluster(c, e) })
		}
		take := func(t *rapid.T, c Cluster) {
			silence(c)
			quiet(t, "a take-over", func() {
				writers[c] = append(writers[c], &openWriter{s.NewWriter(c), m.clusters[c] != nil})
			})
			if m.clusters[c] != nil {
				m.clusters[c].written = map[Service]bool{}
			}
		}
		set := func(t *rapid.T, c Cluster, w *openWriter, svc Service, v *View) {
			kept, pointers := clone(v), slices.Clone(v.Slices)
			set := func() { w.Set(svc, v) }
			if w.alive {
				set()
			} else {
				quiet(t, "a fenced writer", set)
			}
			if !reflect.DeepEqual(v, kept) || !slices.Equal(v.Slices, pointers) {
				t.Fatal("immutability: Set changed its argument")
			}
			if w.alive {
				m.clusters[c].views[svc] = v
				if m.clusters[c].written != nil {
					m.clusters[c].written[svc] = true
				}
				quiet(t, "the same View", func() { w.Set(svc, clone(v)) })
			}
		}
		open := func(t *rapid.T) {
			r := &reader{
				ref: Ref{
					rapid.SampledFrom([]Cluster{"local", "local", "east"}).Draw(t, "home"),
					rapid.SampledFrom([]Service{fed, fed, plain, other, mirror}).Draw(t, "service"),
				},
				query: rapid.SampledFrom(queries).Draw(t, "query"),
				place: Place{
					Node: rapid.SampledFrom(nodes).Draw(t, "node"), Zone: rapid.SampledFrom(zones).Draw(t, "zone"),
					Bucket:    uint8(rapid.IntRange(0, policy.Buckets-1).Draw(t, "bucket")),
					Sixteenth: uint8(rapid.IntRange(0, policy.Buckets-1).Draw(t, "sixteenth")),
				},
				holds: map[netip.AddrPort]string{},
			}
			r.watch = s.Watch(r.ref)
			readers = append(readers, r)
			r.read(t, m)
		}
		read := func(t *rapid.T) { // one of them; the others sleep through versions
			if len(readers) == 0 {
				t.Skip("no reader")
			}
			rapid.SampledFrom(readers).Draw(t, "reader").read(t, m)
		}
		for _, c := range clusters { // a world in which something is going on
			if rapid.Float64().Draw(t, "linked") < .9 {
				expect(t, c)
				take(t, c)
				for _, svc := range services {
					set(t, c, writers[c][0], svc, drawView(t, svc))
				}
			}
		}
		for range 3 {
			open(t)
		}
		anySet := func(t *rapid.T) {
			c, svc := drawCluster(t), rapid.SampledFrom(services).Draw(t, "service")
			set(t, c, drawWriter(t, c), svc, drawView(t, svc))
		}
		t.Repeat(map[string]func(*rapid.T){
			"listed": func(*rapid.T) { m.listed = true; s.MarkClustersListed() },
			"expect": func(t *rapid.T) { expect(t, drawCluster(t)) },
			"claim":  func(t *rapid.T) { take(t, drawCluster(t)) },
			"set":    anySet,
			"set 2":  anySet, // the action that matters most
			"touch": func(t *rapid.T) {
				c, svc := drawCluster(t), rapid.SampledFrom(services).Draw(t, "service")
				w := drawWriter(t, c)
				if m.clusters[c] == nil || m.clusters[c].views[svc] == nil {
					t.Skip("nothing to touch")
				}
				v := clone(m.clusters[c].views[svc])
				touch(t, v)
				set(t, c, w, svc, v)
			},
			"open":   open,
			"read":   read,
			"read 2": read,
			"stand": func(t *rapid.T) {
				c, st := drawCluster(t), rapid.SampledFrom([]ClusterState{Live, Suspect, Stale}).Draw(t, "state")
				if (s.State(c) == Stale) == (st == Stale) {
					quiet(t, "a state that is as good", func() { s.SetState(c, st) })
				}
				s.SetState(c, st)
				if m.clusters[c] != nil {
					m.clusters[c].state = st
				}
				quiet(t, "the same state", func() { s.SetState(c, st) })
			},
			"policy": func(t *rapid.T) {
				c, p := drawCluster(t), policy.ForCluster{
					WhenStale: rapid.SampledFrom(whenStale).Draw(t, "when"),
					Drained:   rapid.SampledFrom([]uint8{0, 50, 100}).Draw(t, "drained"),
					Region:    rapid.SampledFrom([]string{"", "eu"}).Draw(t, "region"),
				}
				s.SetPolicy(c, p)
				if m.clusters[c] != nil {
					m.clusters[c].policy = p
				}
				quiet(t, "the same policy", func() { s.SetPolicy(c, p) })
			},
			"delete": func(t *rapid.T) {
				c, svc := drawCluster(t), rapid.SampledFrom(services).Draw(t, "service")
				w := drawWriter(t, c)
				w.Delete(svc)
				if w.alive {
					delete(m.clusters[c].views, svc)
				}
				quiet(t, "a second Delete", func() { w.Delete(svc) })
			},
			"complete": func(t *rapid.T) {
				c := drawCluster(t)
				w := drawWriter(t, c)
				w.MarkSynced()
				if w.alive && m.clusters[c].written != nil {
					k := m.clusters[c]
					maps.DeleteFunc(k.views, func(svc Service, _ *View) bool { return !k.written[svc] })
					k.written, k.complete = nil, true
				}
				quiet(t, "a second MarkSynced", w.MarkSynced)
			},
			"forget": func(t *rapid.T) {
				c := drawCluster(t)
				s.RemoveCluster(c)
				silence(c)
				delete(m.clusters, c)
			},
			"close": func(t *rapid.T) {
				if len(readers) == 0 {
					t.Skip("no reader")
				}
				i := rapid.IntRange(0, len(readers)-1).Draw(t, "reader")
				readers[i].watch.Close()
				readers = slices.Delete(readers, i, i+1)
			},
			"": func(t *rapid.T) {
				indexed(t, s)
				for _, r := range readers {
					r.follow(t, m)
					snapshot, _ := r.watch.Load()
					var unknown []Cluster
					for _, u := range snapshot.Unknown() {
						unknown = append(unknown, u.Origin.Cluster)
					}
					if want := m.unknown(r.ref); !slices.Equal(unknown, want) {
						t.Fatalf("ignorance: %v has unknown members %v, want %v", r.ref, unknown, want)
					}
				}
			},
		})

		for _, r := range readers {
			r.read(t, m)
		}
		// Absence: a Store that gets only the survivors' Views, in another order, has the same state.
		gone := rapid.SampledFrom(clusters).Draw(t, "gone")
		s.RemoveCluster(gone)
		delete(m.clusters, gone)
		anew := NewStore()
		if m.listed {
			anew.MarkClustersListed()
		}
		for _, c := range rapid.Permutation(clusters).Draw(t, "order") {
			k := m.clusters[c]
			if k == nil {
				continue
			}
			anew.AddCluster(c, Expectation{TrustDomain: k.domain, Since: time.Unix(1, 0)})
			anew.SetState(c, k.state)
			anew.SetPolicy(c, k.policy)
			writer := anew.NewWriter(c)
			for _, svc := range rapid.Permutation(services).Draw(t, "services") {
				if v := k.views[svc]; v != nil {
					writer.Set(svc, clone(v))
				}
			}
			if k.complete {
				writer.MarkSynced()
			}
		}
		for _, r := range readers {
			r.read(t, m)
			w := anew.Watch(r.ref)
			snapshot, _ := w.Load()
			x := Select(snapshot, r.query, nil)
			if got := text(x.At(r.place, nil)); !maps.Equal(got, r.holds) {
				t.Fatalf("absence of %s: a store that never had it has %v, this one %v", gone, got, r.holds)
			}
			w.Close()
			r.watch.Close()
		}
		// Empty: no writers and no watchers, no records.
		for _, c := range clusters {
			s.RemoveCluster(c)
		}
		if n := len(*s.clusters.Load()) + len(s.uses) + len(s.heads); n != 0 {
			t.Fatalf("empty: %d records are left: %v %v %v", n, *s.clusters.Load(), s.uses, s.heads)
		}
	})
}

func port(number uint16, name string) Port { return Port{Number: number, Name: name, Protocol: TCP} }
