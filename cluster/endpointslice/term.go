package endpointslice

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	endpointsliceutil "k8s.io/endpointslice/util"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/apply/object"
	"github.com/fingerpost/fingerpost/internal/logs"
)

const (
	// coalesce is how long changes of one Service are collected before its slices are written.
	coalesce = 50 * time.Millisecond
	// workers is how many Services are reconciled at once.
	workers = 8
	// A Service that fails is retried after minRetry, then after twice as long each time, up to maxRetry,
	// for ever.
	minRetry, maxRetry = 5 * time.Millisecond, apply.MaxRetry
)

// A sliceWriter writes the slices of one kind into one cluster during one term of a Lease. What they hold is its
// content: ExternalWorkloads, or the members of federated Services.
//
// What becomes of one Service when its key comes up:
//
//	reconcile --> behind ------------------------------------> retried
//	    |
//	    v
//	  apply
//	    |
//	    +--> some requests failed ----------------------------> retried
//	    +--> creations have no turn yet (pace.go) -------------> retried when they do
//	    v
//	 written, at rest
//
// In words:
//
//   - A Service is enqueued by a change of it, of one of its slices that is not the echo of our own write, of an
//     ExternalWorkload that it selects, or of its Snapshot.
//   - behind: the watch has not shown all of our own writes yet (the tracker knows). A plan from older
//     slices would create again what exists, so none is made.
//   - reconcile makes one plan for each source cluster, by pure functions of what is read: the groups that
//     are wanted, and the slices that exist. A source that was never synced has no plan: unknown is not
//     empty. What a source withdraws has passed the guard of its cluster. Only what is written and was withdrawn
//     before this replica knew of it has not: it is compared once (loss.go).
//   - apply: what brings endpoints goes before what only withdraws; a request that is refused stops no other. Each
//     names the resourceVersion for which it was planned, so that a stale plan fails instead of
//     overwriting.
//   - written: equal slices are not written again, so a Service stays here until something changes, be it
//     that another client writes its slices, or that a request of a former holder arrives late.
//
// The stores hold the present state. The indexes also hold the state before, which decides which Services a change
// affects; informers keep them up to date from the first listing on. mu guards the indexes. It is taken before the
// locks of what is called under it: stores, the tracker and the queue of the Loop, none of which calls back.
type sliceWriter struct {
	*apply.Target
	writer    *Writer
	managedBy string
	content   content
	loop      *apply.Loop[key]
	paces     paces
	tracker   *endpointsliceutil.EndpointSliceTracker // knows which of our own writes the watch has not shown yet

	services *api.Informer[*serviceRecord]
	slices   *api.Informer[*discoveryv1.EndpointSlice]

	mu             sync.Mutex                                    // guards all below, and maps of contents
	servicesIn     map[string]map[string]*serviceRecord          // by namespace, as last seen
	slicesOf       map[key]map[string]*discoveryv1.EndpointSlice // by Service
	serviceOfSlice map[key]key
}

// content is what slices hold.
type content interface {
	// serviceChanged is called when a Service was created, and old is nil, changed or deleted, and now is nil.
	serviceChanged(k key, old, now *serviceRecord)
	// desired returns what a Service should have.
	desired(svc *serviceRecord) desiredSlices
	// begin is called once all inputs were listed, before anything is written.
	begin()
	// applied records what became of a Service: how many endpoints of each source cluster that it has slices of
	// are left out.
	applied(k key, leftOut map[string]int)
}

// desiredSlices is what a Service should have.
type desiredSlices struct {
	groups    []*group
	maxSlices int                                   // of one source; 0: any number
	keep      func(*discoveryv1.EndpointSlice) bool // slices that are left as they are; nil for none
	undivided func() []*group                       // groups without a policy; nil for none
}

func keepAll(*discoveryv1.EndpointSlice) bool { return true }

// newSliceWriter returns a sliceWriter without content.
func newSliceWriter(
	writer *Writer, target *apply.Target, managedBy string, needs []apply.Permission,
	background ...func(context.Context),
) *sliceWriter {
	term := &sliceWriter{
		Target: target, writer: writer, managedBy: managedBy, paces: newPaces(),
		tracker:        endpointsliceutil.NewEndpointSliceTracker(),
		servicesIn:     map[string]map[string]*serviceRecord{},
		slicesOf:       map[key]map[string]*discoveryv1.EndpointSlice{},
		serviceOfSlice: map[key]key{},
	}
	writer.metrics.beginAtZero(term.Name, managedBy)

	config := term.loopConfig()
	config.Needs, config.Permissions = needs, target.Permissions
	config.Failures = target.Failures("EndpointSlices")
	config.Background = background
	term.loop = apply.NewLoop(term.Log, config)

	services := api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})
	term.services = api.NewInformer(target.Conn, services, term.reduceService, term.indexService)
	own := api.Typed(discoveryv1.SchemeGroupVersion, "endpointslices", "EndpointSlice", &discoveryv1.EndpointSlice{})
	own.Labels = discoveryv1.LabelManagedBy + "=" + managedBy // one that loses the label is a deletion to the watch
	term.slices = api.NewInformer(target.Conn, own.Ours(), term.reduceSlice, term.indexSlice)
	term.loop.Read(term.services, apply.Permission{Resource: serviceResource, Verbs: readVerbs})
	term.loop.Read(term.slices, apply.Permission{Resource: sliceResource, Verbs: readVerbs})
	return term
}

