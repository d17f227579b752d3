package live

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/links/mirror"
)

// mirroring is a world in which this process mirrors Services, with real API servers.
type mirroring struct {
	*world
	core   kubernetes.Interface // to look at the local cluster, with all rights
	links  *links.Reconciler
	mirror *mirror.Mirror
	conn   *api.Connection
	term   context.CancelFunc
	over   chan error
}

// newMirroring links all but the first of n clusters by Links that select, and starts a term.
func newMirroring(t *testing.T, namespace string, n int) *mirroring {
	t.Helper()
	w := newShops(t, namespace, n)
	w.do(w.Install(t.Context(), mesh.Linkerd, `mirror: {mode: "on"}`, ""))
	m := &mirroring{world: w}
	var err error
	m.core, err = kubernetes.NewForConfig(w.Local.AdminConfig())
	w.do(err)
	for i, s := range slices.Backward(w.Remotes) { // north is the oldest by its age, or else by its name
		w.do(w.Credentials(t.Context(), s, s.Kubeconfig(s.Identity, s.Proxy.URL())))
		w.do(w.Local.Apply(t.Context(), []byte(fmt.Sprintf(`apiVersion: %s/v1alpha3
kind: Link
metadata: {name: %[2]s, namespace: %[3]s}
spec:
  targetClusterName: %[2]s
  targetClusterDomain: %[2]s.local
  clusterCredentialsSecret: cluster-credentials-%[2]s
  gatewayAddress: 192.0.2.%[4]d
  gatewayIdentity: gateway.%[2]s
  selector: {matchLabels: {mirror.linkerd.io/exported: "true"}}
  remoteDiscoverySelector: {matchLabels: {mirror.linkerd.io/exported: remote-discovery}}
  federatedServiceSelector: {matchLabels: {mirror.linkerd.io/federated: member}}
`, links.Group, s.Name, namespace, i+1))))
	}

	log := logr.Discard()
	if testing.Verbose() {
		log = testr.New(t)
	}
	config := w.Local.Config(w.Local.Identity, w.Local.Proxy.URL())
	store := federation.NewStore()
	registry := cluster.NewRegistry(log, store,
		cluster.Options{
			ProbeInterval: time.Second,
			Thresholds:    federation.Thresholds{Suspect: 3 * time.Second, Stale: 8 * time.Second},
		})
	w.do(registry.Apply(cluster.Spec{
		Name:   w.Local.Name,
		Local:  true,
		Access: []cluster.Access{{Source: "test", Config: config}},
	}))
	m.conn, err = api.NewConnection(config, nil)
	w.do(err)
	reconciler, err := links.NewReconciler(log, m.conn, registry, nil, store.MarkClustersListed,
		links.Options{
			ClusterName:         w.Local.Name,
			ControllerNamespace: mesh.Linkerd,
			LinkNamespace:       namespace,
			Mirrors:             true,
		})
	w.do(err)
	m.links = reconciler
	options := mirror.Options{Namespace: namespace, Headless: true}
	m.mirror, err = mirror.New(log, store, registry, reconciler, m.conn, options)
	w.do(err)
	registry.Engage(m.mirror.Engage)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := registry.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := reconciler.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	m.run()
	t.Cleanup(func() {
		m.stop()
		cancel()
		wg.Wait()
		m.conn.Close()
	})
	return m
}

func (m *mirroring) run() {
	var ctx context.Context
	ctx, m.term = context.WithCancel(m.t.Context())
	m.over = make(chan error, 1)
	client, err := kubernetes.NewForConfigAndClient(m.conn.Config, m.conn.HTTPClient)
	m.do(err)
	permissions := apply.NewPermissions(logr.Discard(), client)
	go func() { m.over <- m.mirror.Run(ctx, m.conn, permissions, nil) }()
	go func() { m.over <- m.links.WriteStatus(ctx, permissions, nil) }()
}

func (m *mirroring) stop() {
	if m.term == nil {
		return
	}
	m.term()
	for range 2 {
		if err := <-m.over; err != nil {
			m.t.Error(err)
		}
	}
	m.term = nil
}

