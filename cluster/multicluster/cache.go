package multicluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// readPatience is how long a read of the cache waits for the first list of its kind. A worker that waits reconciles
// nothing else.
const readPatience = 5 * time.Second

// kindKey is a kind as the cache holds it: typed, without type, or metadata only.
type kindKey struct {
	schema.GroupVersionKind
	form string
}

// kindOf returns the kind of an object, or of the items of a list, and an empty object of it.
func kindOf(object runtime.Object, scheme *runtime.Scheme) (kindKey, client.Object, error) {
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return kindKey{}, nil, err
	}
	if _, isList := object.(client.ObjectList); isList {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}

	switch object.(type) {
	case runtime.Unstructured:
		prototype := &unstructured.Unstructured{}
		prototype.SetGroupVersionKind(gvk)
		return kindKey{gvk, "unstructured"}, prototype, nil
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		prototype := &metav1.PartialObjectMetadata{}
		prototype.SetGroupVersionKind(gvk)
		return kindKey{gvk, "metadata"}, prototype, nil
	}

	made, err := scheme.New(gvk)
	if err != nil {
		return kindKey{}, nil, err
	}
	prototype, is := made.(client.Object)
	if !is {
		return kindKey{}, nil, fmt.Errorf("%s has no metadata: it cannot be cached", gvk)
	}
	return kindKey{gvk, "typed"}, prototype, nil
}

// index is one that caches have of a kind.
type index struct {
	of        *linked // nil for all clusters
	kind      kindKey
	prototype client.Object
	field     string
	extract   client.IndexerFunc
}

// patientCache is the cache of a cluster. Only its reads wait, and not for long; see the package comment.
type patientCache struct {
	cache.Cache
	cluster *linked
	mapper  meta.RESTMapper
	started chan struct{} // closed once it was

	mu    sync.Mutex
	kinds map[kindKey]*kind
}

func newPatientCache(inner cache.Cache, of *linked, mapper meta.RESTMapper) *patientCache {
	return &patientCache{
		Cache: inner, cluster: of, mapper: mapper, started: make(chan struct{}), kinds: map[kindKey]*kind{},
	}
}

// Start runs the informers until ctx ends.
func (c *patientCache) Start(ctx context.Context) error {
	c.cluster.run(func(ctx context.Context) {
		if c.Cache.WaitForCacheSync(ctx) { // there is no kind yet
			close(c.started)
		}
	})
	return c.Cache.Start(ctx)
}

// Get reads an object.
func (c *patientCache) Get(
	ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption,
) error {
	return c.read(ctx, into, func(ctx context.Context) error { return c.Cache.Get(ctx, key, into, options...) })
}

// List reads objects.
func (c *patientCache) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	return c.read(ctx, into, func(ctx context.Context) error { return c.Cache.List(ctx, into, options...) })
}

// read reads once the kind of an object is cached. It returns an error if that takes too long.
func (c *patientCache) read(ctx context.Context, object runtime.Object, read func(context.Context) error) error {
	kind, err := c.kind(object)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()

	if err := kind.await(ctx); err != nil {
		return fmt.Errorf("%s of cluster %s cannot be read: %w", kind.key.Kind, c.cluster.name, err)
	}
	if err := kind.addIndexes(ctx); err != nil {
		return err
	}
	return read(ctx)
}

// GetInformer returns the informer of a kind. It never waits, whatever the options ask for.
func (c *patientCache) GetInformer(
	_ context.Context, object client.Object, _ ...cache.InformerGetOption,
) (cache.Informer, error) {
	kind, err := c.kind(object)
	if err != nil {
		return nil, err // not a typed nil
	}
	return kind, nil
}

// GetInformerForKind returns the informer of a kind, as GetInformer does.
func (c *patientCache) GetInformerForKind(
	ctx context.Context, kind schema.GroupVersionKind, options ...cache.InformerGetOption,
) (cache.Informer, error) {
	made, err := c.cluster.GetScheme().New(kind)
	if err != nil {
		return nil, err
	}
	object, is := made.(client.Object)
	if !is {
		return nil, fmt.Errorf("%s has no metadata: it cannot be cached", kind)
	}
	return c.GetInformer(ctx, object, options...)
}

// RemoveInformer ends the informer of a kind. Its handlers are called no more.
func (c *patientCache) RemoveInformer(ctx context.Context, object client.Object) error {
	key, _, err := kindOf(object, c.cluster.GetScheme())
	if err != nil {
		return err
	}
	c.mu.Lock()
	removed := c.kinds[key]
	delete(c.kinds, key)
	c.mu.Unlock()

	if removed == nil {
		return nil
	}
	removed.remove()
	return c.Cache.RemoveInformer(ctx, object)
}

