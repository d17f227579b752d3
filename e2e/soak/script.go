package main

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// The script is a function of the seed: which deed follows depends on the deeds before it, and on nothing that
// clusters, replicas or clocks do. A run with the same seed does the same in the same order, for as long as it lasts.
// What a deed takes away, another one may give back in a later round only: a stream that holds what it held
// before would otherwise look as if it had received both.
//
// A round begins with faults, goes on with changes, rotations, restarts and proxies that come and go, and ends with
// the return of what was cut off, unless that stays away for another round. Each second round ends with deeds that
// settle everything: all clusters linked and in reach, all Services there, each with as many endpoints as at the
// start, though with other addresses. What replicas take up can be compared at these times.

const (
	namespace  = "soak"
	perMember  = 4 // endpoints of a member when all is settled
	settleEach = 2 // rounds
)

// Sites 0 and 1 are real; the replicas run in the first one.
const (
	localSite = iota
	remoteSite
	realSites
)

type verb string

const (
	scale    verb = "scale"   // a member to n endpoints; those that stay are the same
	grow     verb = "grow"    // a member by endpoints that will replace those it has
	shrink   verb = "shrink"  // a member to those by which it grew
	flip     verb = "flip"    // an endpoint from ready to not ready, or back
	remove   verb = "delete"  // the Service of a member, with its endpoints
	create   verb = "create"  // it again, with as many endpoints
	exclude  verb = "exclude" // a member from the federated Service
	include  verb = "include" // it again
	retire   verb = "retire"  // the federated Service: delete it
	revive   verb = "revive"  // it again
	unlink   verb = "unlink"  // a cluster
	link     verb = "link"    // it again
	cut      verb = "cut"     // a cluster off, in one of some ways
	heal     verb = "heal"    // it
	slow     verb = "slow"    // the API server answers slowly
	fast     verb = "fast"    // no longer
	hangUp   verb = "hang up" // all connections to the API server
	rotate   verb = "rotate"  // the token of a cluster; the old one is revoked
	mislay   verb = "mislay"  // the same, after a token that the cluster does not take
	restart  verb = "restart" // a replica
	kill     verb = "kill"    // a replica, and start it again
	come     verb = "come"    // n proxies come, as many others go
	stall    verb = "stall"   // n proxies stop reading until the round ends
	interval      = 300 * time.Millisecond
)

// A deed is one step of the script.
type deed struct {
	verb  verb
	site  int           // a cluster, or a replica
	app   int           // a Service
	n     int           // how many, or in which way
	pause time.Duration // after it
}

func (d deed) String() string {
	return fmt.Sprintf("%s cluster %d app %d n %d", d.verb, d.site, d.app, d.n)
}

type endpoint struct {
	number int // of the address and the Pod in its cluster
	ready  bool
	new    bool // it came by grow, and shrink is to come
	round  int  // in which its readiness changed
}

// A member is the share of one cluster in a federated Service.
type member struct {
	exists, included bool
	excludedIn       int // the round
	endpoints        []endpoint
	// solid: since the last comparison it has always had an endpoint that was ready.
	solid bool
}

// grown reports whether a shrink is to come.
func (m *member) grown() bool {
	return slices.ContainsFunc(m.endpoints, func(e endpoint) bool { return e.new })
}

type site struct {
	index        int
	linked, away bool
	slow         bool
	back         int // the round at whose end it is healed
	unlinkedIn   int // the round
	harmed       bool
	members      map[int]*member
	frozen       map[int][]netip.AddrPort // what was ready when it was cut off, by app
	addresses    int                      // that were used
}

// world is the script's own model of what it has put into the clusters. It performs nothing.
type world struct {
	rng      *rand.Rand
	sites    []*site
	apps     int
	replicas int
	proxies  int
	round    int   // the number of the last one
	retired  []int // by app: the round in which the federated Service was deleted; 0: it is there
	law      law
}

// newWorld returns a world in which everything is settled.
func newWorld(seed uint64, lights, apps, proxies, replicas int) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 0)), apps: apps, replicas: replicas, proxies: proxies,
		retired: make([]int, apps),
	}
	w.law.firm, w.law.lives = make([]map[netip.AddrPort]time.Time, apps), make([]bool, apps)
	for i := range realSites + lights {
		s := &site{index: i, linked: true, members: map[int]*member{}, frozen: map[int][]netip.AddrPort{}}
		w.sites = append(w.sites, s)
	}
	for a := range apps {
		// One member that is real, and some others.
		for _, i := range append(w.rng.Perm(lights)[:min(lights, 5)], -1-w.rng.IntN(realSites)) {
			s := w.sites[realSites+i]
			m := &member{exists: true, included: true}
			s.members[a] = m
			s.add(m, perMember)
		}
	}
	return w
}

