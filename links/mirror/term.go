package mirror

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = time.Minute
	// tellAfter is how long verdicts are gathered before they are written into a Link.
	statusDelay = 500 * time.Millisecond
)

// item names what to look at: an object of the local cluster, or a Link.
type queueKey struct {
	isLink bool
	records.Key
}

// A term is the time during which we write, and what is known in it.
type term struct {
	*Mirror
	ctx   context.Context // ends with the term; set before anything is started, like queue
	queue workqueue.TypedRateLimitingInterface[queueKey]

	services       *records.Store[*corev1.Service]
	endpoints      *records.Store[*endpoints]
	namespaces     *records.Store[struct{}]
	permissions    *permissions
	budget         *budget
	observedLeases observedLeases
	linkSet        watch.Value[*linkSet]
	ready          chan struct{} // closed once Links and all of the local cluster are known
	wg             sync.WaitGroup

	mu                    sync.Mutex // guards all below
	ended                 bool
	localRefusal          string                             // why the local cluster cannot be known
	remotes               map[string]*remoteCluster          // heard completely once
	remoteEndpoints       map[federation.Ref]*endpointWatch  // of Services that are mirrored through a gateway
	hostnames             map[federation.Ref]map[string]bool // by cluster, namespace and hostname: those of them that have such an endpoint
	gateways              map[string]*runningGateway
	leases                map[string]*leaseWatch // by namespace
	results               map[records.Key][]serviceResult
	mutated               map[records.Key]mutatedService
	conditionsUnsupported map[string]bool // Links whose conditions cannot be kept, by UID
}

// linked is all Links and who looks after them. It is immutable.
type linkSet struct {
	links           []*link
	complete        bool
	everServed      map[string]bool // clusters that had a Link that was ours to write, now or earlier in the term
	servedByLinkerd map[string]bool // clusters that Linkerd's service mirror serves for Links that are not read
	localSkipReason string          // why Services of the local cluster are not looked after here; empty if they are
}

// attendees is who answers for one remote Service.
type endpointWatch struct {
	cancel    context.CancelFunc
	readiness watch.Value[readiness]
}

type runningGateway struct {
	*gateway
	spec       string // equal for equal gateways, probed alike
	cancel     context.CancelFunc
	probeEnded chan struct{} // closed when it is probed no more
}

type leaseWatch struct {
	store  *records.Store[leaseRecord]
	source *cluster.Source

	// Of followLinks.
	triedAt       time.Time // when they were last listed besides
	lastTryFailed bool      // that said nothing
	confirmedAt   time.Time // when it last said what there is
}

// made is a Service that the API server keeps otherwise than it was asked to.
type mutatedService struct{ requested, stored *corev1.Service }

func newTerm(m *Mirror) *term {
	t := &term{
		Mirror: m, permissions: &permissions{log: m.log, client: m.core}, budget: newBudget(m.options.MaxServices), ready: make(chan struct{}),
		remotes: map[string]*remoteCluster{}, remoteEndpoints: map[federation.Ref]*endpointWatch{}, hostnames: map[federation.Ref]map[string]bool{}, gateways: map[string]*runningGateway{}, leases: map[string]*leaseWatch{},
		results: map[records.Key][]serviceResult{}, mutated: map[records.Key]mutatedService{}, conditionsUnsupported: map[string]bool{},
	}
	t.linkSet.Store(&linkSet{})
	t.services = records.NewStore(trimService, t.localServiceChanged)
	t.endpoints = records.NewStore(func(object any) (*endpoints, bool) {
		e, ok := object.(*endpoints)
		if ok {
			e.ManagedFields = nil
		}
		return e, ok
	}, func(k records.Key) { t.enqueue(k) })
	t.namespaces = records.NewStore(func(any) (struct{}, bool) { return struct{}{}, true }, func(k records.Key) {
		t.enqueueAll(func(o records.Key) bool { return o.Namespace == k.Name })
	})
	return t
}

// run is the whole term.
func (t *term) run(ctx context.Context) error {
	c, err := controller.NewTypedUnmanaged("mirror", controller.TypedOptions[queueKey]{
		Reconciler:              reconcile.TypedFunc[queueKey](t.reconcile),
		MaxConcurrentReconciles: 4,
		SkipNameValidation:      new(true),
		Logger:                  t.log,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[queueKey](minBackoff, maxBackoff),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer t.stop(cancel)
	err = c.Watch(source.TypedFunc[queueKey](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[queueKey]) error {
		t.ctx, t.queue = logr.NewContext(ctx, t.log.V(1)), queue
		t.startInformers()
		t.spawn(t.followLinks)
		t.currentTerm.Store(t)
		return nil
	}))
	if err != nil {
		return err
	}
	t.log.Info("Services are mirrored from here")
	return c.Start(ctx)
}

// end ends the term and waits for everything in it.
func (t *term) stop(cancel context.CancelFunc) {
	cancel()
	t.currentTerm.Store(nil)
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.wg.Wait()
}

// enter lets the caller take part in the term until t.wg.Done, unless it has ended.
func (t *term) join() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || t.ctx.Err() != nil {
		return false
	}
	t.wg.Add(1)
	return true
}

