package multicluster

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	crcluster "sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// host is that of requests before route has them go to the API server, of whose address controllers know nothing.
const host = "https://cluster.invalid"

// discoveryTimeout is how long an API server may take to answer which kinds it has.
const discoveryTimeout = 10 * time.Second

// linked is a cluster from its first engagement until it is unlinked.
type linked struct {
	provider *Provider
	name     string
	spec     *watch.Value[cluster.Spec] // one as long as the cluster is linked

	config *rest.Config
	client *http.Client // of config
	held   account
	made   func() crcluster.Cluster // makes what is behind it once

	ctx     context.Context // ends when the cluster is unlinked, or with the Registry
	cancel  context.CancelCauseFunc
	mu      sync.Mutex
	running sync.WaitGroup // all its goroutines; started under mu while ctx has not ended
}

var _ crcluster.Cluster = (*linked)(nil)

// newLinked returns a cluster. It outlives ctx.
func (p *Provider) newLinked(ctx context.Context, name string, spec *watch.Value[cluster.Spec]) *linked {
	c := &linked{provider: p, name: name, spec: spec}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	c.config = &rest.Config{
		Host: host, Transport: route{c}, UserAgent: "fingerpost", QPS: -1, WarningHandler: rest.NoWarnings{},
	}
	c.client = &http.Client{Transport: route{c}}
	c.made = sync.OnceValue(c.make)
	return c
}

// end ends what runs of the cluster.
func (c *linked) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel(cause)
}

// run runs a function in a goroutine until the cluster ends; it does nothing once it has.
func (c *linked) run(f func(context.Context)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() == nil {
		c.running.Go(func() { f(c.ctx) })
	}
}

// connection returns that of the engagement in use, or an error once the cluster was unlinked.
func (c *linked) connection() (*api.Connection, error) {
	conn := c.provider.registry.Connection(c.name)
	switch cause := context.Cause(c.ctx); {
	case cause != nil:
		return nil, fmt.Errorf("cluster %s: %w", c.name, cause)
	case conn == nil: // the cluster has not noticed yet
		return nil, fmt.Errorf("cluster %s: %w", c.name, cluster.ErrUnlinked)
	default:
		return conn, nil
	}
}

// make makes the client and the cache, and starts the cache.
func (c *linked) make() crcluster.Cluster {
	made, err := c.build()
	if err != nil {
		panic("BUG: options of clusters were valid, and are not any more: " + err.Error())
	}
	c.run(func(ctx context.Context) {
		if err := made.Start(ctx); err != nil && ctx.Err() == nil {
			c.provider.log.Error(err, "BUG: the cache of a cluster has ended", "cluster", c.name)
		}
	})
	return made
}

// build makes the client and the cache, without using the network.
func (c *linked) build() (crcluster.Cluster, error) {
	return crcluster.New(c.config, func(options *crcluster.Options) {
		options.Scheme, options.HTTPClient = c.provider.options.Scheme, c.client
		options.Logger = c.provider.log.WithValues("cluster", c.name)
		options.MapperProvider = func(config *rest.Config, client *http.Client) (meta.RESTMapper, error) {
			bounded := *client
			bounded.Timeout = discoveryTimeout
			return apiutil.NewDynamicRESTMapper(config, &bounded)
		}

		options.NewCache = func(config *rest.Config, options cache.Options) (cache.Cache, error) {
			inner, err := cache.New(config, options)
			return newPatientCache(inner, c, options.Mapper), err
		}
		options.Cache.DefaultTransform = c.provider.options.Transform
		options.Cache.DefaultWatchErrorHandler = c.logWatchError
		options.Cache.NewInformer = func(
			source toolscache.ListerWatcher, example runtime.Object, resync time.Duration, by toolscache.Indexers,
		) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(c.newSource(source, example), example, resync, by)
		}
	})
}

// logWatchError logs why a kind is to be listed or watched again. The function of client-go for that writes to a
// logger of its own, and may sleep.
func (c *linked) logWatchError(ctx context.Context, of *toolscache.Reflector, err error) {
	if ctx.Err() == nil && !apierrors.IsResourceExpired(err) { // which is how it is listed anew
		c.provider.log.Info("A kind of a cluster cannot be listed or watched, and is tried again",
			"cluster", c.name, "kind", of.TypeDescription(), "error", err.Error())
	}
}

// Start waits until the cluster is unlinked or ctx ends: what runs of it was started when it was asked for.
func (c *linked) Start(ctx context.Context) error {
	select {
	case <-c.ctx.Done():
	case <-ctx.Done():
	}
	return nil
}

// GetConfig returns a configuration of which each client uses the connection that is in use.
func (c *linked) GetConfig() *rest.Config { return rest.CopyConfig(c.config) }

// GetHTTPClient returns a client for [linked.GetConfig].
func (c *linked) GetHTTPClient() *http.Client { return c.client }

func (c *linked) GetScheme() *runtime.Scheme           { return c.provider.options.Scheme }
func (c *linked) GetCache() cache.Cache                { return c.made().GetCache() }
func (c *linked) GetClient() client.Client             { return c.made().GetClient() }
func (c *linked) GetFieldIndexer() client.FieldIndexer { return c.made().GetFieldIndexer() }
func (c *linked) GetRESTMapper() meta.RESTMapper       { return c.made().GetRESTMapper() }
func (c *linked) GetAPIReader() client.Reader          { return c.made().GetAPIReader() }
func (c *linked) GetEventRecorder(name string) events.EventRecorder {
	return c.made().GetEventRecorder(name)
}

func (c *linked) GetEventRecorderFor(name string) record.EventRecorder {
	return c.made().GetEventRecorderFor(name) //nolint:staticcheck // the interface has it
}
