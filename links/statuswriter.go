package links

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

const (
	fieldManager = "fingerpost"

	// statusResync is how often the statuses of all Links are compared with what they should be, besides
	// each time that one of the two changes. It costs no request for those that are equal.
	statusResync = time.Minute
	// unsupportedRetry is until a status is applied again that the API server refuses, or stores otherwise, and until a
	// field is written again that its schema lacks.
	unsupportedRetry = 10 * time.Minute
	// conflictRetry is until a status is applied again that was computed from an older version of the Link,
	// unless the event of the newer one comes first.
	conflictRetry = time.Second
	// contestedRetry is until a status is applied again that was applied before, and that another writer replaced.
	contestedRetry = time.Second
	// paceWrites is how often the status of one Link is written within paceWindow, whatever causes it: once a
	// second, and what happens after a quiet time shows at once. What is wanted when the next write is due is
	// written.
	paceWrites = 10
	paceWindow = paceWrites * time.Second

	statusWorkers = 4
)

// A statusWriter writes the status of Links during one term of the local cluster's Lease. Nothing else of ours
// writes any part of it: every replica computes conditions, and package mirror hands over its part as a
// value (SetMirrorStatus), both into Reconciler.reports, and a statusWriter applies them.
//
// # What it keeps true
//
//   - The status of a Link is what the holder computes. wantedStatus is a pure function of the Link that was
//     read, the conditions and the MirrorStatus. Whatever contradicts it in the API is applied anew: when
//     the watch shows the Link, when the computed part changes, and each statusResync. So what a former
//     holder left, or another client wrote, needs no code of its own.
//   - What is equal is not written. Transition times do not count; they are taken from the API.
//   - Of the API it takes over what is not ours: condition types that we do not compute are left out of an
//     apply, and their owners keep them. Lists of Services are one value each for the API server, so entries
//     of other controllers are read and applied again. Every apply names the resourceVersion that was
//     read, and one that is too late is a conflict.
//   - A condition type that is not wanted any more is left out, and vanishes, because this field manager
//     applied it.
//   - Unknown is not empty. Before the mirror has handed over its part of a Link in this term, that part
//     stays as the API has it.
//   - A field that the schema of Links lacks silences no other one (undeclared.go).
//   - An API server that refuses a status, or stores another one, is not asked again with the same status
//     before unsupportedRetry or a new version of the Link: see attempt.
//   - However fast a cluster changes, its Link is written paceWrites times in paceWindow, and the last time with
//     what is wanted then.
//   - Two writers do not fight as fast as the API server answers. Where a Lease is deleted and another replica
//     creates it, the former holder has a term until its next renewal.
//   - A write of ours causes no work: the event of it leads to one comparison of that Link (linkChanged).
//
// # Events
//
// The holder alone records them. A change is one from what the Link shows to what is wanted; after the first
// one of its type in a term, from what was recorded last. So a new holder records nothing again. Only where
// Links cannot hold conditions does each holder begin anew.
//
// # Locks
//
// Reconciler.mu guards reports and undeclared; nothing is called under it. The Loop gives one Link to one worker,
// which is the only one to set attempt and recorded of its report.
type statusWriter struct {
	*Reconciler
	loop        *apply.Loop[api.Key]
	permissions *apply.Permissions
	undeclared  undeclared // mu guards it
}

// WriteStatus writes the status of all Links until term ends. It is a task of the local cluster's Lease: two
// calls must not overlap, in all replicas.
func (r *Reconciler) WriteStatus(term context.Context, permissions *apply.Permissions) error {
	writer := &statusWriter{Reconciler: r, permissions: permissions}
	writer.loop = apply.NewLoop(r.log, apply.Config[api.Key]{
		Reconcile: writer.write, Background: []func(context.Context){writer.resync},
		Failed: writer.logNotWritten, Workers: statusWorkers,
	})

	r.mu.Lock()
	for _, p := range r.reports { // other holders have written since the last term
		p.attempt, p.writes, p.recorded = nil, nil, nil
	}
	r.statusWriter = writer
	r.mu.Unlock()

	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.statusWriter = nil
	}()

	return writer.loop.Run(term)
}

