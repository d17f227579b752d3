package federation

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// BenchmarkRepeatedState is what a probe of a healthy cluster costs: it finds what is known already.
func BenchmarkRepeatedState(b *testing.B) {
	store, names, _, _ := fleet(200, 1_000, 1_000)
	b.ReportAllocs()
	for b.Loop() {
		store.SetState(names[1], Live)
	}
}

// BenchmarkStale is a cluster that is Stale and Live again.
func BenchmarkStale(b *testing.B) {
	store, names, _, _ := fleet(200, 1_000, 1_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		store.SetState(names[1], []ClusterState{Stale, Live}[i%2])
	}
}

// BenchmarkFirstSync is a start: 100 clusters of 500 Services are synced at once, while so many
// federated Services are watched.
func BenchmarkFirstSync(b *testing.B) {
	for _, federated := range []int{0, 100, 500} {
		b.Run(fmt.Sprintf("federated=%d", federated), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				store, names, writers, _ := fleet(100, 0, 0)
				for j := range federated {
					federate(store, writers[0], names[1:], j)
				}
				var wg sync.WaitGroup
				for i, c := range names[1:] {
					wg.Go(func() {
						k := store.NewWriter(c)
						fill(k, i, 500)
						k.MarkSynced()
					})
				}
				wg.Wait()
			}
		})
	}
}

// BenchmarkWake is one change of a Service on which so many streams wait: how long it keeps the writer,
// and how long others cannot write.
func BenchmarkWake(b *testing.B) {
	for _, streams := range []int{0, 1_000, 10_000} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			store := NewStore()
			store.AddCluster("c", Expectation{})
			k := store.NewWriter("c")
			views := []*View{oneEndpoint(1, 1), oneEndpoint(1, 2)}
			k.Set(plain, views[0])
			k.MarkSynced()
			stop := make(chan struct{})
			var running, waiting sync.WaitGroup
			waiting.Add(streams)
			for range streams {
				running.Go(func() {
					watch := store.Watch(Ref{"c", plain})
					defer watch.Close()
					for {
						_, superseded := watch.Load()
						waiting.Done()
						select {
						case <-superseded:
						case <-stop:
							return
						}
					}
				})
			}
			waiting.Wait()
			var locked time.Duration
			b.ReportAllocs()
			for i := 1; b.Loop(); i++ {
				waiting.Add(streams)
				store.mu.Lock()
				start := time.Now()
				k.replace(plain, views[i%2], Size{}, heldLater{})
				superseded := store.publish()
				locked += time.Since(start)
				store.mu.Unlock()
				for _, s := range superseded {
					s.Wake()
				}
				waiting.Wait()
			}
			b.ReportMetric(float64(locked.Nanoseconds())/float64(b.N), "ns-locked/op")
			close(stop)
			running.Wait()
		})
	}
}

// BenchmarkSet is one change of one Service, of a cluster with so many, while so many readers walk
// through all Views all the time.
func BenchmarkSet(b *testing.B) {
	for _, services := range []int{2_000, 100_000} {
		for _, readers := range []int{0, 4} {
			b.Run(fmt.Sprintf("services=%d/readers=%d", services, readers), func(b *testing.B) {
				store := NewStore()
				store.AddCluster("c", Expectation{})
				k := store.NewWriter("c")
				fill(k, 1, services)
				k.MarkSynced()
				views := []*View{oneEndpoint(1, 1), oneEndpoint(1, 2)}
				done := make(chan struct{})
				var reading sync.WaitGroup
				for range readers {
					reading.Go(func() {
						for {
							for range store.Views("c").All() {
							}
							select {
							case <-done:
								return
							default:
							}
						}
					})
				}
				var worst time.Duration
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					start := time.Now()
					k.Set(numbered(7), views[i%2])
					worst = max(worst, time.Since(start))
				}
				b.ReportMetric(float64(worst.Microseconds()), "us-worst")
				close(done)
				reading.Wait()
			})
		}
	}
}
