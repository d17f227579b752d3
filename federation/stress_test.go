package federation

import (
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"
)

// TestPublishThenWake: writers of several clusters and readers at their own pace, all at once. A reader
// that waits on what it loaded never sees a version go back and, once the writers are done, is never
// left waiting on anything but the newest: it holds what a reader holds that comes afterwards. Run it
// with -race.
func TestPublishThenWake(t *testing.T) {
	const rounds, readers = 300, 16
	names := []Cluster{"local", "east", "west"}
	svc, union := Service{"ns", "a"}, Service{"ns", "a-federated"}
	store := NewStore()
	for _, c := range names {
		store.AddCluster(c, Expectation{})
	}
	store.MarkClustersListed()

	// In round n a cluster claims one address: the round's, so that the last one shows that nothing was
	// missed.
	view := func(cluster, round int) *View {
		return &View{
			Ports: []ServicePort{{Number: 80, Name: "", Target: 80}},
			Slices: []*Slice{{Name: "s", Ports: []Port{{Number: 80}}, Endpoints: []*Endpoint{
				{Addr: netip.AddrFrom4([4]byte{10, byte(cluster), byte(round >> 8), byte(round)}), Ready: true},
			}}},
		}
	}
	var writing, reading sync.WaitGroup
	for i, c := range names {
		writing.Go(func() {
			writer := store.NewWriter(c)
			for round := range rounds {
				if round%50 == 49 { // an engagement takes over from another
					writer.Delete(svc)
					writer = store.NewWriter(c)
				}
				if i == 0 {
					terms := []MemberRef{
						{Ref{"local", svc}, true}, {Ref{"east", svc}, false}, {Ref{"west", svc}, false},
					}
					writer.Set(union, &View{
						Ports:       []ServicePort{{Number: 80, Name: "", Target: 80}},
						Composition: &Composition{true, terms[:1+round%3]},
					})
				}
				writer.Set(svc, view(i, round))
				if round%50 == 49 {
					writer.MarkSynced()
				}
				store.SetState(c, []ClusterState{Live, Suspect}[round%2])
			}
			store.SetState(c, Live)
		})
	}
	done := make(chan struct{})
	read := func(stop <-chan struct{}) (map[netip.AddrPort]string, error) {
		watch := store.Watch(Ref{"local", union})
		defer watch.Close()
		var selection *Selection
		var set *Set
		held := map[netip.AddrPort]string{}
		for version := uint64(0); ; {
			snapshot, superseded := watch.Load()
			if snapshot.Version <= version {
				return nil, fmt.Errorf("woken on version %d, found %d", version, snapshot.Version)
			}
			version = snapshot.Version
			selection = Select(snapshot, Query{Port: 80}, selection)
			next := selection.At(Place{}, set)
			add, remove := Diff(set, next)
			for _, a := range remove {
				delete(held, a)
			}
			for _, e := range add {
				held[e.Addr] = describe(e)
			}
			set = next
			select {
			case <-superseded: // first, so that only a reader of the newest stops
				continue
			default:
			}
			select {
			case <-superseded:
			case <-stop:
				select {
				case <-superseded:
				default:
					return held, nil
				}
			}
		}
	}
	results := make([]map[netip.AddrPort]string, readers)
	errs := make([]error, readers)
	for i := range readers {
		reading.Go(func() { results[i], errs[i] = read(done) })
	}
	writing.Wait()
	close(done)
	reading.Wait()
	stopped := make(chan struct{})
	close(stopped)
	want, err := read(stopped)
	if err != nil || len(want) == 0 {
		t.Fatalf("a reader that comes afterwards holds %v: %v", want, err)
	}
	for i := range readers {
		if errs[i] != nil || !maps.Equal(results[i], want) {
			t.Errorf("reader %d holds %v, want %v: %v", i, results[i], want, errs[i])
		}
	}
}
