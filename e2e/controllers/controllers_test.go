// Package controllers tests that a controller which was not written for Fingerpost runs over the clusters that Links
// name, on real control planes: a multicluster-runtime manager as a part of a replica.
package controllers

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcr "sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/cluster/multicluster"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/serving"
)

const namespace = "shop"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a cluster with the account that the replica has there, behind a proxy.
type site struct {
	*controlplane.Cluster
	account *controlplane.Identity
	proxy   *controlplane.Proxy
}

// world is a replica in the cluster home, with a manager of controllers, and two more clusters.
type world struct {
	*testing.T
	home, east, west *site
	log              logr.Logger
	app              *app.App
	provider         *multicluster.Provider
	seen             *readings
}

func (w *world) do(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// newWorld starts the clusters, of which each has the ConfigMaps one and two, and a replica with the controller.
func newWorld(t *testing.T) *world {
	t.Helper()
	began := time.Now()
	clusters := controlplane.AllForTest(t,
		controlplane.Options{Name: "home", Light: true}, controlplane.Options{Name: "east", Light: true},
		controlplane.Options{Name: "west", Light: true})
	w := &world{T: t, log: logr.Discard(), seen: &readings{of: map[string]string{}}}
	if testing.Verbose() {
		w.log = testr.New(t)
	}
	ctrl.SetLogger(logr.Discard())

	for i, s := range []**site{&w.home, &w.east, &w.west} {
		*s = w.newSite(clusters[i])
	}
	w.do(w.home.Apply(t.Context(), links.CRD))
	w.do(w.home.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: linkerd}\n")))
	w.serve()
	t.Logf("three control planes and a replica: %s", time.Since(began).Round(time.Millisecond))
	return w
}

func (w *world) newSite(c *controlplane.Cluster) *site {
	w.Helper()
	rules := controlplane.ReadRules()
	rules = append(rules, rbacv1.PolicyRule{
		APIGroups: []string{"", "linkerd.io", "coordination.k8s.io", links.Group},
		Resources: []string{
			"configmaps", "secrets", "nodes", "namespaces", "serviceprofiles", "leases", "links", "links/status",
		},
		Verbs: []string{"*"},
	})
	account, err := c.CreateIdentity(w.Context(), namespace, "fingerpost", rules)
	w.do(err)
	proxy, err := c.NewProxy()
	w.do(err)
	s := &site{c, account, proxy}
	w.put(s, "one", "1")
	w.put(s, "two", "1")
	return s
}

// put creates or changes a ConfigMap.
func (w *world) put(s *site, name, value string) {
	w.Helper()
	w.do(s.Apply(w.Context(), fmt.Appendf(nil,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata: {v: %q}\n", name, namespace, value)))
}

// serve starts the replica, with the controller beside its other parts.
func (w *world) serve() {
	w.Helper()
	config := w.home.Config(w.home.account, w.home.proxy.URL())
	options := app.Options{
		Version: "test", Replica: "fingerpost-0", ClusterName: "home", Config: config, Addr: "127.0.0.1:0",
		ProbeInterval: time.Second,
		Thresholds:    federation.Thresholds{Suspect: 3 * time.Second, Stale: 8 * time.Second},
		ReadSlices:    true, LinkNamespace: namespace,
		Lease:   lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond},
		Serving: serving.DefaultConfig(), Discovery: linkerd.Defaults(),
		AllowedHosts: []string{"127.0.0.1"},
	}
	options.Discovery.ControllerNamespace = "linkerd"
	options.Discovery.ClusterDomain, options.Discovery.TrustDomain = "cluster.local", "cluster.local"
	options.Serving.DrainWindow = 0
	options.Listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, network, address)
	}

	ctx, stop := context.WithCancel(context.WithoutCancel(w.Context()))
	replica, err := app.New(ctx, w.log, options)
	w.do(err)
	w.app = replica
	w.provider, err = multicluster.NewProvider(w.log, replica.Registry, multicluster.Options{})
	w.do(err)
	manager, err := mcmanager.New(config, w.provider, mcmanager.Options{
		Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	w.do(err)
	w.do(w.addController(manager))
	replica.Add(app.Part{Name: "controllers", Run: manager.Start})

	ended := make(chan error, 1)
	go func() { ended <- replica.Run(ctx) }()
	w.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	})
}

// addController adds a controller as anybody writes it.
func (w *world) addController(manager mcmanager.Manager) error {
	reconcile := func(ctx context.Context, request mcreconcile.Request) (ctrl.Result, error) {
		cluster, err := manager.GetCluster(ctx, request.ClusterName)
		if err != nil {
			return ctrl.Result{}, err
		}
		var found corev1.ConfigMap
		err = cluster.GetClient().Get(ctx, request.NamespacedName, &found)
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
		if request.Namespace == namespace {
			w.seen.add(string(request.ClusterName), request.NamespacedName, found.Data["v"], err == nil)
		}
		return ctrl.Result{}, nil
	}
	return mcbuilder.ControllerManagedBy(manager).Named("readings").For(&corev1.ConfigMap{}).
		Complete(mcreconcile.Func(reconcile))
}

// readings are what the controller has read last, and how often it has read anything of each cluster.
type readings struct {
	mu     sync.Mutex
	of     map[string]string
	counts map[string]int
}

func (r *readings) add(cluster string, name types.NamespacedName, value string, exists bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[cluster]++
	if key := cluster + "/" + name.Name; exists {
		r.of[key] = value
	} else {
		delete(r.of, key)
	}
}

func (r *readings) all() (of map[string]string, counts map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.of), maps.Clone(r.counts)
}

