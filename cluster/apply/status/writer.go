package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/internal/logs"
)

const (
	// resyncInterval is how often the statuses of all objects are compared with what they should be, besides each time
	// that one of the two changes. It costs no request for those that are equal.
	resyncInterval = 40 * time.Second
	// paceWrites is how often the status of one object is written within paceWindow, whatever causes it: once a second,
	// and what happens after a quiet time shows at once. What is wanted when the next write is due is written.
	paceWrites = 10
	paceWindow = paceWrites * time.Second

	// unsupportedRetry is until a status is applied again for which there is no field, or that the API server stores
	// otherwise, and until a field is written again that its schema lacks.
	unsupportedRetry = 10 * time.Minute
	// forbiddenRetry is until a status is applied again that the account has no right to write.
	forbiddenRetry = 30 * time.Second
	// conflictRetry is until a status is applied again that was computed from an older version of the object, unless
	// the event of the newer one comes first.
	conflictRetry = time.Second
	// contestedRetry is until a status is applied again that was applied before, and that another writer replaced.
	contestedRetry = time.Second

	workers = 4
)

// A Status is the part of a status that is written. It is immutable.
type Status[S any] interface {
	// Contradicts reports whether an object that shows this has to be written to show what is wanted.
	Contradicts(want S) bool
	// Same reports whether two are equal but for times.
	Same(o S) bool
	// Tree returns it as JSON, to be applied over what an object shows. A list that is empty now is a part of it, if
	// others may own its entries.
	Tree(shown S) (map[string]any, error)
}

// An Object is one as it was read.
type Object[S any] struct {
	Version              string // of its API
	UID, ResourceVersion string
	Shown                S

	// Wanted returns what it should show; false if that is not known yet. It is called when the object may be written,
	// before the two are compared.
	Wanted func() (S, bool)
}

// A Ref names an object.
type Ref struct {
	Resource schema.GroupResource
	Kind     string
	api.Key
}

// Config is what a Writer writes. All of it is required but what may be nil. K are its keys, one for each object: what
// is reported of an object has its text.
type Config[K comparable, S Status[S]] struct {
	Manager     string // the field manager
	Client      dynamic.Interface
	Permissions *apply.Permissions
	Failures    *apply.Failures // may be nil
	Inputs      []apply.Input   // that are read first, each of which may be refused

	// Needs are permissions that every object needs: Run ends if one is missing, see [apply.Config]. Without Needs an
	// object that may not be written waits by itself.
	Needs []apply.Permission

	Of     func(K) Ref
	Keys   func() []K                         // of all objects, each resyncInterval
	Object func(K) (o Object[S], exists bool) // as it was read last
	Read   func(status map[string]any) S      // what is written of a whole status

	// Follow opens a level that what is wanted of an object follows from; nil: a change of that is reported by Enqueue.
	Follow func(K) apply.Level

	// Merges is whether a status is written by a merge patch, whose tree has what is others' in lists. It is for kinds
	// whose lists are one value each for the API server: then an apply takes all of a list from its other owners, or
	// leaves all of it to them, and nothing distinguishes an entry of ours that is not wanted any more from theirs.
	Merges bool

	// Whole returns what replaces a status by a merge patch: a tree, with what is others' in lists that such a patch
	// replaces. It is called where an apply leaves a part of an entry, which is invalid. nil: the tree as it is.
	Whole func(tree map[string]any, shown S) (map[string]any, error)

	// HasStatus reports whether a version of the kind has a status; nil: it does.
	HasStatus func(ctx context.Context, version string) (bool, error)

	// Wrote is called for each write, with the reason of its failure: "" for none, Undeclared for fields that the
	// schema lacks, Unknown for one that is no API server's.
	Wrote func(k K, reason string)

	Advice string // for the log, where fields are left out, such as what to install
	Remedy string // for people, where there is no status
}

// A Writer writes the status of objects of one kind, or of some, in one term of a Lease. It is made for that term.
//
// mu guards the maps. Nothing is called under it. The Loop gives one object to one worker, which is the only one to set
// what is recorded of it. It costs two statuses an object that was written in the term.
type Writer[K comparable, S Status[S]] struct {
	config Config[K, S]
	log    logr.Logger
	loop   *apply.Loop[K]

	mu         sync.Mutex
	records    map[K]record[S]
	undeclared map[schema.GroupResource]*undeclared
}

// A record is what is known of the writes of one object.
type record[S any] struct {
	uid     string
	attempt *attempt[S]
	writes  []time.Time // the last ones, paceWrites at most
}

