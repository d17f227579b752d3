package endpointslice

import (
	"context"
	"errors"
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
	"k8s.io/client-go/util/workqueue"
	endpointsliceutil "k8s.io/endpointslice/util"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
)

const (
	// coalesce is how long changes of one Service are collected before its slices are written.
	coalesce = 50 * time.Millisecond
	// workers is how many Services are reconciled at once.
	workers = 8
	// A Service that fails is retried after minRetry, then after twice as long each time, up to maxRetry,
	// for ever.
	minRetry, maxRetry = 5 * time.Millisecond, time.Minute

	// reviewEvery is how often permissions are reviewed, at most, when writes are forbidden: many objects
	// may be.
	reviewEvery = 10 * time.Second

	kubeSystem = "kube-system"
)

// A termWriter writes slices into one cluster during one term of a Lease: those of ExternalWorkloads, or
// those of federated Services. It lists everything, reconciles every Service, and then those that a change
// affects. Nothing of it outlasts the term.
//
// The states of one Service:
//
//	enqueued --50 ms--> reconcile --> behind ------------------> enqueued, with back-off
//	                        |
//	                        +--> exceeds the guard --> confirm --> not confirmed --> enqueued, with back-off
//	                        |                            |  '--> busy -----------> enqueued, in 2.5 to 7.5 s
//	                        v                            v
//	                      apply <-------------------- confirmed
//	                        |
//	                        +--> some requests failed ---------> enqueued, with back-off
//	                        v
//	                     written --> a change affects it ------> enqueued
//
// In words:
//
//   - enqueued: by a change of the Service, of one of its slices that is not the echo of our own write, of
//     an ExternalWorkload that it selects, or of a member's View. The queue holds a key once, whatever
//     happened.
//   - behind: the watch has not shown all of our own writes yet (the tracker knows). A plan from older
//     slices would create again what exists, so none is made.
//   - reconcile makes one plan for each source cluster, by pure functions of what is read: the groups that
//     are wanted, and the slices that exist. A source that was never synced has no plan: unknown is not
//     empty.
//   - confirm: a plan that withdraws more than the guard allows is applied only if the API servers, read
//     again, agree (guard.go).
//   - apply: deletions and updates go before creations; a request that is refused stops no other. Each
//     bears the resourceVersion for which it was planned, so that a stale plan fails instead of
//     overwriting.
//   - written: equal slices are not written again, so a Service stays here until something changes, be it
//     that another client writes its slices, or that a request of a former holder arrives late.
//
// So no code is needed for what happened before the term, for repairing what others wrote, or for resuming
// a write that failed half-way: reconciling again does all of it. It costs complete listings at each term, one
// copy of the cluster's Services and of our slices, and one goroutine for each federated Service, which
// waits for its Snapshot to change.
//
// A Forbidden response has the permissions reviewed. If one is missing, the term ends and the Lease is
// given up; else the refusal concerns that object, as by a quota or a webhook, and is retried like a
// failure.
//
// Informers call the ...Changed methods, workers call reconcileService, both at once. mu guards the
// indexes; under it only stores and the queue are called, which have locks of their own and call nothing
// back. Requests are sent without it.
type termWriter struct {
	*targetCluster
	log         logr.Logger
	managedBy   string
	permissions func(context.Context) error // reviews what was granted when the term began
	queue       workqueue.TypedRateLimitingInterface[key]
	tracker     *endpointsliceutil.EndpointSliceTracker // knows which of our own writes the watch has not shown yet

	services  *api.Store[*serviceRecord]
	slices    *api.Store[*discoveryv1.EndpointSlice]
	externals *api.Store[*workloadRecord] // nil: it writes slices of federated Services

	wg sync.WaitGroup // of goroutines that watch Snapshots

	mu             sync.Mutex // guards all below
	ctx            context.Context
	synced         bool                                          // everything is listed: changes are followed
	servicesIn     map[string]map[string]*serviceRecord          // by namespace, as last seen
	slicesOf       map[key]map[string]*discoveryv1.EndpointSlice // by Service
	serviceOfSlice map[key]key
	workloadsIn    map[string]map[string]*workloadRecord // by namespace
	watched        map[key]context.CancelFunc            // Services whose Snapshots are watched
	budgets        map[string]*removalBudget             // by source cluster
	confirmations  map[string]int                        // that run now, by source cluster
	reviewed       time.Time                             // when permissions were last reviewed
	leftOut        map[string]map[key]int                // endpoints, by source cluster that has slices, and Service
}

