package links

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Options are what the operator decides about links.
type Options struct {
	ClusterName         string // of the cluster that we run in
	TrustDomain         string // our own
	ControllerNamespace string // where labelled Secrets are
	LinkNamespace       string // where Links are; empty for everywhere
	Hosts               Hosts
}

// A Reconciler applies a Spec for every cluster that is linked, and writes into the Links what came of it.
type Reconciler struct {
	log      logr.Logger
	options  Options
	registry *cluster.Registry
	onListed func()
	events   events.EventRecorder // may be nil

	conn       *cluster.Connection
	dynamic    dynamic.Interface
	core       kubernetes.Interface
	links      *records.Store[*Link]
	linkSource *cluster.Source // of Links
	metrics    metrics
	changes    watch.Value[struct{}] // superseded when a Link has changed
	allApplied chan struct{}         // closed when Known is

	ctx   context.Context                              // of Start; set before anything is watched, like queue
	queue workqueue.TypedRateLimitingInterface[string] // of cluster names

	mu               sync.Mutex                  // guards all below
	wg               sync.WaitGroup              // what Start has started
	seenLinks        map[records.Key]*Link       // the Links as they were seen last
	namespaces       map[string]*secretNamespace // whose Secrets are watched
	sourcesReady     bool                        // Links and labelled Secrets have answered
	pending          map[string]bool             // names that applyAll waits for; nil while it does not
	passDone         chan struct{}               // closed when none is left
	lastReports      map[string]*lastReport      // by the Link's UID
	loggedRejections map[string]string           // of labelled Secrets without a Link, as they were last logged, by cluster name
}

// namespace is one whose Secrets are watched.
type secretNamespace struct {
	name   string
	store  *records.Store[*secret]
	source *cluster.Source
	cancel context.CancelFunc

	clusterNames map[records.Key]string // the cluster name that a Secret bore last; guarded by Reconciler.mu
}

// said is what was last concluded about a Link.
type lastReport struct {
	conditions []metav1.Condition

	// Where conditions cannot be kept (the schema drops them, or we may not write), writing is left alone for a while.
	unsupported  bool
	triedVersion string // in which it was tried
	triedAt      time.Time
}

// muteFor is how long conditions that cannot be kept are not written again.
const unsupportedRetry = 10 * time.Minute

// answered reports whether it is known what there is, if only that it may not be read.
func (n *secretNamespace) ready() bool {
	return isClosed(n.store.Synced()) || isClosed(n.source.Refused())
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// NewReconciler returns a Reconciler that reads Links and Secrets over conn. listed is called once, when everything that is linked
// at the start was applied. recorder may be nil.
func NewReconciler(log logr.Logger, conn *cluster.Connection, registry *cluster.Registry, recorder events.EventRecorder, listed func(), options Options) (*Reconciler, error) {
	r := &Reconciler{
		log: log, options: options, registry: registry, onListed: listed, events: recorder, conn: conn, allApplied: make(chan struct{}),
		seenLinks: map[records.Key]*Link{}, namespaces: map[string]*secretNamespace{}, lastReports: map[string]*lastReport{}, loggedRejections: map[string]string{},
	}
	var err error
	if r.dynamic, err = dynamic.NewForConfigAndClient(conn.Config, conn.HTTPClient); err != nil {
		return nil, fmt.Errorf("client for Links: %w", err)
	}
	if r.core, err = kubernetes.NewForConfigAndClient(conn.Config, conn.HTTPClient); err != nil {
		return nil, fmt.Errorf("client for Secrets: %w", err)
	}
	r.metrics = metrics{r}
	r.links = records.NewStore(newLink, r.linkChanged)
	requests := cluster.NewestLister(r.dynamic, schema.GroupResource{Group: Group, Resource: "links"}, versions, options.LinkNamespace)
	r.linkSource = cluster.NewSource(requests, conn)
	return r, nil
}

// Start follows Links and Secrets until ctx ends.
func (r *Reconciler) Start(ctx context.Context) error {
	c, err := controller.NewTypedUnmanaged("links", controller.TypedOptions[string]{
		Reconciler: reconcile.TypedFunc[string](func(ctx context.Context, name string) (reconcile.Result, error) {
			return reconcile.Result{}, r.reconcile(ctx, name)
		}),
		MaxConcurrentReconciles: 4,
		SkipNameValidation:      new(true),
		Logger:                  r.log,
	})
	if err != nil {
		return err
	}
	defer r.wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = c.Watch(source.TypedFunc[string](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[string]) error {
		r.ctx, r.queue = logr.NewContext(ctx, r.log.V(1)), queue
		r.mu.Lock()
		r.watchNamespaces()
		r.mu.Unlock()
		r.wg.Go(func() { r.linkSource.Fill(r.ctx, &unstructured.Unstructured{}, r.links) })
		r.wg.Go(r.startReconciling)
		r.wg.Go(r.enqueueChangedClusters)
		return nil
	}))
	if err != nil {
		return err
	}
	return c.Start(ctx)
}

