package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// What is in force for a cluster follows from four things: what its Link asks for, what the cluster asks for itself,
// the time, and what its guard holds. One goroutine of the Registry, followTraffic, computes it for all clusters when
// one of them may have changed, hands it to the Store (SetPolicy) and publishes it in the Status. It has one timer,
// for the earliest of all next steps: of a drain, of the end of a hold, and of neededInterval while something is
// drained or held, because others may be ready by now. With neither it sleeps.
//
// A cluster drains itself by the annotation of a Link on the Namespace of its control plane (self.go). It takes
// effect like that of the Link, and the one that takes more away counts. The region of a cluster is the one that its
// Link names, or else the one that most of its nodes are in (region.go).

const (
	// neededInterval is how often it is counted who still needs a cluster that is drained, or what is held of it.
	neededInterval = 5 * time.Second
	// unconfirmedPatience is how long a list that confirms a withdrawal may take before that is reported.
	unconfirmedPatience = 5 * time.Second
	letGoReported       = 10 * time.Minute       // since there was last no room for what was held
	trafficPace         = 100 * time.Millisecond // the shortest time from one pass over all clusters to the next
	maxNamed            = 3                      // Services by name in a Status
)

// Traffic is what is in force for a linked cluster. The zero Traffic is that its traffic is not limited.
type Traffic struct {
	Policy   policy.ForCluster `json:"-"`
	Asked    policy.Link       `json:"-"` // what its Link asks for; what cannot be read is as it was before
	Released string            `json:"-"` // as in the Spec

	Drain       Drain       `json:"drain,omitzero"`
	Withdrawn   *Withdrawn  `json:"withdrawn,omitempty"`  // what is held of it; nil for nothing
	Unconfirmed Unconfirmed `json:"unconfirmed,omitzero"` // what is held of it before it is known to be gone
	LetGo       LetGo       `json:"letGo,omitzero"`       // what was held of it until there was no room

	Region      string `json:"region,omitempty"`      // that it is in; empty if it is not known
	NoRegion    string `json:"noRegion,omitempty"`    // why its nodes do not give its region; empty if its Link has one
	NoSelfDrain string `json:"noSelfDrain,omitempty"` // why the cluster cannot drain itself; empty if it can
}

// Drain is how far a cluster is drained.
type Drain struct {
	Percent  int       `json:"percent"`            // of its traffic that is taken away
	By       string    `json:"by,omitempty"`       // the annotation that asks for it, for people; empty for none
	Next     time.Time `json:"next,omitzero"`      // when Percent changes; zero for never
	Needed   int       `json:"needed,omitempty"`   // Services that only this cluster has, once all is taken away
	NeededBy []string  `json:"neededBy,omitempty"` // some of them
}

// Withdrawn is what a cluster has withdrawn, and what is held for now.
type Withdrawn struct {
	Endpoints int       `json:"endpoints"`
	Services  []string  `json:"services"`       // some of them
	More      int       `json:"more,omitempty"` // Services
	Until     time.Time `json:"until"`
}

// Unconfirmed is what a cluster has withdrawn, and is given, or stays written, until a list confirms that. The zero
// value is nothing, or not for long enough to be reported.
type Unconfirmed struct {
	Endpoints int       `json:"endpoints"`
	Since     time.Time `json:"since"`
}

// LetGo is what was held of a cluster within the last minutes, and is not because it exceeds the cluster's budget,
// together with what the cluster has. The zero value is nothing.
type LetGo struct {
	Endpoints int       `json:"endpoints"` // as long as the cluster is linked
	At        time.Time `json:"at"`        // the last of them
	Budget    string    `json:"budget"`    // for people
}

func (t Traffic) equal(o Traffic) bool {
	a, b := t.Drain, o.Drain
	return t.Policy == o.Policy && t.Asked == o.Asked && t.Released == o.Released &&
		t.Region == o.Region && t.NoRegion == o.NoRegion && t.NoSelfDrain == o.NoSelfDrain &&
		a.Percent == b.Percent && a.By == b.By && a.Next.Equal(b.Next) && a.Needed == b.Needed &&
		slices.Equal(a.NeededBy, b.NeededBy) && t.Withdrawn.equal(o.Withdrawn) &&
		t.Unconfirmed.Endpoints == o.Unconfirmed.Endpoints && t.Unconfirmed.Since.Equal(o.Unconfirmed.Since) &&
		t.LetGo.Endpoints == o.LetGo.Endpoints && t.LetGo.At.Equal(o.LetGo.At) && t.LetGo.Budget == o.LetGo.Budget
}

func (w *Withdrawn) equal(o *Withdrawn) bool {
	if w == nil || o == nil {
		return w == o
	}
	return w.Endpoints == o.Endpoints && w.More == o.More && w.Until.Equal(o.Until) &&
		slices.Equal(w.Services, o.Services)
}

// followTraffic keeps true what is in force for each cluster until ctx ends.
func (r *Registry) followTraffic(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()

	for {
		next := r.updateAllTraffic(time.Now())
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), trafficPace))
		}

		select {
		case <-timer.C:
		case <-r.trafficChanged.Rung():
		case <-ctx.Done():
			return
		}
	}
}