func newTermWriter(c *targetCluster, leaseName, managedBy string, permissions func(context.Context) error) *termWriter {
	t := &termWriter{
		targetCluster: c, log: c.log.WithValues("lease", leaseName), managedBy: managedBy, permissions: permissions,
		tracker: endpointsliceutil.NewEndpointSliceTracker(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](minRetry, maxRetry),
			workqueue.TypedRateLimitingQueueConfig[key]{Name: "endpoints_controller_workqueue"}),
		servicesIn:     map[string]map[string]*serviceRecord{},
		slicesOf:       map[key]map[string]*discoveryv1.EndpointSlice{},
		serviceOfSlice: map[key]key{},
		workloadsIn:    map[string]map[string]*workloadRecord{},
		watched:        map[key]context.CancelFunc{},
		budgets:        map[string]*removalBudget{},
		confirmations:  map[string]int{},
		leftOut:        map[string]map[key]int{},
	}
	t.services = api.NewStore(newServiceRecord, t.serviceChanged)
	t.slices = api.NewStore(func(object any) (*discoveryv1.EndpointSlice, bool) {
		es, ok := object.(*discoveryv1.EndpointSlice)
		return es, ok && es.Labels[discoveryv1.LabelManagedBy] == managedBy
	}, t.sliceChanged)
	return t
}

func newExternalWriter(c *targetCluster) *termWriter {
	t := newTermWriter(c, ExternalLease, externalManagedBy, c.externalPermissions)
	t.externals = api.NewStore(func(object any) (*workloadRecord, bool) {
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			return nil, false
		}
		w, err := newWorkloadRecord(u)
		if err != nil {
			t.log.Info("An ExternalWorkload is left out: it is malformed",
				"externalWorkload", u.GetNamespace()+"/"+u.GetName(), "error", err.Error())
			return nil, false
		}
		return w, true
	}, t.workloadChanged)
	return t
}

func newFederatedWriter(c *targetCluster) *termWriter {
	return newTermWriter(c, FederatedLease, view.ManagedBy, c.federatedPermissions)
}

// writesFederated reports whether this is the writer of federated Services, and not that of
// ExternalWorkloads.
func (t *termWriter) writesFederated() bool { return t.externals == nil }

// startInformers watches what the writer reads, until ctx ends, and returns once all of it was listed. It returns [missingPermissions] if
// the API server refuses a kind.
func (t *termWriter) startInformers(ctx context.Context, wg *sync.WaitGroup) error {
	services := api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})
	ownSlices := api.Typed(discoveryv1.SchemeGroupVersion, "endpointslices", "EndpointSlice", &discoveryv1.EndpointSlice{})
	ownSlices.Labels = discoveryv1.LabelManagedBy + "=" + t.managedBy // one that loses the label is a deletion to the watch
	kinds, stores := []api.Kind{services, ownSlices}, []api.Target{t.services, t.slices}
	if !t.writesFederated() {
		kinds, stores = append(kinds, workloadKind), append(stores, t.externals)
	}
	watchers := make([]*api.Watcher, len(kinds))
	for i, kind := range kinds {
		watchers[i] = api.NewWatcher(t.conn, kind, stores[i])
		wg.Go(func() { watchers[i].Run(logr.NewContext(ctx, t.log.V(1))) })
	}
	for i, w := range watchers {
		select {
		case <-stores[i].Synced():
		case <-w.Refused():
			return &missingPermissions{[]writePermission{{kinds[i].Resource.GroupResource(), "", []string{"list", "watch"}}}}
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// run writes until ctx ends. It returns [missingPermissions] if some are missing.
func (t *termWriter) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer t.wg.Wait()
	defer wg.Wait()
	defer cancel(nil)
	defer t.queue.ShutDown()
	defer t.forgetLeftOut()
	t.ctx = ctx
	if err := t.startInformers(ctx, &wg); err != nil || ctx.Err() != nil {
		return err
	}
	t.begin()
	if t.writesFederated() {
		wg.Go(func() { t.enqueueWhenLinked(ctx) })
	}
	for range workers {
		wg.Go(func() {
			for t.reconcileNext(ctx, cancel) {
			}
		})
	}
	<-ctx.Done()
	if err := context.Cause(ctx); isMissingPermissions(err) {
		return err
	}
	return nil
}

// begin indexes what was listed and enqueues every Service.
func (t *termWriter) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.synced = true
	if !t.writesFederated() {
		for _, k := range t.externals.Keys() {
			t.indexWorkload(k)
		}
	}
	for _, k := range t.slices.Keys() {
		t.indexSlice(k)
	}
	for _, k := range t.services.Keys() {
		t.indexService(k)
	}
}

