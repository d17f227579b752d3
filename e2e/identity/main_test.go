// Package identity tests on a real control plane how a proxy gets from the environment of its Pod to answers of
// discovery and policy, without a container of Linkerd's: the authority has tokens reviewed by the API server, and the
// replica gets its certificate there too.
package identity

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// audience is that of the tokens which proxies have.
const audience = "identity.l5d.io"

var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	fingerpost.TestMain(context.Background(), fingerpost.Race, func(_ context.Context, built string) (int, error) {
		binary = built
		return m.Run(), nil
	})
}

// A site is a cluster with a mesh from nothing: an authority of two replicas, and one of discovery and policy.
type site struct {
	*testing.T
	*controlplane.Cluster
	dir         string
	authorities []*fingerpost.Server
	replica     *fingerpost.Server
}

func (s *site) do(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func newSite(t *testing.T) *site {
	t.Helper()
	clusters := controlplane.AllForTest(t, controlplane.Options{Name: "east", Light: true})
	s := &site{T: t, Cluster: clusters[0], dir: t.TempDir()}
	for _, manifest := range [][]byte{links.CRD, mesh.LinkerdCRDs, mesh.PolicyCRDs, []byte(shop)} {
		s.do(s.Apply(t.Context(), manifest))
	}
	s.newAnchor("first")
	s.use("first", "first")
	return s
}

// shop is a Service of the mesh's users, and the accounts of both sides.
const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: linkerd}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: linkerd-destination, namespace: linkerd}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.0.9], conditions: {ready: true}, targetRef: {kind: Pod, name: web, namespace: shop}}
`

// run runs the binary, and returns what it prints.
func (s *site) run(input string, args ...string) []byte {
	s.Helper()
	command := exec.CommandContext(s.Context(), binary, args...)
	command.Dir, command.Stdin = s.dir, bytes.NewReader([]byte(input))
	var errs bytes.Buffer
	command.Stderr = &errs
	out, err := command.Output()
	if err != nil {
		s.Fatalf("fingerpost %q: %v\n%s", args, err, &errs)
	}
	return out
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// newAnchor makes an anchor and an issuer under it, in files of a name.
func (s *site) newAnchor(name string) {
	s.Helper()
	s.keep(name, s.run("", "certs", "new", "--anchor-cert", name+".crt", "--anchor-key", name+".key"))
}

// newIssuer makes an issuer under an anchor, in files of a name.
func (s *site) newIssuer(name, anchor string) {
	s.Helper()
	s.keep(name, s.run("", "certs", "issuer", "--anchor-cert", anchor+".crt", "--anchor-key", anchor+".key"))
}

// keep writes what a Secret among manifests has into files of a name.
func (s *site) keep(name string, manifests []byte) {
	s.Helper()
	for document := range bytes.SplitSeq(manifests, []byte("\n---\n")) {
		if !bytes.Contains(document, []byte("kind: Secret")) {
			continue
		}
		var secret corev1.Secret
		s.do(yaml.Unmarshal(document, &secret))
		for key, content := range secret.Data {
			s.write(name+"-"+key, content)
		}
		for key, content := range secret.StringData {
			s.write(name+"-"+key, []byte(content))
		}
	}
}

func (s *site) write(name string, content []byte) {
	s.Helper()
	s.do(os.WriteFile(s.path(name+".new"), content, 0o600))
	s.do(os.Rename(s.path(name+".new"), s.path(name)))
}

func (s *site) read(name string) []byte {
	s.Helper()
	content, err := os.ReadFile(s.path(name))
	s.do(err)
	return content
}

// use has the authorities sign with the issuer of one name, while all trust the anchors of others.
func (s *site) use(issuer string, anchors ...string) {
	s.Helper()
	var bundle []byte
	for _, name := range anchors {
		bundle = append(bundle, s.read(name+".crt")...)
	}
	s.write("bundle.crt", bundle)
	s.write("crt.pem", s.read(issuer+"-crt.pem"))
	s.write("key.pem", s.read(issuer+"-key.pem"))
}

// serve starts a server with the rights that it needs, and no others.
func (s *site) serve(account string, rules []rbacv1.PolicyRule, command string, args ...string) *fingerpost.Server {
	s.Helper()
	id, err := s.CreateIdentity(s.Context(), "linkerd", account, rules)
	s.do(err)
	server, err := fingerpost.Start(s.Context(), fingerpost.Options{
		Binary: binary, Dir: s.TempDir(), Kubeconfig: s.Kubeconfig(id, ""), Command: command, Args: args,
	})
	s.do(err)
	s.Cleanup(func() {
		select {
		case <-server.Exited(): // it was killed
		default:
			if err := server.Stop(); err != nil {
				s.Error(err)
			}
		}
		if s.Failed() {
			s.Log(server.Tail())
		}
	})
	return server
}

// authorityRules are all rights of the process that has the issuer's key.
var authorityRules = []rbacv1.PolicyRule{
	{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
	{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
}

// startAuthority starts a further authority.
func (s *site) startAuthority(args ...string) {
	s.Helper()
	s.authorities = append(s.authorities, s.serve("linkerd-identity", authorityRules, "identity", append([]string{
		"-controller-namespace=linkerd", "-identity-trust-domain=cluster.local", "-identity-scheme=linkerd.io/tls",
		"-issuer=" + s.dir, "-identity-trust-anchors=" + s.path("bundle.crt"), "-identity-tls",
		"-identity-clock-skew-allowance=0s",
	}, args...)...))
}

// startReplica starts what serves discovery and policy. A front leads it to the authorities.
func (s *site) startReplica() {
	s.Helper()
	rules := append(controlplane.ReadRules(), rbacv1.PolicyRule{
		APIGroups: []string{
			"", "linkerd.io", "policy.linkerd.io", "coordination.k8s.io", "workload.linkerd.io", links.Group,
			"gateway.networking.k8s.io",
		},
		Resources: []string{"*"}, Verbs: []string{"*"},
	})
	s.writeToken("destination-token", "linkerd-destination", "linkerd")
	s.replica = s.serve("linkerd-destination", rules, "", "-identity-from="+s.front(),
		"-identity-token-file="+s.path("destination-token"), "-identity-trust-anchors="+s.path("bundle.crt"),
		"-policy-addr=127.0.0.1:0")
}

// front returns an address that leads to whichever authority answers, as a Service does.
func (s *site) front() string {
	s.Helper()
	listener, err := (&net.ListenConfig{}).Listen(s.Context(), "tcp", "127.0.0.1:0")
	s.do(err)

	var all sync.WaitGroup
	s.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { s.lead(conn) })
		}
	})
	return listener.Addr().String()
}

// lead joins a connection with one to an authority.
func (s *site) lead(from net.Conn) {
	defer from.Close()
	for _, authority := range s.authorities {
		to, err := (&net.Dialer{Timeout: time.Second}).Dial("tcp", authority.Identity)
		if err != nil {
			continue
		}
		join(from, to)
		return
	}
}

// writeToken writes a token of an account, as a projected volume has it.
func (s *site) writeToken(file, account, namespace string) {
	s.Helper()
	token, err := s.TokenFor(s.Context(), &controlplane.Identity{Namespace: namespace, Name: account}, audience)
	s.do(err)
	s.write(file, []byte(token))
}

// ready waits until servers are.
func (s *site) ready(servers ...*fingerpost.Server) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	for _, server := range servers {
		s.do(mesh.Eventually(ctx, func(ctx context.Context) error {
			if !server.Ready(ctx) {
				return errors.New("it is not ready")
			}
			return nil
		}))
	}
}

// pod has a Pod injected and made, and returns its proxy.
func (s *site) pod() *mesh.Proxy {
	s.Helper()
	const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  serviceAccountName: web
  containers: [{name: main, image: web, ports: [{name: http, containerPort: 8080}]}]
`
	injected := s.run(manifest, "inject", "--manual", "--ignore-cluster", "--trust-anchors", "bundle.crt",
		"--proxy-version", "edge-1", "-")
	s.do(s.Apply(s.Context(), injected))
	client, err := kubernetes.NewForConfig(s.AdminConfig())
	s.do(err)
	pod, err := client.CoreV1().Pods("shop").Get(s.Context(), "web", metav1.GetOptions{})
	s.do(err)

	for _, c := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
		if c.Name == "linkerd-proxy" {
			proxy, err := mesh.NewProxy(c.Env, map[string]string{
				"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
				"spec.serviceAccountName": pod.Spec.ServiceAccountName, "spec.nodeName": pod.Spec.NodeName,
				"status.podIP": "10.244.0.9", "status.podIPs": "10.244.0.9",
			}, s.hosts())
			s.do(err)
			return proxy
		}
	}
	s.Fatalf("the Pod has no proxy: %v", pod.Spec)
	return nil
}

// hosts are the names of the control plane's Services, as a proxy has them.
func (s *site) hosts() mesh.Hosts {
	hosts := mesh.Hosts{
		"linkerd-dst-headless.linkerd.svc.cluster.local.:8086": {s.replica.Addr},
		"linkerd-policy.linkerd.svc.cluster.local.:8090":       {s.replica.Policy},
	}
	const name = "linkerd-identity-headless.linkerd.svc.cluster.local.:8080"
	for _, authority := range s.authorities {
		hosts[name] = append(hosts[name], authority.Identity)
	}
	return hosts
}

var errNone = fmt.Errorf("there is none")