// A trafficUpdate is what was put in force for a cluster, and is to be published.
type trafficUpdate struct {
	supervisor *supervisor
	superseded <-chan struct{} // closes when its Spec is, of which another update follows
	traffic    Traffic
	next       time.Time // when that changes; zero for never

	held        map[federation.Service]federation.HoldStatus // confirmed, and not empty
	needing     nameCount                                    // Services that need the cluster, which is drained
	needingHeld nameCount                                    // those that need what is held of it
}

func (u *trafficUpdate) isDrained() bool { return u.traffic.Drain.Percent == 100 }

// updateAllTraffic computes what is in force for all clusters, and returns when that changes; zero for never. Who needs
// them is looked for once for all of them, without order.
func (r *Registry) updateAllTraffic(now time.Time) (next time.Time) {
	var updates []*trafficUpdate
	for _, s := range r.allSupervisors() {
		r.whileCurrent(s, func() { updates = append(updates, r.enforceTraffic(s, now)) })
	}
	r.addNeeding(updates...)
	for _, u := range updates {
		r.whileCurrent(u.supervisor, func() { r.publishTraffic(u) })
		next = earliest(next, u.next)
	}
	return next
}

// updateTraffic computes what is in force for one cluster. It needs order.
func (r *Registry) updateTraffic(s *supervisor, now time.Time) {
	u := r.enforceTraffic(s, now)
	r.addNeeding(u)
	r.publishTraffic(u)
}

// enforceTraffic puts in force what is asked for. It needs order.
func (r *Registry) enforceTraffic(supervisor *supervisor, now time.Time) *trafficUpdate {
	spec, superseded := supervisor.spec.Load()
	own, ownNext := supervisor.ownTraffic(now)
	name := federation.Cluster(supervisor.name)
	t := Traffic{Asked: spec.Traffic, Released: spec.Released, NoSelfDrain: own.refused}
	t.Policy, t.Drain = inForce(spec, own, now)
	t.Drain.Next = earliest(t.Drain.Next, ownNext)
	t.Region = t.Policy.Region
	if spec.Traffic.Region == "" {
		t.NoRegion = own.noRegion
	}

	r.store.SetPolicy(name, t.Policy)
	update := &trafficUpdate{supervisor: supervisor, superseded: superseded, traffic: t, next: t.Drain.Next}
	if supervisor.guard != nil {
		supervisor.guard.ask(spec.Traffic.WithdrawalGuard, spec.Released)
		r.addAccount(update, supervisor.limits(spec), now)
		update.next = earliest(update.next, r.store.EndHolds(name, now))
		update.held = r.store.Holds(name)
		maps.DeleteFunc(update.held, func(_ federation.Service, h federation.HoldStatus) bool {
			return h.Until.IsZero() || h.Endpoints == 0
		})
	}

	if update.isDrained() || len(update.held) > 0 {
		update.next = earliest(update.next, now.Add(neededInterval))
	}
	return update
}

// addAccount has what is held of a cluster keep to its limits, and adds what of that is to be reported.
func (r *Registry) addAccount(update *trafficUpdate, limits api.Limits, now time.Time) {
	name := federation.Cluster(update.supervisor.name)
	r.store.SetLimit(name, federation.Size{
		Services: limits.Services, Endpoints: limits.Endpoints, Bytes: limits.Bytes,
	})

	account := r.store.Account(name)
	if pending := update.supervisor.guard.unconfirmed(account.Unconfirmed); !pending.Since.IsZero() {
		reported := pending.Since.Add(unconfirmedPatience)
		update.next = earliest(update.next, now.Add(neededInterval))
		if now.Before(reported) {
			update.next = earliest(update.next, reported)
		} else {
			update.traffic.Unconfirmed = pending
		}
	}

	if letGo := update.supervisor.guard.noteLetGo(account.LetGo, limits.String(), now); letGo != (LetGo{}) {
		update.traffic.LetGo = letGo
		update.next = earliest(update.next, letGo.At.Add(letGoReported))
	}
}

// publishTraffic publishes what is in force in the Status of a cluster. It needs order.
func (r *Registry) publishTraffic(u *trafficUpdate) {
	if !watch.IsClosed(u.superseded) {
		r.changeStatus(u.supervisor, func(status *Status) { status.Traffic = u.traffic })
	}
}

// earliest returns the earlier one of two times, of which zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// inForce returns the policy for a cluster at a time, and how far it is drained.
func inForce(spec Spec, own countedTraffic, now time.Time) (p policy.ForCluster, d Drain) {
	ofLink, next := spec.Traffic.Drain.At(now)
	itself := own.drained
	d.Next = next
	switch none := (policy.Drain{}); {
	case itself > ofLink, spec.Traffic.Drain == none && own.drain != none:
		d.By = fmt.Sprintf("the annotation %s of a Namespace of the cluster, which drains itself", policy.DrainKey)
	case spec.Traffic.Drain != none:
		d.By = fmt.Sprintf("the annotation %s of the Link", policy.DrainKey)
	}

	p = policy.ForCluster{WhenStale: spec.Traffic.WhenStale, Drained: max(ofLink, itself), Region: spec.Traffic.Region}
	if p.Region == "" {
		p.Region = own.region
	}
	d.Percent = int(p.Drained)
	return p, d
}

