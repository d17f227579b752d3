package cluster

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

const (
	// urgent is how often a cluster is probed, or tried, that is out of contact.
	urgent = time.Second
	// optionalPatience is how long a cluster waits, once its required kinds were listed, for the optional ones.
	optionalPatience = 5 * time.Second
	// syncPatience is how long the listing of a required kind may make no progress.
	syncPatience = time.Minute
)

// An engagement is one set of credentials in use with a cluster: its connection, its watches, and the reconciler that speaks.
type engagement struct {
	log    logr.Logger
	access Access
	conn   *Connection
	reader *view.Reconciler
	kinds  []kind
	facade ctrlcluster.Cluster // for slow controllers of others; it watches nothing until one asks

	health watch.Value[health]

	ctx    context.Context // ends with the engagement
	cancel context.CancelFunc
	wg     sync.WaitGroup // all its goroutines
}

// kind is one kind of object in an engagement.
type kind struct {
	view.Kind
	source *Source
}

// health is how an engagement fares.
type health struct {
	lastContact time.Time // when all was last known to be in order
	err         error     // why it is not; nil if it is
	overBudget  string    // what of the cluster is refused, and why
	restored    time.Time // when the API server was last found to have gone back to an older state
}

// newEngagement prepares an engagement, which ends with ctx or stop. It does not use the network. The connection is closed with it.
func newEngagement(ctx context.Context, log logr.Logger, spec Spec, access Access, conn *Connection, meters *meters, endpoints bool) (*engagement, error) {
	e := &engagement{log: log, access: access, conn: conn, reader: view.NewReconciler(log, federation.Cluster(spec.Name), view.Options{Local: spec.Local, Endpoints: endpoints})}
	e.ctx, e.cancel = context.WithCancel(ctx)
	for _, k := range e.reader.Kinds() {
		lw, err := listerWatcher(conn, k)
		if err != nil {
			e.stop()
			return nil, fmt.Errorf("client for %s: %w", k.Resource.Resource, err)
		}
		s := NewSource(lw, conn)
		s.lag, s.optional = meters.lag(k.Resource.GroupResource().String()), !k.Required
		e.kinds = append(e.kinds, kind{k, s})
	}
	var err error
	if e.facade, err = newFacade(conn, e.kinds); err != nil {
		e.stop()
		return nil, fmt.Errorf("client for controllers: %w", err)
	}
	return e, nil
}

// stop ends the engagement and waits for everything in it. It may have been started or not.
func (e *engagement) stop() {
	e.cancel()
	e.wg.Wait()
	e.conn.Close()
}

// sync starts the watches and returns once the engagement can replace another: each required kind was listed, and the optional ones were
// listed, refused, or given some seconds. A kind that comes later is read from then on. It returns early if ctx ends, or if the API
// server refuses a required kind, does not get on with listing one, or lists many times what may be held of it.
func (e *engagement) sync(ctx context.Context) error {
	e.wg.Go(func() { _ = e.facade.Start(e.ctx) }) // it can only fail by being started twice
	for _, k := range e.kinds {
		e.wg.Go(func() { k.source.Fill(logr.NewContext(e.ctx, e.log.V(1)), k.Object, k.Store) })
	}
	for _, k := range e.kinds {
		if k.Required {
			if err := k.sync(ctx); err != nil {
				return err
			}
		}
	}
	patience := time.NewTimer(optionalPatience)
	defer patience.Stop()
	for _, k := range e.kinds {
		select {
		case <-k.Synced:
			continue
		case <-k.source.Refused():
		case <-patience.C:
			patience.Reset(0) // for the others, too
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-k.Synced:
		default:
			e.log.Info("The API server does not serve a kind: what depends on it is left out until it is served",
				"kind", k.Resource.GroupResource().String(), "reason", k.source.trouble())
		}
	}
	return nil
}