// An attempt is the last status that was applied to an object, and what became of it.
type attempt[S any] struct {
	at              time.Time // it was made
	servedIn        string    // the version of the API
	before, after   string    // resource versions; equal if nothing has changed
	applied, stored S
	refused         string // why no status of the object can be written, for people; empty if one can
	forbidden       error  // the response, if that is for want of a right
}

// counts reports whether what became of an attempt would become of the same one now.
func (a *attempt[S]) counts(o Object[S]) bool {
	lasts := unsupportedRetry
	if a != nil && a.forbidden != nil {
		lasts = forbiddenRetry
	}
	return a != nil && a.servedIn == o.Version && time.Since(a.at) < lasts
}

// NewWriter returns a Writer for one term.
func NewWriter[K comparable, S Status[S]](log logr.Logger, config Config[K, S]) *Writer[K, S] {
	w := &Writer[K, S]{
		config: config, log: log, records: map[K]record[S]{}, undeclared: map[schema.GroupResource]*undeclared{},
	}
	w.loop = apply.NewLoop(log, apply.Config[K]{
		Reconcile: w.write, Background: []func(context.Context){w.resync}, Failed: w.logNotWritten,
		Failures: config.Failures, Workers: workers, Needs: config.Needs, Permissions: config.Permissions,
	})
	for _, in := range config.Inputs {
		w.loop.ReadOptional(in)
	}
	return w
}

// Run writes until the term ends, and returns nil then.
func (w *Writer[K, S]) Run(term context.Context) error { return w.loop.Run(term) }

// Enqueue has the statuses of objects compared, and written if they are not as they should be.
func (w *Writer[K, S]) Enqueue(keys ...K) { w.loop.Enqueue(keys...) }

// Report returns, of an object whose status was written or refused in this term, which fields are left out because the
// schema lacks them, as conditions or parents.conditions, and why no status can be written; empty if one can.
func (w *Writer[K, S]) Report(k K, o Object[S]) (leftOut []string, refused string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.records[k]
	if last.attempt == nil || last.uid != o.UID {
		return nil, ""
	}
	return w.undeclaredOf(w.config.Of(k)).in(o.Version), last.attempt.refused
}

// Undeclared returns the fields that the schema of a kind lacks, as far as was found out.
func (w *Writer[K, S]) Undeclared(of schema.GroupResource) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.undeclaredOf(Ref{Resource: of}).fields
}

// undeclaredOf returns what the schema of an object's kind lacks. It needs mu.
func (w *Writer[K, S]) undeclaredOf(o Ref) *undeclared {
	if w.undeclared[o.Resource] == nil {
		w.undeclared[o.Resource] = &undeclared{}
	}
	return w.undeclared[o.Resource]
}

// resync enqueues all objects, at first and each resyncInterval, and forgets those that are gone.
func (w *Writer[K, S]) resync(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		keys := w.config.Keys()
		exist := sets.New(keys...)
		w.mu.Lock()
		maps.DeleteFunc(w.records, func(k K, _ record[S]) bool { return !exist.Has(k) })
		w.mu.Unlock()
		w.loop.Enqueue(keys...)
	}, resyncInterval)
}

func (w *Writer[K, S]) logNotWritten(k K, err error, failures int) {
	o := w.config.Of(k)
	logs.Warn(w.log, "The status of a "+o.Kind+" was not written, which is tried again",
		"name", o.String(), "error", err.Error(), "failures", failures)
}

// write applies the status of one object, unless it is as it should be.
func (w *Writer[K, S]) write(ctx context.Context, key K) error {
	object, found := w.config.Object(key)
	if !found {
		w.loop.Unfollow(key)
		return nil
	}
	if w.config.Follow != nil {
		w.loop.FollowLevel(key, func() apply.Level { return w.config.Follow(key) })
	}

	w.mu.Lock()
	last := w.records[key]
	w.mu.Unlock()
	if last.uid != object.UID {
		last = record[S]{uid: object.UID}
	}

	if len(last.writes) == paceWrites && time.Since(last.writes[0]) < paceWindow {
		left := paceWindow - time.Since(last.writes[0])
		return &apply.Retry{After: left, Err: errors.New("the status was written often in the last seconds")}
	}

	want, known := object.Wanted()
	if !known {
		return nil // it is enqueued once it is
	}

	next, err := w.applyStatus(ctx, key, object, want, last.attempt)
	if next != last.attempt || err != nil && !errors.As(err, new(*apply.Retry)) {
		last.writes = append(slices.Clone(last.writes[max(0, len(last.writes)+1-paceWrites):]), time.Now())
	}
	last.attempt = next
	w.mu.Lock()
	w.records[key] = last
	w.mu.Unlock()

	switch {
	case apierrors.IsConflict(err):
		return &apply.Retry{After: conflictRetry, Err: err}
	case err == nil && next != nil && next.forbidden != nil:
		left := forbiddenRetry - time.Since(next.at)
		return &apply.Retry{After: left, Err: errors.New(next.refused), Failing: next.forbidden}
	}
	return err
}