// addNeeding adds to updates which Services of the local cluster need their clusters: those that have nothing else, and
// mirrors through a cluster's gateway, whose endpoints a drain does not take away. One pass over these Services is
// enough for all updates.
func (r *Registry) addNeeding(updates ...*trafficUpdate) {
	local, isDrained := r.localAndDrained()
	drained, held := map[federation.Cluster]*trafficUpdate{}, map[federation.Cluster]*trafficUpdate{}
	for _, u := range updates {
		name := federation.Cluster(u.supervisor.name)
		isDrained[name] = u.isDrained()
		if u.isDrained() {
			drained[name] = u
		}
		if len(u.held) > 0 {
			held[name] = u
		}
	}

	if len(drained)+len(held) == 0 {
		return
	}

	for svc, v := range r.store.Views(local).All() {
		name := svc.Namespace + "/" + svc.Name
		if v.Composition == nil {
			if u := drained[v.ThroughGateway]; u != nil && v.HasReady() {
				u.needing.add(name)
			}
			continue
		}

		members := v.Composition.Members
		if len(drained) > 0 {
			r.addNeedingDrained(name, members, isDrained, drained)
		}
		if len(held) > 0 {
			r.addNeedingHeld(name, members, held)
		}
	}

	for _, u := range updates {
		u.traffic.Drain.Needed, u.traffic.Drain.NeededBy = u.needing.count, u.needing.first
		u.traffic.Withdrawn = u.withdrawn()
	}
}

// addNeedingDrained adds a Service to the updates of clusters that are drained completely, and have a member with a
// ready endpoint, if no cluster that is not has one.
func (r *Registry) addNeedingDrained(
	name string, members []federation.MemberRef, isDrained map[federation.Cluster]bool,
	drained map[federation.Cluster]*trafficUpdate,
) {
	ready := func(m federation.MemberRef) bool { return r.store.View(m.Ref).HasReady() }
	if slices.ContainsFunc(members, func(m federation.MemberRef) bool { return !isDrained[m.Cluster] && ready(m) }) {
		return
	}
	for _, m := range members {
		if u := drained[m.Cluster]; u != nil && u.needing.last != name && ready(m) {
			u.needing.add(name)
		}
	}
}

// addNeedingHeld adds a Service to the updates of clusters of which a member is held, if no other cluster has a
// member with a ready endpoint.
func (r *Registry) addNeedingHeld(
	name string, members []federation.MemberRef, held map[federation.Cluster]*trafficUpdate,
) {
	for _, m := range members {
		u := held[m.Cluster]
		if u == nil || u.needingHeld.last == name {
			continue
		}
		_, isHeld := u.held[m.Service]
		if isHeld && !slices.ContainsFunc(members, func(o federation.MemberRef) bool {
			return o.Cluster != m.Cluster && r.store.View(o.Ref).HasReady()
		}) {
			u.needingHeld.add(name)
		}
	}
}

// A nameCount counts names, and has those of them that come first.
type nameCount struct {
	count int
	first []string // sorted, at most maxNamed
	last  string   // that was added
}

func (c *nameCount) add(name string) {
	c.count, c.last = c.count+1, name
	if len(c.first) == maxNamed && name > c.first[maxNamed-1] {
		return
	}
	at, _ := slices.BinarySearch(c.first, name)
	c.first = slices.Insert(c.first, at, name)
	c.first = c.first[:min(len(c.first), maxNamed)]
}

// withdrawn returns what is held of a cluster for Services that have nothing else; nil for nothing.
func (u *trafficUpdate) withdrawn() *Withdrawn {
	if u.needingHeld.count == 0 {
		return nil
	}
	w := &Withdrawn{Services: u.needingHeld.first, More: u.needingHeld.count - len(u.needingHeld.first)}
	for _, h := range u.held {
		w.Endpoints += h.Endpoints
		if h.Until.After(w.Until) {
			w.Until = h.Until
		}
	}
	return w
}

// localAndDrained returns the local cluster, and which clusters are drained completely, as was published.
func (r *Registry) localAndDrained() (local federation.Cluster, drained map[federation.Cluster]bool) {
	drained = map[federation.Cluster]bool{}
	statuses, _ := r.Statuses()
	for name, s := range statuses {
		if s.Local {
			local = federation.Cluster(name)
		}
		drained[federation.Cluster(name)] = s.Traffic.Drain.Percent == 100
	}
	return local, drained
}

// String describes the Services that are named, for people.
func (w *Withdrawn) String() string {
	text := strings.Join(w.Services, ", ")
	if w.More > 0 {
		text += fmt.Sprintf(" and %d more", w.More)
	}
	return text
}
