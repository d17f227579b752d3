package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/endpointslice"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/serving"
)

// memory is a stage of API servers in memory, with the server in this process. It needs no build, and has no
// controllers: to scale the shop is to change its EndpointSlice.
type memory struct {
	network *apitest.Network
	tokens  map[string]string // in use, by cluster
	server  *fingerpost.Server
	cancel  context.CancelFunc
	stopped chan error
}

func newMemory(ctx context.Context) (*memory, error) {
	m := &memory{network: apitest.NewNetwork(), tokens: map[string]string{}, stopped: make(chan error, 1)}
	for _, cluster := range clusters {
		m.tokens[cluster] = m.network.Server(cluster).Token()
		if err := errors.Join(m.apply(cluster, base), m.Scale(ctx, cluster, replicas)); err != nil {
			return nil, err
		}
	}
	if err := m.apply(east, federated); err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(m.network.Server(east).Kubeconfig(m.tokens[east])))
	if err != nil {
		return nil, err
	}
	config.Dial, config.QPS = m.network.Dial, -1
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	listeners := &listeners{opened: make(chan string, 3)}
	o := app.Options{
		Version: "demo", Replica: "fingerpost-0", ClusterName: east, Config: config, Dial: m.network.Dial,
		Addr: "grpc", AdminAddr: "admin", DebugAddr: "debug", Listen: listeners.listen,
		ProbeInterval: time.Second,
		Thresholds:    federation.Thresholds{Suspect: 2 * time.Second, Stale: 5 * time.Second},
		ReadSlices:    true,
		Lease:         lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond},
		Writer:        endpointslice.Options{Federated: true},
		Serving:       serving.DefaultConfig(),
		Discovery:     linkerd.Defaults(),
	}
	o.Discovery.ControllerNamespace = mesh.Linkerd
	o.Discovery.ClusterDomain, o.Discovery.TrustDomain = "cluster.local", "cluster.local"
	o.Serving.DrainWindow = 0
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	replica, err := app.New(ctx, logr.Discard(), o)
	if err != nil {
		m.cancel()
		return nil, err
	}
	go func() { m.stopped <- replica.Run(ctx) }()
	addrs := map[string]string{}
	for range 3 {
		select {
		case opened := <-listeners.opened:
			name, addr, _ := strings.Cut(opened, " ")
			addrs[name] = addr
		case err := <-m.stopped:
			m.cancel()
			return nil, fmt.Errorf("the server has ended: %w", err)
		}
	}
	m.server = &fingerpost.Server{Addr: addrs["grpc"], Admin: addrs["admin"], Debug: addrs["debug"]}
	return m, nil
}

// listeners opens a listener on loopback for each server of the App, whose address is the server's name.
type listeners struct{ opened chan string }

func (l *listeners) listen(ctx context.Context, _, name string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err == nil {
		l.opened <- name + " " + listener.Addr().String()
	}
	return listener, err
}

const (
	base = `
{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: linkerd}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 8080}]}
`
	federated = `
apiVersion: v1
kind: Service
metadata:
  name: web-federated
  namespace: shop
  annotations:
    multicluster.linkerd.io/remote-discovery: web@west,web@north
    multicluster.linkerd.io/local-discovery: web
    ` + view.OptIn + ": " + view.Enabled + `
spec: {ports: [{name: http, port: 8080}]}
`
	link = `
apiVersion: v1
kind: Secret
metadata: {name: cluster-credentials-CLUSTER, namespace: shop}
type: ` + string(links.SecretType) + `
stringData: {kubeconfig: 'KUBECONFIG'}
---
apiVersion: ` + links.Group + `/v1alpha3
kind: Link
metadata: {name: CLUSTER, namespace: shop}
spec:
  targetClusterName: CLUSTER
  targetClusterDomain: cluster.local
  clusterCredentialsSecret: cluster-credentials-CLUSTER
`
)

// apply applies YAML documents to a cluster.
func (m *memory) apply(cluster, documents string) error {
	for document := range strings.SplitSeq(documents, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return err
		}
		m.network.Server(cluster).Apply(o)
	}
	return nil
}

func (m *memory) Server() *fingerpost.Server { return m.server }

func (m *memory) Pods(cluster string) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(1 + slices.Index(clusters, cluster)), 0, 0}), 16)
}

