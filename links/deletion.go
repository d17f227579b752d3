package links

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// A cluster is unlinked when its Link is deleted. But Links are also deleted by mistake, and then many of them: an
// uninstalled chart or a deleted CRD takes all of them along, and every federated Service would lose its members.
// So deletions that follow one another closely are decided on together, once there was none for deletionSettle:
//
//   - If they are most of the Links, and more than one, they are held for DeletionGrace.
//   - If the kind of Links is being deleted, or is gone, they are held likewise. The API server's discovery
//     document shows a CRD that is being deleted: objects of it cannot be created any more.
//   - Otherwise the clusters are unlinked.
//
// A Link that is pending or held stays in seenLinks, so that nothing else needs to know of this: its cluster stays
// linked, and its mirrors stay. The hold ends as soon as there is a Link of its name again, or another Link of its
// cluster, as after a move to another namespace. While it is not known whether the kind is served, deletions stay
// pending.
//
// A cluster that was restored from a checkpoint, and that nothing links once all Links and Secrets were listed, is one
// whose Link was deleted while this replica did not run. It takes the same way: its deletion has a key without a
// namespace, which no Link has. When that Link was deleted is not known, so its grace begins now.
//
// A replica in a new Pod has no checkpoints. So each one asks the others for the clusters that they have, and takes
// those that nothing links for restored as well: others may hold their Links, and it would answer without them. Those
// with a labelled Secret that cannot be used are served likewise, and are linked. It costs a request to each at the
// start, and half a second where one does not answer.
//
// Of a cluster that was neither restored nor linked since the start nothing is known here. But writers find what was
// written for it, and leave it while it is undecided: its Link may be one that comes back after its CRD.
//
// Neither is decided on while there is a Link that was refused when this process started: it may be the one of that
// cluster, edited by mistake, which stays linked where this was seen. It costs that nothing is deleted for clusters
// without a Link as long as such a Link is neither corrected nor deleted.
const (
	deletionSettle = 250 * time.Millisecond
	kindTimeout    = 3 * time.Second
	kindPoll       = 10 * time.Second // while Links are held: whether there is a CRD again
	freeDeletions  = 1
)

// DeletionGrace is for how long clusters stay linked whose Links were deleted with most others, or with their CRD.
const DeletionGrace = 5 * time.Minute

// A deletion is that of a Link, or of the unknown one of a cluster that was restored.
type deletion struct {
	at     time.Time
	reason string // why it is held; empty while it is pending
}

// Why deletions are held.
const (
	heldKindGone = "the CRD of Links was deleted"
	heldMass     = "most Links were deleted at once"
)

// restoredKey is what a deletion of the unknown Link of a cluster has for a key.
func restoredKey(cluster string) api.Key { return api.Key{Name: cluster} }

// restoreFromPeers takes the clusters that other replicas have, and that are not applied, for restored: reconcile
// applies them. Nothing links them, or only a Secret that cannot be used.
func (r *Reconciler) restoreFromPeers(ctx context.Context) {
	specs, err := r.registry.ClustersOfPeers(ctx)
	if err != nil {
		r.log.Info("Other replicas do not list the clusters that they have", "error", err.Error())
	}
	applied, _ := r.registry.Names()
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, spec := range specs {
		name := spec.Name
		if name != r.options.ClusterName && invalidName("", name) == "" && !slices.Contains(applied, name) {
			r.restored[name], r.everLinked[name] = spec, true
		}
	}
}

// deleteRestored takes the Links of clusters that were restored, and that nothing links, for deleted now.
func (r *Reconciler) deleteRestored() {
	r.mu.Lock()
	for name := range r.restored {
		r.deleted[restoredKey(name)] = deletion{at: time.Now()}
	}
	r.mu.Unlock()
	r.deletions.Store(struct{}{})
}

