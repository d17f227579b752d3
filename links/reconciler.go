package links

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/events"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Options configure a Reconciler.
type Options struct {
	ClusterName         string // of the local cluster
	TrustDomain         string // of the local cluster
	ControllerNamespace string // of labelled Secrets
	LinkNamespace       string // of Links; empty for all namespaces
	Mirrors             bool   // the condition Mirroring is computed here: see SetMirrorStatus
	Hosts               Hosts
}

// A Reconciler applies a Spec for every linked cluster, and reports in the Links what became of it.
//
// The key of its Loop is the name of a cluster. A change of a Link, a Secret or a cluster's Status only
// enqueues the names that it may bear on; reconcile reads everything else from the stores at that moment.
// So no event carries data, and their order does not matter.
//
// # When all Links are known
//
// A cluster that was never applied looks like one that is not linked: it is missing from answers, and
// writers delete what they wrote for it. "Not listed yet" must not look like that. So three steps come one
// by one:
//
//  1. The Loop begins. Links and the labelled Secrets have each been listed, or their listing was refused.
//     A Link also waits for the Secrets of its own namespace.
//  2. onListed. Other replicas were asked for the clusters that they have, for half a second at most.
//     reconcileAll has enqueued every name and seen each of them applied. From here on the process may
//     serve: a cluster without a Spec is known not to be linked, as far as we have permission to read. A
//     refused listing does not delay serving, because it may stay refused for ever.
//  3. The Membership is complete. Nothing that exists was refused: each kind was listed, or is not served by the API
//     server (NotFound). For this, reconcileAll runs once more after the last listing. Where Links are not served it
//     waits for DeletionGrace at most, since the CRD may have been deleted a moment ago.
//  4. All without a Link are unlinked, DeletionGrace after step 3 has begun, and once it is decided on each restored
//     cluster, and no Link is refused that may be that of any. Before it writers delete only what they wrote for
//     clusters that were linked since the start: Links may be missing because their CRD has just come back without
//     them.
//
// No step waits for anything to be written into a Link. A name counts as applied before its conditions
// are patched, so that an API server that rejects patches does not keep a replica from serving.
//
// # Who writes the status
//
// Every replica reads every Link and computes its conditions, for metrics and debug pages. The one that
// holds the local cluster's Lease writes them (statusWriter), with what package mirror hands over.
//
// # Concurrency
//
// Four workers reconcile; the Loop never gives one name to two of them. mu guards the maps below it. It is
// never held while the Registry, an API server or the Loop is called; stores call back without holding
// their locks. Start returns after the Loop, with its inputs and what runs in its background, and after the
// goroutines that wg counts: two for each other namespace whose Secrets are watched.
type Reconciler struct {
	log      logr.Logger
	options  Options
	registry *cluster.Registry
	onListed func()
	events   events.EventRecorder // may be nil

	conn        *api.Connection
	dynamic     dynamic.Interface
	discovery   discovery.DiscoveryInterface
	links       *api.Informer[*Link]
	controllers *secretNamespace    // the controller namespace
	clusters    *apply.Loop[string] // by name
	metrics     *conditionMetrics
	changes     watch.Value[struct{}]               // superseded when a Link has changed
	deletions   watch.Value[struct{}]               // superseded when a Link was deleted
	membership  watch.Value[*federation.Membership] // stored under mu

	ctx context.Context // set by Start before anything is watched
	wg  sync.WaitGroup

	mu         sync.Mutex        // guards the fields below
	seenLinks  map[api.Key]*Link // those that exist, and those in deleted
	deleted    map[api.Key]deletion
	restored   map[string]cluster.Spec // clusters of checkpoints, neither linked nor released since
	everLinked map[string]bool         // clusters linked since the start, or restored; nil after the grace
	knows      knowledge
	namespaces map[string]*secretNamespace
	labelled   map[api.Key]string // the cluster names of labelled Secrets
	pending    map[string]bool    // names that the running reconcileAll waits for
	passDone   chan struct{}      // closed when pending becomes empty

	reports          map[string]*linkReport // by the Link's UID
	statusWriter     *statusWriter          // nil: this replica does not write the status of Links
	loggedRejections map[string]string      // by cluster name; of labelled Secrets without a Link
}

