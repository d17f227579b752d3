package app_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
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
//     and has not ceased to since then, unless its member has left and come back meanwhile, by a label, a Link
//     or a Service that was deleted. Watches do not wait for each other: one that is resumed may report that the
//     member left after another has reported its new endpoints.
//   - Nothing goes back in time: no client receives an address that did not exist at the last comparison nor
//     since.
//   - Both hold for the slices of the federated Service, too: what a client without a proxy reads. They hold there also
//     if all replicas start anew without state, but for ExternalWorkloads, which need not be listed for a cluster to be
//     known.
//   - The Endpoints of a mirror lead to the gateway of the cluster for as long as something is ready there.
//   - While a policy divides the traffic of a Service, clients lose what exists, but never everything: no stream
//     is without an address, and none is sent that there are no endpoints, while one exists that has done so
//     since before the last comparison. Not even by a replica that knows nothing, if another one does.
//   - What a cluster has that is drained is given to no client that something else can be given.
//   - What a cluster has withdrawn that is guarded is given until the hold ends, where nothing else is.
//   - An identity is that of the cluster that has the address. As far as a replica knows what there was, an address is
//     opaque if a Server makes it so, and a profile has the routes of its ServiceProfile.
//   - One writer: what writes slices, mirrors and the status of Links holds the Lease of the cluster at that
//     moment, and has renewed it within its fence. After a Lease was deleted its last holder may write for as
//     long as it may not have noticed. What is on its way when it is released may arrive at that moment.
//
// Whether an address exists is what the model has after each verb. What streams report is therefore kept until
// the verb has ended, and checked then.
type watch struct {
	base    existing                     // what existed at the last comparison
	always  existing                     // what has existed since it was created, or since the last comparison
	known   existing                     // what has existed at some moment since the last comparison
	ever    existing                     // the same, for replicas that have not noticed changes of Links and mirrors
	past    existing                     // the same by member, as CLUSTER/NAME
	linked  map[string]bool              // clusters that were linked at some moment since then, and whether by a Link
	members map[string]map[string]string // what each Service consisted of at some moment since then
	facts   map[fact]bool                // what was so at some moment since then
	began   time.Time
	damaged map[string]bool // replicas whose state directory was damaged since the last comparison
	left    map[string]bool // members, as SERVICE/CLUSTER, that were none at some moment since then
	slicing map[string]bool // clusters that slices were to be written into at each moment since then

	policies map[string]string                   // what divided the traffic of each Service at the last comparison
	steady   map[string]bool                     // whether that is all that has been since then
	policed  map[string]bool                     // Services whose traffic was divided at some moment since then
	limited  map[string]bool                     // clusters that were limited at some moment since then
	started  bool                                // whether a replica was started since then
	drains   map[string]map[string]bool          // clusters that were drained completely then, by Service
	lessened map[string]map[string]bool          // clusters of which some was drained then, or was to be
	guards   map[string]string                   // what the guards of clusters were asked for ever since then
	counts   map[string]int                      // how many endpoints of each cluster were ready before the last verb
	slow     map[string]time.Time                // clusters that requests may reach late, and until when
	holds    map[string]map[netip.AddrPort]until // addresses that are to be given, by Service
	missing  map[missing]time.Time               // those that streams have lost, and when

	violations []string

	mu       sync.Mutex // below it, guarded by the mutex of the scenario as well
	held     map[string]map[netip.AddrPort]bool
	opened   map[string]bool // streams that have ended, and received nothing since then
	changes  []change
	received map[fact]string                                  // the stream that received each
	refused  []string                                         // writes by others than the holder
	holders  map[string]string                                // by cluster
	renewed  map[string]renewal                               // when they have done so last
	deposed  map[string]deposed                               // by cluster: the last one
	released map[string]deposed                               // likewise, who has released the Lease
	slices   map[string]map[string]*discoveryv1.EndpointSlice // by cluster and name
	leading  map[string]bool                                  // mirrors whose Endpoints hold something
}

// deposed is who held a Lease when it was deleted or released.
type deposed struct {
	name string
	at   time.Time
}

// addMembers adds what is ready of each Service of each cluster.
func (e existing) addMembers(m *model) {
	for name, c := range m.clusters {
		for of := range c.endpoints {
			for addr := range m.ready(map[string]string{name: of}) {
				e.add(name+"/"+of, addr)
			}
		}
	}
}

