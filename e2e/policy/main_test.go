// Package policy tests on real control planes what the server makes of objects of policy: answers to proxies, rights,
// definitions of kinds that come and go.
//
// Replicas run in this process, so that there may be many at once, each with an account of its own.
package policy

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/features"
	"k8s.io/client-go/kubernetes"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// shared is a cluster with all definitions of kinds, of which each test uses a namespace. A test that changes
// definitions uses bare, which has those of Kubernetes alone at first.
var shared, bare *site

// binary is the server's, for the one test that has it as a process of its own.
var binary string

// A site is a cluster, and clients of its admin.
type site struct {
	*controlplane.Cluster
	kubernetes.Interface
	dynamic dynamic.Interface
}

func TestMain(m *testing.M) {
	features.ReplaceFeatureGates(newGates())
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil { // they wait most of the time
		panic(err)
	}
	fingerpost.TestMain(context.Background(), fingerpost.Race, func(ctx context.Context, built string) (int, error) {
		binary = built
		return run(ctx, m)
	})
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	started, err := controlplane.StartAll(ctx, controlplane.Options{Name: "east", Light: true, Audit: true},
		controlplane.Options{Name: "bare", Light: true})
	if err != nil {
		return 1, err
	}
	defer func() {
		for _, c := range started {
			err = errors.Join(err, c.Stop())
		}
	}()

	for i, s := range []**site{&shared, &bare} {
		*s, err = newSite(ctx, started[i])
		if err != nil {
			return 1, err
		}
	}

	gateway, err := gatewayCRDs(ctx, "experimental", "httproutes", "grpcroutes", "tlsroutes", "tcproutes")
	if err != nil {
		return 1, err
	}
	kinds, err := chartDefinitions(ctx)
	if err != nil {
		return 1, err
	}
	for _, manifest := range [][]byte{links.CRD, charts.Manifest(kinds...), gateway} {
		if err := shared.Apply(ctx, manifest); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// paged has all lists read by pages that begin from now on, instead of as a stream.
var paged atomic.Bool

// gates are the feature gates of client-go, which has no others that can be changed while it runs.
type gates struct {
	specs map[features.Feature]features.FeatureSpec
}

func newGates() *gates {
	g := &gates{}
	if err := features.AddFeaturesToExistingFeatureGates(g); err != nil {
		panic(err)
	}
	return g
}

// Add takes what client-go has by default.
func (g *gates) Add(specs map[features.Feature]features.FeatureSpec) error {
	g.specs = specs
	return nil
}

// Enabled returns the default, unless paged is set.
func (g *gates) Enabled(f features.Feature) bool {
	return g.specs[f].Default && (f != features.WatchListClient || !paged.Load())
}

func newSite(ctx context.Context, c *controlplane.Cluster) (*site, error) {
	s := &site{Cluster: c}
	config := c.AdminConfig()
	config.QPS = -1
	var err error
	if s.Interface, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if s.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	return s, s.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+mesh.Linkerd+"}\n"))
}

// chartDefinitions returns those of the kinds of Linkerd, as the chart of the server renders them.
func chartDefinitions(ctx context.Context) ([]*unstructured.Unstructured, error) {
	all, err := charts.Render(ctx, charts.Server, mesh.Linkerd, "{crds: {mesh: true}}")
	return slices.DeleteFunc(all, func(o *unstructured.Unstructured) bool {
		return o.GetKind() != "CustomResourceDefinition"
	}), err
}

// gatewayCRDs returns the definitions of some kinds of the Gateway API, which its module has beside its packages. The
// standard channel serves fewer versions.
func gatewayCRDs(ctx context.Context, channel string, kinds ...string) (all []byte, err error) {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module of the Gateway API: %w", err)
	}

	for _, kind := range kinds {
		path := filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", channel,
			"gateway.networking.k8s.io_"+kind+".yaml")
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		all = append(append(all, "\n---\n"...), text...)
	}
	return all, nil
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// apply applies objects to a cluster. $NS in the text is a namespace.
func (s *site) apply(t *testing.T, namespace, manifest string) {
	t.Helper()
	do(t, s.Apply(t.Context(), []byte(strings.ReplaceAll(manifest, "$NS", namespace))))
}

// shop is a namespace with a Service and a Pod of the mesh. No controller makes the account of the Pod here.
const shop = `apiVersion: v1
kind: Namespace
metadata: {name: $NS}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: $NS}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: $NS}
spec: {ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: $NS}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: $NS, labels: {app: p, linkerd.io/control-plane-ns: linkerd}}
spec:
  automountServiceAccountToken: false
  containers: [{name: main, image: web, ports: [{name: http, containerPort: 8080}]}]
`

// eventually waits until a check passes, for five times the time that is claimed at most, and logs how long it took.
func eventually(t *testing.T, claimed time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*claimed)
	defer cancel()
	began := time.Now()
	if err := mesh.Eventually(ctx, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s: %s (claimed: %s)", what, time.Since(began).Round(time.Millisecond), claimed)
}

// The types of the Gateway API have the module among those that this one needs.
var _ gatewayv1.RouteStatus
