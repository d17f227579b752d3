package hostile

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// small is a budget of which many times as much is listed within seconds.
var small = []string{"-cluster-max-endpoints=20000", "-cluster-max-mib=16"}

// A linked cluster that lists more than there can be costs others nothing, and is reported.
func TestGiantLists(t *testing.T) {
	t.Parallel()
	const size = 2 << 30
	for _, c := range []struct {
		name  string
		fault fakeapi.Fault
	}{
		{"compressed", fakeapi.Compressed(size)},
		{"blank", fakeapi.Blank(size)},
		{"all in one page", fakeapi.EndlessList(size)},
		{"always another page", fakeapi.EndlessPages},
		{"of empty Pods", fakeapi.DenseList(12 << 20)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newIdle(t)
			w.serve(small...)
			w.bounded(100<<20, func() {
				w.api.Cluster("giant").Misbehave(fakeapi.On("pods", fakeapi.First(fakeapi.NoStreaming, c.fault)))
				w.link("giant")
				w.reported("giant")
				w.answered(50)
			})
		})
	}
}

// A linked cluster whose initial events have no end, few that are large or as many as there can be, costs
// others nothing, and is reported.
func TestEndlessEvents(t *testing.T) {
	for _, padding := range []int{0, 1 << 20} {
		t.Run(fmt.Sprintf("of %d bytes", padding), func(t *testing.T) {
			w := newIdle(t)
			w.serve(small...)
			w.bounded(100<<20, func() {
				w.api.Cluster("endless").Misbehave(fakeapi.On("pods", fakeapi.EndlessEvents(padding), "watch"))
				w.link("endless")
				w.reported("endless")
				w.answered(50)
			})
		})
	}
}

// A linked cluster with an event that is small, and would be large when it is decoded, costs others nothing, and is
// reported.
func TestDenseEvents(t *testing.T) {
	w := newIdle(t)
	w.serve(small...)
	w.bounded(100<<20, func() {
		w.api.Cluster("dense").Misbehave(fakeapi.On("pods", fakeapi.DenseEvents(1<<20), "watch"))
		w.link("dense")
		w.reported("dense")
		w.answered(50)
	})
}

// A large cluster of an old version, which cannot list by events, is read in pages.
func TestOldLargeCluster(t *testing.T) {
	const services, pods = 1_000, 100
	app := func(i int) fakeapi.App {
		first := netip.AddrFrom4([4]byte{11, byte(i * pods >> 16), byte(i * pods >> 8), byte(i * pods)})
		return fakeapi.App{Namespace: "shop", Name: fmt.Sprintf("app-%d", i), Pods: pods, First: first}
	}
	w := newBusy(t)
	w.local.Apply(fakeapi.Federated("shop", "app-7", "old"))
	w.serve()
	w.bounded(250<<20, func() {
		old := w.api.Cluster("old")
		old.Run(services, app)
		old.Misbehave(fakeapi.NoStreaming)
		w.link("old")
		w.live("old")
		w.client(fakeapi.Authority("shop", "app-7-federated"), app(7).Addrs()...)
		w.answered(20)
	})
}