// The stores hold the present state. The indexes also hold the state before, which decides which Services a
// change affects.

func (t *termWriter) serviceChanged(k key)  { t.changed(t.indexService, k) }
func (t *termWriter) sliceChanged(k key)    { t.changed(t.indexSlice, k) }
func (t *termWriter) workloadChanged(k key) { t.changed(t.indexWorkload, k) }

func (t *termWriter) changed(index func(key), k key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.synced {
		index(k)
	}
}

// indexService and those below need t.mu.
func (t *termWriter) indexService(k key) {
	old := t.servicesIn[k.Namespace][k.Name]
	now, _ := t.services.Get(k)
	if now.equal(old) && old != nil {
		return
	}
	setIn(t.servicesIn, k.Namespace, k.Name, now)
	if t.writesFederated() {
		t.watchSnapshot(k, now != nil && now.optIn)
	}
	t.enqueue(k)
}

func (t *termWriter) indexWorkload(k key) {
	old := t.workloadsIn[k.Namespace][k.Name]
	now, _ := t.externals.Get(k)
	setIn(t.workloadsIn, k.Namespace, k.Name, now)
	services := slices.Collect(maps.Values(t.servicesIn[k.Namespace]))
	for _, svc := range affectedServices(old, now, services) {
		t.enqueue(svc)
	}
}

func (t *termWriter) indexSlice(k key) {
	svc, had := t.serviceOfSlice[k]
	old := t.slicesOf[svc][k.Name]
	now, found := t.slices.Get(k)
	if had && (!found || serviceKeyOf(now) != svc) {
		delete(t.serviceOfSlice, k)
		setIn(t.slicesOf, svc, k.Name, nil)
		if !t.tracker.HandleDeletion(old) { // another client deleted it
			t.enqueue(svc)
		}
	}
	if found {
		svc = serviceKeyOf(now)
		t.serviceOfSlice[k] = svc
		setIn(t.slicesOf, svc, k.Name, now)
		if t.tracker.ShouldSync(now) { // another client wrote it
			t.enqueue(svc)
		}
	}
}

func serviceKeyOf(es *discoveryv1.EndpointSlice) key {
	return key{Namespace: es.Namespace, Name: es.Labels[discoveryv1.LabelServiceName]}
}

// setIn sets an element of an index, or deletes it if v is nil.
func setIn[K comparable, V any](index map[K]map[string]*V, at K, name string, v *V) {
	switch {
	case v != nil && index[at] == nil:
		index[at] = map[string]*V{name: v}
	case v != nil:
		index[at][name] = v
	default:
		if delete(index[at], name); len(index[at]) == 0 {
			delete(index, at)
		}
	}
}

func (t *termWriter) enqueue(k key) {
	if !t.writesFederated() && k.Namespace == kubeSystem {
		return
	}
	t.queue.AddAfter(k, coalesce)
}