// waitForLinks waits, where there is no CRD of Links, until it is there again and its Links are listed, or grace ends.
func (r *Reconciler) waitForLinks(grace context.Context) {
	poll := time.NewTicker(kindPoll)
	defer poll.Stop()
	for !r.links.HasSynced() {
		select {
		case <-poll.C:
			r.retryIfServed()
		case <-r.links.Synced():
		case <-grace.Done():
			return
		}
	}
}

// waitDecided waits until it is decided on each restored cluster, and none may have a Link that is refused. It returns
// false if ctx ends first.
func (r *Reconciler) waitDecided(ctx context.Context) bool {
	for ctx.Err() == nil {
		_, changed := r.changes.Load()
		r.mu.Lock()
		decided := len(r.restored) == 0 && !r.isAnyRefused()
		r.mu.Unlock()
		if decided {
			return true
		}
		watch.WaitClosed(ctx, changed)
	}
	return false
}

// retryIfServed has the informer of Links, which waits for minutes if they are not served, try again now that they are.
func (r *Reconciler) retryIfServed() {
	if served, err := r.linksServed(); served && err == nil {
		r.conn.RetryNow()
	}
}

// addLinked adds a cluster to those that were linked. If it was restored it is one like any other from here on.
func (r *Reconciler) addLinked(name string) {
	r.mu.Lock()
	if r.everLinked != nil {
		r.everLinked[name] = true
	}
	_, was := r.restored[name]
	delete(r.restored, name)
	delete(r.deleted, restoredKey(name))
	r.mu.Unlock()
	if was {
		r.noteChange()
	}
}

