package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	endpointsliceutil "k8s.io/endpointslice/util"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
)

const (
	// coalesce is how long the changes of one Service are gathered before its slices are written.
	coalesce = 50 * time.Millisecond
	// workers write at once, each for another Service.
	workers = 8
	// A Service that fails is tried again after 5 ms, then always twice as long, but for ever.
	minRetry, maxRetry = 5 * time.Millisecond, time.Minute
	// guard is how many endpoints may go at once without a second look; beyond it, no more than half.
	guard = 4

	// reviewEvery is how often rights are asked for again, at most, when something is refused: that may be about many objects.
	reviewEvery = 10 * time.Second

	kubeSystem = "kube-system"
)

// A term is what happens in one cluster while a Lease is held: complete listings, then every Service is reconciled, and then those that a
// change concerns. Nothing of it outlasts the Lease.
type term struct {
	*desk
	log       logr.Logger
	managedBy string
	rights    func(context.Context) error // asks for what was granted when the term began
	queue     workqueue.TypedRateLimitingInterface[key]
	tracker   *endpointsliceutil.EndpointSliceTracker // knows which of our own writes the watch has not told us yet

	services *records.Store[*service]
	slices   *records.Store[*discoveryv1.EndpointSlice]
	external *records.Store[*workload] // nil: it is about what other clusters hold

	wg sync.WaitGroup // of followers

	mu        sync.Mutex // guards all below
	ctx       context.Context
	running   bool                                          // everything is listed: changes are followed
	known     map[string]map[string]*service                // by namespace, as last seen
	written   map[key]map[string]*discoveryv1.EndpointSlice // by Service
	serviceOf map[key]key                                   // of a slice
	workloads map[string]map[string]*workload               // by namespace
	followed  map[key]context.CancelFunc                    // Services whose members are followed
	ledger    map[string]*account                           // by source cluster
	asked     map[string]int                                // how many Services a source cluster is asked about now
	reviewed  time.Time                                     // when rights were last asked for again
	leftOut   map[string]map[key]int                        // by source cluster and Service; a cluster is in it once something of it was written
}

func newTerm(d *desk, lease, managedBy string, rights func(context.Context) error) *term {
	t := &term{
		desk: d, log: d.log.WithValues("lease", lease), managedBy: managedBy, rights: rights, tracker: endpointsliceutil.NewEndpointSliceTracker(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](minRetry, maxRetry),
			workqueue.TypedRateLimitingQueueConfig[key]{Name: "endpoints_controller_workqueue"}),
		known: map[string]map[string]*service{}, written: map[key]map[string]*discoveryv1.EndpointSlice{}, serviceOf: map[key]key{},
		workloads: map[string]map[string]*workload{}, followed: map[key]context.CancelFunc{}, ledger: map[string]*account{}, asked: map[string]int{},
		leftOut: map[string]map[key]int{},
	}
	t.services = records.NewStore(keepService, t.serviceChanged)
	t.slices = records.NewStore(func(object any) (*discoveryv1.EndpointSlice, bool) {
		es, ok := object.(*discoveryv1.EndpointSlice)
		return es, ok && es.Labels[discoveryv1.LabelManagedBy] == managedBy
	}, t.sliceChanged)
	return t
}

func newExternalTerm(d *desk) *term {
	t := newTerm(d, ExternalLease, externalManagedBy, d.externalRights)
	t.external = records.NewStore(func(object any) (*workload, bool) {
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			return nil, false
		}
		w, err := parseWorkload(u)
		if err != nil {
			t.log.Info("An ExternalWorkload is passed over: it cannot be read", "externalWorkload", u.GetNamespace()+"/"+u.GetName(), "error", err.Error())
			return nil, false
		}
		return w, true
	}, t.workloadChanged)
	return t
}

func newFederatedTerm(d *desk) *term {
	return newTerm(d, FederatedLease, view.ManagedBy, d.federatedRights)
}

