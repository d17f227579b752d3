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
	tellAfter = 500 * time.Millisecond
)

// item names what to look at: an object of the local cluster, or a Link.
type item struct {
	isLink bool
	records.Key
}

// A term is the time during which we write, and what is known in it.
type term struct {
	*Mirror
	ctx   context.Context // ends with the term; set before anything is started, like queue
	queue workqueue.TypedRateLimitingInterface[item]

	services   *records.Store[*corev1.Service]
	endpoints  *records.Store[*endpoints]
	namespaces *records.Store[struct{}]
	rights     *rights
	budget     *budget
	tenures    tenures
	linked     watch.Value[*linked]
	ready      chan struct{} // closed once Links and all of the local cluster are known
	wg         sync.WaitGroup

	mu       sync.Mutex // guards all below
	ended    bool
	blocked  string                             // why the local cluster cannot be known
	remotes  map[string]*remote                 // heard completely once
	who      map[federation.Ref]*attendees      // of Services that are mirrored through a gateway
	hosts    map[federation.Ref]map[string]bool // by cluster, namespace and hostname: those of them that have such an endpoint
	gateways map[string]*gatewayRun
	leases   map[string]*leaseWatch // by namespace
	told     map[records.Key][]verdict
	made     map[records.Key]made
	mute     map[string]bool // Links whose conditions cannot be kept, by UID
}

// linked is all Links and who looks after them. It is immutable.
type linked struct {
	links     []*link
	complete  bool
	seen      map[string]bool // clusters that had a Link that was ours to write, now or earlier in the term
	foreign   map[string]bool // clusters that Linkerd's service mirror serves for Links that are not read
	localLeft string          // why Services of the local cluster are not looked after here; empty if they are
}

// attendees is who answers for one remote Service.
type attendees struct {
	cancel context.CancelFunc
	now    watch.Value[answers]
}

type gatewayRun struct {
	*gateway
	spec   string // equal for equal gateways, probed alike
	cancel context.CancelFunc
	probed chan struct{} // closed when it is probed no more
}

type leaseWatch struct {
	store  *records.Store[lease]
	source *cluster.Source

	// Of followLinks.
	asked   time.Time // when they were last listed besides
	failed  bool      // that said nothing
	certain time.Time // when it last said what there is
}

// made is a Service that the API server keeps otherwise than it was asked to.
type made struct{ want, is *corev1.Service }

func newTerm(m *Mirror) *term {
	t := &term{
		Mirror: m, rights: &rights{log: m.log, client: m.core}, budget: newBudget(m.options.MaxServices), ready: make(chan struct{}),
		remotes: map[string]*remote{}, who: map[federation.Ref]*attendees{}, hosts: map[federation.Ref]map[string]bool{}, gateways: map[string]*gatewayRun{}, leases: map[string]*leaseWatch{},
		told: map[records.Key][]verdict{}, made: map[records.Key]made{}, mute: map[string]bool{},
	}
	t.linked.Store(&linked{})
	t.services = records.NewStore(keepService, t.localChanged)
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
	c, err := controller.NewTypedUnmanaged("mirror", controller.TypedOptions[item]{
		Reconciler:              reconcile.TypedFunc[item](t.reconcile),
		MaxConcurrentReconciles: 4,
		SkipNameValidation:      new(true),
		Logger:                  t.log,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[item](minBackoff, maxBackoff),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer t.end(cancel)
	err = c.Watch(source.TypedFunc[item](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[item]) error {
		t.ctx, t.queue = logr.NewContext(ctx, t.log.V(1)), queue
		t.fill()
		t.start(t.followLinks)
		t.term.Store(t)
		return nil
	}))
	if err != nil {
		return err
	}
	t.log.Info("Services are mirrored from here")
	return c.Start(ctx)
}

// end ends the term and waits for everything in it.
func (t *term) end(cancel context.CancelFunc) {
	cancel()
	t.term.Store(nil)
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.wg.Wait()
}

// enter lets the caller take part in the term until t.wg.Done, unless it has ended.
func (t *term) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || t.ctx.Err() != nil {
		return false
	}
	t.wg.Add(1)
	return true
}

// start runs f in a goroutine of the term, and reports whether the term has not ended.
func (t *term) start(f func()) bool {
	entered := t.enter()
	if entered {
		go func() {
			defer t.wg.Done()
			f()
		}()
	}
	return entered
}