// begin lets the reconciliation start once Links and labelled Secrets have answered.
func (r *Reconciler) startReconciling() {
	r.mu.Lock()
	first := r.namespaces[r.options.ControllerNamespace]
	r.mu.Unlock()
	if !waitListed(r.ctx, r.links.Synced(), r.linkSource.Refused()) || !waitListed(r.ctx, first.store.Synced(), first.source.Refused()) {
		return
	}
	if refused := r.linkSource.Health().Refused; refused != "" {
		r.log.Info("Links cannot be read, so clusters are linked by labelled Secrets only: install the Link CRD, grant get, list and watch on "+
			"links.multicluster.linkerd.io, or name a -link-namespace", "reason", refused)
	}
	if refused := first.source.Health().Refused; refused != "" {
		r.log.Info("Secrets in the controller namespace cannot be read: grant get, list and watch on them", "namespace", first.name, "reason", refused)
	}
	r.mu.Lock()
	r.sourcesReady = true
	r.mu.Unlock()
	if !r.reconcileAll() {
		return
	}
	r.onListed()
	for _, what := range []struct {
		synced <-chan struct{}
		source *cluster.Source
	}{{r.links.Synced(), r.linkSource}, {first.store.Synced(), first.source}} {
		if isClosed(what.synced) || what.source.Health().Refused == metav1.StatusReasonNotFound {
			continue // there may not be such a kind
		}
		select {
		case <-what.synced:
		case <-r.ctx.Done():
			return
		}
	}
	if r.reconcileAll() {
		close(r.allApplied)
	}
}

// Known returns a channel that is closed once every cluster that is linked was applied. Unlike what listed is called for, serving, that
// takes the right to read Links, if there are any, and Secrets in the controller namespace.
func (r *Reconciler) AllApplied() <-chan struct{} { return r.allApplied }

// applyAll reconciles every name that there is, and reports whether it came to an end.
func (r *Reconciler) reconcileAll() bool {
	applied, pending := make(chan struct{}), map[string]bool{}
	r.mu.Lock()
	for _, l := range r.seenLinks {
		pending[l.clusterName] = true
	}
	for _, name := range r.namespaces[r.options.ControllerNamespace].clusterNames {
		pending[name] = true
	}
	names := slices.Collect(maps.Keys(pending))
	r.pending, r.passDone = pending, applied
	r.mu.Unlock()
	for _, name := range names {
		r.queue.Add(name)
	}
	r.finishPass()
	select {
	case <-applied:
		return true
	case <-r.ctx.Done():
		return false
	}
}

func waitListed(ctx context.Context, synced, refused <-chan struct{}) bool {
	select {
	case <-synced:
		return true
	case <-refused:
		return true
	case <-ctx.Done():
		return false
	}
}

// done notes that a name was reconciled.
func (r *Reconciler) markReconciled(name string) {
	r.mu.Lock()
	delete(r.pending, name)
	r.mu.Unlock()
	r.finishPass()
}

// finish ends applyAll when no name is left.
func (r *Reconciler) finishPass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil && len(r.pending) == 0 {
		r.pending = nil
		close(r.passDone)
	}
}

func (r *Reconciler) linkChanged(k records.Key) {
	now, found := r.links.Get(k)
	r.mu.Lock()
	old, had := r.seenLinks[k]
	if found {
		r.seenLinks[k] = now
	} else {
		delete(r.seenLinks, k)
	}
	if had && (!found || old.uid != now.uid) {
		delete(r.lastReports, old.uid)
	}
	r.watchNamespaces()
	r.mu.Unlock()
	r.changes.Store(struct{}{})
	if had {
		r.queue.Add(old.clusterName)
	}
	if found {
		r.queue.Add(now.clusterName)
	}
}

// watchNamespaces watches the Secrets of the controller namespace and of those that have Links; it needs r.mu.
func (r *Reconciler) watchNamespaces() {
	needed := map[string]bool{r.options.ControllerNamespace: true}
	for k := range r.seenLinks {
		needed[k.Namespace] = true
	}
	for name, n := range r.namespaces {
		if !needed[name] {
			n.cancel()
			delete(r.namespaces, name)
		}
	}
	for name := range needed {
		if r.namespaces[name] != nil {
			continue
		}
		n := &secretNamespace{name: name, clusterNames: map[records.Key]string{}}
		n.store = records.NewStore(newSecret, func(k records.Key) { r.secretChanged(n, k) })
		selector := fields.OneTermEqualSelector("type", string(SecretType)).String()
		n.source = cluster.NewSource(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return r.core.CoreV1().Secrets(name).List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
				o.FieldSelector = selector
				return r.core.CoreV1().Secrets(name).Watch(ctx, o)
			},
		}, r.conn)
		var ctx context.Context
		ctx, n.cancel = context.WithCancel(r.ctx)
		r.namespaces[name] = n
		r.wg.Go(func() { n.source.Fill(ctx, &corev1.Secret{}, n.store) })
		r.wg.Go(func() {
			if waitListed(ctx, n.store.Synced(), n.source.Refused()) {
				r.enqueueLinks(func(l *Link) bool { return l.key.Namespace == name })
			}
		})
	}
}