// applyStatus applies the status of one object, unless it is as it should be, and returns the last attempt.
func (w *Writer[K, S]) applyStatus(
	ctx context.Context, key K, object Object[S], whole S, last *attempt[S],
) (*attempt[S], error) {
	ref := w.config.Of(key)
	want, err := w.without(whole, object.Shown, w.undeclaredIn(ref, object.Version))

	switch {
	case err != nil:
		return last, fmt.Errorf("status of %s %s: %w", ref.Kind, ref.Key, err)
	case last.counts(object) && last.refused != "", !object.Shown.Contradicts(want):
		return last, nil
	case last.counts(object) && last.applied.Same(want) && last.stored.Same(object.Shown):
		return last, nil // the API server stores it otherwise
	case last != nil && last.after != last.before && last.before == object.ResourceVersion:
		return last, nil // the watch has not shown our last write yet
	case last.counts(object) && last.applied.Same(want) && time.Since(last.at) < contestedRetry:
		return last, &apply.Retry{
			After: contestedRetry - time.Since(last.at), Err: errors.New("another writer has replaced it"),
		}
	}

	next, err := w.apply(ctx, key, object, whole)
	if next == nil {
		return last, err
	}
	if next.refused != "" && (last == nil || last.refused != next.refused) {
		logs.Warn(w.log, "The status of a "+ref.Kind+" cannot be written: "+next.refused,
			"name", ref.String(), "served", object.Version)
	}
	return next, nil
}

// apply sends a status without the fields that the schema lacks, and returns what became of it; nil if that is an
// error, or if the object is gone.
func (w *Writer[K, S]) apply(ctx context.Context, key K, object Object[S], whole S) (*attempt[S], error) {
	ref := w.config.Of(key)
	back, sent, err := w.send(ctx, key, object, whole)
	attempt := &attempt[S]{
		at: time.Now(), servedIn: object.Version, before: object.ResourceVersion, after: object.ResourceVersion,
	}

	switch {
	case err == nil && back == nil: // all that differs has no field
		attempt.applied, attempt.stored = sent, object.Shown
		return attempt, nil
	case errors.Is(err, errNoStatus):
		attempt.refused = fmt.Sprintf("the %s CRD has no status in %s, the newest version that it serves: %s",
			ref.Kind, object.Version, w.config.Remedy)
		return attempt, nil
	case apierrors.IsForbidden(err) && api.CauseOf(err).Reason == api.Forbidden && len(w.config.Needs) == 0:
		attempt.refused, attempt.forbidden = w.whyForbidden(ctx, ref, err), err
		return attempt, nil
	case apierrors.IsNotFound(err): // deleted meanwhile
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("status of %s %s: %w", ref.Kind, ref.Key, err)
	}

	attempt.after, attempt.applied, attempt.stored = back.GetResourceVersion(), sent, w.config.Read(statusOf(back))
	return attempt, nil
}

func statusOf(o *unstructured.Unstructured) map[string]any {
	fields, _, _ := unstructured.NestedMap(o.Object, "status")
	return fields
}

// send sends a status until the API server has named all fields that its schema lacks. It returns what is stored then,
// and what it was computed from; nothing is stored if what the schema has is as it should be.
func (w *Writer[K, S]) send(
	ctx context.Context, key K, object Object[S], whole S,
) (back *unstructured.Unstructured, sent S, err error) {
	ref := w.config.Of(key)
	for {
		lacking := w.undeclaredIn(ref, object.Version)
		if sent, err = w.without(whole, object.Shown, lacking); err != nil || !object.Shown.Contradicts(sent) {
			return nil, sent, err
		}

		tree, err := sent.Tree(object.Shown)
		if err != nil {
			return nil, sent, err
		}

		back, err = w.patch(ctx, key, object, tree)
		rejected := rejectedFields(err)

		switch named := fieldsIn(tree).Intersection(sets.New(rejected...)); {
		case slices.Contains(rejected, ""):
			return nil, sent, errNoStatus
		case len(named) > 0 && len(lacking) < maxUndeclared:
			w.addUndeclared(ref, object.Version, sets.List(named))
			continue
		case apierrors.IsNotFound(err) && w.lacksStatus(ctx, object.Version):
			return nil, sent, errNoStatus
		case err != nil:
			return nil, sent, err
		}

		stored := statusOf(back)
		if dropped := droppedFields(tree, stored); len(dropped) > 0 {
			w.addUndeclared(ref, object.Version, dropped)
			sent, err = w.without(sent, object.Shown, dropped)
		}
		w.mu.Lock()
		w.undeclaredOf(ref).remove(object.Version, fieldsIn(stored))
		w.mu.Unlock()
		return back, sent, err
	}
}

