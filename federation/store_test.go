package federation

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// fleet returns a Store of a local cluster and so many linked ones, each with so many Services of one
// endpoint. So many of the Services are federated over all linked clusters, and watched.
func fleet(clusters, services, federated int) (*Store, []Cluster, []*ClusterWriter, []*Watch) {
	store, names := NewStore(), []Cluster{"local"}
	for i := range clusters {
		names = append(names, Cluster(fmt.Sprintf("cluster-%03d", i)))
	}
	var writers []*ClusterWriter
	for _, c := range names {
		store.AddCluster(c, Expectation{})
		writers = append(writers, store.NewWriter(c))
	}
	store.MarkClustersListed()
	var watches []*Watch
	for j := range federated {
		watches = append(watches, federate(store, writers[0], names[1:], j))
	}
	for i, k := range writers {
		fill(k, i, services)
		k.MarkSynced()
	}
	return store, names, writers, watches
}

// federate watches a Service that consists of the j-th of each cluster.
func federate(store *Store, local *ClusterWriter, clusters []Cluster, j int) *Watch {
	composition := &Composition{Union: true}
	for _, c := range clusters {
		composition.Members = append(composition.Members, MemberRef{Ref: Ref{c, numbered(j)}})
	}
	svc := Service{"ns", numbered(j).Name + "-federated"}
	local.Set(svc, &View{Ports: []ServicePort{{Number: 80, Name: "http", Target: 8080}}, Composition: composition})
	return store.Watch(Ref{"local", svc})
}

func numbered(j int) Service { return Service{"ns", fmt.Sprintf("svc-%05d", j)} }

func fill(k *ClusterWriter, cluster, services int) {
	for j := range services {
		k.Set(numbered(j), oneEndpoint(cluster, j))
	}
}

func oneEndpoint(cluster, n int) *View {
	return &View{
		Ports: []ServicePort{{Number: 80, Name: "http", Target: 8080}},
		Slices: []*Slice{{Name: "s", Ports: []Port{port(8080, "http")}, Endpoints: []*Endpoint{
			{Addr: addr(fmt.Sprintf("10.%d.%d.%d", cluster, n>>8&0xff, n&0xff)), Ready: true},
		}}},
	}
}

// A policy concerns what is watched of the cluster, and wakes no reader if it is the same as before. Regions
// are compared with that of the Service's own cluster, which need not be a member.
func TestSetPolicy(t *testing.T) {
	store, _, _, watches := fleet(2, 2, 1)
	store.SetPolicy("ghost", policy.ForCluster{Drained: 5})
	if p := store.Policy("ghost"); p != (policy.ForCluster{}) {
		t.Errorf("a cluster that was not added has the policy %v", p)
	}
	for _, step := range []struct {
		cluster Cluster
		policy  policy.ForCluster
		same    bool
		drained uint8 // of the first member
		near    [2]bool
	}{
		{"cluster-000", policy.ForCluster{}, true, 0, [2]bool{}},
		{"cluster-000", policy.ForCluster{Drained: 5}, false, 5, [2]bool{}},
		{"cluster-000", policy.ForCluster{Drained: 5}, true, 5, [2]bool{}},
		{"cluster-000", policy.ForCluster{Region: "eu"}, false, 0, [2]bool{}},
		{"cluster-001", policy.ForCluster{Region: "us"}, false, 0, [2]bool{}},
		{"local", policy.ForCluster{Region: "us"}, false, 0, [2]bool{false, true}},
		{"local", policy.ForCluster{Region: "us", WhenStale: policy.Keep}, true, 0, [2]bool{false, true}},
		{"local", policy.ForCluster{Region: "eu"}, false, 0, [2]bool{true, false}},
		{"local", policy.ForCluster{}, false, 0, [2]bool{}},
	} {
		before, _ := watches[0].Load()
		store.SetPolicy(step.cluster, step.policy)
		if p := store.Policy(step.cluster); p != step.policy {
			t.Errorf("the policy is %v, want %v", p, step.policy)
		}
		after, _ := watches[0].Load()
		if (before == after) != step.same {
			t.Errorf("%s %v: the same Snapshot: %t", step.cluster, step.policy, before == after)
		}
		var drained uint8
		if p := after.Members[0].Policy; p != nil {
			drained = p.Drained
		}
		if near := [2]bool{after.Members[0].Near, after.Members[1].Near}; drained != step.drained || near != step.near {
			t.Errorf("%s %v: drained %d, near %v", step.cluster, step.policy, drained, near)
		}
	}
	store.SetPolicy("cluster-000", policy.ForCluster{Drained: 100})
	store.RemoveCluster("cluster-000")
	store.AddCluster("cluster-000", Expectation{})
	if p := store.Policy("cluster-000"); p != (policy.ForCluster{}) {
		t.Errorf("a cluster that was added again has the policy %v", p)
	}
}