// sync returns once a required kind was listed. A listing may take long, as long as it gets on.
func (k kind) sync(ctx context.Context) error {
	deadline := time.NewTimer(syncPatience)
	defer deadline.Stop()
	for {
		excess, changed := k.source.excess.Load()
		if excess != nil {
			return &ProbeError{OverBudget, excess}
		}
		select {
		case <-k.Synced:
			return nil
		case <-k.source.Refused():
			return &ProbeError{Forbidden, fmt.Errorf("the API server refuses to list %s (%s): grant get, list and watch on them",
				k.Resource.GroupResource(), k.source.Health().Refused)}
		case <-changed:
		case <-deadline.C:
			left := syncPatience - time.Since(k.source.progressed())
			if left <= 0 {
				return &ProbeError{NotReady, fmt.Errorf("the API server answers, but has not listed %s: no progress within %s (%s)",
					k.Resource.GroupResource(), syncPatience, k.source.trouble())}
			}
			deadline.Reset(left)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tryToken returns an error if the API server does not let a token list and watch each required kind. The token in use stays so.
func (e *engagement) tryToken(ctx context.Context, token string) error {
	if err := e.conn.ask(ctx, token); err != nil {
		return err
	}
	for _, k := range e.kinds {
		if !k.Required {
			continue
		}
		if err := e.conn.mayRead(ctx, token, k.Resource, k.Selector); err != nil {
			return err
		}
	}
	return nil
}

// speak says everything that is in the cluster, and goes on saying what changes until the engagement ends.
func (e *engagement) speak(claims *federation.Claims) {
	e.reader.Begin(claims)
	e.wg.Go(func() { e.reader.Run(e.ctx) })
}

// watchOver probes the cluster until the engagement ends. When an answer comes again, whatever waits is woken; after a longer silence
// everything is connected anew, because connections that hung may not notice for as long again.
func (e *engagement) watchOver(interval time.Duration) {
	h := health{lastContact: time.Now()}
	e.health.Store(h)
	answered, silent := time.Now(), false
	e.wg.Go(func() {
		timer := time.NewTimer(interval)
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
			case <-e.ctx.Done():
				return
			}
			h.err = e.conn.Probe(e.ctx)
			if e.ctx.Err() != nil {
				return
			}
			reset := h.err == nil && silent && time.Since(answered) > 2*urgent+probeTimeout
			switch {
			case h.err != nil:
				silent = true
			case reset:
				e.conn.Reset()
			case silent:
				e.conn.wakes.Store(struct{}{})
			}
			if h.err == nil {
				answered, silent = time.Now(), false
				h.err = e.deaf()
			}
			h.restored = e.restored()
			if e.conn.budget != nil {
				h.overBudget = e.conn.budget.Problem()
			}
			next := min(interval, urgent)
			switch {
			case h.err == nil:
				h.lastContact, next = time.Now(), interval
			case reset:
				next = urgent / 5 // the watches are about to be back
			}
			e.health.Store(h)
			timer.Reset(next)
		}
	})
}

// restored returns when the API server was last found to have gone back to an older state.
func (e *engagement) restored() (last time.Time) {
	for _, k := range e.kinds {
		if at := k.source.Health().Restored; at.After(last) {
			last = at
		}
	}
	return last
}

// deaf returns an error if a kind that is needed would not tell of a change.
func (e *engagement) deaf() error {
	for _, k := range e.kinds {
		if !k.Required {
			continue
		}
		if excess, _ := k.source.excess.Load(); excess != nil {
			return &ProbeError{OverBudget, excess}
		}
		if k.source.alive() {
			continue
		}
		if refused := k.source.Health().Refused; refused != "" {
			return &ProbeError{Forbidden, fmt.Errorf("the API server refuses to watch %s (%s)", k.Resource.GroupResource(), refused)}
		}
		return &ProbeError{Unreachable, fmt.Errorf("the watch of %s is interrupted", k.Resource.GroupResource())}
	}
	return nil
}

var codecs = serializer.NewCodecFactory(scheme.Scheme)

// listerWatcher returns the requests for a kind: protobuf where there is one, all namespaces, filtered by the API server.
func listerWatcher(conn *Connection, k view.Kind) (cache.ListerWatcher, error) {
	if k.Versions != nil {
		client, err := dynamic.NewForConfigAndClient(conn.Config, conn.HTTPClient)
		if err != nil {
			return nil, err
		}
		return NewestLister(client, k.Resource.GroupResource(), k.Versions, metav1.NamespaceAll), nil
	}
	selected := func(o *metav1.ListOptions) { o.LabelSelector = k.Selector }
	if !k.Metadata {
		gvk := k.Resource.GroupVersion().WithKind(k.Name)
		client, err := apiutil.RESTClientForGVK(gvk, false, false, conn.Config, codecs, conn.HTTPClient)
		if err != nil {
			return nil, err
		}
		return cache.NewFilteredListWatchFromClient(client, k.Resource.Resource, metav1.NamespaceAll, selected), nil
	}
	client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(conn.Config), conn.HTTPClient)
	if err != nil {
		return nil, err
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			selected(&o)
			return client.Resource(k.Resource).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			selected(&o)
			return client.Resource(k.Resource).Watch(ctx, o)
		},
	}, nil
}

// NewestLister returns the requests for a custom resource, at the newest version that is served. An upgrade or a downgrade of its CRD
// shows at the next request.
func NewestLister(client dynamic.Interface, resource schema.GroupResource, versions []string, namespace string) cache.ListerWatcher {
	at := func(version string) dynamic.ResourceInterface {
		return client.Resource(resource.WithVersion(version)).Namespace(namespace)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return newest(versions, func(version string) (*unstructured.UnstructuredList, error) { return at(version).List(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return newest(versions, func(version string) (apiwatch.Interface, error) { return at(version).Watch(ctx, o) })
		},
	}
}

// newest returns the answer for the newest version that exists.
func newest[T any](versions []string, ask func(version string) (T, error)) (answer T, err error) {
	for _, version := range versions {
		if answer, err = ask(version); !apierrors.IsNotFound(err) {
			return answer, err
		}
	}
	return answer, err
}

// newFacade returns the cluster as controller-runtime knows one. Its RESTMapper is static, so that nothing is discovered, and its
// cache serves only what it was asked to watch.
func newFacade(conn *Connection, kinds []kind) (ctrlcluster.Cluster, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, k := range kinds {
		scope := meta.RESTScopeNamespace
		if k.Name == "Node" {
			scope = meta.RESTScopeRoot
		}
		gv := k.Resource.GroupVersion()
		mapper.AddSpecific(gv.WithKind(k.Name), k.Resource, schema.GroupVersionResource{}, scope)
	}
	return ctrlcluster.New(conn.Config, func(o *ctrlcluster.Options) {
		o.Scheme = scheme.Scheme
		o.HTTPClient = conn.HTTPClient
		o.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil }
		o.Cache = ctrlcache.Options{ReaderFailOnMissingInformer: true, DefaultTransform: ctrlcache.TransformStripManagedFields()}
	})
}