// mirrors returns what stands for others in the namespace: name, ports and members.
func (m *mirroring) mirrors(ctx context.Context) (string, error) {
	list, err := m.core.CoreV1().Services(m.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "mirror.linkerd.io/mirrored-service=true"})
	if err != nil {
		return "", err
	}
	var all []string
	for _, svc := range list.Items {
		text := svc.Name
		for _, p := range svc.Spec.Ports {
			text += fmt.Sprintf(":%d", p.Port)
		}
		if svc.Spec.ClusterIP == corev1.ClusterIPNone {
			text += " headless"
		}
		for _, key := range []string{"remote", "local"} {
			if members := svc.Annotations["multicluster.linkerd.io/"+key+"-discovery"]; members != "" {
				text += " " + members
			}
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, "; "), nil
}

// shows waits until what stands for others is as described.
func (m *mirroring) shows(claimed time.Duration, what string, mirrors ...string) {
	m.t.Helper()
	want := strings.Join(mirrors, "; ")
	m.within(claimed, what, func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			got, err := m.mirrors(ctx)
			if err == nil && got != want {
				err = fmt.Errorf("mirrors\n  %s, want\n  %s", got, want)
			}
			return err
		})
	})
}

// leads waits until the Endpoints of a mirror hold so many ready addresses, and returns them.
func (m *mirroring) leads(claimed time.Duration, name string, n int) (addresses []string) {
	m.t.Helper()
	m.within(claimed, name+" leads somewhere", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			e, err := m.core.CoreV1().Endpoints(m.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			addresses = nil
			for _, s := range e.Subsets {
				for _, a := range s.Addresses {
					addresses = append(addresses, strings.TrimPrefix(a.Hostname+" "+a.IP, " "))
				}
			}
			if len(addresses) != n {
				return fmt.Errorf("Endpoints %s hold %v", name, e.Subsets)
			}
			return nil
		})
	})
	return addresses
}

// versions returns the resource versions of everything that may be written.
func (m *mirroring) versions() string {
	m.t.Helper()
	out, err := m.Local.Kubectl(m.t.Context(), "-n", m.Namespace, "get", "services,endpoints,links", "-o",
		`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`)
	m.do(err)
	return out
}