// A cluster is Connecting until its first sync makes it Live, unless another state was set before.
func TestStateFollowsTheFirstSync(t *testing.T) {
	store := NewStore()
	for c, set := range map[Cluster]ClusterState{"new": "", "lost": Stale} {
		store.AddCluster(c, Expectation{})
		writer := store.NewWriter(c)
		if state := store.State(c); state != Connecting {
			t.Errorf("%s is %s when it was added", c, state)
		}
		want := Live
		if set != "" {
			store.SetState(c, set)
			want = set
		}
		writer.MarkSynced()
		if state := store.State(c); state != want {
			t.Errorf("%s is %s after its first sync, not %s", c, state, want)
		}
	}
}

// What is repeated costs nothing: it allocates nothing, however many Services name the cluster, and
// publishes nothing.
func TestRepeatedStateIsFree(t *testing.T) {
	store, names, writers, watches := fleet(20, 50, 50)
	store.SetState(names[1], Suspect)
	version := store.version
	for what, repeat := range map[string]func(){
		"Stand":    func() { store.SetState(names[1], Suspect) },
		"Expect":   func() { store.AddCluster(names[1], Expectation{}) },
		"Listed":   store.MarkClustersListed,
		"Complete": writers[1].MarkSynced,
	} {
		if n := testing.AllocsPerRun(10, repeat); n > 2 {
			t.Errorf("%s of what is known makes %v allocations", what, n)
		}
	}
	_, superseded := watches[0].Load()
	store.SetState(names[1], Live)
	store.SetState(names[1], Suspect)
	select {
	case <-superseded:
		t.Error("a cluster that is Suspect and Live again wakes readers")
	default:
	}
	if store.version != version {
		t.Errorf("%d Snapshots were published for nothing", store.version-version)
	}
	if store.State(names[1]) != Suspect || store.State("missing") != Live {
		t.Error("the state cannot be read")
	}
}

// One operation publishes one Snapshot of a Service, whatever part of it changes.
func TestOneOperationOneSnapshot(t *testing.T) {
	store, local := NewStore(), Cluster("local")
	store.AddCluster(local, Expectation{})
	store.AddCluster("east", Expectation{})
	k, east := store.NewWriter(local), store.NewWriter("east")
	k.Set(fed, &View{Composition: &Composition{Union: true, Members: []MemberRef{
		{Ref{local, plain}, true},
		{Ref{"east", plain}, false},
		{Ref{"east", other}, false},
		{Ref{"east", mirror}, false},
	}}})
	for _, svc := range []Service{plain, other, mirror} {
		east.Set(svc, oneEndpoint(1, 1))
	}
	watch := store.Watch(Ref{local, fed})
	for what, operation := range map[string]func(){
		"Stand":                     func() { store.SetState("east", Stale) },
		"Expect":                    func() { store.AddCluster("east", Expectation{TrustDomain: "another"}) },
		"Forget":                    func() { store.RemoveCluster("east") },
		"Complete that withdraws 3": func() { east = store.NewWriter("east"); east.MarkSynced() },
		"Listed":                    store.MarkClustersListed,
	} {
		t.Run(what, func(t *testing.T) {
			if store.cluster("east") == nil {
				store.AddCluster("east", Expectation{})
			}
			store.SetState("east", Live)
			again := store.NewWriter("east")
			for _, svc := range []Service{plain, other, mirror} {
				again.Set(svc, oneEndpoint(1, 1))
			}
			again.MarkSynced()
			before := store.version
			_, superseded := watch.Load()
			operation()
			published := store.version - before
			select {
			case <-superseded:
				if published != 1 {
					t.Errorf("%d Snapshots were published", published)
				}
			default:
				if published != 0 || what != "Listed" { // it changes nothing for those that are expected
					t.Errorf("no waiter was woken for %d Snapshots", published)
				}
			}
		})
	}
}

