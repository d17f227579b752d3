package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
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
	maxNamed       = 3 // Services by name in a Status
)

// Traffic is what is in force for a linked cluster. The zero Traffic is that its traffic is not limited.
type Traffic struct {
	Policy   policy.Cluster `json:"-"`
	Asked    policy.Link    `json:"-"` // what its Link asks for; what cannot be read is as it was before
	Released string         `json:"-"` // as in the Spec

	Drain     Drain      `json:"drain,omitzero"`
	Withdrawn *Withdrawn `json:"withdrawn,omitempty"` // what is held of it; nil for nothing

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

func (t Traffic) equal(o Traffic) bool {
	a, b := t.Drain, o.Drain
	return t.Policy == o.Policy && t.Asked == o.Asked && t.Released == o.Released &&
		t.Region == o.Region && t.NoRegion == o.NoRegion && t.NoSelfDrain == o.NoSelfDrain &&
		a.Percent == b.Percent && a.By == b.By && a.Next.Equal(b.Next) && a.Needed == b.Needed &&
		slices.Equal(a.NeededBy, b.NeededBy) && t.Withdrawn.equal(o.Withdrawn)
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
		var next time.Time
		for _, s := range r.allSupervisors() {
			r.whileCurrent(s, func() { next = earliest(next, r.updateTraffic(s, time.Now())) })
		}
		if timer.Stop(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-timer.C:
		case <-r.trafficChanged.Rung():
		case <-ctx.Done():
			return
		}
	}
}

// updateTraffic computes what is in force for a cluster, and returns when that changes; zero for never. It needs order.
func (r *Registry) updateTraffic(s *supervisor, now time.Time) (next time.Time) {
	spec, _ := s.spec.Load()
	own := s.ownTraffic()
	t := Traffic{Asked: spec.Traffic, Released: spec.Released, NoSelfDrain: own.refused}
	t.Policy, t.Drain = inForce(spec, own, now)
	if t.Region = t.Policy.Region; spec.Traffic.Region == "" {
		t.NoRegion = own.noRegion
	}
	r.store.SetPolicy(federation.Cluster(s.name), t.Policy)
	var holdEnds time.Time
	if s.guard != nil {
		s.guard.ask(spec.Traffic.WithdrawalGuard, spec.Released)
		holdEnds = r.store.EndHolds(federation.Cluster(s.name), now)
		t.Withdrawn = r.withdrawnOf(s)
	}
	next = earliest(t.Drain.Next, holdEnds)
	if t.Drain.Percent == 100 {
		needed := r.needing(s.name, nil)
		t.Drain.Needed, t.Drain.NeededBy = len(needed), needed[:min(len(needed), maxNamed)]
	}
	if t.Drain.Percent == 100 || !holdEnds.IsZero() {
		next = earliest(next, now.Add(neededInterval))
	}
	r.changeStatus(s, func(status *Status) { status.Traffic = t })
	return next
}

// earliest returns the earlier one of two times, of which zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// inForce returns the policy for a cluster at a time, and how far it is drained.
func inForce(spec Spec, own ownTraffic, now time.Time) (p policy.Cluster, d Drain) {
	ofLink, next := spec.Traffic.Drain.At(now)
	itself, ownNext := own.drain.At(now)
	d.Next = earliest(next, ownNext)
	switch none := (policy.Drain{}); {
	case itself > ofLink, spec.Traffic.Drain == none && own.drain != none:
		d.By = fmt.Sprintf("the annotation %s of a Namespace of the cluster, which drains itself", policy.DrainKey)
	case spec.Traffic.Drain != none:
		d.By = fmt.Sprintf("the annotation %s of the Link", policy.DrainKey)
	}
	p = policy.Cluster{WhenStale: spec.Traffic.WhenStale, Drained: max(ofLink, itself), Region: spec.Traffic.Region}
	if p.Region == "" {
		p.Region = own.region
	}
	d.Percent = int(p.Drained)
	return p, d
}

// withdrawnOf returns what is held of a cluster for Services that have nothing else.
func (r *Registry) withdrawnOf(s *supervisor) *Withdrawn {
	held := r.store.Holds(federation.Cluster(s.name))
	maps.DeleteFunc(held, func(_ federation.Service, h federation.HoldStatus) bool {
		return h.Until.IsZero() || h.Endpoints == 0
	})
	if len(held) == 0 {
		return nil
	}
	services := r.needing(s.name, held)
	if len(services) == 0 {
		return nil
	}
	w := &Withdrawn{}
	for _, h := range held {
		w.Endpoints += h.Endpoints
		if h.Until.After(w.Until) {
			w.Until = h.Until
		}
	}
	w.Services = services[:min(len(services), maxNamed)]
	w.More = len(services) - len(w.Services)
	return w
}

// needing returns the Services of the local cluster, sorted, that need their members of one cluster, because no other
// member has a ready endpoint. If held is nil, members with a ready endpoint are needed, and other clusters that are
// drained completely do not count. Otherwise members in held are needed, and every other cluster counts.
func (r *Registry) needing(name string, held map[federation.Service]federation.HoldStatus) (services []string) {
	local, drained := r.localAndDrained()
	ready := func(m federation.MemberRef) bool { return r.store.View(m.Ref).HasReady() }
	for svc, v := range r.store.Views(federation.Cluster(local)).All() {
		if v.Composition == nil {
			continue
		}
		needs, others := false, false
		for _, m := range v.Composition.Members {
			switch _, isHeld := held[m.Service]; {
			case string(m.Cluster) == name:
				needs = needs || isHeld || held == nil && ready(m)
			case held != nil || !drained[string(m.Cluster)]:
				others = others || ready(m)
			}
		}
		if needs && !others {
			services = append(services, svc.Namespace+"/"+svc.Name)
		}
	}
	slices.Sort(services)
	return services
}

// localAndDrained returns the local cluster, and which clusters are drained completely.
func (r *Registry) localAndDrained() (local string, drained map[string]bool) {
	drained = map[string]bool{}
	statuses, _ := r.Statuses()
	for name, s := range statuses {
		if s.Local {
			local = name
		}
		drained[name] = s.Traffic.Drain.Percent == 100
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
