package mirror

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/links"
)

// Options configure a Mirror.
type Options struct {
	// Namespace of Linkerd's multicluster extension, where its local service mirror has its Lease;
	// linkerd-multicluster if empty.
	Namespace string

	Headless         bool     // mirror headless Services as such
	CreateNamespaces bool     // create missing namespaces of mirrored Services
	Probe            bool     // probe gateways whose Links ask for it; otherwise all gateways count as alive
	Exclude          []string // keys not to copy besides controllerKeys; foo/* excludes all that begin with foo/
	MaxServices      int      // written for one linked cluster; 0: no limit

	// Dial is how gateways are probed, and Resolve how their names are resolved, for tests; over the network by
	// default.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// A Mirror writes the Services that Links ask for into the local cluster, while Run lasts.
type Mirror struct {
	log      logr.Logger
	store    *federation.Store
	registry *cluster.Registry
	links    *links.Reconciler
	local    *api.Connection
	options  Options

	core    kubernetes.Interface
	metrics *metrics

	currentTerm watch.Value[*term] // nil unless Run lasts
}

// New returns a Mirror that writes over local, which stays the caller's to close. store provides the
// endpoints of remote Services, and registry the guards of their clusters.
func New(
	log logr.Logger, store *federation.Store, registry *cluster.Registry, reconciler *links.Reconciler,
	local *api.Connection, options Options,
) (*Mirror, error) {
	mirror := &Mirror{
		log: log, store: store, registry: registry, links: reconciler, local: local, options: options,
		metrics: newMetrics(),
	}
	if mirror.options.Namespace == "" {
		mirror.options.Namespace = "linkerd-multicluster"
	}
	if mirror.options.Resolve == nil {
		mirror.options.Resolve = resolveHost
	}

	var err error
	if mirror.core, err = kubernetes.NewForConfigAndClient(local.Config, local.HTTPClient); err != nil {
		return nil, fmt.Errorf("client for mirrors: %w", err)
	}
	return mirror, nil
}

// Engage watches the Services of an engaged cluster while Run lasts. It is a [cluster.EngageFunc], given to
// [cluster.Registry.Engage].
func (m *Mirror) Engage(ctx context.Context, spec *watch.Value[cluster.Spec], conn *api.Connection) {
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

// Run writes until ctx ends, and returns after every goroutine that it started. It keeps no state of an
// earlier Run. Two Runs must not overlap. It reads the local cluster's Services over engaged, the connection of
// an engagement, whose watch it shares, writes what permissions allow, and reports failures.
func (m *Mirror) Run(
	ctx context.Context, engaged *api.Connection, permissions *apply.Permissions, failures *apply.Failures,
) error {
	defer m.metrics.forgetServices()
	defer m.links.ForgetMirrorStatuses()
	return newTerm(m, engaged, permissions, failures).run(ctx)
}

// Collectors returns the Mirror's metrics.
func (m *Mirror) Collectors() []prometheus.Collector { return m.metrics.vectors() }