func (r *Reconciler) enqueueLinks(concerned func(*Link) bool) {
	for _, k := range r.links.Keys() {
		if l, found := r.links.Get(k); found && concerned(l) {
			r.queue.Add(l.clusterName)
		}
	}
}

func (r *Reconciler) secretChanged(n *secretNamespace, k records.Key) {
	r.enqueueLinks(func(l *Link) bool { return l.key.Namespace == k.Namespace && l.secret == k.Name })
	if n.name != r.options.ControllerNamespace {
		return
	}
	s, found := n.store.Get(k)
	r.mu.Lock()
	old := n.clusterNames[k]
	delete(n.clusterNames, k)
	if found && s.clusterName != "" {
		n.clusterNames[k] = s.clusterName
	}
	now := n.clusterNames[k]
	r.mu.Unlock()
	for _, name := range []string{old, now} {
		if name != "" {
			r.queue.Add(name)
		}
	}
}

// followStatuses reconciles the names of clusters whose Status has changed.
func (r *Reconciler) enqueueChangedClusters() {
	var seen map[string]cluster.Status
	for {
		statuses, changed := r.registry.Statuses()
		for name, s := range statuses {
			if old, known := seen[name]; !known || !old.Same(s) {
				r.queue.Add(name)
			}
		}
		seen = statuses
		select {
		case <-changed:
		case <-r.ctx.Done():
			return
		}
	}
}

// reconcile applies what follows for one cluster name and writes it into the Links that name it.
func (r *Reconciler) reconcile(ctx context.Context, name string) error {
	in := inputs{name: name, local: r.options.ClusterName, trustDomain: r.options.TrustDomain, hosts: r.options.Hosts}
	for _, k := range r.links.Keys() {
		if l, found := r.links.Get(k); found && l.clusterName == name {
			in.links = append(in.links, l)
		}
	}
	r.mu.Lock()
	started, namespaces := r.sourcesReady, maps.Clone(r.namespaces)
	r.mu.Unlock()
	for _, l := range in.links {
		n := namespaces[l.key.Namespace]
		started = started && n != nil && n.ready()
	}
	if !started {
		return nil // it is enqueued again when the answers are there
	}
	labelled := namespaces[r.options.ControllerNamespace].store
	for _, k := range labelled.Keys() {
		if s, found := labelled.Get(k); found && s.clusterName == name && name != "" {
			in.labelled = append(in.labelled, s)
		}
	}
	in.secret = func(k records.Key) (*secret, string) {
		n := namespaces[k.Namespace]
		if s, found := n.store.Get(k); found {
			return s, ""
		}
		if refused := n.source.Health().Refused; refused != "" {
			return nil, fmt.Sprintf("Secrets in namespace %s cannot be read (%s): grant get, list and watch on them", k.Namespace, refused)
		}
		return nil, fmt.Sprintf("there is no Secret %s of type %s, which spec.clusterCredentialsSecret names", k, SecretType)
	}

	statuses, _ := r.registry.Statuses()
	status, applied := statuses[name]
	var out outcome
	if invalidName("", name) == "" {
		out = resolve(in)
		switch {
		case !out.linked:
			r.mu.Lock()
			delete(r.loggedRejections, name)
			r.mu.Unlock()
			if !applied || status.Local {
				break
			}
			r.log.Info("Cluster is unlinked", "cluster", name)
			r.registry.Remove(name)
		case out.spec != nil:
			if err := r.registry.Apply(*out.spec); err != nil {
				return err
			}
		case out.winner != nil && !applied: // linked, but there is no way to reach it
			if err := r.registry.Apply(cluster.Spec{Name: name, TrustDomain: r.options.TrustDomain, ClusterDomain: out.winner.clusterDomain}); err != nil {
				return err
			}
		}
		if out.rejection != nil && len(in.links) == 0 && r.isNewRejection(name, out.rejection) {
			r.log.Info("A labelled Secret is refused", "cluster", name, "error", oneLine(out.rejection), "keeping", status.Source)
		}
	}
	r.markReconciled(name) // serving does not depend on what can be written into Links
	var failed []error
	for _, l := range in.links {
		failed = append(failed, r.updateStatus(ctx, l, conditionsFor(l, out, status, applied)))
	}
	return errors.Join(failed...)
}

