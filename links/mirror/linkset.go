package mirror

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/links"
)

// A linkSet is all Links, and which of them are ours to serve. It is immutable.
type linkSet struct {
	links           []*link
	synced          bool            // all Links that can be read were
	complete        bool            // all Links of the namespace that is read are known
	everServed      map[string]bool // clusters whose Link was ours to serve, now or earlier in the term
	seen            map[string]bool // clusters without a Link that this process knows to have been linked
	graceOver       bool            // so are all others without one, if they ever were: see links.Reconciler
	servedByLinkerd map[string]bool // clusters that Linkerd's service mirror serves for Links that are not read
	localSkipReason string          // why local members are not ours to write; empty if they are

	// Positions in links, by index.
	byCluster map[string]int
	byName    map[api.Key]int
}

// index makes links findable. It is called once, before the linkSet is used.
func (s *linkSet) index() *linkSet {
	s.byCluster, s.byName = make(map[string]int, len(s.links)), make(map[api.Key]int, len(s.links))
	for i, l := range s.links {
		s.byName[l.Link] = i
		if l.Cluster != "" {
			s.byCluster[l.Cluster] = i
		}
	}
	return s
}

// linkOf returns the Link of a cluster; nil if there is none.
func (s *linkSet) linkOf(cluster string) *link {
	if i, found := s.byCluster[cluster]; found {
		return s.links[i]
	}
	return nil
}

// linkNamed returns the Link of a name; nil if there is none.
func (s *linkSet) linkNamed(k api.Key) *link {
	if i, found := s.byName[k]; found {
		return s.links[i]
	}
	return nil
}

// suffixed yields the Links for whose clusters a name may be that of a mirror, the oldest first, each with what
// precedes the cluster.
func (s *linkSet) suffixed(name string) iter.Seq2[*link, string] {
	var found []int
	for i, c := range name {
		if at, is := s.byCluster[name[i+1:]]; c == '-' && i > 0 && is {
			found = append(found, at)
		}
	}
	slices.Sort(found)
	return func(yield func(*link, string) bool) {
		for _, at := range found {
			l := s.links[at]
			if !yield(l, strings.TrimSuffix(name, "-"+l.Cluster)) {
				return
			}
		}
	}
}

// probedOver returns the Link whose gateway is probed over a Service; nil if there is none.
func (s *linkSet) probedOver(k api.Key) *link {
	name, prefixed := strings.CutPrefix(k.Name, probePrefix)
	if !prefixed {
		return nil
	}
	l := s.linkNamed(api.Key{Namespace: k.Namespace, Name: name})
	if l == nil || l.Probe == nil || l.skipReason != "" || l.Problem != "" {
		return nil
	}
	return l
}

// sameAround reports whether two linkSets lead to the same plans but for what their Links ask for.
func (s *linkSet) sameAround(o *linkSet) bool {
	return s.complete == o.complete && s.localSkipReason == o.localSkipReason &&
		s.graceOver == o.graceOver && maps.Equal(s.servedByLinkerd, o.servedByLinkerd) && maps.Equal(s.seen, o.seen)
}

// changedLinks yields the Links of one linkSet that another one has not, or has otherwise. Their statuses may differ.
func (s *linkSet) changedLinks(o *linkSet) iter.Seq[*link] {
	return func(yield func(*link) bool) {
		for _, l := range s.links {
			other := o.linkNamed(l.Link)
			same := other != nil && other.UID == l.UID && other.Spec == l.Spec && other.skipReason == l.skipReason
			if !same && !yield(l) {
				return
			}
		}
	}
}

func (s *linkSet) linked(name string) bool { return s.linkOf(name) != nil }