// WaitForCacheSync returns true at once, unless the cluster was unlinked. Controllers call it under their locks;
// reads wait by themselves.
func (c *patientCache) WaitForCacheSync(ctx context.Context) bool {
	return ctx.Err() == nil && c.cluster.ctx.Err() == nil
}

// IndexField has the cache of this cluster index a kind by a field, as [Provider.IndexField] does for all.
func (c *patientCache) IndexField(
	_ context.Context, object client.Object, field string, extract client.IndexerFunc,
) error {
	return c.cluster.provider.addIndex(c.cluster, object, field, extract)
}

// kind returns that of an object, or of the items of a list.
func (c *patientCache) kind(object runtime.Object) (*kind, error) {
	key, prototype, err := kindOf(object, c.cluster.GetScheme())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	k := c.kinds[key]
	if k == nil {
		k = &kind{cache: c, key: key, prototype: prototype, removed: make(chan struct{})}
		c.kinds[key] = k
		c.cluster.run(k.prepare)
	}
	return k, nil
}

// kind is one kind in the cache of a cluster, and its informer for those who watch it. It takes handlers before the
// API server was asked for the kind.
type kind struct {
	cache     *patientCache
	key       kindKey
	prototype client.Object
	prepared  watch.Value[preparation]
	removed   chan struct{}

	mu       sync.Mutex
	informer cache.Informer // nil until it is prepared
	handlers []*registration
	indexers []toolscache.Indexers // that wait for the informer
	indexed  []index               // that the informer has
}

// preparation is how far a kind is.
type preparation struct {
	tried bool
	err   error // of the last try; nil once the informer runs
}

// prepare has the informer made, and tries until that succeeds: it needs to know how the API server names the kind.
func (k *kind) prepare(ctx context.Context) {
	select {
	case <-k.cache.started:
	case <-ctx.Done():
		return
	}

	log := k.cache.cluster.provider.log.WithValues("cluster", k.cache.cluster.name, "kind", k.key.String())
	for pause := minRetry; !watch.IsClosed(k.removed); pause = min(2*pause, maxRetry) {
		err := k.tryPrepare(ctx)
		last, _ := k.prepared.Load()
		k.prepared.Store(preparation{true, err})
		if err == nil || ctx.Err() != nil {
			return
		}

		if !last.tried || last.err.Error() != err.Error() {
			log.Info("A kind of a cluster cannot be cached, and is tried again", "error", err.Error())
		}
		sleep(ctx, pause)
	}
}

func (k *kind) tryPrepare(ctx context.Context) error {
	// Before the cache asks for it, which does so under its lock.
	if _, err := k.cache.mapper.RESTMapping(k.key.GroupKind(), k.key.Version); err != nil {
		return err
	}
	informer, err := k.cache.Cache.GetInformer(ctx, k.prototype, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	if err := k.addIndexes(ctx); err != nil {
		return err
	}

	k.mu.Lock()
	defer k.mu.Unlock()
	for _, more := range k.indexers {
		if err := informer.AddIndexers(more); err != nil {
			return err
		}
	}
	k.indexers = nil

	for _, r := range k.handlers {
		if r.inner, err = informer.AddEventHandlerWithOptions(r.handler, r.options); err != nil {
			return err
		}
	}
	k.informer, k.handlers = informer, nil
	return nil
}

// addIndexes adds to the informer the indexes that it lacks. The informer is there, and this does not wait.
func (k *kind) addIndexes(ctx context.Context) error {
	indexes, _ := k.cache.cluster.provider.indexes.Load()
	k.mu.Lock()
	defer k.mu.Unlock()

	for _, i := range indexes {
		ours := i.kind == k.key && (i.of == nil || i.of == k.cache.cluster)
		same := func(o index) bool { return o.field == i.field }
		if !ours || slices.ContainsFunc(k.indexed, same) {
			continue
		}
		if err := k.cache.Cache.IndexField(ctx, i.prototype, i.field, i.extract); err != nil {
			return fmt.Errorf("index of %s by %s: %w", k.key.Kind, i.field, err)
		}
		k.indexed = append(k.indexed, i)
	}
	return nil
}

// await waits until the kind was tried, and returns what came of it.
func (k *kind) await(ctx context.Context) error {
	for {
		p, changed := k.prepared.Load()
		if p.tried {
			return p.err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-k.cache.cluster.ctx.Done():
			return context.Cause(k.cache.cluster.ctx)
		}
	}
}

// current returns the informer; nil until it was made.
func (k *kind) current() cache.Informer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.informer
}

// remove ends it.
func (k *kind) remove() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handlers = nil
	close(k.removed)
}