// run writes until ctx ends. It returns an error if a right is missing.
func (t *term) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer t.wg.Wait()
	defer wg.Wait()
	defer cancel(nil)
	defer t.queue.ShutDown()
	defer t.forgetLeftOut()
	t.ctx = ctx
	type kind struct {
		resource schema.GroupResource
		lw       cache.ListerWatcher
		object   runtime.Object
		store    records.Target
		synced   <-chan struct{}
	}
	all := func(*metav1.ListOptions) {}
	ours := func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelManagedBy + "=" + t.managedBy } // one that loses the label is deleted for us
	kinds := []kind{
		{
			serviceResource, cache.NewFilteredListWatchFromClient(t.client.CoreV1().RESTClient(), serviceResource.Resource, metav1.NamespaceAll, all),
			&corev1.Service{}, t.services, t.services.Synced(),
		},
		{
			sliceResource, cache.NewFilteredListWatchFromClient(t.client.DiscoveryV1().RESTClient(), sliceResource.Resource, metav1.NamespaceAll, ours),
			&discoveryv1.EndpointSlice{}, t.slices, t.slices.Synced(),
		},
	}
	if t.external != nil {
		kinds = append(kinds, kind{linkerd.ExternalWorkloads, workloads(t.dynamic, metav1.NamespaceAll), &unstructured.Unstructured{}, t.external, t.external.Synced()})
	}
	refused := make([]<-chan struct{}, len(kinds))
	for i, k := range kinds {
		source := cluster.NewSource(k.lw, t.conn)
		refused[i] = source.Refused()
		wg.Go(func() { source.Fill(logr.NewContext(ctx, t.log.V(1)), k.object, k.store) })
	}
	for i, k := range kinds {
		select {
		case <-k.synced:
		case <-refused[i]:
			return &Refusal{[]right{{k.resource, "", []string{"list", "watch"}}}}
		case <-ctx.Done():
			return nil
		}
	}
	t.begin()
	if t.external == nil {
		wg.Go(func() { t.awaitLinks(ctx) })
	}
	for range workers {
		wg.Go(func() {
			for t.next(ctx, cancel) {
			}
		})
	}
	<-ctx.Done()
	if err := context.Cause(ctx); isRefusal(err) {
		return err
	}
	return nil
}

// begin takes over what was listed and enqueues every Service.
func (t *term) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = true
	if t.external != nil {
		for _, k := range t.external.Keys() {
			t.noteWorkload(k)
		}
	}
	for _, k := range t.slices.Keys() {
		t.noteSlice(k)
	}
	for _, k := range t.services.Keys() {
		t.noteService(k)
	}
}

// The watches tell that something has changed; what was before is needed too, to know whom it concerns.

func (t *term) serviceChanged(k key)  { t.changed(t.noteService, k) }
func (t *term) sliceChanged(k key)    { t.changed(t.noteSlice, k) }
func (t *term) workloadChanged(k key) { t.changed(t.noteWorkload, k) }

func (t *term) changed(note func(key), k key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running {
		note(k)
	}
}

// noteService and those below need t.mu.
func (t *term) noteService(k key) {
	old := t.known[k.Namespace][k.Name]
	now, _ := t.services.Get(k)
	if now.equal(old) && old != nil {
		return
	}
	put(t.known, k.Namespace, k.Name, now)
	if t.external == nil {
		t.follow(k, now != nil && now.optIn)
	}
	t.enqueue(k)
}

func (t *term) noteWorkload(k key) {
	old := t.workloads[k.Namespace][k.Name]
	now, _ := t.external.Get(k)
	put(t.workloads, k.Namespace, k.Name, now)
	for _, svc := range concerned(old, now, slices.Collect(maps.Values(t.known[k.Namespace]))) {
		t.enqueue(svc)
	}
}

