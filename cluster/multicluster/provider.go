package multicluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	mcr "sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
)

const (
	minRetry = time.Second
	maxRetry = 15 * time.Second
)

// Options are what a Provider's clusters have in common.
type Options struct {
	// Scheme has the types of what is read and written; nil for the types of Kubernetes itself.
	Scheme *runtime.Scheme

	// Transform changes each object before it is cached, so that less is held of it; nil for no change.
	Transform toolscache.TransformFunc

	// Select returns the label and field selectors with which a kind is listed and watched; nil, or empty ones, for
	// all of it.
	Select func(schema.GroupVersionKind) (labels, fields string)
}

// A Provider is the [mcr.Provider] of the clusters of a Registry, by the names that their Links give them. The local
// cluster is one of them, under its own name. Its methods may be called from any goroutine.
type Provider struct {
	log      logr.Logger
	registry *cluster.Registry
	options  Options
	running  atomic.Bool

	clusters watch.Value[map[string]*linked] // those that are engaged; immutable maps, stored under mu
	indexes  watch.Value[[]index]            // never written to; stored under mu

	mu sync.Mutex
}

var (
	_ mcr.Provider         = (*Provider)(nil)
	_ mcr.ProviderRunnable = (*Provider)(nil)
)

// NewProvider returns the Provider of a Registry that has not started yet. Clusters are engaged while the Registry
// runs. An error is one of the options.
func NewProvider(log logr.Logger, registry *cluster.Registry, options Options) (*Provider, error) {
	if options.Scheme == nil {
		options.Scheme = scheme.Scheme
	}
	provider := &Provider{log: log, registry: registry, options: options}

	// Options that no cluster can be made of are found now; the network is not used.
	trial := provider.newLinked(context.Background(), "trial", nil) //nolint:forbidigo // it ends at once
	trial.end(errors.New("it was a trial"))
	if _, err := trial.build(); err != nil {
		return nil, fmt.Errorf("options of clusters: %w", err)
	}

	registry.Engage(provider.engage)
	return provider, nil
}

// Get returns a cluster that is engaged. For others the error wraps [mcr.ErrClusterNotFound]: for one that is not
// linked, and for one that is and could not be connected to yet. It does not use the network.
func (p *Provider) Get(_ context.Context, name mcr.ClusterName) (crcluster.Cluster, error) {
	clusters, _ := p.clusters.Load()
	if c := clusters[string(name)]; c != nil {
		return c, nil
	}
	if names, _ := p.registry.Names(); slices.Contains(names, string(name)) {
		return nil, fmt.Errorf("cluster %q is linked, and was not connected to yet: %w", name, mcr.ErrClusterNotFound)
	}
	return nil, fmt.Errorf("cluster %q is not linked: %w", name, mcr.ErrClusterNotFound)
}

// IndexField has the caches of all clusters, those that are linked later included, index a kind by a field. It does
// not use the network: the index is there before the kind is read next. An error is that the scheme does not have the
// kind, or that the kind has an index of that field.
func (p *Provider) IndexField(
	_ context.Context, object client.Object, field string, extract client.IndexerFunc,
) error {
	return p.addIndex(nil, object, field, extract)
}

// addIndex adds an index to the caches of all clusters, or of one.
func (p *Provider) addIndex(of *linked, object client.Object, field string, extract client.IndexerFunc) error {
	key, prototype, err := kindOf(object, p.options.Scheme)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	indexes, _ := p.indexes.Load()
	for _, i := range indexes {
		if i.kind == key && i.field == field && (i.of == nil || of == nil || i.of == of) {
			return fmt.Errorf("%s has an index of the field %q already", key.GroupVersionKind, field)
		}
	}
	added := index{of: of, kind: key, prototype: prototype, field: field, extract: extract}
	p.indexes.Store(append(slices.Clip(indexes), added))
	return nil
}

// Start engages the clusters of the Registry with aware, as they come, until ctx ends. An Engage that fails is
// tried again, and one that does not return delays no other cluster. A manager calls Start; while one does, a second
// one is refused.
func (p *Provider) Start(ctx context.Context, aware mcr.Aware) error {
	if !p.running.CompareAndSwap(false, true) {
		return errors.New("the Provider runs already: each manager needs one of its own")
	}
	defer p.running.Store(false)
	var wg sync.WaitGroup
	defer wg.Wait()

	for engaged := map[string]*linked(nil); ; {
		clusters, changed := p.clusters.Load()
		for name, c := range clusters {
			if engaged[name] != c {
				wg.Go(func() { p.engageWith(ctx, aware, c) })
			}
		}
		engaged = clusters

		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// engageWith engages a cluster with aware until the cluster is unlinked or ctx ends.
func (p *Provider) engageWith(ctx context.Context, aware mcr.Aware, engaged *linked) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(engaged.ctx, func() { cancel(context.Cause(engaged.ctx)) })()

	for pause := minRetry; ctx.Err() == nil; pause = min(2*pause, maxRetry) {
		err := aware.Engage(ctx, mcr.ClusterName(engaged.name), engaged)
		if err == nil {
			<-ctx.Done()
			return
		}
		p.log.Error(err, "A controller does not engage a cluster, and is asked to again", "cluster", engaged.name)
		sleep(ctx, pause)
	}
}

// sleep returns after a pause, or when ctx ends.
func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// engage keeps a cluster for as long as it has an engagement. It is a [cluster.EngageFunc].
func (p *Provider) engage(ctx context.Context, spec *watch.Value[cluster.Spec], _ *api.Connection) {
	kept := p.keep(ctx, spec)
	if kept == nil {
		return
	}

	<-ctx.Done()
	if errors.Is(context.Cause(ctx), cluster.ErrReplaced) {
		return // the next engagement has the cluster
	}
	p.remove(kept)
	kept.end(context.Cause(ctx))
	kept.running.Wait()
}

// keep returns the cluster of an engagement, which may have had others before; nil if the engagement has ended.
func (p *Provider) keep(ctx context.Context, spec *watch.Value[cluster.Spec]) *linked {
	p.mu.Lock()
	defer p.mu.Unlock()

	clusters, _ := p.clusters.Load()
	wanted, _ := spec.Load()
	known := clusters[wanted.Name]
	switch {
	case known != nil && known.spec == spec:
		return known // and if this engagement has ended already, it is the one to remove it
	case ctx.Err() != nil:
		return nil
	}

	// One of the same name that was unlinked a moment ago has not noticed yet.
	added := p.newLinked(ctx, wanted.Name, spec)
	next := maps.Clone(clusters)
	if next == nil {
		next = map[string]*linked{}
	}
	next[wanted.Name] = added
	p.clusters.Store(next)
	return added
}

// remove forgets a cluster, unless another one has its name by now.
func (p *Provider) remove(gone *linked) {
	p.mu.Lock()
	defer p.mu.Unlock()

	clusters, _ := p.clusters.Load()
	if clusters[gone.name] == gone {
		next := maps.Clone(clusters)
		delete(next, gone.name)
		p.clusters.Store(next)
	}

	indexes, _ := p.indexes.Load()
	ofIt := func(i index) bool { return i.of == gone }
	if slices.ContainsFunc(indexes, ofIt) {
		p.indexes.Store(slices.DeleteFunc(slices.Clone(indexes), ofIt))
	}
}
