package cluster

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// What a cluster reports of itself: its identity (identity.go), the region that it is in (region.go), and whether it
// asks to be drained. One goroutine of each engagement reads that, so that nothing waits for it:
//
//   - The identity is read once and then each selfInterval, after selfRetry if that has failed, and when the
//     credentials were replaced or the API server is back. Whether addresses overlap (overlap.go) is looked at with it,
//     which asks nothing. The region of a linked cluster is read with it when it is
//     due.
//   - Nodes of the local cluster are watched, and so is the Namespace of a linked cluster's control plane, which can
//     have the annotation of a Link that drains it: that one object, and its metadata only. Their informers record
//     what they find; this goroutine waits for what they do not call back for, that there is nothing to find.
//
// A linked cluster need not grant any of that. What cannot be read is unknown, and logged once; what fails for
// reasons other than a missing right leaves the region as it was.
//
// What a linked cluster reports changes what all clients of its Services get, and what is written about it. So a
// change counts at once after some quiet, and otherwise one each ownInterval, with what is reported then: the last
// value wins, however often it changes. A step of a drain that the cluster asks for counts as a change.

const (
	selfInterval = 5 * time.Minute
	selfRetry    = 30 * time.Second // after something failed

	ownInterval = 5 * time.Second
	ownBurst    = 3 // changes that count at once after quiet: a drain and a region, when the cluster is linked
)

// ownTraffic is what a cluster reports of itself about its traffic.
type ownTraffic struct {
	drain    policy.Drain
	refused  string // why drain is not known; empty if it is
	region   string // that most of its nodes are in
	noRegion string // why region is not known; empty if it is
}

// ownReports paces what a cluster reports of itself.
type ownReports struct {
	reported ownTraffic // last
	counted  countedTraffic
	awaited  bool          // followTraffic was woken, and has not counted what was reported since
	changes  *rate.Limiter // of counted; nil for the local cluster, which is not paced
}

// countedTraffic is what counts of an ownTraffic at a time.
type countedTraffic struct {
	ownTraffic
	drained uint8 // percent
}

func newOwnReports(local bool) (o ownReports) {
	if !local {
		o.changes = rate.NewLimiter(rate.Every(ownInterval), ownBurst)
	}
	return o
}

// count returns what counts at a time, and when that changes; zero for never.
func (o *ownReports) count(now time.Time) (counted countedTraffic, next time.Time) {
	percent, next := o.reported.drain.At(now)
	due := countedTraffic{o.reported, percent}
	o.awaited = false
	if due == o.counted {
		return due, next
	}

	if o.changes != nil {
		r := o.changes.ReserveN(now, 1)
		if wait := r.DelayFrom(now); wait > 0 {
			r.CancelAt(now)
			o.awaited = true
			return o.counted, now.Add(wait)
		}
	}
	o.counted = due
	return due, next
}

// ownTraffic returns what counts at a time of what the cluster reports of itself, and when that changes; zero for
// never.
func (s *supervisor) ownTraffic(now time.Time) (counted countedTraffic, next time.Time) {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.own.count(now)
}

// setOwn has set change what a cluster reports of itself, and returns what that was before.
func (s *supervisor) setOwn(set func(*ownTraffic)) (before ownTraffic) {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	before = s.own.reported
	set(&s.own.reported)
	if s.own.reported != before && !s.own.awaited {
		s.own.awaited = true
		s.registry.trafficChanged.Ring()
	}
	return before
}

// A selfReader reads what must be requested. One goroutine uses it.
type selfReader struct {
	*supervisor
	local bool
	core  corev1client.CoreV1Interface
	nodes metadata.Getter

	identity        Identity  // as far as it was read
	identityProblem string    // why the identity is not known completely, as last logged
	regionDue       time.Time // when the region is to be read again
}