// followLinks keeps the linkSet up to date, and with it gateways and watches of Leases, until ctx ends. It is
// the only goroutine that stores t.linkSet, lists Leases and changes t.gateways. It waits for those that it
// has started.
func (t *term) followLinks(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	var before *linkSet
	synced := t.links.Synced()
	for {
		all, linksChanged := t.links.Mirrorings()
		_, leasesChanged := t.observedLeases.changed.Load()
		t.watchLeases(ctx, &wg, all)
		next, due := t.newLinkSet(ctx, all)
		if before != nil {
			maps.Copy(next.everServed, before.everServed)
		}
		t.linkSet.Store(next)
		t.updateGateways(ctx, &wg, next)
		t.dropUnlinked()
		if next.synced && (before == nil || !before.synced) {
			close(t.linksSynced)
		}
		t.enqueueDifference(before, next)
		before = next
		again := time.NewTimer(time.Until(due))
		if due.IsZero() {
			again.Stop()
		}
		select {
		case <-linksChanged:
		case <-leasesChanged:
		case <-again.C:
		case <-synced:
			synced = nil
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// enqueueDifference enqueues what a new linkSet bears on. before is nil for the first one.
func (t *term) enqueueDifference(before, next *linkSet) {
	if before == nil || !before.sameAround(next) {
		t.enqueueNames(nil)
	} else {
		for l := range next.changedLinks(before) {
			t.enqueueOfLink(l)
		}
		for l := range before.changedLinks(next) {
			t.enqueueOfLink(l)
		}
	}
	for _, l := range next.links {
		var old *link
		if before != nil {
			old = before.linkNamed(l.Link)
		}
		unchanged := old != nil && old.UID == l.UID && old.Generation == l.Generation && old.Spec == l.Spec &&
			old.Problem == l.Problem && old.skipReason == l.skipReason
		if !unchanged {
			t.enqueueLink(l.Link)
		}
	}
	reason := next.localSkipReason
	if reason != "" && reason != leasesUnknown && (before == nil || before.localSkipReason != reason) {
		t.log.Info("Services of the local cluster are not added to federated Services", "reason", reason)
	}
}

// dropUnlinked forgets clusters that have neither a Link nor an engagement.
func (t *term) dropUnlinked() {
	now, _ := t.linkSet.Load()
	linked := func(name string) bool { return !now.complete || now.linked(name) }
	t.remoteEndpoints.unfollowAll(func(k queueKey) bool { return !linked(k.cluster) })
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, r := range t.remotes {
		if !r.connected.Load() && !linked(name) {
			delete(t.remotes, name)
		}
	}
}

// Bounds of listing Leases to confirm what a watch shows. followLinks waits for the answer.
const (
	leaseListTimeout = 3 * time.Second
	leaseListRetry   = 10 * time.Second // after a failure
)

// leasesUnknown is why nothing is written until the Leases were listed.
const leasesUnknown = "it is not known yet whether Linkerd's service mirror runs"

// newLinkSet computes which Links are ours to serve, and when that may change without an event; due is zero
// for never. A Link is Linkerd's while Linkerd's service mirror holds its Lease. The namespace of Linkerd's
// multicluster extension may have Links that are not read: a Lease held there is that of the Link, and of
// the cluster, of its name.
func (t *term) newLinkSet(ctx context.Context, all []*links.Mirroring) (_ *linkSet, due time.Time) {
	next := &linkSet{
		synced: watch.IsClosed(t.links.Synced()), seen: t.links.Seen(), graceOver: watch.IsClosed(t.links.GraceOver()),
		everServed: map[string]bool{}, servedByLinkerd: map[string]bool{},
	}
	next.complete = next.synced
	skipReason := func(namespace, lease string) string {
		reason, recheck := t.leaseHeld(ctx, api.Key{Namespace: namespace, Name: lease})
		if !recheck.IsZero() && (due.IsZero() || recheck.Before(due)) {
			due = recheck
		}
		return reason
	}
	next.localSkipReason = skipReason(t.options.Namespace, localLeaseName)
	for _, m := range all {
		if m.Problem != "" && m.Cluster == "" {
			next.complete = false // it may name any cluster
		}
		delete(next.seen, m.Cluster)
		l := &link{Mirroring: m, skipReason: skipReason(m.Link.Namespace, linkLeasePrefix+m.Link.Name)}
		linkerds := api.Key{Namespace: t.options.Namespace, Name: m.Cluster}
		if l.skipReason == "" && m.Cluster != "" && linkerds != m.Link {
			l.skipReason = skipReason(linkerds.Namespace, linkLeasePrefix+linkerds.Name)
		}
		next.links = append(next.links, l)
		if l.skipReason == "" {
			next.everServed[m.Cluster] = true
		}
	}
	for _, name := range t.observedLeases.linkNames(t.options.Namespace) {
		k := api.Key{Namespace: t.options.Namespace, Name: name}
		read := slices.ContainsFunc(all, func(m *links.Mirroring) bool { return m.Link == k })
		if !read && skipReason(k.Namespace, linkLeasePrefix+name) != "" {
			next.servedByLinkerd[name] = true
		}
	}
	return next.index(), due
}

// leaseHeld returns why a Lease of Linkerd's keeps us from writing, empty if it does not, and when to ask
// again; zero for not before it changes.
func (t *term) leaseHeld(ctx context.Context, k api.Key) (reason string, recheck time.Time) {
	t.mu.Lock()
	w := t.leases[k.Namespace]
	t.mu.Unlock()
	switch {
	case w.Health().Refused != "": // also if it was listed before
		return "whether Linkerd's service mirror runs is unknown: grant list and watch on " +
			"leases.coordination.k8s.io in namespace " + k.Namespace, time.Now().Add(leaseListRetry)
	case !w.HasSynced():
		return leasesUnknown, time.Time{}
	}
	until := t.observedLeases.get(k).heldUntil()
	if !time.Now().Before(until) && !t.confirmLease(ctx, k.Namespace, w, until) {
		return "whether Linkerd's service mirror still runs is unknown: the API server does not list Leases in " +
			"namespace " + k.Namespace, w.triedAt.Add(leaseListRetry)
	}
	lease := t.observedLeases.get(k) // confirmLease may have observed a renewal
	until = lease.heldUntil()
	if !time.Now().Before(until) {
		return "", time.Time{}
	}
	return "Lease " + k.String() + " of Linkerd's service mirror " + lease.String(), until
}

// confirmLease reports whether the Leases of a namespace were listed after a time, and lists them if they
// were not: a Link must not be taken over because a watch is silent.
func (t *term) confirmLease(ctx context.Context, namespace string, w *leaseWatch, since time.Time) bool {
	if !w.confirmedAt.Before(since) {
		return true
	}
	if w.lastTryFailed && time.Since(w.triedAt) < leaseListRetry {
		return false
	}
	w.triedAt = time.Now()
	ctx, cancel := context.WithTimeout(ctx, leaseListTimeout)
	defer cancel()
	list, err := t.core.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{})
	w.lastTryFailed = err != nil
	if err != nil {
		t.log.V(1).Info("Leases cannot be listed", "namespace", namespace, "error", err.Error())
		return false
	}
	for i := range list.Items {
		if now, ok := newLeaseRecord(&list.Items[i]); ok {
			t.observedLeases.observeLease(api.Key{Namespace: namespace, Name: list.Items[i].Name}, &now)
		}
	}
	w.confirmedAt = w.triedAt
	return true
}

// watchLeases watches the Leases of every namespace with a Link, until the term ends.
func (t *term) watchLeases(ctx context.Context, wg *sync.WaitGroup, all []*links.Mirroring) {
	needed := map[string]bool{t.options.Namespace: true}
	for _, m := range all {
		needed[m.Link.Namespace] = true
	}
	for namespace := range needed {
		t.mu.Lock()
		_, found := t.leases[namespace]
		t.mu.Unlock()
		if !found {
			t.watchLeasesIn(ctx, wg, namespace)
		}
	}
}

func (t *term) watchLeasesIn(ctx context.Context, wg *sync.WaitGroup, namespace string) {
	w := &leaseWatch{}
	kind := api.Typed(coordinationv1.SchemeGroupVersion, "leases", "Lease", &coordinationv1.Lease{})
	kind.Namespace = namespace
	w.Informer = api.NewInformer(t.local, kind, newLeaseRecord, func(k api.Key) {
		if now, found := w.Get(k); found {
			t.observedLeases.observeLease(k, &now)
		} else {
			t.observedLeases.observeLease(k, nil)
		}
	})
	t.mu.Lock()
	t.leases[namespace] = w
	t.mu.Unlock()
	wg.Go(func() { w.Run(logr.NewContext(ctx, t.log.V(1))) })
	wg.Go(func() {
		select {
		case <-w.Synced():
		case <-w.Refused():
			t.observedLeases.changed.Store(struct{}{})
			if !watch.WaitClosed(ctx, w.Synced()) {
				return
			}
		case <-ctx.Done():
			return
		}
		t.observedLeases.changed.Store(struct{}{})
	})
}

// updateGateways starts resolving and probing the gateways of new Links, and stops it for removed ones. The
// gateway of a Link with a problem stays as it is.
func (t *term) updateGateways(ctx context.Context, wg *sync.WaitGroup, now *linkSet) {
	wanted := map[string]bool{}
	for _, l := range now.links {
		switch {
		case l.Problem != "":
			wanted[l.Cluster] = true
		case l.skipReason == "" && len(l.Gateway.Addresses) > 0:
			wanted[l.Cluster] = true
			t.updateGateway(ctx, wg, l)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, g := range t.gateways {
		if !wanted[name] {
			g.cancel()
			delete(t.gateways, name)
		}
	}
}

// updateGateway replaces the gateway of a cluster if its Link describes another one. The new one starts
// with the old one's addresses, if it has the same hosts, so that mirrors lead somewhere meanwhile.
func (t *term) updateGateway(ctx context.Context, wg *sync.WaitGroup, l *link) {
	t.mu.Lock()
	old := t.gateways[l.Cluster]
	t.mu.Unlock()
	spec := fmt.Sprintf("%+v", l.Gateway)
	if l.Probe != nil {
		spec += fmt.Sprintf(" %s %+v", l.Link, *l.Probe)
	}
	if old != nil && old.spec == spec {
		return
	}
	g := &gateway{
		log: t.log, options: t.options, link: l.Mirroring, metrics: t.metrics,
		lastResolved: map[string][]netip.Addr{}, changed: func() { t.enqueueCluster(l.Cluster) },
	}
	if old != nil {
		old.cancel()
		if slices.Equal(old.link.Gateway.Addresses, l.Gateway.Addresses) {
			addresses, _ := old.addresses.Load()
			g.addresses.Store(addresses)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	running := &runningGateway{gateway: g, spec: spec, cancel: cancel, probeEnded: make(chan struct{})}
	t.mu.Lock()
	t.gateways[l.Cluster] = running
	t.mu.Unlock()
	wg.Go(func() { g.runResolver(ctx) })
	wg.Go(func() {
		defer close(running.probeEnded)
		if old != nil {
			<-old.probeEnded // it deletes series of the same name
		}
		if t.options.Probe && l.Probe != nil {
			g.runProbe(ctx)
		}
	})
}