// NewReconciler returns a Reconciler that reads Links and Secrets over conn. It calls onListed once, after
// every cluster that was linked at the start was applied. recorder may be nil.
func NewReconciler(
	log logr.Logger, conn *api.Connection, registry *cluster.Registry, recorder events.EventRecorder,
	onListed func(), options Options,
) (*Reconciler, error) {
	reconciler := &Reconciler{
		log:              log,
		options:          options,
		registry:         registry,
		onListed:         onListed,
		events:           recorder,
		conn:             conn,
		seenLinks:        map[api.Key]*Link{},
		deleted:          map[api.Key]deletion{},
		restored:         map[string]cluster.Spec{},
		everLinked:       map[string]bool{},
		labelled:         map[api.Key]string{},
		reports:          map[string]*linkReport{},
		loggedRejections: map[string]string{},
	}

	var err error
	if reconciler.dynamic, err = dynamic.NewForConfigAndClient(conn.Config, conn.HTTPClient); err != nil {
		return nil, fmt.Errorf("client for Links: %w", err)
	}

	reconciler.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(conn.Config, conn.HTTPClient)
	if err != nil {
		return nil, fmt.Errorf("client for discovery: %w", err)
	}

	reconciler.metrics = newConditionMetrics(reconciler)
	kind := api.Newest(linkerd.Links, versions, "Link")
	kind.Namespace = options.LinkNamespace
	read := func(object any) (*Link, bool) { return newLink(object, options.ClusterName) }
	reconciler.links = api.NewInformer(conn, kind, read, reconciler.linkChanged)
	reconciler.controllers = reconciler.newSecretNamespace(options.ControllerNamespace)
	reconciler.namespaces = map[string]*secretNamespace{options.ControllerNamespace: reconciler.controllers}

	reconciler.clusters = apply.NewLoop(log, apply.Config[string]{
		Reconcile: reconciler.reconcile, Failed: reconciler.logNotApplied, Queue: "links", Workers: 4,
		Background: []func(context.Context){
			reconciler.applyLinked, reconciler.enqueueChangedClusters, reconciler.releaseDeleted,
		},
	})

	reconciler.clusters.ReadOptional(reconciler.links)
	reconciler.clusters.ReadOptional(reconciler.controllers)
	return reconciler, nil
}

// Start watches and reconciles until ctx ends.
func (r *Reconciler) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer r.wg.Wait()
	defer cancel()
	r.ctx = logr.NewContext(ctx, r.log.V(1))
	names, _ := r.registry.Names()
	for _, name := range names {
		if name != r.options.ClusterName {
			// The cluster is applied already, so that its Spec is not needed. Nothing reads the maps yet.
			r.restored[name], r.everLinked[name] = cluster.Spec{}, true
		}
	}
	return r.clusters.Run(ctx)
}

func (r *Reconciler) logNotApplied(name string, err error, failures int) {
	r.log.Info("A cluster was not applied, which is tried again",
		"cluster", name, "error", err.Error(), "failures", failures)
}

// applyLinked takes the steps that the essay above numbers, after the first one.
func (r *Reconciler) applyLinked(ctx context.Context) {
	r.logRefused()
	r.restoreFromPeers(ctx)
	if !r.reconcileAll(ctx) {
		return
	}
	r.learn(knowsListed)
	r.onListed()
	if !r.links.WaitComplete(ctx) || !r.controllers.WaitComplete(ctx) || !r.reconcileAll(ctx) {
		return
	}

	r.deleteRestored()
	grace, cancel := context.WithTimeout(ctx, DeletionGrace)
	defer cancel()
	r.waitForLinks(grace)
	if !r.reconcileAll(ctx) {
		return
	}

	r.learn(knowsAll)
	<-grace.Done()
	if r.waitDecided(ctx) {
		r.learn(knowsGone)
	}
}

// logRefused logs what of that which links clusters cannot be read.
func (r *Reconciler) logRefused() {
	if refused := r.links.Health().Refused; refused != "" {
		r.log.Info("Links cannot be read, so only labelled Secrets link clusters: install the Link CRD, grant "+
			"get, list and watch on links.multicluster.linkerd.io, or name a -link-namespace", "reason", refused)
	}
	if refused := r.controllers.Health().Refused; refused != "" {
		r.log.Info("Secrets in the controller namespace cannot be read: grant get, list and watch on them",
			"namespace", r.options.ControllerNamespace, "reason", refused)
	}
}

