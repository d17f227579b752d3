package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

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
// A cluster drains itself by the annotation of a Link on the Namespace of its control plane, which each engagement
// watches: that one object, and its metadata only. A linked cluster need not grant that; then it cannot drain itself,
// which is logged once. The annotation takes effect like that of the Link, and the one that takes more away counts.
//
// The region of a cluster is the one that its Link names, or else the one that most of its nodes are in (region.go).

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
	sameHold := t.Withdrawn == nil && o.Withdrawn == nil
	if a, b := t.Withdrawn, o.Withdrawn; a != nil && b != nil {
		sameHold = a.Endpoints == b.Endpoints && a.More == b.More && a.Until.Equal(b.Until) &&
			slices.Equal(a.Services, b.Services)
	}
	a, b := t.Drain, o.Drain
	return sameHold && t.Policy == o.Policy && t.Asked == o.Asked && t.Released == o.Released &&
		t.Region == o.Region && t.NoRegion == o.NoRegion && t.NoSelfDrain == o.NoSelfDrain &&
		a.Percent == b.Percent && a.By == b.By && a.Next.Equal(b.Next) && a.Needed == b.Needed &&
		slices.Equal(a.NeededBy, b.NeededBy)
}

// followTraffic keeps true what is in force for each cluster until ctx ends.
func (r *Registry) followTraffic(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var next time.Time
		for _, s := range r.allSupervisors() {
			next = earliest(next, r.updateCurrent(s))
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

func (r *Registry) allSupervisors() []*supervisor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.supervisors))
}

// updateCurrent is updateTraffic now, unless the cluster was removed.
func (r *Registry) updateCurrent(s *supervisor) (next time.Time) {
	r.order.Lock()
	defer r.order.Unlock()
	if !r.isCurrent(s) {
		return time.Time{}
	}
	return r.updateTraffic(s, time.Now())
}

// updateTraffic computes what is in force for a cluster, and returns when that changes; zero for never. It needs order.
func (r *Registry) updateTraffic(s *supervisor, now time.Time) (next time.Time) {
	spec, _ := s.spec.Load()
	r.mu.Lock()
	own := r.own[s.name]
	r.mu.Unlock()
	t := Traffic{Asked: spec.Traffic, Released: spec.Released, NoSelfDrain: own.refused}
	t.Policy, t.Drain = inForce(spec, own, now)
	if t.Region = t.Policy.Region; spec.Traffic.Region == "" {
		t.NoRegion = own.noRegion
	}
	next = t.Drain.Next
	r.store.SetPolicy(federation.Cluster(s.name), t.Policy)
	if s.guard != nil {
		s.guard.ask(spec.Traffic.WithdrawalGuard, spec.Released)
		next = earliest(next, r.store.EndHolds(federation.Cluster(s.name), now))
		t.Withdrawn = r.withdrawnOf(s)
	}
	if t.Drain.Percent == 100 {
		needed := r.needing(s.name, nil)
		t.Drain.Needed, t.Drain.NeededBy = len(needed), needed[:min(len(needed), maxNamed)]
	}
	if t.Drain.Percent == 100 || t.Withdrawn != nil {
		next = earliest(next, now.Add(neededInterval))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.traffic[s.name] = t
	statuses, _ := r.statuses.Load()
	r.setStatus(statuses[s.name])
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

// needing returns the Services of the local cluster, sorted, of which only the members of one cluster have ready
// endpoints; or, if held is not nil, those held ones. Members of clusters that are drained themselves do not count.
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
	r.mu.Lock()
	defer r.mu.Unlock()
	drained = map[string]bool{}
	statuses, _ := r.statuses.Load()
	for name, s := range statuses {
		if s.Local {
			local = name
		}
		drained[name] = r.traffic[name].Drain.Percent == 100
	}
	return local, drained
}

// ownTraffic is what a cluster reports of itself.
type ownTraffic struct {
	drain    policy.Drain
	refused  string // why drain is not known; empty if it is
	region   string // that most of its nodes are in
	noRegion string // why region is not known; empty if it is
}

func (r *Registry) setOwn(name string, set func(*ownTraffic)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.own[name]
	if set(&own); own != r.own[name] && r.supervisors[name] != nil {
		r.own[name] = own
		r.trafficChanged.Ring()
	}
}

// followSelfDrain watches the Namespace of a linked cluster's control plane until its engagement ends.
func (r *Registry) followSelfDrain(ctx context.Context, spec *watch.Value[Spec], conn *api.Connection) {
	s, _ := spec.Load()
	name, namespace := s.Name, r.options.ControllerNamespace
	if s.Local || namespace == "" {
		return
	}
	log := r.log.WithValues("cluster", name)
	kind := api.Metadata(corev1.SchemeGroupVersion, "namespaces", "Namespace").Named(namespace)
	changed := watch.NewBell()
	informer := api.NewInformer(conn, kind, func(object any) (string, bool) {
		m, err := meta.Accessor(object)
		if err != nil {
			return "", false
		}
		value, found := m.GetAnnotations()[policy.DrainKey]
		return value, found
	}, func(api.Key) { changed.Ring() })
	informer.Optional()
	ended := make(chan struct{})
	defer func() { <-ended }()
	go func() {
		defer close(ended)
		informer.Run(logr.NewContext(ctx, log.V(1)))
	}()
	synced, refused := informer.Synced(), informer.Refused()
	for {
		select {
		case <-changed.Rung():
		case <-synced:
			synced, refused = nil, nil
		case <-refused:
			refused = nil
			r.reportNoSelfDrain(log, name, "grant list and watch on namespaces of the name "+namespace)
			continue
		case <-ctx.Done():
			return
		}
		value, found := informer.Get(api.Key{Name: namespace})
		drain, problems := policy.Drain{}, []policy.Problem(nil)
		if found {
			drain, problems = readDrain(value)
		}
		for _, p := range problems {
			log.Info("The cluster asks to be drained in a way that is not understood", "problem", p.String())
		}
		r.setOwn(name, func(own *ownTraffic) {
			if own.refused = ""; len(problems) == 0 {
				own.drain = drain
			}
		})
	}
}

// reportNoSelfDrain records why a cluster cannot drain itself, and logs that once.
func (r *Registry) reportNoSelfDrain(log logr.Logger, name, reason string) {
	isNew := false
	r.setOwn(name, func(own *ownTraffic) {
		isNew, own.refused, own.drain = own.refused != reason, reason, policy.Drain{}
	})
	if isNew {
		log.Info("The cluster cannot drain itself: its Namespace cannot be read", "reason", reason)
	}
}

// readDrain reads the value of the annotation of a Namespace.
func readDrain(value string) (policy.Drain, []policy.Problem) {
	asked, problems := policy.LinkOf(map[string]string{policy.DrainKey: value})
	return asked.Drain, problems
}

// String describes the Services that are named, for people.
func (w *Withdrawn) String() string {
	text := strings.Join(w.Services, ", ")
	if w.More > 0 {
		text += fmt.Sprintf(" and %d more", w.More)
	}
	return text
}