// AddEventHandler adds a handler, with the resync period of the cache.
func (k *kind) AddEventHandler(
	handler toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return k.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod adds a handler.
func (k *kind) AddEventHandlerWithResyncPeriod(
	handler toolscache.ResourceEventHandler, resync time.Duration,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return k.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{ResyncPeriod: &resync})
}

// AddEventHandlerWithOptions adds a handler.
func (k *kind) AddEventHandlerWithOptions(
	handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	if options.ResyncPeriod != nil && *options.ResyncPeriod == 0 {
		handler = changesOnly{handler}
	}
	k.mu.Lock()
	defer k.mu.Unlock()

	added := &registration{kind: k, handler: handler, options: options}
	if k.informer == nil {
		k.handlers = append(k.handlers, added)
		return added, nil
	}
	var err error
	added.inner, err = k.informer.AddEventHandlerWithOptions(handler, options)
	return added, err
}

// RemoveEventHandler removes a handler that was added.
func (k *kind) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	added, is := handle.(*registration)
	if !is || added.kind != k {
		return fmt.Errorf("a handler that was not added to the informer of %s", k.key)
	}
	k.mu.Lock()
	defer k.mu.Unlock()

	k.handlers = slices.DeleteFunc(k.handlers, func(r *registration) bool { return r == added })
	if added.inner == nil {
		return nil
	}
	return k.informer.RemoveEventHandler(added.inner)
}

// AddIndexers adds indexers.
func (k *kind) AddIndexers(more toolscache.Indexers) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.informer == nil {
		k.indexers = append(k.indexers, more)
		return nil
	}
	return k.informer.AddIndexers(more)
}

// HasSynced reports whether the kind was listed.
func (k *kind) HasSynced() bool {
	informer := k.current()
	return informer != nil && informer.HasSynced()
}

// HasSyncedChecker returns what is done once the kind was listed.
func (k *kind) HasSyncedChecker() toolscache.DoneChecker {
	return k.newChecker(func() toolscache.DoneChecker { return k.current().HasSyncedChecker() })
}

// IsStopped reports whether the informer has ended.
func (k *kind) IsStopped() bool {
	informer := k.current()
	return k.cache.cluster.ctx.Err() != nil || watch.IsClosed(k.removed) || informer != nil && informer.IsStopped()
}

// newChecker returns what is done once another one is, which exists when the informer does.
func (k *kind) newChecker(later func() toolscache.DoneChecker) toolscache.DoneChecker {
	check := checker{k.key.String() + " of cluster " + k.cache.cluster.name, make(chan struct{})}

	k.cache.cluster.run(func(ctx context.Context) {
		for {
			p, changed := k.prepared.Load()
			if p.tried && p.err == nil {
				break
			}
			select {
			case <-changed:
			case <-k.removed:
				return
			case <-ctx.Done():
				return
			}
		}

		select {
		case <-later().Done():
			close(check.done)
		case <-k.removed:
		case <-ctx.Done():
		}
	})

	return check
}

type checker struct {
	name string
	done chan struct{}
}

func (c checker) Name() string          { return c.name }
func (c checker) Done() <-chan struct{} { return c.done }

// changesOnly leaves out updates that change nothing. An informer gives them to a handler that asked for no resyncs,
// too, when the kind was listed anew: a new connection would be a reason to reconcile everything.
type changesOnly struct {
	toolscache.ResourceEventHandler
}

// OnUpdate passes on an update.
func (h changesOnly) OnUpdate(before, now any) {
	was, errWas := meta.Accessor(before)
	is, err := meta.Accessor(now)
	if errors.Join(errWas, err) == nil && was.GetResourceVersion() == is.GetResourceVersion() &&
		was.GetUID() == is.GetUID() {
		return
	}
	h.ResourceEventHandler.OnUpdate(before, now)
}

// registration is a handler of an informer that may not exist yet.
type registration struct {
	kind    *kind
	handler toolscache.ResourceEventHandler
	options toolscache.HandlerOptions
	inner   toolscache.ResourceEventHandlerRegistration // nil until the informer exists; guarded by kind.mu
}

func (r *registration) current() toolscache.ResourceEventHandlerRegistration {
	r.kind.mu.Lock()
	defer r.kind.mu.Unlock()
	return r.inner
}

// HasSynced reports whether the handler was given all that was listed first.
func (r *registration) HasSynced() bool {
	inner := r.current()
	return inner != nil && inner.HasSynced()
}

// HasSyncedChecker returns what is done once HasSynced reports true.
func (r *registration) HasSyncedChecker() toolscache.DoneChecker {
	return r.kind.newChecker(func() toolscache.DoneChecker { return r.current().HasSyncedChecker() })
}