func (m *memory) Authority(
	ctx context.Context, cluster, issuer, anchors string,
) (addr string, stop func() error, err error) {
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(m.network.Server(cluster).Kubeconfig(m.tokens[cluster])))
	if err != nil {
		return "", nil, err
	}
	config.Dial = m.network.Dial
	listeners := &listeners{opened: make(chan string, 1)}
	process, err := app.NewAuthority(logr.Discard(), app.AuthorityOptions{
		Version: "demo", Config: config, Dial: m.network.Dial, Listen: listeners.listen,
		Serving: serving.DefaultConfig(),
		Domain:  identity.Domain{Namespace: mesh.Linkerd, TrustDomain: "cluster.local"},
		Identity: app.IdentityOptions{
			Addr: "identity", Issuer: server.IssuerFilesIn(issuer, "linkerd.io/tls", anchors), TLS: true,
			Terms: identity.Terms{Lifetime: 24 * time.Hour, Skew: 10 * time.Second},
		},
	})
	if err != nil {
		return "", nil, err
	}

	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan error, 1)
	go func() { stopped <- process.Run(ctx) }()
	select {
	case opened := <-listeners.opened:
		_, addr, _ = strings.Cut(opened, " ")
	case err := <-stopped:
		cancel()
		return "", nil, fmt.Errorf("the authority has ended: %w", err)
	}
	return addr, func() error {
		cancel()
		return <-stopped
	}, nil
}

func (m *memory) Token(_ context.Context, cluster, audience string) (string, error) {
	return m.network.Server(cluster).AccountToken(namespace, "default", "web", audience), nil
}

func (m *memory) Link(_ context.Context, cluster string) error {
	kubeconfig := m.network.Server(cluster).Kubeconfig(m.tokens[cluster])
	return m.apply(east, strings.NewReplacer("CLUSTER", cluster, "KUBECONFIG", kubeconfig).Replace(link))
}

func (m *memory) Unlink(_ context.Context, cluster string) error {
	home := m.network.Server(east)
	linked := home.Delete("Link", namespace, cluster)
	if !home.Delete("Secret", namespace, "cluster-credentials-"+cluster) || !linked {
		return fmt.Errorf("%s is not linked", cluster)
	}
	return nil
}

func (m *memory) Condition(_ context.Context, cluster, name string) (string, error) {
	found := m.network.Server(east).Find("Link", namespace, cluster)
	if found == nil {
		return "", fmt.Errorf("%s is not linked", cluster)
	}
	conditions, _, err := unstructured.NestedSlice(found.Object, "status", "conditions")
	for _, c := range conditions {
		if c, is := c.(map[string]any); is && c["type"] == name {
			return fmt.Sprintf("%s %s: %s", c["status"], c["reason"], c["message"]), nil
		}
	}
	return "", err
}

func (m *memory) Rotate(ctx context.Context, cluster string) error {
	old := m.tokens[cluster]
	m.tokens[cluster] = m.network.Server(cluster).Token()
	if err := m.Link(ctx, cluster); err != nil {
		return err
	}
	m.network.Server(cluster).Revoke(old)
	return nil
}

// Scale creates Pods and their EndpointSlice.
func (m *memory) Scale(_ context.Context, cluster string, replicas int) error {
	var documents, endpoints bytes.Buffer
	ip := m.Pods(cluster).Addr()
	for i := range replicas {
		ip = ip.Next()
		fmt.Fprintf(&documents, `
apiVersion: v1
kind: Pod
metadata: {name: web-%[1]d, namespace: shop, labels: {app: web, linkerd.io/control-plane-ns: linkerd}}
spec:
  serviceAccountName: web
  containers: [{name: linkerd-proxy, env: [{name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR, value: "0.0.0.0:4143"}]}]
status: {phase: Running, podIP: %[2]s, podIPs: [{ip: %[2]s}], conditions: [{type: Ready, status: "True"}]}
---`, i+1, ip)
		fmt.Fprintf(&endpoints, "\n- {addresses: [%s], conditions: {ready: true}, "+
			"targetRef: {kind: Pod, namespace: shop, name: web-%d}}", ip, i+1)
	}
	fmt.Fprintf(&documents, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: %s
`, &endpoints)
	return m.apply(cluster, documents.String())
}

func (m *memory) Cut(cluster string, cut bool) error {
	how := apitest.None
	if cut {
		how = apitest.Silence
	}
	m.network.Server(cluster).Cut(how)
	return nil
}

func (m *memory) Slices(context.Context) (all []discoveryv1.EndpointSlice, err error) {
	for _, o := range m.network.Server(east).List("endpointslices.discovery.k8s.io") {
		var slice discoveryv1.EndpointSlice
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &slice); err != nil {
			return nil, err
		}
		if slice.Labels[discoveryv1.LabelServiceName] == mesh.Federated {
			all = append(all, slice)
		}
	}
	return all, nil
}

// Close stops the server, and then the API servers.
func (m *memory) Close() error {
	m.cancel()
	err := <-m.stopped
	m.network.Close()
	return err
}