// missing is an address that a stream has lost.
type missing struct {
	stream string
	addr   netip.AddrPort
}

// until is when a hold ends, of which cluster it is, and how many endpoints that had before.
type until struct {
	at      time.Time
	cluster string
	had     int
}

// renewal is when a Lease was renewed, and as which time its holder has written that.
type renewal struct {
	as string
	at time.Time
}

// sliceReader is the name of the client that reads slices in a cluster, in place of that of a stream.
func sliceReader(cluster string) string { return "of slices in " + cluster }

// endpointsReader is likewise that of the one who reads the Endpoints of a mirror.
func endpointsReader(mirror string) string { return "of Endpoints of " + mirror }

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
	empty  bool // in place of addr: nothing is left
}

func newWatch() *watch {
	return &watch{
		began: time.Now(),
		held:  map[string]map[netip.AddrPort]bool{}, opened: map[string]bool{}, linked: map[string]bool{},
		members: map[string]map[string]string{}, facts: map[fact]bool{},
		known: existing{}, ever: existing{}, always: existing{}, past: existing{},
		damaged: map[string]bool{}, left: map[string]bool{},
		policies: map[string]string{}, steady: map[string]bool{}, policed: map[string]bool{},
		limited: map[string]bool{},
		drains:  map[string]map[string]bool{}, lessened: map[string]map[string]bool{},
		guards: map[string]string{}, counts: map[string]int{},
		holds: map[string]map[netip.AddrPort]until{}, slow: map[string]time.Time{},
		missing: map[missing]time.Time{}, renewed: map[string]renewal{},
		received: map[fact]string{}, holders: map[string]string{},
		deposed: map[string]deposed{}, released: map[string]deposed{},
		slices: map[string]map[string]*discoveryv1.EndpointSlice{}, slicing: map[string]bool{},
		leading: map[string]bool{},
	}
}

// event takes what a stream has received, and the facts in it.
func (w *watch) event(stream string, e proxy.Event, facts []fact) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range facts {
		w.received[f] = stream
	}
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
		w.changes = append(w.changes, change{e.At, stream, addr, lost, first, false})
	}
	had := len(held)
	now := map[netip.AddrPort]bool{}
	for _, a := range e.Message.Added {
		if now[a.Addr] = true; !held[a.Addr] {
			add(a.Addr, false)
			held[a.Addr] = true
		}
	}
	for addr := range held {
		if e.Message.Type == proxy.NoEndpoints || e.Message.Reset && !now[addr] {
			add(addr, true)
			delete(held, addr)
		}
	}
	for _, addr := range e.Message.Removed {
		add(addr, true)
		delete(held, addr)
	}
	if e.Message.Type == proxy.NoEndpoints || had > 0 && len(held) == 0 {
		w.changes = append(w.changes, change{e.At, stream, netip.AddrPort{}, true, first, true})
	}
}

// follow takes a slice that was written into a cluster. What clients read of it counts as a stream that is opened anew
// each time: who writes it may be another one by now, who knows less.
func (w *watch) follow(cluster string, o *unstructured.Unstructured, deleted bool) {
	var slice discoveryv1.EndpointSlice
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &slice); err != nil {
		panic(err)
	}
	if slice.Namespace != shop || slice.Labels[discoveryv1.LabelManagedBy] != managers[0] {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slices[cluster] == nil {
		w.slices[cluster] = map[string]*discoveryv1.EndpointSlice{}
	}
	if w.slices[cluster][slice.Name] = &slice; deleted {
		delete(w.slices[cluster], slice.Name)
	}
	reader := sliceReader(cluster)
	before, now := w.held[reader], map[netip.AddrPort]bool{}
	for _, s := range w.slices[cluster] {
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready {
				now[netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*s.Ports[0].Port))] = true
			}
		}
	}
	w.held[reader] = now
	for addr := range now {
		if !before[addr] {
			w.changes = append(w.changes, change{time.Now(), reader, addr, false, true, false})
		}
	}
	for addr := range before {
		if !now[addr] {
			w.changes = append(w.changes, change{time.Now(), reader, addr, true, true, false})
		}
	}
	if len(before) > 0 && len(now) == 0 {
		w.changes = append(w.changes, change{time.Now(), reader, netip.AddrPort{}, true, true, true})
	}
}