// start runs f in a goroutine of the term, and reports whether the term has not ended.
func (t *term) spawn(f func()) bool {
	entered := t.join()
	if entered {
		go func() {
			defer t.wg.Done()
			f()
		}()
	}
	return entered
}

// fill watches the local cluster.
func (t *term) startInformers() {
	bySource := func(lw cache.ListerWatcher, object runtime.Object, store records.Target) *cluster.Source {
		s := cluster.NewSource(lw, t.local)
		t.spawn(func() { s.Fill(t.ctx, object, store) })
		return s
	}
	core := t.core.CoreV1()
	services := bySource(serviceRequests(t.core), &corev1.Service{}, t.services)
	ours := func(o metav1.ListOptions) metav1.ListOptions { o.LabelSelector = clusterLabel; return o }
	eps := bySource(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Endpoints(metav1.NamespaceAll).List(ctx, ours(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return core.Endpoints(metav1.NamespaceAll).Watch(ctx, ours(o))
		},
	}, &endpoints{}, t.endpoints)
	namespaces := bySource(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Namespaces().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return core.Namespaces().Watch(ctx, o)
		},
	}, &corev1.Namespace{}, t.namespaces)
	t.spawn(func() {
		for what, s := range map[string]*cluster.Source{"services": services, "endpoints": eps} {
			t.spawn(func() {
				if waitClosed(t.ctx, s.Refused()) {
					t.setLocalRefusal("the API server refuses to list " + what + ": grant get, list and watch on services and endpoints")
				}
			})
		}
		if !waitClosed(t.ctx, t.links.Synced()) || !waitClosed(t.ctx, t.services.Synced()) || !waitClosed(t.ctx, t.endpoints.Synced()) {
			return
		}
		select {
		case <-t.namespaces.Synced():
		case <-namespaces.Refused():
			t.log.Info("Namespaces cannot be listed: whether one is missing shows when something is written into it")
		case <-t.ctx.Done():
			return
		}
		t.setLocalRefusal("")
		close(t.ready)
		t.enqueueAll(nil)
	})
}

// services returns the requests for all Services of a cluster.
func serviceRequests(core kubernetes.Interface) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.CoreV1().Services(metav1.NamespaceAll).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return core.CoreV1().Services(metav1.NamespaceAll).Watch(ctx, o)
		},
	}
}

