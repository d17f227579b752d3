package links

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/events"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// Options configure a Reconciler.
type Options struct {
	ClusterName         string // of the local cluster
	TrustDomain         string // of the local cluster
	ControllerNamespace string // of labelled Secrets; empty if none are read
	LinkNamespace       string // of Links; empty for all namespaces
	Mirrors             bool   // the condition Mirroring is computed here: see SetMirrorStatus
	Hosts               Hosts
}

// A Reconciler applies a Spec for every linked cluster, and reports in the Links what became of it.
//
// These are two streets, each of one way, which share no queue.
//
// Links and Secrets lead to Specs. The key of the Loop is the name of a cluster: a change of a Link or a Secret
// only enqueues the names that it may bear on; reconcile reads everything else from the stores at that moment.
// So no event carries data, and their order does not matter. No Spec depends on a Status: what cannot be read in
// a Link stays as in the Spec that was applied last.
//
// Statuses lead to conditions. report computes those of one cluster's Links from what was resolved last and
// from the Status as it is: after each reconcile, and after each change of the Status.
//
// A change of one Link is one key of the Loop, and a change of a Status is none.
//
// # When all Links are known
//
// A cluster that was never applied looks like one that is not linked: it is missing from answers, and
// writers delete what they wrote for it. "Not listed yet" must not look like that. So four steps come one
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
// their locks. report runs in the goroutine of the change, and reporting has one run at a time. Start returns
// after the Loop, with its inputs and what runs in its background, and after the goroutines that wg counts: two
// for each other namespace whose Secrets are watched.
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
	controllers *secretNamespace    // the controller namespace; nil if no labelled Secrets are read
	clusters    *apply.Loop[string] // by name
	metrics     *conditionMetrics
	changes     watch.Value[struct{}]               // superseded when a Link has changed
	deletions   watch.Value[struct{}]               // superseded when a Link was deleted
	membership  watch.Value[*federation.Membership] // stored under mu

	ctx context.Context // set by Start before anything is watched
	wg  sync.WaitGroup

	reporting sync.Mutex // serializes report; taken before mu

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

	outcomes     map[string]outcome     // by cluster name; of those with Links, and of what was rejected
	reports      map[string]*linkReport // by the Link's UID
	statusWriter *statusWriter          // nil: this replica does not write the status of Links
}