// followSelf reads what a cluster reports of itself until its engagement ends.
func (s *supervisor) followSelf(engagement *engagement) {
	spec, _ := s.spec.Load()
	core, coreErr := corev1client.NewForConfigAndClient(engagement.conn.Config, engagement.conn.HTTPClient)
	metadataConfig := metadata.ConfigFor(engagement.conn.Config)
	nodes, nodesErr := metadata.NewForConfigAndClient(metadataConfig, engagement.conn.HTTPClient)
	if err := errors.Join(coreErr, nodesErr); err != nil {
		s.log.Error(err, "BUG: no client from a configuration that is in use")
		return
	}

	reader := &selfReader{supervisor: s, local: spec.Local, core: core, nodes: nodes.Resource(nodesResource)}
	informed := logr.NewContext(engagement.ctx, s.log.V(1))
	var namespace *api.Informer[map[string]string]
	var synced, refused <-chan struct{}

	switch {
	case spec.Local:
		engagement.wg.Go(func() { s.newRegionInformer(engagement.conn).Run(informed) })
	case s.registry.options.ControllerNamespace != "":
		namespace = s.newNamespaceInformer(engagement.conn)
		synced, refused = namespace.Synced(), namespace.Refused()
		engagement.wg.Go(func() { namespace.Run(informed) })
	}

	timer := time.NewTimer(0)
	defer timer.Stop()
	var changed <-chan struct{}

	for {
		select {
		case <-timer.C:
		case <-changed:
		case <-synced:
			synced, refused = nil, nil
			s.useOwnDrain(namespace)
			continue
		case <-refused:
			refused = nil
			s.reportNoSelfDrain()
			continue
		case <-engagement.ctx.Done():
			return
		}

		changed = engagement.conn.Changed()
		next := selfInterval
		if reader.failsFor(reader.readDue(engagement.ctx)) {
			next = selfRetry
		}
		timer.Reset(next)
	}
}

// readDue reads what is due, and returns why something of it cannot be read.
func (r *selfReader) readDue(ctx context.Context) error {
	err := r.readIdentity(ctx)
	r.reportOverlap()
	if r.local || time.Now().Before(r.regionDue) {
		return err
	}
	regionErr := r.readRegion(ctx)
	if regionErr == nil {
		r.regionDue = time.Now().Add(regionInterval + rand.N(regionInterval/6))
	}
	return cmp.Or(err, regionErr)
}

// failsFor reports whether what was to be read may be readable soon. A linked cluster need not grant it.
func (r *selfReader) failsFor(err error) bool {
	_, isRight := errors.AsType[missingRight](err)
	return err != nil && (r.local || !isRight)
}

// newNamespaceInformer returns an informer of the Namespace of a linked cluster's control plane.
func (s *supervisor) newNamespaceInformer(conn *api.Connection) (informer *api.Informer[map[string]string]) {
	kind := api.Metadata(corev1.SchemeGroupVersion, "namespaces", "Namespace")
	kind = kind.Named(s.registry.options.ControllerNamespace)
	informer = api.NewInformer(conn, kind, func(object any) (map[string]string, bool) {
		m, err := meta.Accessor(object)
		if err != nil {
			return nil, false
		}
		value, found := m.GetAnnotations()[policy.DrainKey]
		return map[string]string{policy.DrainKey: value}, found
	}, func(api.Key) { s.useOwnDrain(informer) })
	informer.Optional()
	return informer
}

// useOwnDrain records how a cluster asks to be drained by the annotations of its Namespace, as they are now. What
// cannot be read changes nothing.
func (s *supervisor) useOwnDrain(namespace *api.Informer[map[string]string]) {
	var problems []policy.Problem
	s.setOwn(func(own *ownTraffic) {
		annotations, _ := namespace.Get(api.Key{Name: s.registry.options.ControllerNamespace})
		var asked policy.Link
		asked, problems = policy.LinkOf(annotations)
		own.refused = ""
		if len(problems) == 0 {
			own.drain = asked.Drain
		}
	})

	for _, p := range problems {
		logs.Warn(s.log, "The cluster asks to be drained in a way that is not understood", "problem", p.String())
	}
}

// reportNoSelfDrain records why a cluster cannot drain itself, and logs that once.
func (s *supervisor) reportNoSelfDrain() {
	reason := "grant list and watch on namespaces of the name " + s.registry.options.ControllerNamespace
	before := s.setOwn(func(own *ownTraffic) { own.refused, own.drain = reason, policy.Drain{} })
	if before.refused != reason {
		logs.Warn(s.log, "The cluster cannot drain itself: its Namespace cannot be read", "reason", reason)
	}
}