// add adds endpoints that never were before; after 60,000 of a cluster the first ones come again.
func (s *site) add(m *member, n int) {
	for range n {
		s.addresses++
		m.endpoints = append(m.endpoints, endpoint{number: s.addresses, ready: true})
	}
}

// addr returns where an endpoint of a cluster is reached.
func (s *site) addr(number int) netip.AddrPort {
	n := number % 60_000
	ip := netip.AddrFrom4([4]byte{10, byte(s.index), byte(n / 250), byte(n%250 + 1)})
	return netip.AddrPortFrom(ip, fakeapi.TargetPort)
}

// publishes returns what proxies should hold of a member, as far as its cluster can be reached.
func (s *site) publishes(app int) (all []netip.AddrPort) {
	if m := s.members[app]; m != nil && m.exists {
		for _, e := range m.endpoints {
			if e.ready {
				all = append(all, s.addr(e.number))
			}
		}
	}
	return all
}

// expected returns what each stream for a Service should hold once everything has arrived: of a cluster that is cut
// off what it published before.
func (w *world) expected(app int) map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	for _, s := range w.sites {
		m := s.members[app]
		if m == nil || !m.included || !s.linked || w.retired[app] > 0 {
			continue
		}
		now := s.publishes(app)
		if s.away {
			now = s.frozen[app]
		}
		for _, a := range now {
			all[a] = true
		}
	}
	return all
}

// changes yields the deeds of the next round up to its comparison, and settles whether more follow it. Each deed is in
// the model when it is yielded, and the next one is chosen afterwards.
func (w *world) changes() iter.Seq[deed] {
	return func(yield func(deed) bool) {
		for _, v := range w.plan() {
			if d, ok := w.choose(v); ok {
				if w.do(d); !yield(d) {
					return
				}
			}
		}
		for _, d := range w.returns() {
			if w.do(d); !yield(d) {
				return
			}
		}
	}
}

func (w *world) settles() bool { return w.round%settleEach == 0 }

// settle yields the deeds after which everything is as large as at the start.
func (w *world) settle() iter.Seq[deed] {
	return func(yield func(deed) bool) {
		for _, d := range w.unsettled() {
			if w.do(d); !yield(d) {
				return
			}
		}
	}
}

// plan returns the verbs of the next round, in order.
func (w *world) plan() (verbs []verb) {
	w.round++
	r := w.rng
	var faults, body []verb
	for range r.IntN(3) {
		faults = append(faults, cut)
	}
	for range r.IntN(3) {
		faults = append(faults, slow)
	}
	churn := []verb{scale, scale, scale, grow, grow, shrink, flip, flip, remove, create, exclude, include}
	for range 10 + r.IntN(15) {
		body = append(body, pick(r, churn))
	}
	for range 16 {
		body = append(body, rotate)
	}
	body = append(body, come, come, mislay, unlink, link, retire, revive, hangUp, stall)
	switch r.IntN(24) { // so seldom that processes get old
	case 0:
		body = append(body, restart)
	case 1:
		body = append(body, kill)
	}
	r.Shuffle(len(body), func(i, j int) { body[i], body[j] = body[j], body[i] })
	return append(faults, body...)
}

// choose returns a deed of that verb, one of all that make sense now; false if there is none.
func (w *world) choose(v verb) (d deed, ok bool) {
	r := w.rng
	d = deed{verb: v, n: r.IntN(1 << 20), pause: time.Duration(r.Int64N(int64(interval)))}
	switch v {
	case restart, kill:
		if !w.writable() {
			return d, false // without the local cluster a new process has no credentials for the others: they are Stale
		}
		// The first replica seldom starts again, so that there are long lines of samples of it.
		if d.site = w.replicas - 1; d.n%8 == 0 {
			d.site = 0
		}
		return d, true
	case come, stall:
		d.n = 1 + r.IntN(max(1, w.proxies/20))
		return d, true
	default:
	}
	var among []deed
	for _, s := range w.sites {
		at := d
		if at.site = s.index; w.suits(s, v, d.n) {
			among = append(among, at)
		}
		for app := range w.apps { // in order, for the seed's sake
			if at.app = app; s.members[app] != nil && w.suitsMember(s.members[app], v, d.n) {
				among = append(among, at)
			}
		}
	}
	for app, in := range w.retired {
		if w.writable() && in < w.round && (v == retire && in == 0 || v == revive && in > 0) {
			among = append(among, deed{verb: v, app: app, pause: d.pause})
		}
	}
	if len(among) == 0 {
		return d, false
	}
	d = pick(r, among)
	switch v {
	case scale:
		d.n %= 2*perMember + 1
	case grow:
		d.n = 1 + d.n%(2*perMember)
	case rotate: // it takes long enough by itself
		d.pause /= 8
	case flip: // one that has not changed in this round
		m := w.sites[d.site].members[d.app]
		for d.n %= len(m.endpoints); m.endpoints[d.n].round == w.round; d.n = (d.n + 1) % len(m.endpoints) {
		}
	default:
	}
	return d, true
}