// resync enqueues all Links, at first and each statusResync.
func (w *statusWriter) resync(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) { w.loop.Enqueue(w.links.Keys()...) }, statusResync)
}

func (w *statusWriter) logNotWritten(k api.Key, err error, failures int) {
	w.log.Info("The status of a Link was not written, which is tried again",
		"link", k.String(), "error", err.Error(), "failures", failures)
}

// enqueueStatus enqueues a Link whose status may have to be written, if this replica is the one to write it.
func (r *Reconciler) enqueueStatus(k api.Key) {
	r.mu.Lock()
	w := r.statusWriter
	r.mu.Unlock()
	if w != nil {
		w.loop.Enqueue(k)
	}
}

// A linkReport is what is known about one Link, besides the Link itself.
type linkReport struct {
	conditions []metav1.Condition // as this replica computed them; nil: not yet
	mirror     *MirrorStatus      // as it is written; nil: nothing was handed over in this term

	// Of the statusWriter, in its term.
	attempt  *attempt
	writes   []time.Time        // the last ones, paceWrites at most
	recorded []metav1.Condition // as Events show them; types without an Event in this term are missing
}

// An attempt is the last status that was applied to a Link, and what became of it.
type attempt struct {
	at              time.Time // it was made
	servedIn        string    // the version of the API
	before, after   string    // resource versions; equal if nothing has changed
	applied, stored writtenStatus
	refused         string // why no status of the Link can be written, for people; empty if one can
}

// counts reports whether what became of an attempt would become of the same one now.
func (a *attempt) counts(l *Link) bool {
	return a != nil && a.servedIn == l.version && time.Since(a.at) < unsupportedRetry
}

// write applies the status of one Link, unless it is as it should be.
func (w *statusWriter) write(ctx context.Context, k api.Key) error {
	link, found := w.links.Get(k)
	if !found {
		return nil
	}

	w.mu.Lock()
	kept := w.reports[link.uid]
	if kept == nil || kept.conditions == nil {
		w.mu.Unlock()
		return nil // it is enqueued once they are computed
	}
	report := *kept
	w.mu.Unlock()

	if len(report.writes) == paceWrites && time.Since(report.writes[0]) < paceWindow {
		left := paceWindow - time.Since(report.writes[0])
		return &apply.Retry{After: left, Err: errors.New("the status was written often in the last seconds")}
	}

	report.recorded = w.recordEvents(link, report.conditions, report.recorded)
	next, err := w.applyStatus(ctx, link, report)
	if next != report.attempt || err != nil && !errors.As(err, new(*apply.Retry)) {
		report.writes = append(slices.Clone(report.writes[max(0, len(report.writes)+1-paceWrites):]), time.Now())
	}
	w.mu.Lock()
	kept.recorded, kept.attempt, kept.writes = report.recorded, next, report.writes
	w.mu.Unlock()

	if apierrors.IsConflict(err) {
		return &apply.Retry{After: conflictRetry, Err: err}
	}
	return err
}

// applyStatus applies the status of one Link, unless it is as it should be, and returns the last attempt.
func (w *statusWriter) applyStatus(ctx context.Context, link *Link, r linkReport) (*attempt, error) {
	last := r.attempt

	whole := wantedStatus(link, r.conditions, r.mirror, w.options.Mirrors, metav1.Now())
	want, err := whole.without(w.undeclaredIn(link.version), link)

	switch {
	case err != nil:
		return last, fmt.Errorf("status of Link %s: %w", link.key, err)
	case last.counts(link) && last.refused != "", !link.status.contradicts(want):
		return last, nil
	case last.counts(link) && last.applied.same(want) && last.stored.same(link.status):
		return last, nil // the API server stores it otherwise
	case last != nil && last.after != last.before && last.before == link.resourceVersion:
		return last, nil // the watch has not shown our last write yet
	case last.counts(link) && last.applied.same(want) && time.Since(last.at) < contestedRetry:
		return last, &apply.Retry{
			After: contestedRetry - time.Since(last.at), Err: errors.New("another writer has replaced it"),
		}
	}

	next, err := w.apply(ctx, link, whole)
	if next == nil {
		return last, err
	}
	if next.refused != "" && (last == nil || last.refused != next.refused) {
		w.log.Info("Conditions cannot be written: "+next.refused+"; Events and metrics report them",
			"link", link.key.String(), "served", link.version)
	}
	return next, nil
}

