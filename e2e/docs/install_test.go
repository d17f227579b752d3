package docs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// After the quick start, which leaves nothing behind, Fingerpost is installed, and links a cluster by a command and by
// hand. Beside Linkerd it takes the place of Linkerd's destination, and gives it back.
func TestQuickStartAndInstall(t *testing.T) {
	inBothWorlds(t, []string{"east", "west"}, func(w *world) {
		w.playReadme()
		w.applyAll(shop)
		if w.linkerd {
			w.installLinkerd()
		}
		w.replace["https://API-SERVER-OF-WEST:6443"] = w.clusters["west"].URL()
		linked := func() {
			w.run("kubectl --context east -n fingerpost wait link/west --for=condition=Synced --timeout=60s")
		}
		checks := map[string]func(){
			"Beside Linkerd":          func() { w.printed("8080") },
			"fingerpost link gen ":    linked,
			"API-SERVER-OF-WEST:6443": linked,
		}
		if w.linkerd {
			checks["service.keep=false"] = func() { w.behind("linkerd-destination") }
			checks["--take-ownership"] = func() { w.behind("fingerpost") }
			checks["helm uninstall fingerpost -n linkerd"] = func() { w.behind("linkerd-destination") }
		}
		w.play(install, checks)
	})
}

// installLinkerd makes as much of Linkerd as the page is about: the Pods of its destination, the Services by which
// proxies find them, and the trust roots. The certificate is where the page has step put it.
func (w *world) installLinkerd() {
	w.t.Helper()
	w.must(w.clusters["east"].Apply(w.t.Context(), []byte(linkerd)))
	certificate, key := selfSigned(w.t, "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local")
	w.must(os.WriteFile(w.path("tls.crt"), certificate, 0o600))
	w.must(os.WriteFile(w.path("tls.key"), key, 0o600))
	w.run("kubectl -n linkerd create configmap linkerd-identity-trust-roots --from-file=ca-bundle.crt=tls.crt")
}

const linkerd = `apiVersion: apps/v1
kind: Deployment
metadata: {name: linkerd-destination, namespace: linkerd}
spec:
  selector: {matchLabels: {linkerd.io/control-plane-component: destination}}
  template:
    metadata: {labels: {linkerd.io/control-plane-component: destination}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: destination, image: linkerd/controller, ports: [{name: dest-grpc, containerPort: 8086}]}]
---
apiVersion: v1
kind: Service
metadata: {name: linkerd-dst, namespace: linkerd}
spec:
  type: ClusterIP
  selector: {linkerd.io/control-plane-component: destination}
  ports: [{name: grpc, port: 8086, targetPort: 8086}]
---
apiVersion: v1
kind: Service
metadata: {name: linkerd-dst-headless, namespace: linkerd}
spec:
  clusterIP: None
  selector: {linkerd.io/control-plane-component: destination}
  ports: [{name: grpc, port: 8086, targetPort: 8086}]
`

// selfSigned returns a certificate for servers and for clients that is its own authority, and its key, in PEM.
func selfSigned(t *testing.T, name string) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		DNSNames:              []string{name},
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}

	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// behind waits until both of Linkerd's Services have endpoints, all of them Pods of a Deployment.
func (w *world) behind(deployment string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	for _, service := range []string{"linkerd-dst", "linkerd-dst-headless"} {
		w.must(mesh.Eventually(ctx, func(ctx context.Context) error {
			out, err := w.clusters["east"].Kubectl(ctx, "-n", "linkerd", "get", "endpointslices", "-l",
				"kubernetes.io/service-name="+service, "-o", "jsonpath={.items[*].endpoints[*].targetRef.name}")
			pods := strings.Fields(out)
			isOther := func(pod string) bool { return !strings.HasPrefix(pod, deployment+"-") }
			if err == nil && (len(pods) == 0 || slices.ContainsFunc(pods, isOther)) {
				err = fmt.Errorf("behind Service %s are %q, want Pods of %s", service, pods, deployment)
			}
			return err
		}))
	}
}

// The server is run on a cluster from outside, and asked from another terminal. The ports are others than those of the
// page, because tests beside this one listen, too.
func (w *world) playReadme() {
	w.t.Helper()
	w.must(w.clusters["east"].Apply(w.t.Context(), []byte(apiServer)))
	const serve = "serve --kubeconfig ~/.kube/config"
	addr, debug := freeAddr(w.t), freeAddr(w.t)
	w.replace["127.0.0.1:8086"], w.replace["127.0.0.1:9998"] = addr, debug
	w.replace[serve] = serve + " --addr " + addr + " --debug-addr " + debug + " --metrics-addr 127.0.0.1:0"

	w.play(readme, map[string]func(){
		"Quick start": func() { w.printed("Live", "192.0.2.1:6443", "included") },
	})
	clear(w.replace)
}

// apiServer is the EndpointSlice that API servers make of themselves. Those here do not, because it must not have
// addresses of loopback.
const apiServer = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [192.0.2.1], conditions: {ready: true}}]
`

// freeAddr returns an address on loopback that no process listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