// releaseDeleted decides on deletions until ctx ends.
func (r *Reconciler) releaseDeleted(ctx context.Context) {
	for ctx.Err() == nil {
		_, changed := r.deletions.Load()
		due := r.decideDeletions(time.Now())
		timer := time.NewTimer(time.Until(due))
		if due.IsZero() {
			timer.Stop()
		}

		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// decideDeletions holds or releases deletions, and returns when the next decision is due; zero for never.
func (r *Reconciler) decideDeletions(now time.Time) (due time.Time) {
	if replaced := r.replacedLinks(now); len(replaced) > 0 {
		r.release(replaced)
	}

	pending, remaining, last := r.pendingDeletions()
	switch settled := last.Add(deletionSettle); {
	case len(pending) == 0:
	case now.Before(settled):
		due = settled
	case policy.WithdrawalGuard{}.Withdraws(len(pending)+remaining, remaining, freeDeletions):
		r.hold(pending, heldMass)
	default:
		served, err := r.linksServed()
		switch {
		case err != nil:
			r.log.Info("Deletions of Links wait until it is known whether Links are served", "error", err.Error())
			due = now.Add(kindTimeout)
		case served:
			r.release(pending)
		default:
			r.hold(pending, heldKindGone)
		}
	}

	ends := r.releaseEnded(now)
	if ends.IsZero() {
		return due
	}

	r.retryIfServed() // for whatever reason they are held: most Links are deleted at once also when their CRD is
	for _, next := range []time.Time{ends, now.Add(kindPoll)} {
		if due.IsZero() || next.Before(due) {
			due = next
		}
	}
	return due
}

// replacedLinks returns the deleted Links whose clusters other Links link, so that no cluster is unlinked when they are
// released; none while deletions follow one another, which may be those of the others.
func (r *Reconciler) replacedLinks(now time.Time) (replaced []api.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	linked := map[string]bool{}
	for k, l := range r.seenLinks {
		if _, isDeleted := r.deleted[k]; !isDeleted && l.refusal == "" {
			linked[l.clusterName] = true
		}
	}

	for k, d := range r.deleted {
		if now.Before(d.at.Add(deletionSettle)) {
			return nil
		}
		if l := r.seenLinks[k]; l != nil && linked[l.clusterName] {
			replaced = append(replaced, k)
		}
	}
	return replaced
}

// pendingDeletions returns the Links whose deletion is pending, how many Links are not deleted, and when the last
// one was.
func (r *Reconciler) pendingDeletions() (pending []api.Key, remaining int, last time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for k, d := range r.deleted {
		if d.reason == "" && !r.mayBeLinked(k) {
			pending = append(pending, k)
			if d.at.After(last) {
				last = d.at
			}
		}
	}

	for k := range r.seenLinks {
		if _, isDeleted := r.deleted[k]; !isDeleted {
			remaining++
		}
	}
	return pending, remaining, last
}

// mayBeLinked reports whether what is deleted is the unknown Link of a cluster that was restored, and may be one that
// exists and names no cluster. It waits until that one is corrected or deleted. The caller holds mu.
func (r *Reconciler) mayBeLinked(k api.Key) bool {
	return r.seenLinks[k] == nil && r.isAnyRefused()
}

// isAnyRefused reports whether there is a Link that is refused, and that has linked nothing since this process
// started. The caller holds mu.
func (r *Reconciler) isAnyRefused() bool {
	for _, l := range r.seenLinks {
		if l.refusal != "" && l.kept == "" {
			return true
		}
	}
	return false
}

// linksServed reports whether Links exist as a kind and can be created.
func (r *Reconciler) linksServed() (bool, error) {
	ctx, cancel := context.WithTimeout(r.ctx, kindTimeout)
	defer cancel()
	for _, version := range versions {
		if served, err := r.isServed(ctx, version, linkerd.Links.Resource, "create"); served || err != nil {
			return served, err
		}
	}
	return false, nil
}

// isServed reports whether a version of the group of Links has a resource with a verb.
func (r *Reconciler) isServed(ctx context.Context, version, resource, verb string) (bool, error) {
	list := &metav1.APIResourceList{}
	err := r.discovery.RESTClient().Get().AbsPath("/apis/" + Group + "/" + version).Do(ctx).Into(list)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	return slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool {
		return a.Name == resource && slices.Contains(a.Verbs, verb)
	}), nil
}

// hold keeps the clusters of deleted Links linked for now.
func (r *Reconciler) hold(keys []api.Key, reason string) {
	logs.Warn(r.log, "Links were deleted, and their clusters stay linked for now",
		"reason", reason, "links", len(keys), "for", DeletionGrace.String())
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		if d, found := r.deleted[k]; found {
			r.deleted[k] = deletion{d.at, reason}
		}
	}
}

// releaseEnded releases deletions that were held for as long as they may be, and returns when the next one is due;
// zero if none is held any more.
func (r *Reconciler) releaseEnded(now time.Time) (next time.Time) {
	var ended []api.Key
	r.mu.Lock()
	for k, d := range r.deleted {
		switch end := d.at.Add(DeletionGrace); {
		case d.reason == "" || r.mayBeLinked(k):
		case !now.Before(end):
			ended = append(ended, k)
		case next.IsZero() || end.Before(next):
			next = end
		}
	}
	r.mu.Unlock()

	if len(ended) > 0 {
		r.log.Info("Links that were deleted are not held any longer", "links", len(ended))
		r.release(ended)
	}
	return next
}

// release unlinks the clusters of deleted Links, unless there are Links of their names again.
func (r *Reconciler) release(keys []api.Key) {
	var names []string

	r.mu.Lock()
	for _, key := range keys {
		if _, found := r.deleted[key]; !found {
			continue
		}

		delete(r.deleted, key)
		if l := r.seenLinks[key]; l != nil {
			names = append(names, l.clusterName)
			delete(r.reports, l.uid)
			delete(r.seenLinks, key)
		} else {
			names = append(names, key.Name)
			delete(r.restored, key.Name)
		}
	}

	r.watchNamespaces()
	r.mu.Unlock()
	r.noteChange()
	r.deletions.Store(struct{}{}) // some may have waited for one of these Links
	r.clusters.Enqueue(names...)
}
