package app_test

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// watch checks, while a random history is played, what holds at every moment, and not only when everything has
// settled:
//
//   - Unknown is not empty: no client loses an address that existed at the last comparison and has existed ever
//     since, whatever was cut off, killed or restarted. Nor does it lose over one stream any other that exists
//     and has not ceased to since then, unless its Service was deleted: the watch of slices may report what was
//     made after a deletion earlier than the watch of Services reports the deletion.
//   - Nothing goes back in time: no client receives an address that did not exist at the last comparison nor
//     since.
//   - Both hold for the slices of the federated Service, too: what a client without a proxy reads.
//   - An identity is that of the cluster that has the address.
//   - One writer: what writes slices, mirrors and the status of Links holds the Lease of the cluster at that
//     moment. After a Lease was deleted its last holder may write for as long as it may not have noticed.
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
	trusts  map[string]map[string]bool   // trust domains of each cluster at some moment since then
	began   time.Time
	damaged map[string]bool // replicas whose state directory was damaged since the last comparison
	deleted map[string]bool // Services, as CLUSTER/NAME, that were deleted since then

	violations []string

	mu         sync.Mutex // below it, guarded by the mutex of the scenario as well
	held       map[string]map[netip.AddrPort]bool
	opened     map[string]bool // streams that have ended, and received nothing since then
	changes    []change
	identities map[identified]string // the stream that received each
	refused    []string              // writes by others than the holder
	holders    map[string]string     // by cluster
	deposed    map[string]deposed    // by cluster: the last one
	slices     map[string]*discoveryv1.EndpointSlice
}

// identified is an address with the identity that a stream has received with it.
type identified struct {
	addr     netip.AddrPort
	identity string
}

// deposed is who held a Lease when it was deleted.
type deposed struct {
	name string
	at   time.Time
}

// sliceReader is the name of the client that reads slices, in place of that of a stream.
const sliceReader = "of slices"

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
		members: map[string]map[string]string{}, trusts: map[string]map[string]bool{},
		known: existing{}, ever: existing{}, always: existing{},
		damaged: map[string]bool{}, deleted: map[string]bool{},
		identities: map[identified]string{}, holders: map[string]string{}, deposed: map[string]deposed{},
		slices: map[string]*discoveryv1.EndpointSlice{},
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
		if id := identityOf(a); id != "" {
			w.identities[identified{a.Addr, id}] = stream
		}
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

// follow takes a slice that was written. What clients read of it counts as a stream that is opened anew each time: who
// writes it may be another one by now, who knows less.
func (w *watch) follow(o *unstructured.Unstructured, deleted bool) {
	var slice discoveryv1.EndpointSlice
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &slice); err != nil {
		panic(err)
	}
	if slice.Labels[discoveryv1.LabelManagedBy] != managers[0] {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slices[slice.Name] = &slice; deleted {
		delete(w.slices, slice.Name)
	}
	before, now := w.held[sliceReader], map[netip.AddrPort]bool{}
	for _, s := range w.slices {
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready {
				now[netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*s.Ports[0].Port))] = true
			}
		}
	}
	w.held[sliceReader] = now
	for addr := range now {
		if !before[addr] {
			w.changes = append(w.changes, change{time.Now(), sliceReader, addr, false, true})
		}
	}
	for addr := range before {
		if !now[addr] {
			w.changes = append(w.changes, change{time.Now(), sliceReader, addr, true, true})
		}
	}
}

// leaseWritten takes a Lease that was written, or deleted.
func (w *watch) leaseWritten(cluster string, o *unstructured.Unstructured, deleted bool) {
	if !strings.HasPrefix(o.GetName(), "fingerpost-") {
		return
	}
	identity, _, _ := unstructured.NestedString(o.Object, "spec", "holderIdentity")
	name, _, _ := strings.Cut(identity, "_")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holders[cluster] = name; deleted {
		w.holders[cluster], w.deposed[cluster] = "", deposed{name, time.Now()}
	}
}