// followEndpoints takes the Endpoints of a mirror, which were written or deleted.
func (w *watch) followEndpoints(o *unstructured.Unstructured, deleted bool) {
	subsets, _, _ := unstructured.NestedSlice(o.Object, "subsets")
	w.mu.Lock()
	defer w.mu.Unlock()
	mirror := o.GetName()
	had := w.leading[mirror]
	if w.leading[mirror] = len(subsets) > 0 && !deleted; had && !w.leading[mirror] {
		w.changes = append(w.changes, change{time.Now(), endpointsReader(mirror), netip.AddrPort{}, true, true, true})
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
	if at, _, _ := unstructured.NestedString(o.Object, "spec", "renewTime"); at != w.renewed[cluster].as {
		w.renewed[cluster] = renewal{at, time.Now()}
	}
	if name == "" && w.holders[cluster] != "" {
		w.released[cluster] = deposed{w.holders[cluster], time.Now()}
	}
	if w.holders[cluster] = name; deleted {
		w.holders[cluster], w.deposed[cluster] = "", deposed{name, time.Now()}
	}
}

// observe checks what has happened during a verb, and reports whether the history goes on.
func (w *watch) observe(s *scenario, verb string, args []string) bool {
	s.t.Helper()
	m := s.readModel()
	switch verb {
	case "disk":
		w.damaged[args[0]] = true
	case "stall":
		maps.DeleteFunc(w.missing, func(m missing, _ time.Time) bool { return m.stream == args[0] })
	case "start":
		w.started = true
	}
	w.followNetwork(verb, args)
	w.followPolicies(s, m, verb)
	exists := existing{}
	for _, service := range append(s.services(), gatewayMirrors()...) {
		members := m.members(service)
		exists[service] = m.ready(members)
		for cluster := range w.members[service] {
			if members[cluster] == "" {
				w.left[service+"/"+cluster] = true
			}
		}
		for addr := range exists[service] {
			if w.known[service][addr] {
				continue
			}
			w.known.add(service, addr)
			// One that is not new may be withdrawn once, by who has noticed nothing until now.
			if !w.ever[service][addr] && !w.left[service+"/"+clusterOf(addr)] {
				w.always.add(service, addr)
			}
		}
	}
	maps.Copy(w.facts, m.facts()) // and once more below, of clusters that are not linked any more as well
	// Replicas that cannot read Links go by the old ones, and a mirror that cannot be written leads where it did.
	now := map[string]bool{}
	for name := range m.clusters {
		now[name] = m.links[name] != nil
		w.linked[name] = w.linked[name] || m.links[name] != nil
	}
	for name, link := range w.linked {
		if link && m.links[name] == nil {
			m.links[name] = map[string]string{}
		}
		if m.clusters[name] == nil {
			m.clusters[name] = s.readCluster(name)
		}
	}
	maps.Copy(w.facts, m.facts())
	for service := range exists {
		if w.members[service] == nil {
			w.members[service] = map[string]string{}
		}
		maps.Copy(w.members[service], m.members(service))
		maps.Copy(w.members[service], m.written(service))
	}
	maps.DeleteFunc(w.slicing, func(cluster string, _ bool) bool { return !m.reads(cluster) })
	w.past.addMembers(m)
	// A member that joins may be noticed before what has become of its endpoints just before.
	for service, members := range w.members {
		for name, of := range members {
			for addr := range w.past[name+"/"+of] {
				w.ever.add(service, addr)
			}
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
		w.beginPolicies(s)
		for _, difference := range s.differences() {
			w.violate("settled", "%s", difference)
		}
		w.base, w.known, w.ever, w.always, w.past = exists, existing{}, existing{}, existing{}, existing{}
		w.past.addMembers(m)
		clear(w.damaged)
		clear(w.left)
		for name := range m.clusters {
			w.slicing[name] = m.reads(name)
		}
		w.facts = m.facts()
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
		service, written := "all", true
		if mirror, reads := strings.CutPrefix(c.stream, endpointsReader("")); reads {
			service = mirror + byGateway
		} else if of, reads := strings.CutPrefix(c.stream, sliceReader("")); !reads {
			service, written = serviceOf(s.streams[c.stream].Request().Authority), false
		} else if !w.slicing[of] {
			continue
		}
		isKnown := func(addr netip.AddrPort) bool { return w.knows() || written && !isExternal(addr) }
		if !c.lost {
			delete(w.missing, missing{c.stream, c.addr})
		}
		cluster := clusterOf(c.addr)
		switch existed := w.base[service][c.addr]; {
		case w.base == nil:
		case c.empty:
			if addr, found := w.other(service, nil); found && isKnown(addr) {
				w.violate("empty", "stream %s was left without anything, and %s exists, at %s", c.stream, addr,
					c.at.Sub(w.began))
			}
		case c.lost && c.at.Before(w.holds[service][c.addr].at):
			w.missing[missing{c.stream, c.addr}] = c.at
		case !c.lost && w.drains[service][cluster] && w.steady[service] && !w.started && w.hasOther(service):
			w.violate("drained", "stream %s received %s of a cluster that is drained, at %s", c.stream, c.addr,
				c.at.Sub(w.began))
		case c.lost && w.policed[service]:
		case c.lost && w.limited[cluster]: // such as what moves into a slice that is refused
		case c.lost && w.always[service][c.addr] && !c.reset:
			w.violate("withdrawn", "stream %s lost %s, which exists, at %s", c.stream, c.addr, c.at.Sub(w.began))
		case c.lost && w.always[service][c.addr] && existed && isKnown(c.addr):
			w.violate("withdrawn", "stream %s came back without %s, which exists, at %s", c.stream, c.addr,
				c.at.Sub(w.began))
		case !c.lost && !w.ever[service][c.addr]:
			w.violate("revived", "stream %s received %s, which is gone, at %s", c.stream, c.addr, c.at.Sub(w.began))
		}
	}
	w.changes = nil
	for m, since := range w.missing {
		ends := w.holds[serviceOf(s.streams[m.stream].Request().Authority)][m.addr].at
		if time.Now().Before(ends) {
			ends = time.Now()
		}
		if ends.Sub(since) > 2*time.Second { // the first ones go before there are enough to be held
			w.violate("held", "stream %s lost %s, which is to be held, at %s", m.stream, m.addr, since.Sub(w.began))
		}
	}
	for f, stream := range w.received {
		if !w.facts[f] && (w.knows() || strings.HasPrefix(f.something, "identity")) {
			w.violate("fact", "stream %s received %s as the %s", stream, f.value, f.something)
		}
	}
	clear(w.received)
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
		last, released := w.deposed[cluster], w.released[cluster]
		since := time.Since(w.renewed[cluster].at)
		switch {
		case client == last.name && time.Since(last.at) <= notices:
			return
		case client == released.name && time.Since(released.at) == 0: // it was on its way
			return
		case client != w.holders[cluster]:
		case since <= notices || time.Now().Before(w.slow[cluster]):
			return
		default:
			w.refused = append(w.refused, fmt.Sprintf("%s has sent %s %s to %s %s after it renewed the Lease, at %s",
				client, verb, resource, cluster, since, time.Since(w.began)))
			return
		}
		w.refused = append(w.refused, fmt.Sprintf("%s has sent %s %s to %s, whose Lease %q holds, at %s",
			client, verb, resource, cluster, w.holders[cluster], time.Since(w.began)))
	}
}

// followNetwork notes until when requests may reach a cluster late: what a client has sent stays on its way.
func (w *watch) followNetwork(verb string, args []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case verb == "delay" && args[1] != "0s", verb == "partition":
		w.slow[clusterOfPath(args[0])] = time.Now().Add(1000 * time.Hour)
	case verb == "delay", verb == "heal":
		w.slow[clusterOfPath(args[0])] = time.Now().Add(time.Minute)
	}
}