// reconcileAll enqueues every cluster name, and waits until each was applied. It returns false if Start ends
// first.
func (r *Reconciler) reconcileAll(ctx context.Context) bool {
	passDone, pending := make(chan struct{}), map[string]bool{}
	r.mu.Lock()
	for _, l := range r.seenLinks {
		pending[l.clusterName] = true
	}

	for _, name := range r.labelled {
		pending[name] = true
	}
	for name := range r.restored {
		pending[name] = true
	}

	applied, _ := r.registry.Names() // some may not be linked any more
	for _, name := range applied {
		pending[name] = true
	}
	names := slices.Collect(maps.Keys(pending))
	r.pending, r.passDone = pending, passDone
	r.mu.Unlock()
	r.clusters.Enqueue(names...)
	return len(names) == 0 || watch.WaitClosed(ctx, passDone)
}

// markReconciled ends reconcileAll once no name is pending.
func (r *Reconciler) markReconciled(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending[name] {
		delete(r.pending, name)
		if len(r.pending) == 0 {
			close(r.passDone)
		}
	}
}

func (r *Reconciler) linkChanged(key api.Key) {
	now, found := r.links.Get(key)
	r.mu.Lock()
	old, had := r.seenLinks[key]
	if !found {
		if had {
			r.deleted[key] = deletion{at: time.Now()}
		}
		r.mu.Unlock()
		r.deletions.Store(struct{}{})
		return // releaseDeleted goes on with it
	}

	if had {
		now = now.after(old)
	}
	_, wasDeleted := r.deleted[key]
	r.seenLinks[key] = now
	delete(r.deleted, key)

	if had && !wasDeleted && now.differsInStatusAlone(old, r.reports[now.uid]) {
		r.mu.Unlock()
		r.enqueueStatus(key)
		return // as after each write of our own: nothing else follows from a status
	}

	if had && old.uid != now.uid {
		delete(r.reports, old.uid)
	}
	r.watchNamespaces()
	r.mu.Unlock()

	r.noteChange()
	if had {
		r.clusters.Enqueue(old.clusterName)
	}
	if !had || old.refusal != "" {
		r.deletions.Store(struct{}{}) // some may have waited for this Link
	}
	r.clusters.Enqueue(now.clusterName)
	r.enqueueStatus(key)
}

func (r *Reconciler) enqueueLinks(concerned func(*Link) bool) {
	r.mu.Lock()
	var names []string
	for _, l := range r.seenLinks {
		if concerned(l) {
			names = append(names, l.clusterName)
		}
	}
	r.mu.Unlock()
	r.clusters.Enqueue(names...)
}

// enqueueChangedClusters enqueues the clusters whose Status has changed.
func (r *Reconciler) enqueueChangedClusters(ctx context.Context) {
	var seen map[string]cluster.Status
	reported := ""

	for {
		statuses, changed := r.registry.Statuses()
		if next := leaseProblem(statuses[r.options.ClusterName].Writing); next != reported {
			reported = next
			if next != "" {
				r.log.Info("This replica cannot write the status of Links: it cannot hold the local cluster's "+
					"Lease. Metrics and debug pages report their conditions", "reason", next)
			}
		}

		for name, s := range statuses {
			if old, known := seen[name]; !known || !old.SameButTimes(s) {
				r.clusters.Enqueue(name)
			}
		}
		seen = statuses
		if !watch.WaitClosed(ctx, changed) {
			return
		}
	}
}

// leaseProblem returns why the Lease cannot be had under which the status of Links is written; empty if it
// can, or if that is not known yet.
func leaseProblem(w cluster.Writing) string {
	isOwn := func(lease string) bool { return lease != linkerd.ExternalWorkloadsLease }
	if slices.ContainsFunc(w.Wanted, isOwn) {
		return ""
	}
	return w.Problem
}

// reconcile applies the Spec of one cluster name, and reports the outcome in the Links that name it.
func (r *Reconciler) reconcile(_ context.Context, name string) error {
	in, ready := r.inputsFor(name)
	if !ready {
		return nil // the name is enqueued again when the missing listing arrives
	}

	statuses, _ := r.registry.Statuses()
	status, applied := statuses[name]
	in.slices, in.traffic, in.released = status.Slices, status.Traffic.Asked, status.Traffic.Released
	var out outcome

	if invalidName("", name) == "" {
		out = resolve(in)
		if err := r.applyOutcome(name, out, status, applied); err != nil {
			return err
		}
		if out.rejection != nil && len(in.links) == 0 && r.isNewRejection(name, out.rejection) {
			r.log.Info("A labelled Secret is rejected", "cluster", name,
				"error", oneLine(out.rejection), "keeping", status.Source)
		}
	}

	r.markReconciled(name)
	now := time.Now()
	for _, l := range in.links {
		problems := problemsFor(l, out, status, applied, now)
		r.setConditions(l, conditionsFor(l, out, status, problems), own(problems))
	}
	if left := status.Expires.Sub(now); applied && left > 0 {
		return &apply.Retry{After: left, Err: errors.New("the credentials in use expire then")}
	}
	return nil
}