// observe checks what has happened during a verb, and reports whether the history goes on.
func (w *watch) observe(s *scenario, verb string, args []string) bool {
	s.t.Helper()
	m := s.readModel()
	switch {
	case verb == "disk":
		w.damaged[args[0]] = true
	case verb == "delete" && args[1] == "Service":
		_, name := splitName(args[2])
		w.deleted[args[0]+"/"+name] = true
	}
	exists := existing{}
	for _, st := range s.streams {
		service := serviceOf(st.Request().Authority)
		members := m.members(service)
		exists[service] = m.ready(members)
		for addr := range exists[service] {
			if w.known[service][addr] {
				continue
			}
			w.known.add(service, addr)
			cluster := clusterOf(addr)
			// One that is not new may be withdrawn once, by who has noticed nothing until now.
			if !w.ever[service][addr] && !w.deleted[cluster+"/"+members[cluster]] {
				w.always.add(service, addr)
			}
		}
	}
	for cluster, domain := range m.trust {
		if w.trusts[cluster] == nil {
			w.trusts[cluster] = map[string]bool{}
		}
		w.trusts[cluster][domain] = true
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
	w.check(s)
	if verb == "compare" {
		for _, difference := range s.differences() {
			w.violate("settled", "%s", difference)
		}
		w.base, w.known, w.ever, w.always = exists, existing{}, existing{}, existing{}
		clear(w.damaged)
		clear(w.deleted)
		clear(w.trusts)
		for cluster, domain := range m.trust {
			w.trusts[cluster] = map[string]bool{domain: true}
		}
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
		service := "all"
		if c.stream != sliceReader {
			service = serviceOf(s.streams[c.stream].Request().Authority)
		}
		switch existed := w.base[service][c.addr]; {
		case w.base == nil:
		case c.lost && w.always[service][c.addr] && !c.reset:
			w.violate("withdrawn", "stream %s lost %s, which exists, at %s", c.stream, c.addr, c.at.Sub(w.began))
		case c.lost && w.always[service][c.addr] && existed && len(w.damaged) < 2: // else no replica knows it any more
			w.violate("withdrawn", "stream %s came back without %s, which exists, at %s", c.stream, c.addr,
				c.at.Sub(w.began))
		case !c.lost && !w.ever[service][c.addr]:
			w.violate("revived", "stream %s received %s, which is gone, at %s", c.stream, c.addr, c.at.Sub(w.began))
		}
	}
	w.changes = nil
	for got, stream := range w.identities {
		right := false
		for domain := range w.trusts[clusterOf(got.addr)] {
			right = right || got.identity == identityIn(domain)
		}
		if !right {
			w.violate("identity", "stream %s received %s with identity %s", stream, got.addr, got.identity)
		}
	}
	clear(w.identities)
	for _, r := range w.refused {
		w.violate("writer", "%s", r)
	}
	w.refused = nil
}

func (w *watch) violate(law, format string, args ...any) {
	w.violations = append(w.violations, law+": "+fmt.Sprintf(format, args...))
}

// audit checks who writes into a cluster.
func (w *watch) audit(cluster string) func(client, verb, resource string) {
	const notices = 4500 * time.Millisecond // the fence
	writes := map[string]bool{"create": true, "update": true, "patch": true, "delete": true}
	written := map[string]bool{sliceResource: true, linkResource: true, "services": true, "endpoints": true}
	return func(client, verb, resource string) {
		if !writes[verb] || !written[resource] {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		last := w.deposed[cluster]
		if client == w.holders[cluster] || client == last.name && time.Since(last.at) <= notices {
			return
		}
		w.refused = append(w.refused, fmt.Sprintf("%s has sent %s %s to %s, whose Lease %q holds, at %s",
			client, verb, resource, cluster, w.holders[cluster], time.Since(w.began)))
	}
}