// reads waits until the controller has read these values last, in words such as east/one=1, and reports how long that
// took.
func (w *world) reads(what string, want ...string) {
	w.Helper()
	began := time.Now()
	var got []string
	for w.Context().Err() == nil && time.Since(began) < time.Minute {
		of, _ := w.seen.all()
		got = nil
		for key, value := range of {
			if !strings.Contains(key, "kube-root-ca") {
				got = append(got, key+"="+value)
			}
		}
		slices.Sort(got)
		if slices.Equal(got, want) {
			w.Logf("%s: %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
		w.until(20 * time.Millisecond)
	}
	w.Fatalf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
}

// until waits.
func (w *world) until(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.Context().Done():
	}
}

// link links a cluster, or replaces its credentials: the account's token, at an address.
func (w *world) link(s *site, url string) {
	w.Helper()
	w.do(w.home.Apply(w.Context(), fmt.Appendf(nil, `apiVersion: v1
kind: Secret
metadata: {name: cluster-credentials-%[1]s, namespace: %[2]s}
type: %[3]s
data: {kubeconfig: %[4]s}
---
apiVersion: %[5]s/v1alpha3
kind: Link
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  targetClusterName: %[1]s
  targetClusterDomain: cluster.local
  clusterCredentialsSecret: cluster-credentials-%[1]s
`, s.Name(), namespace, links.SecretType, base64.StdEncoding.EncodeToString(s.Kubeconfig(s.account, url)), links.Group)))
}

// replaced waits until another connection to a cluster is in use.
func (w *world) replaced(s *site, before *api.Connection) {
	w.Helper()
	for w.Context().Err() == nil && w.app.Registry.Connection(s.Name()) == before {
		w.until(20 * time.Millisecond)
	}
}

// A foreign controller reconciles over three control planes, through a rotation of credentials, another address, a cut
// and an unlinking.
func TestForeignController(t *testing.T) {
	w := newWorld(t)
	began := time.Now()
	w.reads("the local cluster", "home/one=1", "home/two=1")
	w.link(w.east, w.east.proxy.URL())
	w.link(w.west, w.west.proxy.URL())
	w.reads("linked", "east/one=1", "east/two=1", "home/one=1", "home/two=1", "west/one=1", "west/two=1")
	east, err := w.provider.Get(t.Context(), "east")
	w.do(err)

	// A new token, and the old one is revoked.
	_, before := w.seen.all()
	old := w.east.account
	w.east.account, err = w.east.Mint(t.Context(), old)
	w.do(err)
	w.link(w.east, w.east.proxy.URL())
	w.until(3 * time.Second) // in which it is taken
	w.do(w.east.Revoke(t.Context(), old))
	w.put(w.east, "one", "2")
	w.reads("after a new token", "east/one=2", "east/two=1", "home/one=1", "home/two=1", "west/one=1", "west/two=1")

	// Another address: a connection of its own. What is deleted meanwhile is noticed.
	conn := w.app.Registry.Connection("east")
	w.link(w.east, w.east.URL())
	w.do(w.east.Delete(t.Context(), namespace, "configmaps/two"))
	w.replaced(w.east, conn)
	w.put(w.east, "one", "3")
	w.reads("after another address", "east/one=3", "home/one=1", "home/two=1", "west/one=1", "west/two=1")
	if again, err := w.provider.Get(t.Context(), "east"); err != nil || again != east {
		t.Errorf("east was engaged anew: %v", err)
	}
	if _, after := w.seen.all(); after["east"]-before["east"] > 4 || after["west"] != before["west"] {
		t.Errorf("rotations are no reason to reconcile: %v before, %v after", before, after)
	}

	// A cut of one cluster delays no other.
	w.do(w.west.proxy.Silence())
	w.put(w.west, "one", "4")
	w.put(w.east, "one", "4")
	w.put(w.home, "one", "4")
	w.reads("beside a cluster that is cut off",
		"east/one=4", "home/one=4", "home/two=1", "west/one=1", "west/two=1")
	w.west.proxy.Refuse() // and what was sent is lost
	w.do(w.west.Delete(t.Context(), namespace, "configmaps/two"))
	w.until(8 * time.Second) // in which retries become rare
	w.do(w.west.proxy.Pass())
	w.reads("after the cut", "east/one=4", "home/one=4", "home/two=1", "west/one=4")

	// Of an unlinked cluster nothing is reconciled any more.
	link, secret := "links."+links.Group+"/west", "secrets/cluster-credentials-west"
	w.do(w.home.Delete(t.Context(), namespace, link, secret))
	unlinking := time.Now()
	for err = nil; !errors.Is(err, mcr.ErrClusterNotFound); _, err = w.provider.Get(t.Context(), "west") {
		if time.Since(unlinking) > time.Minute {
			t.Fatal("west is still there a minute after it was unlinked")
		}
		w.until(20 * time.Millisecond)
	}
	_, before = w.seen.all()
	w.put(w.west, "one", "5")
	w.put(w.west, "three", "1")
	w.put(w.east, "one", "5")
	w.reads("after an unlinking", "east/one=5", "home/one=4", "home/two=1", "west/one=4")
	w.until(time.Second)
	if _, after := w.seen.all(); after["west"] != before["west"] {
		t.Errorf("%d reconciles of a cluster that is not linked", after["west"]-before["west"])
	}
	t.Logf("all of it: %s", time.Since(began).Round(time.Millisecond))
}