// watchSnapshot enqueues a Service whenever its Snapshot changes, as long as that is wanted.
func (t *termWriter) watchSnapshot(k key, wanted bool) {
	cancel, watches := t.watched[k]
	switch {
	case watches && !wanted:
		cancel()
		delete(t.watched, k)
	case wanted && !watches:
		ctx, cancel := context.WithCancel(t.ctx)
		t.watched[k] = cancel
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

// enqueueWhenLinked enqueues the Services that opt in once it is known which clusters are linked.
func (t *termWriter) enqueueWhenLinked(ctx context.Context) {
	if t.writer.linksKnown() {
		return
	}
	select {
	case <-t.writer.options.Linked:
	case <-ctx.Done():
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.watched {
		t.enqueue(k)
	}
}

func (t *termWriter) ref(k key) federation.Ref {
	service := federation.Service{Namespace: k.Namespace, Name: k.Name}
	return federation.Ref{Cluster: federation.Cluster(t.name), Service: service}
}

// reconcileNext reconciles one Service, and returns false once the term is over. If a permission is missing
// it ends the term.
func (t *termWriter) reconcileNext(ctx context.Context, end context.CancelCauseFunc) bool {
	k, shutdown := t.queue.Get()
	if shutdown || ctx.Err() != nil {
		return false
	}
	defer t.queue.Done(k)
	err := t.reconcileService(ctx, k)
	if apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		if missing := t.reviewAfterRefusal(ctx); missing != nil {
			end(missing)
		}
	}
	switch {
	case err == nil:
		t.queue.Forget(k)
	case ctx.Err() != nil:
	case errors.Is(err, errBusy): // no failure of this Service: its back-off does not grow
		t.queue.AddAfter(k, confirmTimeout/2+rand.N(confirmTimeout))
	default:
		if !errors.Is(err, errBehind) {
			t.writer.metrics.failures.WithLabelValues(t.name).Inc()
			t.log.Info("Writing slices of a Service failed, and is retried",
				"service", k.String(), "error", err.Error(), "failures", t.queue.NumRequeues(k)+1)
		}
		t.queue.AddRateLimited(k)
	}
	return true
}

// reviewAfterRefusal returns which permissions are missing after a Forbidden response; nil if none are, or
// they were reviewed just now.
func (t *termWriter) reviewAfterRefusal(ctx context.Context) error {
	t.mu.Lock()
	due := time.Since(t.reviewed) >= reviewEvery
	if due {
		t.reviewed = time.Now()
	}
	t.mu.Unlock()
	if !due {
		return nil
	}
	if err := t.permissions(ctx); isMissingPermissions(err) {
		return err
	}
	return nil
}

var (
	errBehind      = errors.New("the watch has not shown all of our writes yet")
	errUnconfirmed = errors.New("most of its endpoints would be withdrawn, and the API servers do not confirm it")
	errBusy        = errors.New("a withdrawal waits for a free confirmation")
)

// reconcileService makes the slices of a Service what they should be.
func (t *termWriter) reconcileService(ctx context.Context, k key) error {
	t.mu.Lock()
	svc := t.servicesIn[k.Namespace][k.Name]
	have := slices.Collect(maps.Values(t.slicesOf[k]))
	workloads := slices.Collect(maps.Values(t.workloadsIn[k.Namespace]))
	t.mu.Unlock()
	if svc == nil {
		t.tracker.DeleteService(k.Namespace, k.Name)
		t.recordLeftOut(k, nil, nil)
		return nil // Kubernetes deletes its slices
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}
	if t.tracker.StaleSlices(service, have) {
		return errBehind
	}
	have = slices.DeleteFunc(have, func(es *discoveryv1.EndpointSlice) bool { return es.DeletionTimestamp != nil })
	d := t.desired(svc, workloads)
	if d.keep != nil {
		have = slices.DeleteFunc(have, d.keep)
	}
	if !t.writesFederated() && (svc.external || svc.selector == nil) {
		return nil // its slices are another writer's
	}
	return t.reconcileSources(ctx, svc, d, have)
}

// reconcileSources writes the slices of each source cluster by itself, whatever becomes of another's.
func (t *termWriter) reconcileSources(
	ctx context.Context, svc *serviceRecord, d desired, have []*discoveryv1.EndpointSlice,
) error {
	groups, present := map[string][]*group{}, map[string][]*discoveryv1.EndpointSlice{}
	sources, leftOut := map[string]bool{}, map[string]int{}
	for _, g := range d.groups {
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
		if most := t.writer.options.MaxSlices; most > 0 && t.writesFederated() {
			p.limit(len(present[source]), most)
		}
		if p.leftOut > 0 {
			leftOut[source] = p.leftOut
		}
		if p.empty() {
			continue
		}
		if gone := removals(present[source], groups[source]); t.exceedsGuard(gone, present[source]) {
			err := t.confirm(ctx, gone, d.confirm)
			if errors.Is(err, errBusy) {
				busy = true
				continue
			}
			if err != nil {
				failed = append(failed, err)
				continue
			}
		}
		if err := t.applyPlan(ctx, svc, p); err != nil {
			if failed = append(failed, err); !isResponse(err) {
				break
			}
		}
	}
	t.recordLeftOut(svc.key, sources, leftOut)
	if err := errors.Join(failed...); err != nil || !busy {
		return err
	}
	return errBusy
}

// desired is what a Service should have.
type desired struct {
	groups  []*group
	keep    func(*discoveryv1.EndpointSlice) bool                 // slices that are left as they are; nil for none
	confirm func(ctx context.Context, gone []sourceAddress) error // reads again whether addresses are gone
}

func (t *termWriter) desired(svc *serviceRecord, workloads []*workloadRecord) desired {
	if !t.writesFederated() {
		slices.SortFunc(workloads, func(a, b *workloadRecord) int { return compareNames(a.key, b.key) })
		return desired{
			groups: externalGroups(svc, workloads),
			confirm: func(ctx context.Context, gone []sourceAddress) error {
				return t.confirmWorkloads(ctx, svc, gone)
			},
		}
	}
	w := t.writer.store.Watch(t.ref(svc.key))
	defer w.Close()
	snapshot, _ := w.Load()
	if !t.writer.linksKnown() {
		snapshot = withUnknownMembers(snapshot)
	}
	options := t.writer.options
	groups, keep := federatedGroups(svc, snapshot, options.Installation, options.Namespace)
	return desired{groups: groups, keep: keep, confirm: func(ctx context.Context, gone []sourceAddress) error {
		return t.confirmMembers(ctx, svc, snapshot, gone)
	}}
}

// recordLeftOut records how many endpoints are left out of a Service's slices, by source cluster, and
// reports the sums that changed. sources are those of its slices.
func (t *termWriter) recordLeftOut(k key, sources map[string]bool, now map[string]int) {
	if !t.writesFederated() {
		return
	}
	t.mu.Lock()
	sums, changed := map[string]cluster.LeftOut{}, map[string]bool{}
	for source := range sources {
		if t.leftOut[source] == nil {
			t.leftOut[source], changed[source] = map[key]int{}, true
		}
	}
	for source, byService := range t.leftOut {
		if byService[k] != now[source] {
			changed[source] = true
			if delete(byService, k); now[source] != 0 {
				byService[k] = now[source]
			}
		}
		if changed[source] {
			sum := cluster.LeftOut{Known: true}
			for _, n := range byService {
				sum.Excess += n
			}
			sums[source] = sum
		}
	}
	t.mu.Unlock()
	for source, sum := range sums {
		t.writer.metrics.leftOut.WithLabelValues(t.name, source).Set(float64(sum.Excess))
		if t.local {
			t.writer.registry.ReportLeftOut(source, sum)
		}
		if n := now[source]; n != 0 {
			t.log.Info("Endpoints are in no slice: they would take more slices than -max-slices-per-source allows",
				"service", k.String(), "source", source, "endpoints", n)
		}
	}
}

// forgetLeftOut takes back what recordLeftOut reported in this term.
func (t *termWriter) forgetLeftOut() {
	t.mu.Lock()
	sources := slices.Collect(maps.Keys(t.leftOut))
	t.mu.Unlock()
	for _, source := range sources {
		t.writer.metrics.leftOut.DeletePartialMatch(prometheus.Labels{"cluster": t.name, "source": source})
		if t.local {
			t.writer.registry.ReportLeftOut(source, cluster.LeftOut{})
		}
	}
}