// A cluster that joins in front of others leaves them their Members, so that all that was made of them
// is kept.
func TestMembersKeepTheirPointers(t *testing.T) {
	store, names, writers, watches := fleet(3, 1, 1)
	before, _ := watches[0].Load()
	store.AddCluster("a-newcomer", Expectation{})
	federate(store, writers[0], append([]Cluster{"a-newcomer"}, names[1:]...), 0).Close()
	after, _ := watches[0].Load()
	if !slices.Equal(after.Members[1:], before.Members) {
		t.Error("members that did not change were made anew")
	}
}

// Of a cluster that becomes Stale and is Live again no Entry is made anew, and where it claims alone
// the Set stays the same.
func TestStaleKeepsEntries(t *testing.T) {
	store, names, _, watches := fleet(2, 1, 1)
	query := Query{Port: 80}
	snapshot, _ := watches[0].Load()
	x := Select(snapshot, query, nil)
	set := x.At(Place{}, nil)
	for _, state := range []ClusterState{Suspect, Stale, Live} {
		store.SetState(names[1], state)
		snapshot, _ = watches[0].Load()
		next := Select(snapshot, query, x)
		if !slices.Equal(next.parts[part{}], x.parts[part{}]) {
			t.Errorf("%s: entries were made anew", state)
		}
		if near := next.At(Place{}, set); near != set {
			t.Errorf("%s: the Set is another", state)
		}
		x = next
	}
}

// Those who wait are woken when the lock is released: there may be very many of them.
func TestWakeWithoutTheLock(t *testing.T) {
	store := NewStore()
	store.AddCluster("local", Expectation{Local: true})
	k := store.NewWriter("local")
	service := store.Watch(Ref{"local", plain})
	_, woken := service.Load()
	store.mu.Lock()
	k.replace(plain, oneEndpoint(1, 1), Size{}, heldLater{})
	if watch.IsClosed(woken) {
		t.Error("a reader is woken under the lock")
	}
	store.unlock()
	if !watch.IsClosed(woken) {
		t.Error("a reader is not woken")
	}
	service.Close()
}

// indexed fails if the index of what is watched is not what a scan of all that is watched finds.
func indexed(t *rapid.T, s *Store) {
	n := 0
	for ref, h := range s.heads {
		newest, _ := h.snapshot.Load()
		if h.ref != ref || h.draft != nil || newest.Ref != ref {
			t.Fatalf("index: the head of %v is that of %v, with %v and the draft %v", ref, h.ref, newest, h.draft)
		}
		for i, m := range newest.Members {
			if !slices.Contains(s.uses[m.Origin.Cluster][m.Origin.Service], use{h, i}) {
				t.Fatalf("index: member %d of %v, %v, is not in it", i, ref, m.Origin.MemberRef)
			}
			n++
		}
	}
	for _, services := range s.uses {
		for _, uses := range services {
			n -= len(uses)
		}
	}
	if n != 0 {
		t.Fatalf("index: %d uses too many", -n)
	}
}
