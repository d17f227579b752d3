package app_test

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// watch checks, while a random history is played, what holds at every moment, and not only when everything has
// settled:
//
//   - Unknown is not empty: no client loses an address that existed at the last comparison and has existed ever
//     since, whatever was cut off, killed or restarted. Nor does it lose over one stream any other that exists
//     and has not ceased to since then, while no object is deleted: the watch of slices may report what was
//     made after a deletion earlier than the watch of Services reports the deletion.
//   - Nothing goes back in time: no client receives an address that did not exist at the last comparison nor
//     since.
//   - One writer: what writes slices, mirrors and the status of Links holds the Lease of the cluster at that
//     moment.
//
// Whether an address exists is what the model has after each verb. What streams report is therefore kept until
// the verb has ended, and checked then.
type watch struct {
	base    existing                     // what existed at the last comparison
	always  existing                     // what has existed since it was created, or since the last comparison
	known   existing                     // what has existed at some moment since the last comparison
	ever    existing                     // the same, for replicas that have not noticed changes of Links and mirrors
	linked  map[string]bool              // clusters that were linked at some moment since then, and whether by a Link
	members map[string]map[string]string // what each Service consisted of at some moment since then
	began   time.Time
	deposed time.Time // when the Leases of a cluster were deleted
	lost    bool      // a state directory was damaged since the last comparison
	deleted bool      // an object was deleted since then: watches of other kinds may report earlier what came after

	violations []string

	mu      sync.Mutex // below it, guarded by the mutex of the scenario as well
	held    map[string]map[netip.AddrPort]bool
	opened  map[string]bool // streams that have ended, and received nothing since then
	changes []change
	refused []string // writes by others than the holder
}

// existing are addresses by Service.
type existing map[string]map[netip.AddrPort]bool

func (e existing) add(service string, addr netip.AddrPort) {
	if e[service] == nil {
		e[service] = map[netip.AddrPort]bool{}
	}
	e[service][addr] = true
}

// change is an address that a stream has lost or received.
type change struct {
	at     time.Time
	stream string
	addr   netip.AddrPort
	lost   bool
	reset  bool // with the first message of a new stream
}

func newWatch() *watch {
	return &watch{
		began: time.Now(),
		held:  map[string]map[netip.AddrPort]bool{}, opened: map[string]bool{}, linked: map[string]bool{},
		members: map[string]map[string]string{},
		known:   existing{}, ever: existing{}, always: existing{},
	}
}

// event takes what a stream has received.
func (w *watch) event(stream string, e proxy.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Message == nil {
		w.opened[stream] = w.opened[stream] || e.End != nil
		return
	}
	first := e.Message.Reset || w.opened[stream]
	w.opened[stream] = false
	held := w.held[stream]
	if held == nil {
		held = map[netip.AddrPort]bool{}
		w.held[stream] = held
	}
	add := func(addr netip.AddrPort, lost bool) {
		w.changes = append(w.changes, change{e.At, stream, addr, lost, first})
	}
	now := map[netip.AddrPort]bool{}
	for _, a := range e.Message.Added {
		if now[a.Addr] = true; !held[a.Addr] {
			add(a.Addr, false)
			held[a.Addr] = true
		}
	}
	for addr := range held {
		if e.Message.Kind == proxy.NoEndpoints || e.Message.Reset && !now[addr] {
			add(addr, true)
			delete(held, addr)
		}
	}
	for _, addr := range e.Message.Removed {
		add(addr, true)
		delete(held, addr)
	}
}