// writable reports whether replicas can read what the local cluster has of the fleet: Links, Secrets and federated
// Services.
func (w *world) writable() bool { return !w.sites[localSite].away }

// suits reports whether a deed on a cluster makes sense.
func (w *world) suits(s *site, v verb, n int) bool {
	linked := s.index != localSite && w.writable() && !s.away // it can be linked and unlinked
	switch v {
	case cut:
		return !s.away && !s.slow && s.linked && w.count(func(s *site) bool { return s.away }) < 3
	case slow:
		return !s.away && !s.slow && w.count(func(s *site) bool { return s.slow }) < 3
	case hangUp:
		return !s.away && !s.slow
	case unlink:
		return linked && s.linked && w.count(func(s *site) bool { return !s.linked }) < 2
	case link:
		return linked && !s.linked && s.unlinkedIn < w.round
	case rotate, mislay: // seldom in a real one, which takes 10 s to revoke a token
		return linked && s.linked && (s.index >= realSites || n%8 == 0)
	default:
		return false
	}
}

// suitsMember reports whether a deed on a member makes sense.
func (w *world) suitsMember(m *member, v verb, n int) bool {
	switch v {
	case scale, grow, remove:
		return m.exists && !m.grown()
	case shrink:
		return m.exists && m.grown()
	case flip:
		return m.exists && slices.ContainsFunc(m.endpoints, func(e endpoint) bool { return e.round < w.round })
	case create:
		return !m.exists
	case exclude:
		return m.included && w.writable() && n%2 == 0
	case include:
		return !m.included && w.writable() && m.excludedIn < w.round
	default:
		return false
	}
}

func (w *world) count(is func(*site) bool) (n int) {
	for _, s := range w.sites {
		if is(s) {
			n++
		}
	}
	return n
}

// returns returns the deeds that end a round: what is slow is fast again, and what was away long enough is back.
func (w *world) returns() (deeds []deed) {
	for _, s := range w.sites {
		if s.slow {
			deeds = append(deeds, deed{verb: fast, site: s.index})
		}
		if s.away && (w.settles() || s.back <= w.round) {
			deeds = append(deeds, deed{verb: heal, site: s.index})
		}
	}
	return deeds
}

// unsettled returns the deeds of settle. Those of returns came before.
func (w *world) unsettled() (deeds []deed) {
	for app, in := range w.retired {
		if in > 0 {
			deeds = append(deeds, deed{verb: revive, app: app})
		}
	}
	for _, s := range w.sites {
		if !s.linked {
			deeds = append(deeds, deed{verb: link, site: s.index})
		}
		for app := range w.apps {
			m := s.members[app]
			if m == nil {
				continue
			}
			of := func(v verb, n int) { deeds = append(deeds, deed{verb: v, site: s.index, app: app, n: n}) }
			if !m.exists {
				of(create, 0)
			}
			if !m.included {
				of(include, 0)
			}
			for i, e := range m.endpoints {
				if !e.ready {
					of(flip, i)
				}
			}
			if len(m.endpoints) != perMember || m.grown() {
				of(scale, perMember)
			}
		}
	}
	return deeds
}