// apply sends a status without the fields that the schema lacks, and returns what became of it; nil if that is an
// error, or if the Link is gone.
func (w *statusWriter) apply(ctx context.Context, link *Link, whole writtenStatus) (*attempt, error) {
	back, sent, err := w.send(ctx, link, whole)
	attempt := &attempt{
		at: time.Now(), servedIn: link.version, before: link.resourceVersion, after: link.resourceVersion,
	}

	switch {
	case err == nil && back == nil: // all that differs has no field
		attempt.applied, attempt.stored = sent, link.status
		return attempt, nil
	case errors.Is(err, errNoStatus):
		attempt.refused = fmt.Sprintf(
			"the Link CRD has no status in %s, the newest version that it serves: install one that "+
				"has, such as Fingerpost's",
			link.version,
		)
		return attempt, nil
	case apierrors.IsForbidden(err):
		attempt.refused = w.whyForbidden(ctx, link, err)
		return attempt, nil
	case apierrors.IsNotFound(err): // deleted meanwhile
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("status of Link %s: %w", link.key, err)
	}

	attempt.after, attempt.applied, attempt.stored = back.GetResourceVersion(), sent, readStatus(back)
	return attempt, nil
}

// send sends a status until the API server has named all fields that its schema lacks. It returns what is stored then,
// and what it was computed from; nothing is stored if what the schema has is as it should be.
func (w *statusWriter) send(
	ctx context.Context, link *Link, whole writtenStatus,
) (back *unstructured.Unstructured, sent writtenStatus, err error) {
	for {
		lacking := w.undeclaredIn(link.version)
		if sent, err = whole.without(lacking, link); err != nil || !link.status.contradicts(sent) {
			return nil, sent, err
		}

		tree, err := sent.tree(link)
		if err != nil {
			return nil, sent, err
		}

		back, err = w.patch(ctx, link, tree)
		rejected := rejectedFields(err)

		switch named := fieldsIn(tree).Intersection(sets.New(rejected...)); {
		case slices.Contains(rejected, ""):
			return nil, sent, errNoStatus
		case len(named) > 0 && len(lacking) < maxUndeclared:
			w.addUndeclared(link, sets.List(named))
			continue
		case apierrors.IsNotFound(err) && w.lacksStatus(ctx, link.version):
			return nil, sent, errNoStatus
		case err != nil:
			return nil, sent, err
		}

		stored, _, _ := unstructured.NestedMap(back.Object, "status")
		if dropped := droppedFields(tree, stored); len(dropped) > 0 {
			w.addUndeclared(link, dropped)
			sent, err = sent.without(dropped, link)
		}
		w.mu.Lock()
		w.undeclared.remove(link.version, fieldsIn(stored))
		w.mu.Unlock()
		return back, sent, err
	}
}

// patch applies a status. If that leaves a part of a condition, which is invalid, it replaces all of it.
func (w *statusWriter) patch(ctx context.Context, l *Link, status map[string]any) (*unstructured.Unstructured, error) {
	client := w.dynamic.Resource(linkResource(l.version)).Namespace(l.key.Namespace)
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	back, err := client.Apply(ctx, l.key.Name, l.withStatus(status), options, "status")
	w.metrics.countWrite(err)
	if apierrors.IsInvalid(err) {
		back, err = w.replace(ctx, l, status)
	}
	return back, err
}