// export puts a Service into a site, with one endpoint that is ready.
func (m *mirroring) export(s *mesh.Site, name, marks, spec string) {
	m.t.Helper()
	m.do(s.Apply(m.t.Context(), []byte(fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: %[2]s, labels: {%[3]s}}
spec: {%[4]s}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %[1]s-test
  namespace: %[2]s
  labels: {kubernetes.io/service-name: %[1]s, endpointslice.kubernetes.io/managed-by: test}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [198.51.100.7], hostname: %[1]s-0, conditions: {ready: true}}]
`, name, m.Namespace, marks, spec))))
}

// Mirrors on real API servers are created, changed, kept while a cluster is out of contact, and deleted. A user's
// Service is not changed, and equal objects are not written.
func TestMirror(t *testing.T) {
	m := newMirroring(t, "mirror", 3)
	west, north := m.Remotes[0], m.Remotes[1]
	const exported, joins, http = `mirror.linkerd.io/exported: "true"`, "mirror.linkerd.io/federated: member",
		"ports: [{name: http, port: 80}]"
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: mine-west, namespace: %s}\n", m.Namespace)
	m.do(m.Local.Apply(t.Context(), []byte(manifest+"spec: {ports: [{port: 7}]}\n")))
	m.export(west, "api", exported, http)
	m.export(west, "flat", "mirror.linkerd.io/exported: remote-discovery", http)
	m.export(west, "mine", exported, http)
	m.export(west, "db", exported, "clusterIP: None, "+http)
	for _, s := range []*mesh.Site{m.Local, west, north} {
		m.export(s, "shop", joins, http)
	}
	m.export(north, "shop", joins, "ports: [{name: http, port: 80}, {name: admin, port: 90}]")
	all := []string{
		"api-west:80", "db-0-west:80", "db-west:80 headless", "flat-west:80",
		"shop-federated:80:90 shop@north,shop@west shop",
	}
	m.shows(10*time.Second, "everything is mirrored", all...)
	if got := m.leads(time.Second, "api-west", 1); got[0] != "192.0.2.1" {
		t.Errorf("api-west leads to %s", got)
	}
	one, err := m.core.CoreV1().Services(m.Namespace).Get(t.Context(), "db-0-west", metav1.GetOptions{})
	m.do(err)
	if got := m.leads(time.Second, "db-west", 1); got[0] != "db-0 "+one.Spec.ClusterIP {
		t.Errorf("db-west leads to %s, and db-0-west is at %s", got, one.Spec.ClusterIP)
	}
	if _, err := m.core.CoreV1().Endpoints(m.Namespace).Get(t.Context(), "flat-west",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("Endpoints of flat-west: %v", err)
	}
	m.reads(west, "mirrorServices", map[string]string{
		"api":  "Mirrored",
		"db":   "Mirrored",
		"flat": "Mirrored",
		"mine": "Error",
	})
	m.reads(north, "federatedServices", map[string]string{"shop": "Mirrored"})

	// The next holder has nothing to write.
	m.stop()
	before := m.versions()
	m.run()
	m.export(west, "late", exported, http)
	m.shows(5*time.Second, "a new Service, once the term has begun",
		slices.Insert(slices.Clone(all), 4, "late-west:80")...)
	m.reads(west, "mirrorServices", map[string]string{
		"api":  "Mirrored",
		"db":   "Mirrored",
		"flat": "Mirrored",
		"late": "Mirrored",
		"mine": "Error",
	})
	after := strings.Split(m.versions(), "\n")
	for line := range strings.SplitSeq(before, "\n") {
		if !slices.Contains(after, line) && line != "" && !strings.HasPrefix(line, "Link/"+west.Name+" ") {
			t.Errorf("written although nothing has changed: it was %s", line)
		}
	}

	m.export(west, "api", exported, "ports: [{name: http, port: 81}]")
	m.export(west, "late", "app: late", http)
	all[0] = "api-west:81"
	m.shows(2*time.Second, "another port, and one that is exported no more", all...)

	m.do(west.Kill())
	m.export(north, "shop", joins, http)
	all[4] = "shop-federated:80 shop@north,shop@west shop"
	m.shows(2*time.Second, "north changes while west is away", all...)
	m.stop()
	m.run()
	m.within(5*time.Second, "west is not synced", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			got, err := m.Condition(ctx, west, links.Mirrors)
			if err == nil && !strings.HasPrefix(got, "Unknown Waiting") {
				err = fmt.Errorf("Mirroring of west is %q", got)
			}
			return err
		})
	})
	m.shows(time.Second, "nothing is withdrawn", all...)
	m.do(west.Restart(t.Context()))
	m.export(west, "back", exported, http)
	m.shows(10*time.Second, "west is back", "api-west:81", "back-west:80", "db-0-west:80",
		"db-west:80 headless", "flat-west:80", all[4])

	m.do(m.Unlink(t.Context(), west))
	m.shows(3*time.Second, "the Link of west is deleted", "shop-federated:80 shop@north shop")
	mine, err := m.core.CoreV1().Services(m.Namespace).Get(t.Context(), "mine-west", metav1.GetOptions{})
	m.do(err)
	if len(mine.Labels) != 0 || mine.Spec.Ports[0].Port != 7 {
		t.Errorf("a Service that is not ours was changed: %v", mine)
	}
	m.do(m.Unlink(t.Context(), north))
	_, err = m.Local.Kubectl(t.Context(), "-n", m.Namespace, "delete", "service", "shop")
	m.do(err)
	m.shows(3*time.Second, "the last member leaves")
}

// reads waits until a list in the status of a site's Link holds these reasons.
func (m *mirroring) reads(s *mesh.Site, list string, want map[string]string) {
	m.t.Helper()
	m.within(3*time.Second, list+" of "+s.Name, func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			out, err := m.Local.Print(ctx, m.Namespace, linkResource, s.Name, "{.status."+list+"}")
			if err != nil {
				return err
			}
			var items []links.ServiceStatus
			if out != "" {
				if err := json.Unmarshal([]byte(out), &items); err != nil {
					return err
				}
			}
			got := map[string]string{}
			for _, item := range items {
				got[item.RemoteRef.Name] = item.Conditions[0].Reason
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("status %v, want %v", got, want)
			}
			return nil
		})
	})
}