func (t *term) noteSlice(k key) {
	svc, had := t.serviceOf[k]
	old := t.written[svc][k.Name]
	now, found := t.slices.Get(k)
	if had && (!found || serviceOf(now) != svc) {
		delete(t.serviceOf, k)
		put(t.written, svc, k.Name, nil)
		if !t.tracker.HandleDeletion(old) { // somebody else took it away
			t.enqueue(svc)
		}
	}
	if found {
		svc = serviceOf(now)
		t.serviceOf[k] = svc
		put(t.written, svc, k.Name, now)
		if t.tracker.ShouldSync(now) { // somebody else wrote it
			t.enqueue(svc)
		}
	}
}

func serviceOf(es *discoveryv1.EndpointSlice) key {
	return key{Namespace: es.Namespace, Name: es.Labels[discoveryv1.LabelServiceName]}
}

// put notes v, or its absence if it is nil.
func put[K comparable, V any](in map[K]map[string]*V, at K, name string, v *V) {
	switch {
	case v != nil && in[at] == nil:
		in[at] = map[string]*V{name: v}
	case v != nil:
		in[at][name] = v
	default:
		if delete(in[at], name); len(in[at]) == 0 {
			delete(in, at)
		}
	}
}

func (t *term) enqueue(k key) {
	if t.external != nil && k.Namespace == kubeSystem {
		return
	}
	t.queue.AddAfter(k, coalesce)
}

// follow enqueues a Service whenever one of its members changes, as long as that is wanted.
func (t *term) follow(k key, wanted bool) {
	cancel, follows := t.followed[k]
	switch {
	case follows && !wanted:
		cancel()
		delete(t.followed, k)
	case wanted && !follows:
		ctx, cancel := context.WithCancel(t.ctx)
		t.followed[k] = cancel
		t.wg.Go(func() {
			w := t.writer.store.Watch(t.ref(k))
			defer w.Close()
			for {
				_, superseded := w.Load()
				select {
				case <-superseded:
					t.queue.AddAfter(k, coalesce)
				case <-ctx.Done():
					return
				}
			}
		})
	}
}

// awaitLinks enqueues what asks for slices once it is known which clusters are linked.
func (t *term) awaitLinks(ctx context.Context) {
	if t.writer.linked() {
		return
	}
	select {
	case <-t.writer.options.Linked:
	case <-ctx.Done():
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.followed {
		t.enqueue(k)
	}
}

func (t *term) ref(k key) federation.Ref {
	return federation.Ref{Cluster: federation.Cluster(t.cluster), Service: federation.Service{Namespace: k.Namespace, Name: k.Name}}
}

// next reconciles one Service, and returns false once the term is over. Where a right is missing it ends the term.
func (t *term) next(ctx context.Context, end context.CancelCauseFunc) bool {
	k, shutdown := t.queue.Get()
	if shutdown || ctx.Err() != nil {
		return false
	}
	defer t.queue.Done(k)
	err := t.reconcile(ctx, k)
	if apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		if refusal := t.review(ctx); refusal != nil {
			end(refusal)
		}
	}
	switch {
	case err == nil:
		t.queue.Forget(k)
	case ctx.Err() != nil:
	case errors.Is(err, errBusy): // which is not its failure
		t.queue.AddAfter(k, lookTimeout/2+rand.N(lookTimeout))
	default:
		if !errors.Is(err, errBehind) {
			t.writer.metrics.failures.WithLabelValues(t.cluster).Inc()
			t.log.Info("Slices of a Service are not written yet", "service", k.String(), "error", err.Error(), "failures", t.queue.NumRequeues(k)+1)
		}
		t.queue.AddRateLimited(k)
	}
	return true
}

// review returns which rights are missing, when something was refused; nil if that was about the one object, as of a quota or a webhook, or
// the rights were asked for just now.
func (t *term) review(ctx context.Context) error {
	t.mu.Lock()
	due := time.Since(t.reviewed) >= reviewEvery
	if due {
		t.reviewed = time.Now()
	}
	t.mu.Unlock()
	if !due {
		return nil
	}
	if err := t.rights(ctx); isRefusal(err) {
		return err
	}
	return nil
}