// without returns a status as a schema keeps it that lacks fields.
func (w *Writer[K, S]) without(whole, shown S, lacking []string) (S, error) {
	if len(lacking) == 0 {
		return whole, nil
	}
	tree, err := whole.Tree(shown)
	if err != nil {
		return whole, err
	}
	dropFields(tree, lacking)
	return w.config.Read(tree), nil
}

// patch applies a status. If that leaves a part of an entry, which is invalid, it replaces all of it by a merge patch:
// of an entry that others have created, and that we have changed, an apply leaves a part when we leave it out. With
// Merges there is the merge patch alone.
func (w *Writer[K, S]) patch(
	ctx context.Context, key K, object Object[S], tree map[string]any,
) (*unstructured.Unstructured, error) {
	ref := w.config.Of(key)
	in := w.config.Client.Resource(ref.Resource.WithVersion(object.Version)).Namespace(ref.Namespace)

	if !w.config.Merges {
		options := metav1.ApplyOptions{FieldManager: w.config.Manager, Force: true}
		back, err := in.Apply(ctx, ref.Name, applied(ref, object, tree), options, "status")
		w.countWrite(key, err)
		if !apierrors.IsInvalid(err) || w.config.Whole == nil {
			return back, err
		}
	}

	if w.config.Whole != nil {
		var err error
		if tree, err = w.config.Whole(maps.Clone(tree), object.Shown); err != nil {
			return nil, err
		}
	}
	patch, err := applied(ref, object, tree).MarshalJSON()
	if err != nil {
		return nil, err
	}

	merge := metav1.PatchOptions{FieldManager: w.config.Manager}
	back, err := in.Patch(ctx, ref.Name, types.MergePatchType, patch, merge, "status")
	w.countWrite(key, err)
	return back, err
}

// applied returns an object with nothing but a status, to be applied to the version that was read.
func applied[S any](o Ref, object Object[S], tree map[string]any) *unstructured.Unstructured {
	applied := &unstructured.Unstructured{Object: map[string]any{"status": tree}}
	applied.SetAPIVersion(schema.GroupVersion{Group: o.Resource.Group, Version: object.Version}.String())
	applied.SetKind(o.Kind)
	applied.SetNamespace(o.Namespace)
	applied.SetName(o.Name)
	applied.SetResourceVersion(object.ResourceVersion)
	return applied
}

func (w *Writer[K, S]) countWrite(key K, err error) {
	switch {
	case len(rejectedFields(err)) > 0:
		w.config.Wrote(key, "Undeclared")
	case err != nil:
		w.config.Wrote(key, cmp.Or(string(api.StatusReason(err)), "Unknown"))
	default:
		w.config.Wrote(key, "")
	}
}

// undeclaredIn returns the fields that the schema lacks in a version, as far as that is known.
func (w *Writer[K, S]) undeclaredIn(o Ref, version string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.undeclaredOf(o).leftOut(version)
}

// lacksStatus reports whether a version has no status. The API server answers a write of it as if the object did not
// exist.
func (w *Writer[K, S]) lacksStatus(ctx context.Context, version string) bool {
	if w.config.HasStatus == nil {
		return false
	}
	has, err := w.config.HasStatus(ctx, version)
	return err == nil && !has
}

// addUndeclared takes note of fields that the schema lacks, and logs those that are new.
func (w *Writer[K, S]) addUndeclared(o Ref, version string, fields []string) {
	w.mu.Lock()
	added := w.undeclaredOf(o).add(version, fields)
	w.mu.Unlock()
	if len(added) > 0 {
		w.log.Info(
			"The schema of "+o.Kind+"s lacks fields of their status, which are left out: "+w.config.Advice,
			"fields", strings.Join(added, ", "), "name", o.String(), "served", version)
	}
}

// whyForbidden returns why a status may not be written: a right is missing, or something else refuses it, such as a
// policy.
func (w *Writer[K, S]) whyForbidden(ctx context.Context, o Ref, forbidden error) string {
	resource := o.Resource
	resource.Resource += "/status"
	err := w.config.Permissions.ReviewRefused(ctx, apply.Permission{
		Resource: resource, Namespace: o.Namespace, Name: o.Name, Verbs: []string{"patch"},
	})

	refusal := Message(strings.ReplaceAll(forbidden.Error(), "\n", "; "))
	switch {
	case apply.IsMissingPermissions(err):
		return err.Error()
	case err != nil:
		return "the API server refuses it: " + refusal
	default:
		return "the API server refuses it, although patch on " + resource.Resource + " is granted: " + refusal
	}
}
