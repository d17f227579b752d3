// Package app builds a replica of Fingerpost, once for all who run one: the serve command, scenarios and tests.
package app

import (
	"context"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/endpointslice"
	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/links/mirror"
)

// appOptions is everything that an App depends on. Nothing in this package reads flags, files or the environment.
type Options struct {
	Version   string       // of the binary
	Replica   string       // name of this replica: no other replica has it
	Config    *rest.Config // access to the local cluster
	InCluster bool         // this process runs in a Pod of the local cluster

	Addr, AdminAddr, DebugAddr string          // of the gRPC server, the admin server and the debug server; empty for none
	TLS                        server.TLSFiles // of the gRPC server
	Pprof                      bool            // on the admin server
	QueueMetrics               bool            // export workqueue_*

	ClusterName   string // of the local cluster
	LinkNamespace string // empty for all
	AllowedHosts  []string
	ProbeInterval time.Duration
	Patience      federation.Patience
	Budget        records.Limits // of each linked cluster
	ReadSlices    bool           // read EndpointSlices; otherwise Endpoints
	Mirrors       bool           // write the Services that Links ask for
	Mirror        mirror.Options
	Writer        endpointslice.Options
	Discovery     discovery.Config
}

// An App is one replica, with every part built and none started. The fields are for tests.
type App struct {
	Store     *federation.Store
	Registry  *cluster.Registry
	Links     *links.Reconciler
	Discovery *discovery.Server
	Metrics   *prometheus.Registry
	Ready     *server.Readiness

	manager mcmanager.Manager
}

// newApp builds a replica. ctx is the one that Run will get.
func New(ctx context.Context, log logr.Logger, o Options) (*App, error) {
	o.Discovery.Cluster = federation.Cluster(o.ClusterName)
	o.Writer.Namespace, o.Writer.Installation, o.Writer.Replica = o.Discovery.ControllerNamespace, o.ClusterName, o.Replica
	if !o.ReadSlices {
		o.Writer.External, o.Writer.Federated = false, false
	}
	store := federation.NewStore()
	registry := cluster.NewRegistry(log, store, cluster.Options{
		ProbeInterval: o.ProbeInterval, Patience: o.Patience, Budget: o.Budget, Endpoints: !o.ReadSlices,
	})
	err := registry.Apply(cluster.Spec{
		Name: o.ClusterName, Local: true, TrustDomain: o.Discovery.TrustDomain, ClusterDomain: o.Discovery.ClusterDomain,
		Access: []cluster.Access{{Source: "this process's own", Config: o.Config}},
	})
	if err != nil {
		return nil, err
	}
	mgr, err := newManager(o.Config, registry, o.Discovery.DrainWindow, log)
	if err != nil {
		return nil, err
	}
	hostConn, err := cluster.NewConnection(registry.Counted(o.ClusterName, o.Config), nil)
	if err != nil {
		return nil, err
	}
	ready := server.NewReadiness(o.ClusterName, registry.Statuses)
	reconciler, err := links.NewReconciler(log, hostConn, registry, mgr.GetLocalManager().GetEventRecorder("fingerpost"), func() {
		ready.LinksListed.Store(true)
		store.Listed()
	}, links.Options{
		ClusterName: o.ClusterName, TrustDomain: o.Discovery.TrustDomain, ControllerNamespace: o.Discovery.ControllerNamespace,
		LinkNamespace: o.LinkNamespace, Hosts: links.Hosts{InCluster: o.InCluster, Allowed: o.AllowedHosts},
	})
	if err != nil {
		return nil, err
	}
	mirrors, err := mirror.New(log, store, reconciler, hostConn, o.Mirror)
	if err != nil {
		return nil, err
	}
	var mirroring func(context.Context) error
	if o.Mirrors {
		mirroring = mirrors.Run
		registry.Attend(mirrors.Engage)
	}
	o.Writer.Stop, o.Writer.Linked = ctx.Done(), reconciler.AllApplied()
	writer := endpointslice.NewWriter(log, store, registry, mirroring, o.Writer)
	registry.Attend(writer.Engage)

	a := &App{
		Store: store, Registry: registry, Links: reconciler, Discovery: discovery.NewServer(log, store, o.Discovery),
		Metrics: server.NewMetrics(), Ready: ready, manager: mgr,
	}
	a.Metrics.MustRegister(registry)
	for _, collectors := range [][]prometheus.Collector{
		a.Discovery.Collectors(), reconciler.Collectors(), writer.Collectors(), mirrors.Collectors(), {ready.Metric()},
	} {
		a.Metrics.MustRegister(collectors...)
	}
	return a, a.addServers(log, o)
}

// addServers adds what listens.
func (a *App) addServers(log logr.Logger, o Options) error {
	var queues prometheus.Gatherers
	if o.QueueMetrics {
		queues = prometheus.Gatherers{a.Registry.Queues()}
	}
	parts := []manager.Runnable{
		a.Links,
		a.Ready,
		server.NewGRPC(log, o.Addr, o.TLS, a.Discovery, a.Ready, o.Discovery, a.Metrics),
		&server.HTTP{Log: log, Name: "admin", Addr: o.AdminAddr, Handler: server.AdminHandler(a.Metrics, a.Ready.Ready, o.Pprof, queues...)},
		&server.HTTP{Log: log, Name: "debug", Addr: o.DebugAddr, Handler: debug.Handler(debug.Sources{
			Store: a.Store, Registry: a.Registry, Links: a.Links, Discovery: a.Discovery, Cluster: o.ClusterName, Replica: o.Replica, Version: o.Version,
		})},
	}
	for _, r := range parts {
		if err := a.manager.GetLocalManager().Add(r); err != nil {
			return err
		}
	}
	return nil
}

// Run runs all parts until ctx ends or one of them fails.
func (a *App) Run(ctx context.Context) error { return a.manager.Start(ctx) }

// newManager returns the manager that runs the process: every part of it starts and stops with it. It elects nobody, serves nothing
// and knows no kinds: those are the parts' own business.
func newManager(config *rest.Config, registry *cluster.Registry, drain time.Duration, log logr.Logger) (mcmanager.Manager, error) {
	patience := drain + 10*time.Second
	return mcmanager.New(config, registry, ctrl.Options{
		Scheme:                  scheme.Scheme,
		Logger:                  log,
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		GracefulShutdownTimeout: &patience,
		MapperProvider:          func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil },
	})
}
