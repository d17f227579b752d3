package links

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/apply/status"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

const fieldManager = "fingerpost"

// A statusWriter writes the status of Links during one term of the local cluster's Lease. Nothing else of ours
// writes any part of it: every replica computes conditions, and package mirror hands over its part as a
// value (SetMirrorStatus), both into Reconciler.reports, and a statusWriter applies them.
//
// # What is particular to Links
//
//   - wantedStatus is a pure function of the Link that was read, the conditions and the MirrorStatus. Transition times
//     are taken from the API.
//   - Condition types that we do not compute are left out of an apply, and their owners keep them. Lists of Services
//     are one value each for the API server, so entries of other controllers are read and applied again.
//   - Unknown is not empty. Before the mirror has handed over its part of a Link in this term, that part
//     stays as the API has it.
//   - A write of ours causes next to no work: after its event the conditions of that Link are computed and compared
//     once (linkChanged).
//
// # Events
//
// The holder alone records them. A change is one from what the Link shows to what is wanted; after the first
// one of its type in a term, from what was recorded last. So a new holder records nothing again. Only where
// Links cannot hold conditions does each holder begin anew.
//
// # Locks
//
// Reconciler.mu guards reports, and comes before the lock of the Writer. The Writer gives one Link to one worker, which
// is the only one to set recorded of its report.
type statusWriter = status.Writer[api.Key, writtenStatus]

// WriteStatus writes the status of all Links until term ends, reviews in permissions what is refused, and reports
// failures. It is a task of the local cluster's Lease: two calls must not overlap, in all replicas.
func (r *Reconciler) WriteStatus(
	term context.Context, permissions *apply.Permissions, failures *apply.Failures,
) error {
	writer := status.NewWriter(r.log, status.Config[api.Key, writtenStatus]{
		Manager: fieldManager, Client: r.dynamic,
		Permissions: permissions, Failures: failures,
		Of:   func(k api.Key) status.Ref { return status.Ref{Resource: linkerd.Links, Kind: "Link", Key: k} },
		Keys: r.links.Keys, Object: r.statusObject, Read: readFields, Whole: withOthers,
		HasStatus: func(ctx context.Context, version string) (bool, error) {
			return r.isServed(ctx, version, linkerd.Links.Resource+"/status", "patch")
		},
		Wrote:  func(_ api.Key, reason string) { r.metrics.writes.WithLabelValues(reason).Inc() },
		Advice: "install Fingerpost's Link CRD to see them in Links; Events and metrics report conditions",
		Remedy: "install one that has, such as Fingerpost's",
	})

	r.mu.Lock()
	for _, p := range r.reports { // other holders have written since the last term
		p.recorded = nil
	}
	r.statusWriter = writer
	r.mu.Unlock()

	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.statusWriter = nil
	}()

	return writer.Run(term)
}

// enqueueStatus enqueues a Link whose status may have to be written, if this replica is the one to write it.
func (r *Reconciler) enqueueStatus(k api.Key) {
	r.mu.Lock()
	w := r.statusWriter
	r.mu.Unlock()
	if w != nil {
		w.Enqueue(k)
	}
}

// statusObject returns a Link as a statusWriter needs it.
func (r *Reconciler) statusObject(k api.Key) (status.Object[writtenStatus], bool) {
	link, found := r.links.Get(k)
	if !found {
		return status.Object[writtenStatus]{}, false
	}
	object := link.shown()
	object.Wanted = func() (writtenStatus, bool) { return r.wanted(link) }
	return object, true
}

// shown returns a Link as it was read.
func (l *Link) shown() status.Object[writtenStatus] {
	return status.Object[writtenStatus]{
		Version: l.version, UID: l.uid, ResourceVersion: l.resourceVersion, Shown: l.status,
	}
}

// wanted returns what the status of a Link should be, if that is known, and records what has changed.
func (r *Reconciler) wanted(link *Link) (writtenStatus, bool) {
	r.mu.Lock()
	kept := r.reports[link.uid]
	if kept == nil || kept.conditions == nil {
		r.mu.Unlock()
		return writtenStatus{}, false
	}
	report := *kept
	r.mu.Unlock()

	recorded := r.recordEvents(link, report.conditions, report.recorded)
	r.mu.Lock()
	kept.recorded = recorded
	r.mu.Unlock()
	return wantedStatus(link, report.conditions, report.mirror, r.options.Mirrors, metav1.Now()), true
}

// withOthers returns the tree of a status with the conditions of others, which a merge patch replaces as well. A
// condition type that we leave out vanishes with an apply unless another manager owns it as well.
func withOthers(tree map[string]any, shown writtenStatus) (map[string]any, error) {
	ours, found := tree["conditions"].([]any)
	if !found {
		return tree, nil
	}
	var others writtenStatus
	for _, c := range shown.conditions {
		if !isOwnCondition(c.Type) {
			others.conditions = append(others.conditions, c)
		}
	}

	more, err := others.Tree(writtenStatus{})
	if err != nil {
		return nil, err
	}
	theirs, _ := more["conditions"].([]any)
	tree["conditions"] = slices.Concat(ours, theirs)
	return tree, nil
}

// recordEvents records an Event for each condition that has changed, and returns what is recorded then.
func (r *Reconciler) recordEvents(l *Link, conditions, recorded []metav1.Condition) []metav1.Condition {
	for _, c := range changedConditions(recorded, l.status.conditions, conditions) {
		kind := corev1.EventTypeNormal
		if isWarning(c) {
			kind = corev1.EventTypeWarning
		}
		if r.events != nil {
			r.events.Eventf(l.reference(), nil, kind, c.Reason, c.Type,
				"%s is %s: %s", c.Type, c.Status, c.Message)
		}
	}

	recorded = slices.Clone(recorded)
	for _, c := range conditions {
		if meta.FindStatusCondition(recorded, c.Type) != nil || !isStarting(c) {
			meta.SetStatusCondition(&recorded, c)
		}
	}
	return recorded
}

// isWarning reports whether an operator should look at a change to a condition.
func isWarning(c metav1.Condition) bool {
	switch c.Type {
	case Writable: // Linkerd's own role allows reading only
		return false
	case Guarded:
		return c.Status == metav1.ConditionTrue
	case Drained:
		return c.Reason == ReasonStillNeeded
	}
	return c.Status == metav1.ConditionFalse
}

// changedConditions returns the conditions whose status or reason differs from what was reported last. Of
// types that were not reported yet the Link shows what others have reported, and a normal start is no news.
func changedConditions(reported, shown, conditions []metav1.Condition) (changed []metav1.Condition) {
	for _, c := range conditions {
		before := meta.FindStatusCondition(reported, c.Type)
		if before == nil {
			if isStarting(c) {
				continue
			}
			before = meta.FindStatusCondition(shown, c.Type)
		}
		if before == nil || before.Status != c.Status || before.Reason != c.Reason {
			changed = append(changed, c)
		}
	}
	return changed
}

// isStarting reports whether a condition describes the normal start of a link, which is no news.
func isStarting(c metav1.Condition) bool {
	return c.Status == metav1.ConditionUnknown ||
		c.Reason == reasonNeverSynced || c.Reason == string(federation.Connecting)
}
