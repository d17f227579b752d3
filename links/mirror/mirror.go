package mirror

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/links"
)

// Options are what the operator decides about mirrors.
type Options struct {
	Namespace        string          // of Linkerd's multicluster extension, where its local service mirror has its Lease; empty: linkerd-multicluster
	Headless         bool            // mirror headless Services as such
	CreateNamespaces bool            // create the namespaces that mirrored Services are in, where they are missing
	Probe            bool            // ask gateways whether they are alive, where Links say how; otherwise they count as alive
	Exclude          []string        // keys of labels and annotations that are not copied besides those of known controllers; foo/* for all that begin with foo/
	MaxServices      int             // that stand here for one linked cluster; 0: any number
	Local            labels.Selector // Services of the local cluster that join federated ones; nil: mirror.linkerd.io/federated=member

	Resolve  func(ctx context.Context, host string) ([]netip.Addr, error)         // of a gateway; nil: the system's
	Dial     func(ctx context.Context, network, address string) (net.Conn, error) // to a gateway, to probe it; nil: the network's
	ProbeURL func(*links.Mirroring) string                                        // of a gateway; nil: the Service probe-<link>
}

// A Mirror writes what Links ask for into the local cluster, while it is let.
type Mirror struct {
	log     logr.Logger
	store   *federation.Store
	links   *links.Reconciler
	local   *cluster.Connection
	options Options

	core    kubernetes.Interface
	dynamic dynamic.Interface
	metrics *metrics

	currentTerm watch.Value[*term] // nil while nothing is to be written
}

// New returns a Mirror that writes over local, which it does not close. store says who answers for remote Services.
func New(log logr.Logger, store *federation.Store, reconciler *links.Reconciler, local *cluster.Connection, options Options) (*Mirror, error) {
	m := &Mirror{log: log, store: store, links: reconciler, local: local, options: options, metrics: newMetrics()}
	if m.options.Namespace == "" {
		m.options.Namespace = "linkerd-multicluster"
	}
	if m.options.Local == nil {
		m.options.Local = labels.SelectorFromSet(labels.Set{federatedLabel: "member"})
	}
	if m.options.Resolve == nil {
		m.options.Resolve = resolveHost
	}
	if m.options.ProbeURL == nil {
		m.options.ProbeURL = probeURL
	}
	var err error
	if m.core, err = kubernetes.NewForConfigAndClient(local.Config, local.HTTPClient); err != nil {
		return nil, fmt.Errorf("client for mirrors: %w", err)
	}
	if m.dynamic, err = dynamic.NewForConfigAndClient(local.Config, local.HTTPClient); err != nil {
		return nil, fmt.Errorf("client for Links: %w", err)
	}
	return m, nil
}

// Attend reads the Services of an engaged cluster while a Run lasts. It is a [cluster.Attendant], given to [cluster.Registry.Attend].
func (m *Mirror) Engage(ctx context.Context, spec *watch.Value[cluster.Spec], conn *cluster.Connection) {
	now, _ := spec.Load()
	if now.Local {
		return
	}
	for ctx.Err() == nil {
		t, changed := m.currentTerm.Load()
		if t != nil {
			t.readCluster(ctx, now.Name, conn)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Run writes until term ends, and returns when everything that it has started has ended. It begins by looking at everything anew. Runs
// must not overlap.
func (m *Mirror) Run(term context.Context) error {
	defer m.metrics.services.Reset()
	return newTerm(m).run(term)
}

// Collectors returns the Mirror's metrics, to be registered.
func (m *Mirror) Collectors() []prometheus.Collector { return m.metrics.collectors() }