// news reports whether a refusal without a Link to write it into was not told before.
func (r *Reconciler) isNewRejection(name string, refusal error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.loggedRejections[name]
	r.loggedRejections[name] = refusal.Error()
	return old != refusal.Error()
}

// say writes conditions into a Link, if they are not what was last said about it. What another replica writes in between is left
// alone: two that see a cluster differently must not write in turn for ever.
func (r *Reconciler) updateStatus(ctx context.Context, l *Link, conditions []metav1.Condition) error {
	r.mu.Lock()
	last := r.lastReports[l.uid]
	r.mu.Unlock()
	if last != nil && sameConditions(last.conditions, conditions) {
		return nil
	}
	next := &lastReport{conditions: conditions}
	if last != nil {
		next.unsupported, next.triedVersion, next.triedAt = last.unsupported, last.triedVersion, last.triedAt
	}
	if last != nil || !sameConditions(l.conditions, conditions) {
		r.recordEvents(l, last, conditions)
		if !next.unsupported || next.triedVersion != l.version || time.Since(next.triedAt) > unsupportedRetry {
			mute, err := r.patchConditions(ctx, l, conditions)
			if err != nil {
				return err
			}
			next.unsupported, next.triedVersion, next.triedAt = mute, l.version, time.Now()
		}
	}
	r.mu.Lock()
	if now := r.seenLinks[l.key]; now != nil && now.uid == l.uid { // or it was deleted meanwhile
		r.lastReports[l.uid] = next
	}
	r.mu.Unlock()
	return nil
}

// tell records an Event for each condition that has changed.
func (r *Reconciler) recordEvents(l *Link, last *lastReport, conditions []metav1.Condition) {
	for _, c := range conditions {
		var before *metav1.Condition
		if last != nil {
			before = meta.FindStatusCondition(last.conditions, c.Type)
		}
		begins := before == nil && (c.Status == metav1.ConditionUnknown || c.Reason == reasonNeverSynced || c.Reason == string(cluster.Connecting))
		if begins || before != nil && before.Status == c.Status && before.Reason == c.Reason {
			continue
		}
		kind := corev1.EventTypeNormal
		if c.Status == metav1.ConditionFalse && c.Type != Writable { // reading is all that Linkerd's own role allows
			kind = corev1.EventTypeWarning
		}
		r.log.Info("Link: "+c.Type+" is "+string(c.Status), "link", l.key.String(), "cluster", l.clusterName, "reason", c.Reason, "message", c.Message)
		if r.events != nil {
			object := &unstructured.Unstructured{}
			object.SetAPIVersion(Group + "/" + l.version)
			object.SetKind("Link")
			object.SetNamespace(l.key.Namespace)
			object.SetName(l.key.Name)
			object.SetUID(types.UID(l.uid))
			r.events.Eventf(object, nil, kind, c.Reason, c.Type, "%s is %s: %s", c.Type, c.Status, c.Message)
		}
	}
}

// write patches the conditions into the status, and nothing else of it. It reports whether they cannot be kept there, so that only
// Events, metrics and the debug page tell them.
func (r *Reconciler) patchConditions(ctx context.Context, l *Link, conditions []metav1.Condition) (mute bool, err error) {
	merged := slices.Clone(l.conditions)
	for _, c := range conditions {
		meta.SetStatusCondition(&merged, c)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": merged}})
	if err != nil {
		return false, fmt.Errorf("conditions of Link %s: %w", l.key, err)
	}
	back, err := r.dynamic.Resource(linkResource(l.version)).Namespace(l.key.Namespace).
		Patch(ctx, l.key.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "fingerpost"}, "status")
	switch {
	case apierrors.IsNotFound(err) && l.version == versions[len(versions)-1]:
		r.log.Info("Links are served without status: their conditions are told in Events and metrics only", "link", l.key.String())
		return true, nil
	case apierrors.IsNotFound(err):
		return false, nil // deleted meanwhile
	case apierrors.IsForbidden(err):
		r.log.Info("Conditions cannot be written: grant patch on links/status in "+Group, "link", l.key.String(), "error", err.Error())
		return true, nil
	case err != nil:
		return false, fmt.Errorf("conditions of Link %s: %w", l.key, err)
	case len(readConditions(back)) == 0:
		r.log.Info("The schema of Links drops conditions, so they are told in Events and metrics only: install Fingerpost's Link CRD to see them in the Link",
			"link", l.key.String())
		return true, nil
	}
	return false, nil
}

// sameConditions reports whether b says in every condition what a says in it.
func sameConditions(a, b []metav1.Condition) bool {
	for _, c := range b {
		o := meta.FindStatusCondition(a, c.Type)
		if o == nil || o.Status != c.Status || o.Reason != c.Reason || o.Message != c.Message || o.ObservedGeneration != c.ObservedGeneration {
			return false
		}
	}
	return true
}