// observe checks what has happened during a verb, and reports whether the history goes on.
func (w *watch) observe(s *scenario, verb string) bool {
	s.t.Helper()
	m := s.readModel()
	exists := existing{}
	for _, st := range s.streams {
		service := serviceOf(st.Request().Authority)
		exists[service] = m.ready(m.members(service))
	}
	for service, addrs := range exists {
		for addr := range addrs {
			if !w.known[service][addr] {
				w.known.add(service, addr)
				if !w.ever[service][addr] { // else it may be withdrawn once, by who has noticed nothing until now
					w.always.add(service, addr)
				}
			}
		}
	}
	// Replicas that cannot read Links go by the old ones, and a mirror that cannot be written leads where it did.
	now := map[string]bool{}
	for name := range m.clusters {
		now[name] = m.links[name]
		w.linked[name] = w.linked[name] || m.links[name]
	}
	for name, link := range w.linked {
		m.links[name] = link
		if m.clusters[name] == nil {
			m.clusters[name] = s.readCluster(name)
		}
	}
	for service := range exists {
		if w.members[service] == nil {
			w.members[service] = map[string]string{}
		}
		maps.Copy(w.members[service], m.members(service))
		maps.Copy(w.members[service], m.written(service))
		for addr := range m.ready(w.members[service]) {
			w.ever.add(service, addr)
		}
	}
	for service, addrs := range w.always {
		for addr := range addrs {
			if !exists[service][addr] {
				delete(addrs, addr)
			}
		}
	}
	switch verb {
	case "disk":
		w.lost = true
	case "delete":
		w.deleted = true
	case "depose":
		w.deposed = time.Now()
	}
	w.check(s)
	if verb == "compare" {
		for _, difference := range s.differences() {
			w.violate("settled", "%s", difference)
		}
		w.base, w.known, w.ever, w.always, w.lost = exists, existing{}, existing{}, existing{}, false
		w.deleted = false
		w.linked = now
		for service := range exists {
			w.members[service] = map[string]string{}
			maps.Copy(w.members[service], m.members(service))
			maps.Copy(w.members[service], m.written(service))
		}
		for service, addrs := range exists {
			for addr := range addrs {
				w.known.add(service, addr)
				w.ever.add(service, addr)
				w.always.add(service, addr)
			}
		}
	}
	return len(w.violations) == 0
}

// check goes through what streams have received since it was called last.
func (w *watch) check(s *scenario) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changes {
		service := serviceOf(s.streams[c.stream].Request().Authority)
		switch existed := w.base[service][c.addr]; {
		case w.base == nil:
		case c.lost && w.always[service][c.addr] && !c.reset && (existed || !w.deleted):
			w.violate("withdrawn", "stream %s lost %s, which exists, at %s", c.stream, c.addr, c.at.Sub(w.began))
		case c.lost && w.always[service][c.addr] && existed && !w.lost:
			w.violate("withdrawn", "stream %s came back without %s, which exists, at %s", c.stream, c.addr,
				c.at.Sub(w.began))
		case !c.lost && !w.ever[service][c.addr]:
			w.violate("revived", "stream %s received %s, which is gone, at %s", c.stream, c.addr, c.at.Sub(w.began))
		}
	}
	w.changes = nil
	for _, r := range w.refused {
		w.violate("writer", "%s", r)
	}
	w.refused = nil
}

func (w *watch) violate(law, format string, args ...any) {
	w.violations = append(w.violations, law+": "+fmt.Sprintf(format, args...))
}

// audit checks who writes into a cluster.
func (w *watch) audit(s *scenario, cluster string) func(client, verb, resource string) {
	server := s.network.Server(cluster)
	writes := map[string]bool{"create": true, "update": true, "patch": true, "delete": true}
	written := map[string]bool{sliceResource: true, linkResource: true, "services": true, "endpoints": true}
	return func(client, verb, resource string) {
		if !writes[verb] || !written[resource] {
			return
		}
		holder := ""
		for _, l := range server.List(leaseResource) {
			if spec, _ := l.Object["spec"].(map[string]any); strings.HasPrefix(l.GetName(), "fingerpost-") {
				holder, _ = spec["holderIdentity"].(string)
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if name, _, _ := strings.Cut(holder, "_"); name != client && time.Since(w.deposed) > 10*time.Second {
			w.refused = append(w.refused, fmt.Sprintf("%s has sent %s %s to %s, whose Lease %q holds, at %s",
				client, verb, resource, cluster, holder, time.Since(w.began)))
		}
	}
}