// fill watches the local cluster.
func (t *term) fill() {
	bySource := func(lw cache.ListerWatcher, object runtime.Object, store records.Target) *cluster.Source {
		s := cluster.NewSource(lw, t.local)
		t.start(func() { s.Fill(t.ctx, object, store) })
		return s
	}
	core := t.core.CoreV1()
	services := bySource(services(t.core), &corev1.Service{}, t.services)
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
	t.start(func() {
		for what, s := range map[string]*cluster.Source{"services": services, "endpoints": eps} {
			t.start(func() {
				if wait(t.ctx, s.Refused()) {
					t.block("the API server refuses to list " + what + ": grant get, list and watch on services and endpoints")
				}
			})
		}
		if !wait(t.ctx, t.links.Listed()) || !wait(t.ctx, t.services.Synced()) || !wait(t.ctx, t.endpoints.Synced()) {
			return
		}
		select {
		case <-t.namespaces.Synced():
		case <-namespaces.Refused():
			t.log.Info("Namespaces cannot be listed: whether one is missing shows when something is written into it")
		case <-t.ctx.Done():
			return
		}
		t.block("")
		close(t.ready)
		t.enqueueAll(nil)
	})
}

// services returns the requests for all Services of a cluster.
func services(core kubernetes.Interface) cache.ListerWatcher {
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
func (t *term) block(why string) {
	t.mu.Lock()
	if isClosed(t.ready) {
		why = ""
	}
	t.blocked = why
	t.mu.Unlock()
	if why != "" {
		t.log.Info("Nothing can be mirrored", "reason", why)
	}
	now, _ := t.linked.Load()
	for _, l := range now.links {
		t.tellSoon(l.Link)
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
func (t *term) arrived(r *remote) {
	t.mu.Lock()
	t.remotes[r.name] = r
	t.mu.Unlock()
	t.enqueueCluster(r.name)
}

// current reports whether a cluster is what r says.
func (t *term) current(r *remote) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remotes[r.name] == r
}

// missing counts the mirrors and memberships of a cluster, and those of them whose Services are not found in it.
func (t *term) missing(home string, found func(records.Key) bool) (all, gone int) {
	for _, k := range t.services.Keys() {
		svc, there := t.services.Get(k)
		if !there || !isMirror(svc) || svc.Labels[headlessLabel] != "" {
			continue
		}
		name := ""
		if svc.Labels[clusterLabel] == home {
			name = strings.TrimSuffix(k.Name, "-"+home)
		} else if base := strings.TrimSuffix(k.Name, federatedSuffix); membersOf(svc).has(base, home) {
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
		t.queue.Add(item{Key: k})
	}
}

func (t *term) tellSoon(link records.Key) { t.queue.AddAfter(item{true, link}, tellAfter) }

func (t *term) localChanged(k records.Key) {
	now, _ := t.services.Get(k)
	t.enqueue(t.budget.note(k, payer(now))...)
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
	now, _ := t.linked.Load()
	for _, l := range now.links {
		if l.Cluster == home {
			t.enqueue(records.Key{Namespace: l.Link.Namespace, Name: probePrefix + l.Link.Name})
			t.tellSoon(l.Link)
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
	told := slices.Collect(maps.Keys(t.told))
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
	now, _ := t.linked.Load()
	for _, l := range now.links {
		add(records.Key{Namespace: l.Link.Namespace, Name: probePrefix + l.Link.Name})
	}
}

// room reports whether a Service may be made that one of several clusters has to have room for.
func (t *term) room(k records.Key, clusters []string) bool {
	were := map[string]bool{}
	for _, name := range clusters {
		were[name] = t.budget.full(name)
	}
	free := t.budget.take(k, clusters)
	for _, name := range clusters {
		if !free && !were[name] {
			t.log.Info("A linked cluster has as many Services here as it may: no more are made for it, and those that are there are kept up to date",
				"cluster", name, "most", t.options.MaxServices, "first", k.String())
		}
	}
	return free
}

// world returns what is known now.
func (t *term) world() *world {
	now, _ := t.linked.Load()
	t.mu.Lock()
	remotes, gateways := maps.Clone(t.remotes), maps.Clone(t.gateways)
	t.mu.Unlock()
	return &world{
		links: now.links, complete: now.complete, scope: t.links.Namespace(), seen: now.seen, foreign: now.foreign, exclude: t.options.Exclude, locals: locals{t.options.Local, now.localLeft != ""},
		headless: t.options.Headless, create: t.options.CreateNamespaces,
		room: t.room,
		remote: func(home string, k records.Key) (*offer, knowledge) {
			r := remotes[home]
			if r == nil {
				return nil, unknown
			}
			svc, found := r.Get(k)
			switch {
			case found:
				return svc, present
			case r.trusted.Load():
				return nil, absent
			default:
				return nil, unknown
			}
		},
		local: func(k records.Key) *corev1.Service {
			svc, _ := t.services.Get(k)
			return svc
		},
		namespace: func(name string) bool {
			_, found := t.namespaces.Get(records.Key{Name: name})
			return found || !isClosed(t.namespaces.Synced())
		},
		answers: t.answers,
		named:   t.named,
		gateway: func(home string) gatewayState {
			if g := gateways[home]; g != nil {
				return g.state()
			}
			return gatewayState{}
		},
	}
}