// replace sends a status as a merge patch. A condition type that we leave out vanishes with an apply unless
// another manager owns it as well. Of one that others have created, and that we have changed, an apply would
// leave a part, which is invalid.
func (w *statusWriter) replace(
	ctx context.Context, link *Link, status map[string]any,
) (*unstructured.Unstructured, error) {
	status = maps.Clone(status)
	if ours, found := status["conditions"].([]any); found {
		var others writtenStatus
		for _, c := range link.status.conditions {
			if !slices.Contains(ownConditions, c.Type) {
				others.conditions = append(others.conditions, c)
			}
		}

		tree, err := others.tree(link)
		if err != nil {
			return nil, err
		}
		theirs, _ := tree["conditions"].([]any)
		status["conditions"] = slices.Concat(ours, theirs)
	}

	patch, err := link.withStatus(status).MarshalJSON()
	if err != nil {
		return nil, err
	}
	client := w.dynamic.Resource(linkResource(link.version)).Namespace(link.key.Namespace)
	options := metav1.PatchOptions{FieldManager: fieldManager}
	back, err := client.Patch(ctx, link.key.Name, types.MergePatchType, patch, options, "status")
	w.metrics.countWrite(err)
	return back, err
}

// withStatus returns a Link with nothing but a status, to be applied to the version that was read.
func (l *Link) withStatus(status map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	object.SetAPIVersion(Group + "/" + l.version)
	object.SetKind("Link")
	object.SetNamespace(l.key.Namespace)
	object.SetName(l.key.Name)
	object.SetResourceVersion(l.resourceVersion)
	return object
}

// undeclaredIn returns the fields of a status that the schema of Links lacks in a version, as far as that is known.
func (w *statusWriter) undeclaredIn(version string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.undeclared.leftOut(version)
}

// lacksStatus reports whether a version of Links has no status. The API server answers a write of it as if the Link did
// not exist.
func (w *statusWriter) lacksStatus(ctx context.Context, version string) bool {
	served, err := w.isServed(ctx, version, linkerd.Links.Resource+"/status", "patch")
	return err == nil && !served
}

// addUndeclared takes note of fields that the schema of Links lacks, and logs those that are new.
func (w *statusWriter) addUndeclared(link *Link, fields []string) {
	w.mu.Lock()
	added := w.undeclared.add(link.version, fields)
	w.mu.Unlock()

	if len(added) > 0 {
		w.log.Info(
			"The schema of Links lacks fields of their status, which are left out: install Fingerpost's Link CRD "+
				"to see them in Links; Events and metrics report conditions",
			"fields",
			strings.Join(added, ", "),
			"link",
			link.key.String(),
			"served",
			link.version,
		)
	}
}

// whyForbidden returns why the status of a Link may not be written: a right is missing, or something else refuses it,
// such as a policy.
func (w *statusWriter) whyForbidden(ctx context.Context, l *Link, forbidden error) string {
	err := w.permissions.ReviewRefused(ctx, apply.Permission{
		Resource:  schema.GroupResource{Group: Group, Resource: linkerd.Links.Resource + "/status"},
		Namespace: l.key.Namespace, Name: l.key.Name, Verbs: []string{"patch"},
	})
	switch {
	case apply.IsMissingPermissions(err):
		return "grant patch on links/status in " + Group
	case err != nil:
		return "the API server refuses them: " + truncate(oneLine(forbidden))
	default:
		return "the API server refuses them, although patch on links/status is granted: " +
			truncate(oneLine(forbidden))
	}
}

// recordEvents records an Event for each condition that has changed, and returns what is recorded then.
func (w *statusWriter) recordEvents(l *Link, conditions, recorded []metav1.Condition) []metav1.Condition {
	for _, c := range changedConditions(recorded, l.status.conditions, conditions) {
		kind := corev1.EventTypeNormal
		if isWarning(c) {
			kind = corev1.EventTypeWarning
		}
		if w.events != nil {
			w.events.Eventf(l.reference(), nil, kind, c.Reason, c.Type,
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