// inputsFor gathers what one cluster name is resolved from. It returns false as long as something that
// bears on the name was neither listed nor refused.
func (r *Reconciler) inputsFor(name string) (inputs, bool) {
	in := inputs{
		name: name, local: r.options.ClusterName, trustDomain: r.options.TrustDomain, hosts: r.options.Hosts,
	}
	r.mu.Lock()
	for _, l := range r.seenLinks {
		if l.clusterName == name {
			in.links = append(in.links, l)
		}
	}

	namespaces := maps.Clone(r.namespaces)
	r.mu.Unlock()

	for _, l := range in.links {
		if !namespaces[l.key.Namespace].ready() { // each Link has one
			return in, false
		}
	}

	for _, k := range r.controllers.Keys() {
		if s, found := r.controllers.Get(k); found && s.clusterName == name && name != "" {
			in.labelled = append(in.labelled, s)
		}
	}
	in.secret = func(k api.Key) (*secret, string) { return namespaces[k.Namespace].secretNamed(k) }
	return in, true
}

// applyOutcome applies or removes a cluster in the Registry. A linked cluster without usable credentials
// stays as it is; one that was never applied gets a Spec without access, so that its Services count as
// unknown, if it has a Link, or if another replica has it. One that was restored, and that nothing links,
// stays until releaseDeleted has decided about it.
func (r *Reconciler) applyOutcome(name string, out outcome, status cluster.Status, applied bool) error {
	linked := out.spec != nil
	r.mu.Lock()
	before, restored := r.restored[name]
	if !linked {
		delete(r.loggedRejections, name)
	}
	r.mu.Unlock()

	if linked {
		r.addLinked(name)
	}

	switch {
	case linked && len(out.spec.Access) > 0:
		return r.registry.Apply(*out.spec)
	case linked && !applied && (out.winner != nil || restored):
		spec := *out.spec
		spec.TrustDomain = cmp.Or(spec.TrustDomain, before.TrustDomain)
		spec.ClusterDomain = cmp.Or(spec.ClusterDomain, before.ClusterDomain)
		return r.registry.Apply(spec)
	case out.winner != nil:
		r.registry.ApplyTraffic(name, out.spec.Traffic, out.spec.Released) // which needs no credentials
	case linked: // as it is
	case restored && !applied:
		return r.registry.Apply(before)
	case !restored && applied && !status.Local:
		r.log.Info("Cluster is unlinked", "cluster", name)
		r.registry.Remove(name)
	}
	return nil
}

// isNewRejection reports whether the rejection of a labelled Secret differs from the one that was logged
// last.
func (r *Reconciler) isNewRejection(name string, rejection error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.loggedRejections[name]
	r.loggedRejections[name] = rejection.Error()
	return old != rejection.Error()
}

// setConditions stores the conditions that this replica computed for a Link, and its own Problems, and logs what has
// changed.
func (r *Reconciler) setConditions(link *Link, conditions []metav1.Condition, own []problem.Problem) {
	r.mu.Lock()
	p := r.reportOf(link.key, link.uid)
	if p == nil {
		r.mu.Unlock()
		return
	}
	before := p.conditions
	problem.KeepSince(p.own, own, time.Now())
	p.conditions, p.own = conditions, own
	r.mu.Unlock()

	for _, c := range changedConditions(before, link.status.conditions, conditions) {
		r.log.Info("Link: "+c.Type+" is "+string(c.Status),
			"link", link.key.String(), "cluster", link.clusterName, "reason", c.Reason, "message", c.Message)
	}
	r.enqueueStatus(link.key)
}

// reference returns an object that names the Link, for Events.
func (l *Link) reference() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(Group + "/" + l.version)
	object.SetKind("Link")
	object.SetNamespace(l.key.Namespace)
	object.SetName(l.key.Name)
	object.SetUID(types.UID(l.uid))
	return object
}
