package policy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// An API server takes every definition of the chart: its names are accepted, its schemas are structural, and it serves
// the versions.
func TestDefinitionsOfTheChart(t *testing.T) {
	t.Parallel()
	resource := schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	rendered, err := chartDefinitions(t.Context())
	do(t, err)
	for _, r := range rendered {
		there, err := shared.dynamic.Resource(resource).Get(t.Context(), r.GetName(), metav1.GetOptions{})
		do(t, err)
		conditions, _, err := unstructured.NestedSlice(there.Object, "status", "conditions")
		do(t, err)

		have := map[string]string{}
		for _, c := range conditions {
			fields := c.(map[string]any)
			have[fields["type"].(string)] = fields["status"].(string)
		}
		if have["Established"] != "True" || have["NamesAccepted"] != "True" || have["NonStructuralSchema"] == "True" {
			t.Errorf("%s: %v", r.GetName(), have)
		}
	}
	if len(rendered) != 10 {
		t.Errorf("there are %d definitions", len(rendered))
	}
}

// Of ServiceProfiles and ExternalWorkloads, too, API servers refuse what has no meaning, keep what readers know, and
// prune nothing of that.
func TestSchemasOfTheChart(t *testing.T) {
	t.Parallel()
	shared.apply(t, "chart-schemas", "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS}\n")
	kinds := map[string]dynamic.ResourceInterface{}
	for name, gvr := range map[string]schema.GroupVersionResource{
		"ServiceProfile":   {Group: "linkerd.io", Version: "v1alpha2", Resource: "serviceprofiles"},
		"ExternalWorkload": {Group: "workload.linkerd.io", Version: "v1beta1", Resource: "externalworkloads"},
	} {
		kinds[name] = shared.dynamic.Resource(gvr).Namespace("chart-schemas")
	}

	for _, c := range []struct{ kind, version, spec, want string }{
		{"ServiceProfile", "linkerd.io/v1alpha2", `
  routes:
  - name: r
    condition: {all: [{method: GET}, {not: {pathRegex: /a}}], not: [{pathRegex: /b}]}
    responseClasses: [{condition: {not: {status: {min: 500, max: 599}}}, isFailure: true}]
  retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}
  dstOverrides: [{authority: a.b, weight: 500m}, {authority: b.c, weight: 1}]`, ""},
		{"ServiceProfile", "linkerd.io/v1alpha2", " {routes: [{name: r}]}", "condition: Required"},
		{"ServiceProfile", "linkerd.io/v1alpha2", " {routes: [{name: r, condition: x}]}", "expected map"},
		{"ExternalWorkload", "workload.linkerd.io/v1beta1", `
  meshTLS: {identity: i, serverName: s}
  ports: [{name: http, port: 80}]
  workloadIPs: [{ip: 192.0.2.1}]`, ""},
		{"ExternalWorkload", "workload.linkerd.io/v1beta1", " {ports: [{port: 0}]}", "greater than or equal to 1"},
		{"ExternalWorkload", "workload.linkerd.io/v1beta1", " {meshTLS: {identity: i}}", "serverName: Required"},
	} {
		manifest := "apiVersion: " + c.version + "\nkind: " + c.kind +
			"\nmetadata: {name: it, namespace: chart-schemas}\nspec:" + c.spec + "\n"
		err := shared.Apply(t.Context(), []byte(manifest))
		switch {
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s:%s: %v, want %s", c.kind, c.spec, err, c.want)
		case c.want == "" && err != nil:
			t.Errorf("%s:%s: %v", c.kind, c.spec, err)
		}
	}

	profile, err := kinds["ServiceProfile"].Get(t.Context(), "it", metav1.GetOptions{})
	do(t, err)
	routes, _, err := unstructured.NestedSlice(profile.Object, "spec", "routes")
	do(t, err)
	not, found, err := unstructured.NestedSlice(routes[0].(map[string]any), "condition", "not")
	do(t, err)
	if !found || len(not) != 1 {
		t.Errorf("what nests is pruned: %v", routes)
	}

	workload, err := kinds["ExternalWorkload"].Get(t.Context(), "it", metav1.GetOptions{})
	do(t, err)
	ports, _, err := unstructured.NestedSlice(workload.Object, "spec", "ports")
	do(t, err)
	if protocol := ports[0].(map[string]any)["protocol"]; protocol != "TCP" {
		t.Errorf("the protocol of a port is %v", protocol)
	}
}