// reduceService returns what is kept of a Service: less than all where nothing is made of it. ExternalWorkloads alone
// are selected by Services, and their slices have the labels of these.
func (t *sliceWriter) reduceService(read any) (*serviceRecord, bool) {
	record, ok := newServiceRecord(read)
	if !ok {
		return nil, false
	}
	selects := t.managedBy == externalManagedBy && record.selector != nil
	if !selects {
		record.selector, record.labels = nil, nil
	}
	if !selects && !record.optIn && !record.unclear {
		record.ports = nil
	}
	return record, true
}

// reduceSlice returns what is kept of a slice. One that is being deleted is none, however long a finalizer keeps it:
// the tracker would wait for its end.
func (t *sliceWriter) reduceSlice(read any) (*discoveryv1.EndpointSlice, bool) {
	es, ok := read.(*discoveryv1.EndpointSlice)
	if !ok || es.Labels[discoveryv1.LabelManagedBy] != t.managedBy || es.DeletionTimestamp != nil {
		return nil, false
	}
	return keptSlice(es), true
}

func (t *sliceWriter) loopConfig() apply.Config[key] {
	return apply.Config[key]{
		Reconcile: t.reconcileService, Begin: t.begin, Failed: t.logSliceFailure,
		Store: t.writer.store, Queue: "endpoints_controller_workqueue", Workers: workers,
		Delay: coalesce, MinRetry: minRetry, MaxRetry: maxRetry,
	}
}

func (t *sliceWriter) begin() {
	t.content.begin()
	t.loop.Enqueue(t.services.Keys()...)
}

func (t *sliceWriter) logSliceFailure(k key, err error, failures int) {
	t.writer.count(t.writer.metrics.failures, t.Name)
	logs.Warn(t.Log, "Writing slices of a Service failed, and is retried",
		"service", k.String(), "error", err.Error(), "failures", failures)
	if failures == apply.ReportedAfter {
		t.warnNotWritten(k, api.CauseOf(err))
	}
}

// warnNotWritten records an Event about a Service of the local cluster, whose slices were tried again and again. Those
// of other clusters are named by what is reported of these.
func (t *sliceWriter) warnNotWritten(k key, why api.Cause) {
	t.mu.Lock()
	svc := t.servicesIn[k.Namespace][k.Name]
	t.mu.Unlock()
	if t.Local && t.writer.options.Events != nil && svc != nil {
		warn(t.writer.options.Events, svc, "SlicesNotWritten", "EndpointSlices cannot be written, so that clients "+
			"without a proxy may have endpoints of before: "+why.Text)
	}
}

func (t *sliceWriter) indexService(k key) {
	now, _ := t.services.Get(k)
	t.mu.Lock()
	old := t.servicesIn[k.Namespace][k.Name]
	setIn(t.servicesIn, k.Namespace, k.Name, now)
	t.mu.Unlock()
	if now == nil || !now.equal(old) {
		t.content.serviceChanged(k, old, now)
		t.loop.Enqueue(k)
	}
}

func (t *sliceWriter) indexSlice(slice key) {
	now, found := t.slices.Get(slice)
	t.mu.Lock()
	defer t.mu.Unlock()

	svc, had := t.serviceOfSlice[slice]
	old := t.slicesOf[svc][slice.Name]
	if had && (!found || serviceKeyOf(now) != svc) {
		delete(t.serviceOfSlice, slice)
		setIn(t.slicesOf, svc, slice.Name, nil)
		// One that an earlier term wrote is not tracked: HandleDeletion would return true.
		if !t.tracker.Has(old) || !t.tracker.HandleDeletion(old) { // another client deleted it
			t.loop.Enqueue(svc)
		}
	}

	if found {
		svc = serviceKeyOf(now)
		t.serviceOfSlice[slice] = svc
		setIn(t.slicesOf, svc, slice.Name, now)
		if t.tracker.ShouldSync(now) { // another client wrote it
			t.loop.Enqueue(svc)
		}
	}
}

func serviceKeyOf(es *discoveryv1.EndpointSlice) key {
	return key{Namespace: es.Namespace, Name: es.Labels[discoveryv1.LabelServiceName]}
}

// servicesInNamespace returns the Services of a namespace.
func (t *sliceWriter) servicesInNamespace(namespace string) []*serviceRecord {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.servicesIn[namespace]))
}

