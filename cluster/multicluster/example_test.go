package multicluster_test

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/multicluster"
	"github.com/fingerpost/fingerpost/federation"
)

// docs/controllers.md has what is between the marks.

// BEGIN controller

// newManager returns a manager whose controller reports the ConfigMaps of all clusters of a Registry, which has not
// started. local is access to the cluster that the process runs in.
func newManager(
	logger logr.Logger, registry *cluster.Registry, local *rest.Config, report func(string),
) (mcmanager.Manager, error) {
	provider, err := multicluster.NewProvider(logger, registry, multicluster.Options{
		Transform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, err
	}
	manager, err := mcmanager.New(local, provider, mcmanager.Options{
		Logger: logger, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}

	reconcile := func(ctx context.Context, request mcreconcile.Request) (ctrl.Result, error) {
		cluster, err := manager.GetCluster(ctx, request.ClusterName)
		if err != nil {
			return ctrl.Result{}, err // the request is dropped if the cluster was unlinked
		}
		var found corev1.ConfigMap
		if err := cluster.GetClient().Get(ctx, request.NamespacedName, &found); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		report(fmt.Sprintf("%s in cluster %s: %s", request.NamespacedName, request.ClusterName, found.Data["greeting"]))
		return ctrl.Result{}, nil
	}
	builder := mcbuilder.ControllerManagedBy(manager).Named("greetings").For(&corev1.ConfigMap{})
	return manager, builder.Complete(mcreconcile.Func(reconcile))
}

// END controller

// A controller made with mcbuilder, as its authors write it for any provider, over two clusters. In a real process
// package links applies the clusters that Links name; here they are applied by hand.
func Example() {
	network := apitest.NewNetwork() // of API servers in memory
	defer network.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ctrl.SetLogger(logr.Discard())

	registry := cluster.NewRegistry(logr.Discard(), federation.NewStore(), cluster.Options{
		ProbeInterval: 5 * time.Second, Dial: network.Dial,
		Thresholds: federation.Thresholds{Suspect: 10 * time.Second, Stale: 150 * time.Second},
	})
	reports := make(chan string)
	manager, err := newManager(logr.Discard(), registry, accessTo(network, "east"), func(report string) {
		select {
		case reports <- report:
		case <-ctx.Done():
		}
	})
	if err != nil {
		panic(err)
	}

	for name, greeting := range map[string]string{"east": "good morning", "west": "good evening"} {
		network.Server(name).ApplyYAML(fmt.Sprintf(
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: hello, namespace: shop}, data: {greeting: %s}}", greeting))
		access := cluster.Access{Source: "the example", Config: accessTo(network, name)}
		if err := registry.Apply(cluster.Spec{Name: name, Access: []cluster.Access{access}}); err != nil {
			panic(err)
		}
	}

	ended := make(chan error)
	go func() { ended <- registry.Start(ctx) }()
	go func() { ended <- manager.Start(ctx) }()
	fmt.Println(<-reports)
	fmt.Println(<-reports)
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			panic(err)
		}
	}
	// Unordered output:
	// shop/hello in cluster east: good morning
	// shop/hello in cluster west: good evening
}

// accessTo returns access to an API server in memory.
func accessTo(network *apitest.Network, name string) *rest.Config {
	server := network.Server(name)
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(server.Kubeconfig(server.Token())))
	if err != nil {
		panic(err)
	}
	config.Dial = network.Dial
	return config
}
