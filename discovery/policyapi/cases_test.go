package policyapi_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/serving"
)

// Cases that no scenario can express.
func TestCases(t *testing.T) {
	t.Run("PP17", testForgetsAuthorities)
	t.Run("PN70", testEncodesOncePerServer)
}

// PP17: what clients have asked for leaves nothing behind, however many names there were.
func testForgetsAuthorities(t *testing.T) {
	inWorld(t, func(w *world) {
		w.list()
		ask := func(from, until int) {
			for i := from; i < until; i++ {
				s := w.watch(named(fmt.Sprintf("s%d.n%d.svc.cluster.local", i, i)))
				w.wants("PP17", s, fmt.Sprintf("s%d:80", i))
				s.cancel()
			}
		}
		held := func() uint64 {
			runtime.GC()
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return stats.HeapAlloc
		}

		ask(0, 1000) // pools and caches have their size then
		before := held()
		ask(1000, 11_000)
		if after := held(); after > before+500_000 {
			t.Errorf("%d bytes are held after 10,000 calls, %d before", after, before)
		}
	})
}

// PN70: a change that concerns the Servers of 10,000 Pods, no two of which have equal labels, is encoded once for each
// Server of which a port is watched.
func testEncodesOncePerServer(t *testing.T) {
	servers := func(access rules.DefaultPolicy) []*rules.Server {
		all := []*rules.Server{serverOf(8080), serverOf(9090)}
		all[1].Name = "w"
		for _, s := range all {
			s.Access = access
		}
		return all
	}

	inWorld(t, func(w *world) {
		name := func(i int) string { return fmt.Sprintf("p-%d", i) }
		for i := range 10_000 {
			w.setPod(name(i))
		}
		w.setServers(servers(rules.Audit)...)
		w.list()

		var streams []*stream
		for i := range 50 {
			streams = append(streams, w.watchPort("shop:"+name(i*100), uint32(8080+1010*(i%2))))
			w.wants("PN70", streams[i], "server "+[]string{"v", "w"}[i%2])
		}
		w.setServers(servers(rules.AllAuthenticated)...)

		frames := map[*serving.Frame]bool{}
		for i, s := range streams {
			w.wants("PN70", s, "server "+[]string{"v", "w"}[i%2])
			frames[s.frame] = true
			s.cancel()
		}
		if len(frames) != 2 {
			t.Errorf("%d messages were encoded for streams of 2 Servers", len(frames))
		}
	})
}
