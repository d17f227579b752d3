package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/endpointslice"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/links/mirror"
)

func serveCommand() *cobra.Command {
	var o options
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	o.flags(fs)
	cmd := &cobra.Command{
		Use:     "serve",
		Aliases: []string{"destination"},
		Short:   "Serve Linkerd's Destination API from this cluster and those that are linked",
		Long: `Serve Linkerd's Destination API from this cluster and those that are linked.

Flags may be written with one dash or two, and are those of Linkerd's destination container, which this
replaces; given twice, the last one wins. Clusters are linked by Links (multicluster.linkerd.io) and by the
labelled Secrets that 'linkerd multicluster link-gen' prints.

HOSTNAME must be set, unless EndpointSlices are off: it is the name by which replicas tell each other
apart. In a Pod it is; elsewhere say HOSTNAME=$(hostname) fingerpost serve.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.version {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), versionText())
				return err
			}
			given := map[string]bool{}
			cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
			return serve(cmd.Context(), o, given)
		},
	}
	cmd.Flags().AddGoFlagSet(fs)
	return cmd
}

// serve runs until ctx ends.
func serve(ctx context.Context, o options, given map[string]bool) error {
	if err := o.validate(); err != nil {
		return err
	}
	log, err := newLogger(o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	log.Info("Fingerpost starts", "version", versionText(), "cluster", o.clusterName)
	o.warn(log, given)
	config, inCluster, err := hostConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	setPings()

	store := federation.NewStore()
	registry := cluster.NewRegistry(log, store, cluster.Options{ProbeInterval: o.probeInterval, Patience: o.patience, Budget: o.budget, Endpoints: !o.readSlices})
	err = registry.Apply(cluster.Spec{
		Name: o.clusterName, Local: true, TrustDomain: o.discovery.TrustDomain, ClusterDomain: o.discovery.ClusterDomain,
		Access: []cluster.Access{{Source: "this process's own", Config: config}},
	})
	if err != nil {
		return err
	}
	mgr, err := newManager(config, registry, o.discovery.DrainWindow, log)
	if err != nil {
		return err
	}
	hostConn, err := cluster.NewConnection(registry.Counted(o.clusterName, config), nil)
	if err != nil {
		return err
	}
	ready := newReadiness(o.clusterName, registry.Statuses)
	reconciler, err := links.NewReconciler(log, hostConn, registry, mgr.GetLocalManager().GetEventRecorder("fingerpost"), func() {
		ready.listed.Store(true)
		store.Listed()
	}, links.Options{
		ClusterName: o.clusterName, TrustDomain: o.discovery.TrustDomain, ControllerNamespace: o.discovery.ControllerNamespace,
		LinkNamespace: o.linkNamespace, Hosts: links.Hosts{InCluster: inCluster, Allowed: o.allowedHosts},
	})
	if err != nil {
		return err
	}
	mirrors, err := mirror.New(log, store, reconciler, hostConn, o.mirror)
	if err != nil {
		return err
	}
	var mirroring func(context.Context) error
	if o.mirrors {
		mirroring = mirrors.Run
		registry.Attend(mirrors.Attend)
	}
	o.writer.Stop, o.writer.Linked = ctx.Done(), reconciler.Known()
	writer := endpointslice.NewWriter(log, store, registry, mirroring, o.writer)
	registry.Attend(writer.Attend)
	server := discovery.NewServer(log, store, o.discovery)
	metrics := newMetrics()
	metrics.MustRegister(registry)
	metrics.MustRegister(server.Collectors()...)
	metrics.MustRegister(reconciler.Collectors()...)
	metrics.MustRegister(writer.Collectors()...)
	metrics.MustRegister(mirrors.Collectors()...)
	grpcServer := newGRPC(log, o.addr, o.tls, server, ready, o.discovery, metrics)

	var queues prometheus.Gatherers
	if o.queueMetrics {
		queues = prometheus.Gatherers{registry.Queues()}
	}
	metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fingerpost_ready", Help: "1 once this replica is ready to serve, as /ready says."}, func() float64 {
		if ready.now() {
			return 1
		}
		return 0
	}))
	for _, r := range []manager.Runnable{
		reconciler,
		ready,
		grpcServer,
		&httpServer{log: log, name: "admin", addr: o.metricsAddr, handler: adminHandler(metrics, ready.now, o.pprof, queues...)},
		&httpServer{log: log, name: "debug", addr: o.debugAddr, handler: debugHandler(store, registry, reconciler, server, o)},
	} {
		if err := mgr.GetLocalManager().Add(r); err != nil {
			return err
		}
	}
	return mgr.Start(ctx)
}

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

// hostConfig returns how to reach the cluster that we run in, and whether we run in a Pod of it. It sets no limit on the rate of
// requests: client-go's own, of 5 a second, makes Events wait for minutes, each in a goroutine, and the API server has better ones.
func hostConfig(kubeconfig string) (config *rest.Config, inCluster bool, err error) {
	defer func() {
		if config != nil {
			config.QPS = -1
		}
	}()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, false, fmt.Errorf("-kubeconfig: %w", err)
		}
		return config, os.Getenv("KUBERNETES_SERVICE_HOST") != "", nil
	}
	config, err = rest.InClusterConfig()
	if err != nil {
		return nil, false, fmt.Errorf("this is no Pod of a cluster (%w): give a -kubeconfig", err)
	}
	return config, true, nil
}

// setPings makes clients notice within 15 s that a connection to an API server is dead, unless the environment says otherwise.
func setPings() {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, seconds) // it can only fail for a name that is none
		}
	}
}