// NewReconciler returns a Reconciler that reads Links and Secrets over conn. It calls onListed once, after
// every cluster that was linked at the start was applied. recorder may be nil.
func NewReconciler(
	log logr.Logger, conn *api.Connection, registry *cluster.Registry, recorder events.EventRecorder,
	onListed func(), options Options,
) (*Reconciler, error) {
	reconciler := &Reconciler{
		log:        log,
		options:    options,
		registry:   registry,
		onListed:   onListed,
		events:     recorder,
		conn:       conn,
		seenLinks:  map[api.Key]*Link{},
		deleted:    map[api.Key]deletion{},
		restored:   map[string]cluster.Spec{},
		everLinked: map[string]bool{},
		labelled:   map[api.Key]string{},
		outcomes:   map[string]outcome{},
		reports:    map[string]*linkReport{},
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
	reconciler.namespaces = map[string]*secretNamespace{}

	reconciler.clusters = apply.NewLoop(log, apply.Config[string]{
		Reconcile: reconciler.reconcile, Failed: reconciler.logNotApplied, Queue: "links", Workers: 4,
		Background: []func(context.Context){
			reconciler.applyLinked, reconciler.followStatuses, reconciler.releaseDeleted,
		},
	})

	reconciler.clusters.ReadOptional(reconciler.links)
	if namespace := options.ControllerNamespace; namespace != "" {
		reconciler.controllers = reconciler.newSecretNamespace(namespace)
		reconciler.namespaces[namespace] = reconciler.controllers
		reconciler.clusters.ReadOptional(reconciler.controllers)
	}
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
	logs.Warn(r.log, "A cluster was not applied, which is tried again",
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
	if !r.links.WaitComplete(ctx) || !r.controllers.waitComplete(ctx) || !r.reconcileAll(ctx) {
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
		logs.Warn(r.log, "Links cannot be read, so only labelled Secrets link clusters: install the Link CRD, grant "+
			"get, list and watch on links.multicluster.linkerd.io, or name a -link-namespace", "reason", refused)
	}
	if r.controllers == nil {
		return
	}
	if refused := r.controllers.Health().Refused; refused != "" {
		logs.Warn(r.log, "Secrets in the controller namespace cannot be read: grant list and watch on them, or set "+
			"-labelled-secrets=false if each cluster has a Link", "namespace", r.options.ControllerNamespace,
			"reason", refused)
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

	if had && !wasDeleted && now.differsInStatusAlone(old) {
		r.mu.Unlock()
		r.report(now.clusterName)
		return // as after each write of our own: no Spec follows from a status
	}

	if had && old.uid != now.uid {
		delete(r.reports, old.uid)
	}
	r.watchNamespaces()
	r.mu.Unlock()

	r.noteChange()
	if !had || old.refusal != "" {
		r.deletions.Store(struct{}{}) // some may have waited for this Link
	}
	names := []string{now.clusterName}
	if had {
		names = append(names, old.clusterName)
	}
	r.enqueue(names...)
}

// enqueue enqueues cluster names, each of them once.
func (r *Reconciler) enqueue(names ...string) {
	slices.Sort(names)
	r.clusters.Enqueue(slices.Compact(names)...)
}

// namesOf returns the clusters that some Links name.
func (r *Reconciler) namesOf(concerned func(*Link) bool) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.seenLinks {
		if concerned(l) {
			names = append(names, l.clusterName)
		}
	}
	return names
}

// reconcile applies the Spec of one cluster name, and has the Links that name it report the outcome.
func (r *Reconciler) reconcile(_ context.Context, name string) error {
	in, ready := r.inputsFor(name)
	if !ready {
		return nil // the name is enqueued again when the missing listing arrives
	}

	out := resolve(in)
	if err := r.applyOutcome(in, out); err != nil {
		return err
	}
	r.markReconciled(name)
	r.keepOutcome(name, out)
	r.report(name)
	return nil
}

// inputsFor gathers what one cluster name is resolved from. It returns false as long as something that
// bears on the name was neither listed nor refused.
func (r *Reconciler) inputsFor(name string) (inputs, bool) {
	in := inputs{
		name: name, local: r.options.ClusterName, trustDomain: r.options.TrustDomain, hosts: r.options.Hosts,
		controllers: r.options.ControllerNamespace,
	}
	in.before, in.applied = r.registry.Spec(name)
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

	in.labelled = r.controllers.labelled(name)
	in.secret = func(k api.Key) (*secret, string) { return namespaces[k.Namespace].secretNamed(k) }
	return in, true
}

// applyOutcome applies or removes a cluster in the Registry. A linked cluster without usable credentials
// stays as it is; one that was never applied gets a Spec without access, so that its Services count as
// unknown, if it has a Link, or if another replica has it. One that was restored, and that nothing links,
// stays until releaseDeleted has decided about it.
func (r *Reconciler) applyOutcome(in inputs, out outcome) error {
	name, linked, applied := in.name, out.spec != nil, in.applied
	r.mu.Lock()
	before, restored := r.restored[name]
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
	case !restored && applied && !in.before.Local:
		r.log.Info("Cluster is unlinked", "cluster", name)
		r.registry.Remove(name)
	}
	return nil
}

// keepOutcome keeps what report goes by, and logs a rejection that no Link can report.
func (r *Reconciler) keepOutcome(name string, out outcome) {
	r.mu.Lock()
	before := r.outcomes[name]
	r.outcomes[name] = out
	if len(out.links) == 0 && out.rejection == nil {
		delete(r.outcomes, name)
	}
	r.mu.Unlock()

	isLogged := len(before.links) == 0 && cluster.ErrorText(before.rejection) == cluster.ErrorText(out.rejection)
	if len(out.links) == 0 && out.rejection != nil && !isLogged {
		statuses, _ := r.registry.Statuses()
		logs.Warn(r.log, "A labelled Secret is rejected", "cluster", name,
			"error", oneLine(out.rejection), "keeping", statuses[name].Source)
	}
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
