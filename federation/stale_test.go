package federation

import "testing"

// Where two clusters claim an address, the one that is in contact wins over a stale one, and the
// address never leaves.
func TestStaleSortsLast(t *testing.T) {
	s := NewStore()
	s.MarkClustersListed()
	for _, c := range []Cluster{"local", "east", "west"} {
		s.AddCluster(c, Expectation{})
		writer := s.NewWriter(c)
		writer.Set(plain, &View{
			Ports: []ServicePort{{Number: 80, Name: "", Target: 80}},
			Slices: []*Slice{{
				Name:      "s",
				Ports:     []Port{{Number: 80}},
				Endpoints: []*Endpoint{{Addr: addr("10.0.0.1"), Ready: true}},
			}},
		})
		if c == "local" {
			writer.Set(fed, &View{Composition: &Composition{
				Union:   true,
				Members: []MemberRef{{Ref{"east", plain}, false}, {Ref{"west", plain}, false}},
			}})
		}
		writer.MarkSynced()
	}
	w := s.Watch(Ref{"local", fed})
	defer w.Close()
	var selection *Selection
	var set *Set
	for _, step := range []struct {
		cluster  Cluster
		state    ClusterState
		winner   Cluster
		messages int
	}{
		{"west", Suspect, "east", 1},
		{"east", Suspect, "east", 0},
		{"east", Stale, "west", 1},
		{"west", Stale, "east", 1},
		{"west", Live, "west", 1},
		{"east", Live, "east", 1},
	} {
		s.SetState(step.cluster, step.state)
		snapshot, _ := w.Load()
		selection = Select(snapshot, Query{Port: 80}, selection)
		next := selection.At(Place{}, set)
		add, remove := Diff(set, next)
		set = next
		if len(remove) > 0 {
			t.Fatalf("%s becomes %s: %v is withdrawn", step.cluster, step.state, remove)
		}
		if len(add) != step.messages {
			t.Errorf("%s becomes %s: %d entries change, want %d", step.cluster, step.state, len(add), step.messages)
		}
		for e := range set.All() {
			if e.Origin().Cluster != step.winner {
				t.Errorf("%s becomes %s: %s wins, want %s", step.cluster, step.state, e.Origin().Cluster,
					step.winner)
			}
		}
	}
}
