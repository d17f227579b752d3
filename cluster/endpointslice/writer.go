package endpointslice

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/events"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Options are those of a Writer, from flags.
type Options struct {
	Namespace string // of the control plane
	Local     string // name of the local cluster
	Links     Links
	External  bool // write the slices of ExternalWorkloads
	Federated bool // write slices with endpoints of other clusters
	MaxSlices int  // of one source cluster in one Service; 0: any number

	Events events.EventRecorder // of Services of the local cluster
}

// Links is what links clusters. See links.Reconciler, which implements it.
type Links interface {
	Membership() (*federation.Membership, <-chan struct{})
}

// A Writer writes slices into every engaged cluster that permits it. What it does in one cluster is two tasks of
// a Campaign.
type Writer struct {
	store    *federation.Store
	registry *cluster.Registry
	options  Options
	metrics  *writerMetrics

	mu    sync.Mutex                 // guards conns, and that series are those of clusters in it
	conns map[string]*api.Connection // by cluster: its series are those of the newest
}

// NewWriter returns a Writer, which writes what a Campaign has it write. Its Engage is to be given to the registry.
func NewWriter(store *federation.Store, registry *cluster.Registry, options Options) *Writer {
	return &Writer{
		store: store, registry: registry, options: options, metrics: newWriterMetrics(),
		conns: map[string]*api.Connection{},
	}
}

// AddTo adds the tasks of the Writer to a Campaign.
func (w *Writer) AddTo(campaign *apply.Campaign) {
	if w.options.External {
		campaign.Add(linkerd.ExternalWorkloadsLease, apply.Task{
			Name:   "slices of ExternalWorkloads",
			Needs:  externalPermissions,
			Review: reviewExternal,
			Run: func(term context.Context, t *apply.Target) error {
				return newExternalSlices(w, t).loop.Run(term)
			},
		})
	}

	if w.options.Federated {
		campaign.Add(apply.OwnLease, apply.Task{
			Name:   "slices of federated Services",
			Wanted: func(s cluster.Spec) bool { return s.Local || s.Slices },
			Needs:  permissions,
			Run: func(term context.Context, t *apply.Target) error {
				return newFederatedSlices(w, t).run(term)
			},
			Clean: w.deleteOwn,
		})
	}
}

// Engage has the metrics of one cluster, until ctx ends. It is a [cluster.EngageFunc].
func (w *Writer) Engage(ctx context.Context, spec *watch.Value[cluster.Spec], conn *api.Connection) {
	now, _ := spec.Load()
	w.mu.Lock()
	w.conns[now.Name] = conn
	w.mu.Unlock()
	<-ctx.Done()
	w.removeConnection(now.Name, conn)
}

// removeConnection does nothing if a successor of the connection is set already.
func (w *Writer) removeConnection(name string, conn *api.Connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns[name] == conn {
		delete(w.conns, name)
		w.metrics.deleteSeries(name)
	}
}

// count counts what was done in a cluster. Once that is not engaged any more, as while what it was unlinked with is
// deleted, its series are gone and stay so.
func (w *Writer) count(counter *prometheus.CounterVec, name string, labels ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns[name] != nil {
		counter.WithLabelValues(append([]string{name}, labels...)...).Inc()
	}
}
