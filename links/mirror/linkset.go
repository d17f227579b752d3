package mirror

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
	"github.com/fingerpost/fingerpost/links"
)

// A linkSet is all Links, and which of them are ours to serve. It is immutable. There are few enough of them that each
// look-up walks over all.
type linkSet struct {
	links           []*link         // the oldest first
	namespace       string          // that Links are read in; empty for all
	synced          bool            // all Links that can be read were
	complete        bool            // all Links of the namespace that is read are known
	everServed      map[string]bool // clusters whose Link was ours to serve, now or earlier in the term
	membership      *federation.Membership
	servedByLinkerd map[string]bool // clusters that Linkerd's service mirror serves for Links that are not read
	localSkipReason string          // why local members are not ours to write; empty if they are
}

// linkOf returns the Link of a cluster; nil if there is none.
func (s *linkSet) linkOf(cluster string) *link {
	for _, l := range s.links {
		if l.Cluster == cluster && cluster != "" {
			return l
		}
	}
	return nil
}

// linkNamed returns the Link of a name; nil if there is none.
func (s *linkSet) linkNamed(k api.Key) *link {
	for _, l := range s.links {
		if l.Link == k {
			return l
		}
	}
	return nil
}

// suffixed yields the Links for whose clusters a name may be that of a mirror, the oldest first, each with what
// precedes the cluster.
func (s *linkSet) suffixed(name string) iter.Seq2[*link, string] {
	return func(yield func(*link, string) bool) {
		for _, l := range s.links {
			base, isSuffix := strings.CutSuffix(name, l.Cluster)
			base, isSeparate := strings.CutSuffix(base, "-")
			if isSuffix && isSeparate && base != "" && l.Cluster != "" && !yield(l, base) {
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
	for c := range s.membership.Changed(o.membership) {
		if s.linkOf(string(c)) == nil {
			return false
		}
	}
	return s.complete == o.complete && s.localSkipReason == o.localSkipReason &&
		maps.Equal(s.servedByLinkerd, o.servedByLinkerd)
}

// samePlans reports whether two Links lead to the same plans; o is nil for none.
func (l *link) samePlans(o *link) bool {
	return o != nil && o.UID == l.UID && o.Spec == l.Spec && o.skipReason == l.skipReason
}

// sameStatus reports whether two Links lead to the same status, as far as it follows from them; o is nil for none.
func (l *link) sameStatus(o *link) bool {
	return l.samePlans(o) && o.Generation == l.Generation && o.Problem == l.Problem
}

// A linkFollower keeps the linkSet of a term up to date, and with it gateways and watches of Leases. It is an input of
// the names: Links are listed once a linkSet has all of them.
//
// Run is the only goroutine that stores the linkSet, lists Leases and changes the gateways. So the fields below have no
// lock, but for what was observed of Leases, which their informers add to.
type linkFollower struct {
	*term
	synced   chan struct{}
	watches  map[string]*leaseWatch // by namespace
	observed observedLeases
	due      time.Time      // when the linkSet may be another one without an event; zero for never
	started  sync.WaitGroup // goroutines of Run
}

// Synced returns a channel that is closed once a linkSet of all Links was stored.
func (f *linkFollower) Synced() <-chan struct{} { return f.synced }

// Refused never closes: links.Reconciler reports that Links cannot be read.
func (f *linkFollower) Refused() <-chan struct{} { return nil }

// Denied never closes either.
func (f *linkFollower) Denied() <-chan struct{} { return nil }

// Run follows Links and Leases until ctx ends. It waits for the goroutines that it has started.
func (f *linkFollower) Run(ctx context.Context) {
	defer f.started.Wait()

	for ctx.Err() == nil {
		all, linksChanged := f.links.Mirrorings()
		_, leasesChanged := f.observed.changed.Load()
		f.watchLeases(ctx, all)
		before, _ := f.linkSet.Load()
		next := f.newLinkSet(ctx, all)
		maps.Copy(next.everServed, before.everServed)
		f.linkSet.Store(next)
		f.updateGateways(ctx, next)
		f.dropUnlinked()
		linksSynced := f.links.Synced()

		if next.synced {
			linksSynced = nil
			if !before.synced {
				close(f.synced)
			}
		}

		f.enqueueDifference(before, next)
		again := time.NewTimer(time.Until(f.due))
		if f.due.IsZero() {
			again.Stop()
		}

		select {
		case <-linksChanged:
		case <-leasesChanged:
		case <-again.C:
		case <-linksSynced:
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// enqueueDifference enqueues what a new linkSet bears on.
func (t *term) enqueueDifference(before, next *linkSet) {
	sameAround := before.sameAround(next)
	if !sameAround {
		t.enqueueNames("")
	}

	for _, l := range next.links {
		old := before.linkNamed(l.Link)
		if sameAround && !l.samePlans(old) {
			t.enqueueOfLink(l)
			if old != nil {
				t.enqueueOfLink(old)
			}
		}
		if !l.sameStatus(old) {
			t.enqueueLink(l.Link)
		}
	}

	for _, l := range before.links {
		if next.linkNamed(l.Link) != nil {
			continue
		}
		t.enqueueLink(l.Link)
		if sameAround {
			t.enqueueOfLink(l)
		}
	}

	reason := next.localSkipReason
	if reason != "" && reason != leasesUnknown && before.localSkipReason != reason {
		logs.Warn(t.log, "Services of the local cluster are not added to federated Services", "reason", reason)
	}
}

// dropUnlinked forgets clusters that have neither a Link nor an engagement.
func (t *term) dropUnlinked() {
	now, _ := t.linkSet.Load()
	linked := func(name string) bool { return !now.complete || now.linkOf(name) != nil }
	t.remoteEndpoints.unfollowUnlinked(linked)
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, r := range t.remotes {
		if !r.connected.Load() && !linked(name) {
			delete(t.remotes, name)
		}
	}
}

// newLinkSet computes which Links are ours to serve, and when that may change without an event. A Link is
// Linkerd's while Linkerd's service mirror holds its Lease. The namespace of Linkerd's multicluster extension may
// have Links that are not read: a Lease held there is that of the Link, and of the cluster, of its name.
func (f *linkFollower) newLinkSet(ctx context.Context, all []*links.Mirroring) *linkSet {
	f.due = time.Time{}
	ownNamespace := f.options.Namespace
	next := &linkSet{
		namespace: f.links.Namespace(), synced: watch.IsClosed(f.links.Synced()),
		everServed: map[string]bool{}, servedByLinkerd: map[string]bool{},
	}
	next.membership, _ = f.links.Membership() // what supersedes it supersedes the Mirrorings
	next.complete = next.synced
	next.localSkipReason = f.leaseHeld(ctx, ownNamespace, localLeaseName)

	for _, mirroring := range all {
		if mirroring.Problem != "" && mirroring.Cluster == "" {
			next.complete = false // it may name any cluster
		}
		l := &link{
			Mirroring:  mirroring,
			skipReason: f.leaseHeld(ctx, mirroring.Link.Namespace, linkLeasePrefix+mirroring.Link.Name),
		}
		linkerds := api.Key{Namespace: ownNamespace, Name: mirroring.Cluster}
		if l.skipReason == "" && mirroring.Cluster != "" && linkerds != mirroring.Link {
			l.skipReason = f.leaseHeld(ctx, ownNamespace, linkLeasePrefix+mirroring.Cluster)
		}

		next.links = append(next.links, l)
		if l.skipReason == "" {
			next.everServed[mirroring.Cluster] = true
		}
	}

	for _, name := range f.observed.linkNames(ownNamespace) {
		isRead := next.linkNamed(api.Key{Namespace: ownNamespace, Name: name}) != nil
		if !isRead && f.leaseHeld(ctx, ownNamespace, linkLeasePrefix+name) != "" {
			next.servedByLinkerd[name] = true
		}
	}
	return next
}

// updateGateways starts resolving and probing the gateways of new Links, and stops it for removed ones. The
// gateway of a Link with a problem stays as it is.
func (f *linkFollower) updateGateways(ctx context.Context, now *linkSet) {
	wanted := map[string]bool{}
	for _, l := range now.links {
		switch {
		case l.Problem != "":
			wanted[l.Cluster] = true
		case l.skipReason == "" && len(l.Gateway.Addresses) > 0:
			wanted[l.Cluster] = true
			f.updateGateway(ctx, l)
		}
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	for name, g := range f.gateways {
		if !wanted[name] {
			g.cancel()
			delete(f.gateways, name)
		}
	}
}

// updateGateway replaces the gateway of a cluster if its Link describes another one. The new one starts
// with the old one's addresses, if it has the same hosts, so that mirrors lead somewhere meanwhile.
func (f *linkFollower) updateGateway(ctx context.Context, link *link) {
	old := f.gatewayOf(link.Cluster)
	if old != nil && old.isOf(link.Mirroring) {
		return
	}
	gateway := &gateway{
		log: f.log, link: link.Mirroring, metrics: f.metrics, changed: func() { f.enqueueCluster(link.Cluster) },
		resolve: f.options.Resolve, dial: f.options.Dial, probePort: func() (int32, error) { return f.probePort(link) },
		probeEnded: make(chan struct{}),
	}

	if old != nil {
		old.cancel()
		if slices.Equal(old.link.Gateway.Addresses, link.Gateway.Addresses) {
			resolved, _ := old.resolved.Load()
			gateway.resolved.Store(resolved)
		}
	}

	ctx, gateway.cancel = context.WithCancel(ctx)
	f.mu.Lock()
	f.gateways[link.Cluster] = gateway
	f.mu.Unlock()

	f.started.Go(func() { gateway.runResolver(ctx) })
	f.started.Go(func() {
		defer close(gateway.probeEnded)
		if old != nil {
			<-old.probeEnded // it deletes series of the same name
		}
		if f.options.Probe && link.Probe != nil {
			gateway.runProbe(ctx)
		}
	})
}