// followPolicies notes what is in force for traffic after a verb, and what is held from then on.
func (w *watch) followPolicies(s *scenario, m *model, verb string) {
	for _, service := range s.services() {
		text := m.policies(service)
		w.policed[service] = w.policed[service] || text != ""
		w.steady[service] = w.steady[service] && text == w.policies[service]
	}
	for name := range m.clusters {
		w.limited[name] = w.limited[name] || m.limited(name)
	}
	for name, asked := range w.guards {
		if w.started || m.links[name] == nil || m.guardText(name) != asked {
			delete(w.guards, name)
			for _, held := range w.holds {
				maps.DeleteFunc(held, func(_ netip.AddrPort, u until) bool { return u.cluster == name })
			}
		}
	}
	maps.DeleteFunc(w.holds, func(service string, held map[netip.AddrPort]until) bool {
		// A hold ends when as many are ready as there were before, which are at least those that are held.
		members := m.members(service)
		return members == nil || len(m.ready(members)) >= len(held)
	})
	before := w.counts
	w.counts = map[string]int{}
	for name, c := range m.clusters {
		for _, of := range c.endpoints {
			for _, ready := range of {
				if ready {
					w.counts[name]++
				}
			}
		}
		percent, hold := m.guard(name)
		isMass := func(had int) bool { // also with what is lost beside it, which may be on the balance
			lost := had - w.counts[name]
			return lost > 25 && 100*lost > (percent+10)*had
		}
		has := 0
		for _, of := range c.endpoints {
			has += len(of)
		}
		limit := m.maxEndpoints(name)
		exceeds := func(had int) bool { // what is held counts beside what there is, and goes first
			return limit > 0 && had+has > limit
		}
		// What the cluster gains beside it is on the balance as well, for replicas that have not noticed the loss yet.
		for _, held := range w.holds {
			maps.DeleteFunc(held, func(_ netip.AddrPort, u until) bool {
				return u.cluster == name && (!isMass(u.had) || exceeds(u.had))
			})
		}
		_, steady := w.guards[name]
		if !steady || verb != "endpoints" || !isMass(before[name]) || exceeds(before[name]) {
			continue
		}
		for service := range w.base {
			of, mirrored := strings.CutSuffix(service, "-"+name)
			if !mirrored || c.endpoints[of] == nil {
				continue
			}
			if w.holds[service] == nil {
				w.holds[service] = map[netip.AddrPort]until{}
			}
			for addr := range w.base[service] {
				if _, exists := c.endpoints[of][addr]; !exists && w.always[service][addr] {
					w.holds[service][addr] = until{time.Now().Add(hold - time.Second), name, before[name]}
				}
			}
		}
	}
}

