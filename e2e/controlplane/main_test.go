package controlplane

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// TestMain also plays the process that is killed in TestOrphans: the test
// binary starts itself with childVariable set.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := playChild(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if cluster := common.cluster; cluster != nil {
		if err := cluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// common is the cluster of all tests that leave it as they found it. It has an
// audit log.
var common struct {
	once    sync.Once
	cluster *Cluster
	err     error
}

func commonCluster(t *testing.T) *Cluster {
	t.Helper()
	common.once.Do(func() {
		common.cluster, common.err = Start(t.Context(), Options{
			Name:  "common",
			Zones: []string{"common-a", "common-b"},
			Audit: true,
		})
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.cluster
}

// must is for calls that cannot fail in the test at hand.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// app is a namespace with a Deployment of n pods and a Service before it.
func app(namespace string, n int) []byte {
	return fmt.Appendf(nil, `
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: example.test/web, ports: [{name: http, containerPort: 8080}]}
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: topology.kubernetes.io/zone
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: web}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: %[1]s}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`, namespace, n)
}