// setIn sets an element of an index, or deletes it if v is nil.
func setIn[K comparable, V any](index map[K]map[string]*V, at K, name string, v *V) {
	switch {
	case v != nil && index[at] == nil:
		index[at] = map[string]*V{name: v}
	case v != nil:
		index[at][name] = v
	default:
		delete(index[at], name)
		if len(index[at]) == 0 {
			delete(index, at)
		}
	}
}

var (
	errBehind   = &apply.Retry{Err: errors.New("the watch has not shown all writes of this replica yet")}
	errNotWhole = &apply.Retry{Err: errors.New("the cluster has more such slices than its budget allows to read")}
)

// reconcileService makes the slices of a Service what they should be.
func (t *sliceWriter) reconcileService(ctx context.Context, key key) error {
	isWhole := t.slices.IsWhole()
	t.mu.Lock()
	svc := t.servicesIn[key.Namespace][key.Name]
	have := slices.Collect(maps.Values(t.slicesOf[key]))
	t.mu.Unlock()

	if svc == nil {
		t.tracker.DeleteService(key.Namespace, key.Name)
		t.paces.dropOthers(key, nil)
		t.content.applied(key, nil)
		return nil // Kubernetes deletes its slices, which name it as their owner
	}
	if !isWhole {
		return errNotWhole // what cannot be seen would be created again
	}

	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if t.tracker.StaleSlices(service, have) {
		return errBehind
	}
	d := t.content.desired(svc)
	if d.keep != nil {
		have = slices.DeleteFunc(have, d.keep)
	}
	return t.reconcileSources(ctx, svc, d, have)
}

// A sourcePlan is what is done for one source cluster in a Service.
type sourcePlan struct {
	slicePlan
	source string
	groups []*group                     // that are wanted
	have   []*discoveryv1.EndpointSlice // that exist
}

// planSources makes a plan for each source cluster. Those that only withdraw endpoints are apart.
func planSources(
	svc *serviceRecord, desired desiredSlices, have []*discoveryv1.EndpointSlice,
) (plans, withdrawals []sourcePlan) {
	groups, existing := bySource(desired.groups), map[string][]*discoveryv1.EndpointSlice{}
	for _, es := range have {
		source := es.Labels[SourceLabel]
		existing[source] = append(existing[source], es)
	}

	for _, source := range sets.List(sets.KeySet(groups).Union(sets.KeySet(existing))) {
		p := sourcePlan{source: source, groups: groups[source], have: existing[source]}
		p.slicePlan = planFor(svc, p.groups, p.have)
		if desired.maxSlices > 0 {
			p.limit(len(p.have), desired.maxSlices)
		}
		if p.touches() && onlyWithdraws(p.have, p.groups) {
			withdrawals = append(withdrawals, p)
		} else {
			plans = append(plans, p)
		}
	}
	return plans, withdrawals
}

func bySource(groups []*group) map[string][]*group {
	all := map[string][]*group{}
	for _, g := range groups {
		all[g.source] = append(all[g.source], g)
	}
	return all
}

// reconcileSources writes the slices of each source cluster by itself, whatever becomes of another's. Where traffic
// moves from one source to another, readers are never left without endpoints: what only withdraws comes last, and if
// what comes before it cannot be written, it keeps what a policy leaves out.
func (t *sliceWriter) reconcileSources(
	ctx context.Context, svc *serviceRecord, desired desiredSlices, have []*discoveryv1.EndpointSlice,
) error {
	plans, withdrawals := planSources(svc, desired, have)
	all, leftOut := slices.Concat(plans, withdrawals), map[string]int{}
	for _, p := range all {
		leftOut[p.source] = p.leftOut
	}
	t.paces.dropOthers(svc.key, leftOut)

	var failed []error
	var later *apply.Retry            // for what waits
	var undivided map[string][]*group // once something that is to be added is lacking

	for i, plan := range all {
		if i == len(plans) && desired.undivided != nil && (later != nil || len(failed) > 0) {
			undivided = bySource(desired.undivided())
		}

		if undivided != nil {
			plan.groups = stillThere(plan.have, undivided[plan.source])
			plan.slicePlan = planFor(svc, plan.groups, plan.have)
		}

		leftOut[plan.source] = plan.leftOut
		err := t.reconcileSource(ctx, svc, plan)
		if retry, waits := errors.AsType[*apply.Retry](err); waits {
			if later == nil || retry.After < later.After {
				later = retry
			}
			continue
		}

		if err != nil {
			failed = append(failed, err)
		}
		if err != nil && !object.IsResponse(err) {
			break
		}
	}

	t.content.applied(svc.key, leftOut)
	if err := errors.Join(failed...); err != nil || later == nil {
		return err
	}
	return later
}

// reconcileSource carries out the plan of one source cluster.
func (t *sliceWriter) reconcileSource(ctx context.Context, svc *serviceRecord, p sourcePlan) error {
	if p.empty() {
		t.paces.drop(turn{svc.key, p.source})
		return nil
	}
	return t.applyInTurn(ctx, svc, p)
}