// beginPolicies notes what is in force when everything has settled.
func (w *watch) beginPolicies(s *scenario) {
	m, now := s.readModel(), time.Now()
	clear(w.policed)
	clear(w.limited)
	clear(w.drains)
	clear(w.holds)
	clear(w.missing)
	clear(w.guards)
	w.started = false
	for _, service := range s.services() {
		text := m.policies(service)
		w.policies[service], w.steady[service], w.policed[service] = text, true, text != ""
		// Of the tiers there are these two then: those that are drained, and the others.
		plain := !strings.Contains(text, "prefer=") && !strings.Contains(text, "when-stale=")
		w.drains[service], w.lessened[service] = map[string]bool{}, map[string]bool{}
		for name := range m.members(service) {
			drain := m.asks(name, "drain") + m.clusters[name].drain
			w.drains[service][name] = plain && !strings.Contains(drain, "/") && m.drained(name, now) == 100
			w.lessened[service][name] = drain != ""
		}
	}
	for name := range m.clusters {
		w.limited[name] = m.limited(name)
		if _, hold := m.guard(name); hold > 0 {
			w.guards[name] = m.guardText(name)
		}
	}
}

// guardText is what decides about the guard of a cluster.
func (m *model) guardText(cluster string) string {
	return m.asks(cluster, "withdrawal-guard") + " " + m.asks(cluster, "released-at")
}

// services returns the Services that streams are about, and the one with slices.
func (s *scenario) services() (all []string) {
	for _, st := range s.streams {
		if !inDepot(st.Request().Authority) {
			all = append(all, serviceOf(st.Request().Authority))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// knows reports whether a replica has kept what there was at the last comparison. A third one runs for some time only.
func (w *watch) knows() bool { return !w.damaged["replica-1"] || !w.damaged["replica-2"] }

// other returns an address of a Service that has existed since before the last comparison, of a cluster that is not
// limited nor among some.
func (w *watch) other(service string, than map[string]bool) (addr netip.AddrPort, found bool) {
	for addr := range w.always[service] {
		if cluster := clusterOf(addr); w.base[service][addr] && !w.limited[cluster] && !than[cluster] {
			return addr, true
		}
	}
	return addr, false
}

// hasOther reports whether a Service has something in a cluster of which nothing is drained.
func (w *watch) hasOther(service string) bool {
	_, found := w.other(service, w.lessened[service])
	return found
}