// block notes why nothing can be known of the local cluster.
func (t *term) setLocalRefusal(why string) {
	t.mu.Lock()
	if isClosed(t.ready) {
		why = ""
	}
	t.localRefusal = why
	t.mu.Unlock()
	if why != "" {
		t.log.Info("Nothing can be mirrored", "reason", why)
	}
	now, _ := t.linkSet.Load()
	for _, l := range now.links {
		t.enqueueLink(l.Link)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// arrived notes that a cluster was listed completely: what was known of it before gives way.
func (t *term) setRemote(r *remoteCluster) {
	t.mu.Lock()
	t.remotes[r.name] = r
	t.mu.Unlock()
	t.enqueueCluster(r.name)
}

// current reports whether a cluster is what r says.
func (t *term) isCurrent(r *remoteCluster) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remotes[r.name] == r
}

// missing counts the mirrors and memberships of a cluster, and those of them whose Services are not found in it.
func (t *term) countMissing(home string, found func(records.Key) bool) (all, gone int) {
	for _, k := range t.services.Keys() {
		svc, there := t.services.Get(k)
		if !there || !isMirror(svc) || svc.Labels[headlessLabel] != "" {
			continue
		}
		name := ""
		if svc.Labels[clusterLabel] == home {
			name = strings.TrimSuffix(k.Name, "-"+home)
		} else if base := strings.TrimSuffix(k.Name, federatedSuffix); membershipOf(svc).has(base, home) {
			name = base
		}
		if name == "" {
			continue
		}
		all++
		if !found(records.Key{Namespace: k.Namespace, Name: name}) {
			gone++
		}
	}
	return all, gone
}

// What follows names what to look at again.

func (t *term) enqueue(keys ...records.Key) {
	if !isClosed(t.ready) {
		return // everything is looked at when we are
	}
	for _, k := range keys {
		t.queue.Add(queueKey{Key: k})
	}
}

func (t *term) enqueueLink(link records.Key) { t.queue.AddAfter(queueKey{true, link}, statusDelay) }

func (t *term) localServiceChanged(k records.Key) {
	now, _ := t.services.Get(k)
	t.enqueue(t.budget.assign(k, chargedCluster(now))...)
	t.enqueue(k, records.Key{Namespace: k.Namespace, Name: k.Name + federatedSuffix})
	if svc, found := t.services.Get(k); found && svc.Labels[headlessLabel] != "" {
		t.enqueue(records.Key{Namespace: k.Namespace, Name: svc.Labels[headlessLabel]})
	}
}

func (t *term) enqueueRemote(home string, k records.Key) {
	t.enqueue(records.Key{Namespace: k.Namespace, Name: k.Name + "-" + home}, records.Key{Namespace: k.Namespace, Name: k.Name + federatedSuffix})
}

// enqueueCluster names all that a cluster bears on.
func (t *term) enqueueCluster(home string) {
	t.mu.Lock()
	r := t.remotes[home]
	t.mu.Unlock()
	if r != nil {
		for _, k := range r.Keys() {
			t.enqueueRemote(home, k)
		}
	}
	for _, k := range t.services.Keys() {
		if svc, found := t.services.Get(k); found && isOurs(svc) {
			t.enqueue(k)
		}
	}
	now, _ := t.linkSet.Load()
	for _, l := range now.links {
		if l.Cluster == home {
			t.enqueue(records.Key{Namespace: l.Link.Namespace, Name: probePrefix + l.Link.Name})
			t.enqueueLink(l.Link)
		}
	}
}

// enqueueAll names all that may have to be written, or only some of it.
func (t *term) enqueueAll(concerned func(records.Key) bool) {
	if !isClosed(t.ready) {
		return
	}
	add := func(k records.Key) {
		if concerned == nil || concerned(k) {
			t.enqueue(k)
		}
	}
	for _, k := range t.services.Keys() {
		if svc, found := t.services.Get(k); found && isOurs(svc) {
			add(k)
		}
		add(records.Key{Namespace: k.Namespace, Name: k.Name + federatedSuffix})
	}
	t.mu.Lock()
	remotes := maps.Clone(t.remotes)
	told := slices.Collect(maps.Keys(t.results))
	t.mu.Unlock()
	for _, k := range told {
		add(k)
	}
	for name, r := range remotes {
		for _, k := range r.Keys() {
			add(records.Key{Namespace: k.Namespace, Name: k.Name + "-" + name})
			add(records.Key{Namespace: k.Namespace, Name: k.Name + federatedSuffix})
		}
	}
	now, _ := t.linkSet.Load()
	for _, l := range now.links {
		add(records.Key{Namespace: l.Link.Namespace, Name: probePrefix + l.Link.Name})
	}
}

// room reports whether a Service may be made that one of several clusters has to have room for.
func (t *term) reserveSpace(k records.Key, clusters []string) bool {
	were := map[string]bool{}
	for _, name := range clusters {
		were[name] = t.budget.exhausted(name)
	}
	free := t.budget.reserve(k, clusters)
	for _, name := range clusters {
		if !free && !were[name] {
			t.log.Info("A linked cluster has as many Services here as it may: no more are made for it, and those that are there are kept up to date",
				"cluster", name, "most", t.options.MaxServices, "first", k.String())
		}
	}
	return free
}

// world returns what is known now.
func (t *term) inputs() *inputs {
	now, _ := t.linkSet.Load()
	t.mu.Lock()
	remotes, gateways := maps.Clone(t.remotes), maps.Clone(t.gateways)
	t.mu.Unlock()
	return &inputs{
		links: now.links, linksComplete: now.complete, linkNamespace: t.links.Namespace(), everServed: now.everServed, servedByLinkerd: now.servedByLinkerd, excludedKeys: t.options.Exclude, localMembers: localMembers{t.options.Local, now.localSkipReason != ""},
		headless: t.options.Headless, createNamespaces: t.options.CreateNamespaces,
		reserveSpace: t.reserveSpace,
		remote: func(home string, k records.Key) (*remoteService, existence) {
			r := remotes[home]
			if r == nil {
				return nil, unknown
			}
			svc, found := r.Get(k)
			switch {
			case found:
				return svc, present
			case r.complete.Load():
				return nil, absent
			default:
				return nil, unknown
			}
		},
		local: func(k records.Key) *corev1.Service {
			svc, _ := t.services.Get(k)
			return svc
		},
		namespaceExists: func(name string) bool {
			_, found := t.namespaces.Get(records.Key{Name: name})
			return found || !isClosed(t.namespaces.Synced())
		},
		readiness:           t.readinessOf,
		serviceWithHostname: t.serviceWithHostname,
		gateway: func(home string) gatewayState {
			if g := gateways[home]; g != nil {
				return g.state()
			}
			return gatewayState{}
		},
	}
}