var (
	errBehind      = errors.New("the watch has not told of all our writes yet")
	errUnconfirmed = errors.New("most of its endpoints would go, and a second look does not confirm it")
	errBusy        = errors.New("a second look is due, and others are taken")
)

// reconcile makes the slices of a Service what they should be.
func (t *term) reconcile(ctx context.Context, k key) error {
	t.mu.Lock()
	svc := t.known[k.Namespace][k.Name]
	have := slices.Collect(maps.Values(t.written[k]))
	workloads := slices.Collect(maps.Values(t.workloads[k.Namespace]))
	t.mu.Unlock()
	if svc == nil {
		t.tracker.DeleteService(k.Namespace, k.Name)
		t.noteLeftOut(k, nil, nil)
		return nil // its slices go with it
	}
	if t.tracker.StaleSlices(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}, have) {
		return errBehind
	}
	have = slices.DeleteFunc(have, func(es *discoveryv1.EndpointSlice) bool { return es.DeletionTimestamp != nil })
	wanted, confirm := t.want(svc, workloads, &have)
	if wanted == nil && t.external != nil && (svc.external || svc.selector == nil) {
		return nil // it is somebody else's business what it has
	}
	// What one source cluster holds is written whatever becomes of another's.
	groups, present := map[string][]*group{}, map[string][]*discoveryv1.EndpointSlice{}
	sources, out := map[string]bool{}, map[string]int{}
	for _, g := range wanted {
		groups[g.source] = append(groups[g.source], g)
		sources[g.source] = true
	}
	for _, es := range have {
		source := es.Labels[SourceLabel]
		present[source] = append(present[source], es)
		sources[source] = true
	}
	var failed []error
	busy := false
	for _, source := range slices.Sorted(maps.Keys(sources)) {
		p := planFor(svc, groups[source], present[source])
		if most := t.writer.options.MaxSlices; most > 0 && t.external == nil {
			p.limit(len(present[source]), most)
		}
		if p.excess > 0 {
			out[source] = p.excess
		}
		if p.empty() {
			continue
		}
		if gone := missing(present[source], groups[source]); t.tooMany(gone, present[source]) {
			if err := t.secondLook(ctx, gone, confirm); errors.Is(err, errBusy) {
				busy = true
				continue
			} else if err != nil {
				failed = append(failed, err)
				continue
			}
		}
		if err := t.write(ctx, svc, p); err != nil {
			if failed = append(failed, err); !isAnswer(err) {
				break
			}
		}
	}
	t.noteLeftOut(k, sources, out)
	if err := errors.Join(failed...); err != nil || !busy {
		return err
	}
	return errBusy
}

// noteLeftOut notes what is left out of a Service's slices, of which some hold what a source cluster has, and reports what has changed.
func (t *term) noteLeftOut(k key, sources map[string]bool, now map[string]int) {
	if t.external != nil {
		return
	}
	t.mu.Lock()
	sums, changed := map[string]cluster.LeftOut{}, map[string]bool{}
	for source := range sources {
		if t.leftOut[source] == nil {
			t.leftOut[source], changed[source] = map[key]int{}, true
		}
	}
	for source, of := range t.leftOut {
		if of[k] != now[source] {
			changed[source] = true
			if delete(of, k); now[source] != 0 {
				of[k] = now[source]
			}
		}
		if changed[source] {
			sum := cluster.LeftOut{Known: true}
			for _, n := range of {
				sum.Excess += n
			}
			sums[source] = sum
		}
	}
	t.mu.Unlock()
	for source, sum := range sums {
		t.writer.metrics.leftOut.WithLabelValues(t.cluster, source).Set(float64(sum.Excess))
		if t.local {
			t.writer.registry.ReportLeftOut(source, sum)
		}
		if n := now[source]; n != 0 {
			t.log.Info("Endpoints are in no slice: they would take more slices than -max-slices-per-source allows", "service", k.String(), "source", source, "endpoints", n)
		}
	}
}

