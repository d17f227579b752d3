package endpointslice

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/transport"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Options are those of a Writer, from flags.
type Options struct {
	Namespace    string // of the control plane, in every cluster: the Leases are there
	Installation string // name of the cluster that we run in
	Replica      string // distinguishes this replica from others
	Timing       lease.Timing
	Stop         <-chan struct{} // closed when the process is to end; nil: never
	Linked       <-chan struct{} // closed when it is known which clusters are linked; nil: the Store knows
	External     bool            // write the slices of ExternalWorkloads
	Federated    bool            // write slices with endpoints of other clusters
	MaxSlices    int             // of one source cluster in one Service; 0: any number
}

// A Writer writes slices into every engaged cluster that permits it.
type Writer struct {
	log      logr.Logger
	store    *federation.Store
	registry *cluster.Registry
	options  Options
	metrics  *writerMetrics

	// onLocalLease run in each term of the local cluster's FederatedLease, side by side.
	onLocalLease []func(term context.Context) error

	mu    sync.Mutex // guards conns
	conns map[string]*api.Connection
}

// NewWriter returns a Writer, whose Engage is to be given to the registry. Each of onLocalLease runs in each
// term in which this replica holds the local cluster's Lease, and returns when the term ends. If there are
// any, the replica campaigns for that Lease also if no slices are to be written.
func NewWriter(
	log logr.Logger, store *federation.Store, registry *cluster.Registry,
	onLocalLease []func(term context.Context) error, options Options,
) *Writer {
	return &Writer{
		log: log, store: store, registry: registry, options: options, metrics: newWriterMetrics(),
		onLocalLease: onLocalLease, conns: map[string]*api.Connection{},
	}
}

// Engage writes into one cluster until ctx ends. It is a [cluster.EngageFunc].
func (w *Writer) Engage(ctx context.Context, spec *watch.Value[cluster.Spec], conn *api.Connection) {
	first, _ := spec.Load()
	name := first.Name
	w.setConnection(name, conn)
	defer w.removeConnection(name, conn)
	c, err := w.newTargetCluster(name, conn)
	if err != nil {
		w.log.Error(err, "Nothing is written into the cluster", "cluster", name)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if w.options.External {
		wg.Go(func() { c.runWhilePermitted(ctx, ExternalLease, c.writeExternal, c.externalPermissions) })
	}
	if w.options.Federated || len(w.onLocalLease) > 0 && first.Local {
		wanted := func() (bool, <-chan struct{}) {
			s, changed := spec.Load()
			return s.Local || s.Slices, changed
		}
		wg.Go(func() { c.runWhileWanted(ctx, wanted) })
	}
}

func (w *Writer) setConnection(name string, conn *api.Connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[name] = conn
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

// connection returns the connection to a cluster; nil if there is none.
func (w *Writer) connection(name string) *api.Connection {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conns[name]
}

// linksKnown reports whether it is known which clusters are linked.
func (w *Writer) linksKnown() bool {
	select {
	case <-w.options.Linked:
		return true
	default:
		return w.options.Linked == nil
	}
}

func (w *Writer) newTargetCluster(name string, conn *api.Connection) (*targetCluster, error) {
	c := &targetCluster{
		writer: w, log: w.log.WithValues("cluster", name), name: name, conn: conn,
		local:    name == w.options.Installation,
		identity: w.options.Replica + "_" + rand.String(8),
		leases:   map[string]leaseState{},
	}
	// The user agent distinguishes replicas in the API server's audit log.
	client := &http.Client{
		Transport: transport.NewUserAgentRoundTripper("fingerpost/"+c.identity, conn.HTTPClient.Transport),
	}
	var err error
	if c.client, err = kubernetes.NewForConfigAndClient(conn.Config, client); err != nil {
		return nil, fmt.Errorf("client to write slices: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(conn.Config, client); err != nil {
		return nil, fmt.Errorf("client to read ExternalWorkloads: %w", err)
	}
	return c, nil
}
