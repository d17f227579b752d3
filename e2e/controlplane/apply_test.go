package controlplane

import (
	"strings"
	"testing"
	"testing/fstest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const crd = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fingers.example.test}
spec:
  group: example.test
  scope: Namespaced
  names: {kind: Finger, plural: fingers}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {points: {type: string}}}}
`

func TestApplyAndCRDs(t *testing.T) {
	cluster := ForTest(t, Options{Light: true})
	must(t, cluster.InstallCRDs(t.Context(), fstest.MapFS{
		"crds/fingers.yaml": {Data: []byte(crd)},
		"README.md":         {Data: []byte("not YAML: {")},
	}))
	// Twice: the second time everything exists, and one field differs.
	for _, points := range []string{"east", "west"} {
		must(t, cluster.Apply(t.Context(), []byte(`---
apiVersion: v1
kind: Namespace
metadata: {name: signs}
---
# nothing
---
apiVersion: v1
kind: List
items:
- {apiVersion: example.test/v1, kind: Finger, metadata: {name: a, namespace: signs}, points: `+points+`}
- {apiVersion: example.test/v1, kind: Finger, metadata: {name: b}, points: `+points+`}
`)))
		for namespace, name := range map[string]string{"signs": "a", "default": "b"} {
			resource := schema.GroupVersionResource{Group: "example.test", Version: "v1", Resource: "fingers"}
			finger, err := cluster.client().dynamic.Resource(resource).Namespace(namespace).Get(t.Context(),
				name, metav1.GetOptions{})
			must(t, err)
			if got := finger.Object["points"]; got != points {
				t.Errorf("%s/%s points %v, want %s", namespace, name, got, points)
			}
		}
	}
}

func TestApplyNamesTheCulprit(t *testing.T) {
	cluster := commonCluster(t)
	for manifest, want := range map[string]string{
		"kind: [":         "document 1",
		"{kind: Service}": "no apiVersion",
		"{apiVersion: v1, kind: Nonesuch, metadata: {name: x}}":                   `Nonesuch x to cluster "common"`,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: X, namespace: here}}": "ConfigMap here/X",
	} {
		err := cluster.Apply(t.Context(), []byte(manifest))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("apply %s: %v, want an error with %q", manifest, err, want)
		}
	}
}

func TestKubectl(t *testing.T) {
	cluster := commonCluster(t)
	version, err := cluster.Kubectl(t.Context(), "version")
	must(t, err)
	if got := strings.Count(version, ": v1.36.3\n"); got != 2 {
		t.Errorf("kubectl version prints %q, want v1.36.3 for both sides", version)
	}
	_, err = cluster.Kubectl(t.Context(), "get", "service", "nonesuch")
	if err == nil || !strings.Contains(err.Error(), `services "nonesuch" not found`) {
		t.Errorf("kubectl get: %v, want what kubectl prints", err)
	}
}