// forgetLeftOut takes back what was reported in this term.
func (t *term) forgetLeftOut() {
	t.mu.Lock()
	sources := slices.Collect(maps.Keys(t.leftOut))
	t.mu.Unlock()
	for _, source := range sources {
		t.writer.metrics.leftOut.DeletePartialMatch(prometheus.Labels{"cluster": t.cluster, "source": source})
		if t.local {
			t.writer.registry.ReportLeftOut(source, cluster.LeftOut{})
		}
	}
}

// want returns the endpoints that a Service should have, and who takes a second look if most of its endpoints would go. It takes
// from have the slices that are to be left as they are.
func (t *term) want(svc *service, workloads []*workload, have *[]*discoveryv1.EndpointSlice) ([]*group, func(context.Context, []place) error) {
	if t.external != nil {
		slices.SortFunc(workloads, func(a, b *workload) int { return cmpKeys(a.key, b.key) })
		return externalGroups(svc, workloads), func(ctx context.Context, gone []place) error { return t.confirmWorkloads(ctx, svc, gone) }
	}
	w := t.writer.store.Watch(t.ref(svc.key))
	defer w.Close()
	snapshot, _ := w.Load()
	if !t.writer.linked() {
		snapshot = doubted(snapshot)
	}
	groups, untouched := federatedGroups(svc, snapshot, t.writer.options.Installation, t.writer.options.Namespace)
	*have = slices.DeleteFunc(*have, untouched)
	return groups, func(ctx context.Context, gone []place) error { return t.confirmMembers(ctx, svc, snapshot, gone) }
}

// isThere reports whether a Service may still get new slices. When one is deleted we may hear of it after its slices are gone.
func (t *term) isThere(ctx context.Context, svc *service) (bool, error) {
	now, err := readService(ctx, t.client, svc.key)
	if err != nil {
		return false, fmt.Errorf("look whether the Service is still there: %w", err)
	}
	return now != nil && now.UID == svc.uid && now.DeletionTimestamp == nil, nil
}

// write does what is planned, and reports all that failed: what is refused for one slice, as by a quota or a webhook, keeps no other from being
// written. Dead endpoints go first. It stops where the API server does not answer, or the term is over.
func (t *term) write(ctx context.Context, svc *service, p plan) error {
	api := t.client.DiscoveryV1().EndpointSlices(svc.Namespace)
	var failed []error
	wrote := func(verb, what string, err error) (goOn bool) {
		if err == nil {
			t.writer.metrics.writes.WithLabelValues(t.cluster, t.managedBy, verb).Inc()
			return true
		}
		failed = append(failed, fmt.Errorf("%s %s: %w", verb, what, err))
		return ctx.Err() == nil && isAnswer(err)
	}
	for _, es := range p.remove {
		err := api.Delete(ctx, es.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &es.UID, ResourceVersion: &es.ResourceVersion}})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		if err == nil {
			t.tracker.ExpectDeletion(es)
		}
		if !wrote("delete", "slice "+es.Name, err) {
			return errors.Join(failed...)
		}
	}
	for _, es := range p.update {
		updated, err := api.Update(ctx, es, metav1.UpdateOptions{})
		if err == nil {
			t.tracker.Update(updated)
		}
		if !wrote("update", "slice "+es.Name, err) {
			return errors.Join(failed...)
		}
	}
	if len(p.create) == 0 {
		return errors.Join(failed...)
	}
	if there, err := t.isThere(ctx, svc); err != nil || !there {
		return errors.Join(append(failed, err)...)
	}
	for _, es := range p.create {
		created, err := api.Create(ctx, es, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			break
		}
		if err == nil {
			t.tracker.Update(created)
		}
		if !wrote("create", "a slice", err) || apierrors.IsForbidden(err) { // a quota refuses the next one, too
			break
		}
	}
	return errors.Join(failed...)
}

// isAnswer reports whether an API server has answered: the next request may fare better.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}