// do changes the model. What a deed may withdraw is withdrawn from the law before anything is performed.
func (w *world) do(d deed) {
	s := w.sites[min(d.site, len(w.sites)-1)]
	m := s.members[d.app]
	may := func(number int) { // streams may lose it; of a cluster that is away not before it is back
		if !s.away {
			w.law.may(s.addr(number))
		}
	}
	switch d.verb {
	case scale:
		for len(m.endpoints) > d.n {
			last := len(m.endpoints) - 1
			may(m.endpoints[last].number)
			m.endpoints = m.endpoints[:last]
		}
		s.add(m, d.n-len(m.endpoints))
		for i := range m.endpoints {
			m.endpoints[i].new = false
		}
	case grow:
		before := len(m.endpoints)
		s.add(m, d.n)
		for i := before; i < len(m.endpoints); i++ {
			m.endpoints[i].new = true
		}
	case shrink:
		var stay []endpoint
		for _, e := range m.endpoints {
			if e.new {
				e.new = false
				stay = append(stay, e)
			} else {
				may(e.number)
			}
		}
		m.endpoints = stay
	case flip:
		e := &m.endpoints[d.n]
		may(e.number)
		e.ready, e.round = !e.ready, w.round
	case remove:
		for _, e := range m.endpoints {
			may(e.number)
		}
		m.exists, m.endpoints = false, nil
	case create:
		m.exists = true
		s.add(m, perMember)
	case exclude:
		m.included, m.excludedIn = false, w.round
		w.withdraw(s, d.app)
	case include:
		m.included = true
	case retire:
		w.retired[d.app] = w.round
		for _, s := range w.sites {
			w.withdraw(s, d.app)
		}
	case revive:
		w.retired[d.app] = 0
	case unlink:
		s.linked, s.unlinkedIn = false, w.round
		for app := range s.members {
			w.withdraw(s, app)
		}
	case link:
		s.linked = true
	case cut:
		s.away, s.harmed, s.back = true, true, w.round+d.n%3
		for app := range s.members {
			s.frozen[app] = s.publishes(app)
		}
	case heal: // what the cluster withdrew while it was away is withdrawn now
		s.away = false
		for app, before := range s.frozen {
			now := s.publishes(app)
			for _, a := range before {
				if !slices.Contains(now, a) {
					w.law.may(a)
				}
			}
		}
		clear(s.frozen)
	case slow:
		s.slow, s.harmed = true, true
	case fast:
		s.slow = false
	case hangUp:
		s.harmed = true
	case rotate, mislay:
		s.harmed = true
	default: // what happens to proxies and replicas changes nothing here
	}
	for _, s := range w.sites {
		for app, m := range s.members {
			m.solid = m.solid && m.included && s.linked && w.retired[app] == 0 && len(s.publishes(app)) > 0
		}
	}
	w.law.alive(w.alive())
}

// withdraw exempts a member from the law.
func (w *world) withdraw(s *site, app int) {
	if m := s.members[app]; m != nil {
		m.solid = false
		for _, a := range slices.Concat(s.publishes(app), s.frozen[app]) {
			w.law.may(a)
		}
	}
}

// alive returns the Services that have had a ready member in a reachable cluster since the last comparison.
func (w *world) alive() []bool {
	apps := make([]bool, w.apps)
	for _, s := range w.sites {
		for app, m := range s.members {
			apps[app] = apps[app] || m.solid && !s.harmed
		}
	}
	return apps
}

// compared begins the law anew, once every stream holds what it should.
func (w *world) compared(now time.Time) {
	all := make([]map[netip.AddrPort]bool, w.apps)
	for app := range all {
		all[app] = w.expected(app)
	}
	for _, s := range w.sites {
		s.harmed = s.away
		for app, m := range s.members {
			m.solid = m.included && s.linked && !s.away && w.retired[app] == 0 && len(s.publishes(app)) > 0
		}
	}
	w.law.compared(all, now)
	w.law.alive(w.alive())
}

// annotations returns those of a federated Service.
func (w *world) annotations(app int) map[string]string {
	all, remote := map[string]string{}, []string{}
	for _, s := range w.sites {
		switch m := s.members[app]; {
		case m == nil || !m.included:
		case s.index == localSite:
			all["multicluster.linkerd.io/local-discovery"] = appName(app)
		default:
			remote = append(remote, appName(app)+"@"+clusterName(s.index))
		}
	}
	all["multicluster.linkerd.io/remote-discovery"] = strings.Join(remote, ",")
	return all
}

func appName(app int) string { return fmt.Sprintf("app-%d", app) }

func federatedName(app int) string { return appName(app) + "-federated" }

func clusterName(index int) string {
	switch index {
	case localSite:
		return "local"
	case remoteSite:
		return "remote"
	default:
		return fmt.Sprintf("light-%d", index-realSites)
	}
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }
