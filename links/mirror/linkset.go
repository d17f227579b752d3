package mirror

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/links"
)

// followLinks keeps linked up to date, with the gateways and the Leases of the Links.
func (t *term) followLinks() {
	var before *linkSet
	listed := t.links.Synced()
	for {
		all, changed := t.links.Mirrorings()
		_, leases := t.observedLeases.changed.Load()
		t.watchLeases(all)
		next, due := t.newLinkSet(all)
		if before != nil {
			maps.Copy(next.everServed, before.everServed)
		}
		t.linkSet.Store(next)
		t.updateGateways(next)
		t.dropUnlinked()
		if before == nil || !before.sameWork(next) {
			t.enqueueAll(nil)
		}
		for _, l := range next.links {
			if before == nil || !slices.ContainsFunc(before.links, func(o *link) bool { return o.Mirroring == l.Mirroring && o.skipReason == l.skipReason }) {
				t.enqueueLink(l.Link)
			}
		}
		if now := next.localSkipReason; now != "" && now != leasesUnknown && (before == nil || before.localSkipReason != now) {
			t.log.Info("Services of this cluster do not join federated ones from here", "reason", now)
		}
		before = next
		again := time.NewTimer(time.Until(due))
		if due.IsZero() {
			again.Stop()
		}
		select {
		case <-changed:
		case <-leases:
		case <-again.C:
		case <-listed:
			listed = nil
		case <-t.ctx.Done():
		}
		again.Stop()
		if t.ctx.Err() != nil {
			return
		}
	}
}

// forget drops what was known of clusters that are neither linked nor read any more.
func (t *term) dropUnlinked() {
	now, _ := t.linkSet.Load()
	linked := func(name string) bool {
		return !now.complete || slices.ContainsFunc(now.links, func(l *link) bool { return l.Cluster == name })
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, r := range t.remotes {
		if !r.connected.Load() && !linked(name) {
			delete(t.remotes, name)
		}
	}
	for r := range t.remoteEndpoints {
		if !linked(string(r.Cluster)) {
			t.unwatchEndpoints(r)
		}
	}
}

// What bounds asking whether Leases are as the watch has left them: it is asked by the goroutine that follows the Links.
const (
	leaseListTimeout = 3 * time.Second
	leaseListRetry   = 10 * time.Second // after a failure
)

// notYet is why nothing is written before the Leases are heard.
const leasesUnknown = "whether Linkerd's service mirror runs is not known yet"

// assess says who looks after which Link, and when that may change by itself. A Link is left to Linkerd's service mirror as long as that
// holds its Lease. In the namespace of Linkerd's multicluster extension there may be Links that are not read: what holds a Lease there
// serves the cluster of the Link's name.
func (t *term) newLinkSet(all []*links.Mirroring) (_ *linkSet, due time.Time) {
	next := &linkSet{complete: isClosed(t.links.Synced()), everServed: map[string]bool{}, servedByLinkerd: map[string]bool{}}
	left := func(namespace, name string) string {
		lookAt := func(at time.Time) {
			if due.IsZero() || at.Before(due) {
				due = at
			}
		}
		t.mu.Lock()
		w := t.leases[namespace]
		t.mu.Unlock()
		switch {
		case w.source.Health().Refused != "": // also if it was not before
			lookAt(time.Now().Add(leaseListRetry))
			return "whether Linkerd's service mirror runs cannot be told: grant list and watch on leases.coordination.k8s.io in namespace " + namespace
		case !isClosed(w.store.Synced()):
			return leasesUnknown
		}
		k := records.Key{Namespace: namespace, Name: name}
		if until := t.observedLeases.lookup(k).heldUntil(); !time.Now().Before(until) {
			if !t.confirmLease(namespace, w, until) {
				lookAt(w.triedAt.Add(leaseListRetry))
				return "whether Linkerd's service mirror still runs cannot be told: the API server does not list Leases in namespace " + namespace
			}
		}
		tenure := t.observedLeases.lookup(k)
		until := tenure.heldUntil()
		if !time.Now().Before(until) {
			return ""
		}
		lookAt(until)
		return "Lease " + namespace + "/" + name + " of Linkerd's service mirror " + tenure.String()
	}
	next.localSkipReason = left(t.options.Namespace, localLeaseName)
	for _, m := range all {
		if m.Problem != "" && m.Cluster == "" {
			next.complete = false // it may mean any cluster
		}
		l := &link{Mirroring: m, skipReason: left(m.Link.Namespace, linkLeasePrefix+m.Link.Name)}
		if theirs := (records.Key{Namespace: t.options.Namespace, Name: m.Cluster}); l.skipReason == "" && m.Cluster != "" && theirs != m.Link {
			l.skipReason = left(theirs.Namespace, linkLeasePrefix+theirs.Name)
		}
		next.links = append(next.links, l)
		if l.skipReason == "" {
			next.everServed[m.Cluster] = true
		}
	}
	for _, name := range t.observedLeases.linkNames(t.options.Namespace) {
		read := slices.ContainsFunc(all, func(m *links.Mirroring) bool {
			return m.Link == records.Key{Namespace: t.options.Namespace, Name: name}
		})
		if !read && left(t.options.Namespace, linkLeasePrefix+name) != "" {
			next.servedByLinkerd[name] = true
		}
	}
	return next, due
}

// ascertain reports whether the Leases of a namespace were listed since a time, or are now: nothing is taken over because a watch has
// gone deaf.
func (t *term) confirmLease(namespace string, w *leaseWatch, since time.Time) bool {
	if !w.confirmedAt.Before(since) {
		return true
	}
	if w.lastTryFailed && time.Since(w.triedAt) < leaseListRetry {
		return false
	}
	w.triedAt = time.Now()
	ctx, cancel := context.WithTimeout(t.ctx, leaseListTimeout)
	defer cancel()
	list, err := t.core.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{})
	if w.lastTryFailed = err != nil; w.lastTryFailed {
		t.log.V(1).Info("Leases cannot be listed", "namespace", namespace, "error", err.Error())
		return false
	}
	for i := range list.Items {
		if now, ok := newLeaseRecord(&list.Items[i]); ok {
			t.observedLeases.observe(records.Key{Namespace: namespace, Name: list.Items[i].Name}, &now)
		}
	}
	w.confirmedAt = w.triedAt
	return true
}

// same reports whether the same should be written, whatever the Links' statuses say.
func (n *linkSet) sameWork(o *linkSet) bool {
	return n.complete == o.complete && n.localSkipReason == o.localSkipReason && maps.Equal(n.servedByLinkerd, o.servedByLinkerd) && slices.EqualFunc(n.links, o.links, func(a, b *link) bool {
		return a.UID == b.UID && a.Spec == b.Spec && a.skipReason == b.skipReason
	})
}

// watchLeases watches the Leases of namespaces that have Links, for as long as the term lasts.
func (t *term) watchLeases(all []*links.Mirroring) {
	needed := map[string]bool{t.options.Namespace: true}
	for _, m := range all {
		needed[m.Link.Namespace] = true
	}
	for namespace := range needed {
		t.mu.Lock()
		_, found := t.leases[namespace]
		t.mu.Unlock()
		if found {
			continue
		}
		w := &leaseWatch{}
		w.store = records.NewStore(newLeaseRecord, func(k records.Key) {
			if now, found := w.store.Get(k); found {
				t.observedLeases.observe(k, &now)
			} else {
				t.observedLeases.observe(k, nil)
			}
		})
		api := t.core.CoordinationV1().Leases(namespace)
		w.source = cluster.NewSource(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
				return api.Watch(ctx, o)
			},
		}, t.local)
		t.mu.Lock()
		t.leases[namespace] = w
		t.mu.Unlock()
		t.spawn(func() { w.source.Fill(t.ctx, &coordinationv1.Lease{}, w.store) })
		t.spawn(func() {
			select {
			case <-w.store.Synced():
			case <-w.source.Refused():
				t.observedLeases.changed.Store(struct{}{})
				if !waitClosed(t.ctx, w.store.Synced()) {
					return
				}
			case <-t.ctx.Done():
				return
			}
			t.observedLeases.changed.Store(struct{}{})
		})
	}
}

// followGateways resolves and probes the gateways of Links.
func (t *term) updateGateways(now *linkSet) {
	wanted := map[string]bool{}
	for _, l := range now.links {
		if l.Problem != "" { // what was started goes on
			wanted[l.Cluster] = true
			continue
		}
		if l.skipReason != "" || len(l.Gateway.Addresses) == 0 {
			continue
		}
		wanted[l.Cluster] = true
		t.mu.Lock()
		old := t.gateways[l.Cluster]
		t.mu.Unlock()
		spec := fmt.Sprintf("%+v", l.Gateway)
		if l.Probe != nil {
			spec += fmt.Sprintf(" %s %+v", l.Link, *l.Probe)
		}
		if old != nil && old.spec == spec {
			continue
		}
		g := &gateway{log: t.log, options: t.options, link: l.Mirroring, metrics: t.metrics, lastResolved: map[string][]netip.Addr{}}
		g.changed = func() { t.enqueueCluster(l.Cluster) }
		if old != nil {
			old.cancel()
			if slices.Equal(old.link.Gateway.Addresses, l.Gateway.Addresses) {
				addresses, _ := old.addresses.Load()
				g.addresses.Store(addresses)
			}
		}
		ctx, cancel := context.WithCancel(t.ctx)
		t.mu.Lock()
		run := &runningGateway{gateway: g, spec: spec, cancel: cancel, probeEnded: make(chan struct{})}
		t.gateways[l.Cluster] = run
		t.mu.Unlock()
		t.spawn(func() { g.runResolver(ctx) })
		t.spawn(func() {
			defer close(run.probeEnded)
			if old != nil {
				<-old.probeEnded // its series are gone then, and ours are not
			}
			if t.options.Probe && l.Probe != nil {
				g.runProbe(ctx)
			}
		})
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
