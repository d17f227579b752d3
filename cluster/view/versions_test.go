package view

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// parseVersion returns an object in a version of its group, with the fields of its spec that are read, as that version
// has them.
func parseVersion(t *testing.T, kind, group, version, rest string) *unstructured.Unstructured {
	t.Helper()
	var u unstructured.Unstructured
	head := "apiVersion: " + group + "/" + version + "\nkind: " + kind + "\n"
	if err := yaml.Unmarshal([]byte(head+rest), &u.Object); err != nil {
		t.Fatal(err)
	}
	return &u
}

// wantVersions fails if a table lacks a version that is read, or has another one.
func wantVersions[V any](t *testing.T, read []string, table map[string]V) {
	t.Helper()
	if diff := cmp.Diff(slices.Sorted(slices.Values(read)), slices.Sorted(maps.Keys(table))); diff != "" {
		t.Errorf("versions of the table: %s", diff)
	}
}

// An ExternalWorkload has one record, whatever the version in which it is read.
func TestExternalWorkloadVersions(t *testing.T) {
	const rest = `
metadata: {name: vm, namespace: ns, labels: {app: legacy}, annotations: {config.linkerd.io/opaque-ports: db}}
spec:
  MESH: {identity: "spiffe://root.linkerd.cluster.local/vm", serverName: vm.cluster.local}
  workloadIPs: [{ip: 192.0.2.7}]
  ports: [{name: http, port: 8080, protocol: TCP}, {name: db, port: 3306}, {name: linkerd-proxy, port: 4567}]
status:
  conditions: [{type: Ready, status: "True", reason: R, message: m,
    lastProbeTime: "2026-01-01T00:00:00Z", lastTransitionTime: "2026-01-01T00:00:00Z"}]
`
	meshField := map[string]string{"v1beta1": "meshTLS", "v1alpha1": "meshTls"}
	wantVersions(t, linkerd.ExternalWorkloadVersions, meshField)
	r := NewReconciler(logr.Discard(), "east", Options{Local: true})
	records := map[string]podRecord{}
	for version, field := range meshField {
		u := parseVersion(
			t,
			"ExternalWorkload",
			"workload.linkerd.io",
			version,
			strings.ReplaceAll(rest, "MESH", field),
		)
		var out omissions
		record, ok := r.reduceExternal(u, &out)
		if !ok || out.String() != "" {
			t.Fatalf("%s: %t, %s", version, ok, out.String())
		}
		template := record.class.Value().template.Value()
		if template.Identity != "spiffe://root.linkerd.cluster.local/vm" || template.ServerName != "vm.cluster.local" ||
			template.InboundPort != 4567 || !template.Opaque.Given() || !record.class.Value().available {
			t.Errorf("%s: %+v of %+v", version, template, record.class.Value())
		}
		if ips := record.ips; ips == nil {
			t.Errorf("%s: no addresses", version)
		}
		records[version] = record
	}
	if a, b := records["v1alpha1"], records["v1beta1"]; a.class != b.class {
		t.Errorf("%+v and %+v", a.class.Value(), b.class.Value())
	}
}

// A Server has one record, whatever the version in which it is read. externalWorkloadSelector is a field since v1beta2:
// one that has only that selects nothing before, because no API server keeps it.
func TestServerVersions(t *testing.T) {
	const rest = `
metadata: {name: db, namespace: ns}
spec:
  port: db
  proxyProtocol: opaque
  podSelector: {matchLabels: {app: db}, matchExpressions: [{key: tier, operator: In, values: [a, b]}]}
`
	const external = `  externalWorkloadSelector: {matchLabels: {app: vm}}
`
	fields := map[string]string{
		"v1beta1": rest, "v1beta2": rest + external, "v1beta3": rest + external + "  accessPolicy: deny\n",
	}
	wantVersions(t, linkerd.ServerVersions, fields)
	for version, text := range fields {
		var out omissions
		s, ok := reduceServer(parseVersion(t, "Server", "policy.linkerd.io", version, text), &out)
		if !ok || out.String() != "" {
			t.Fatalf("%s: %t, %s", version, ok, out.String())
		}
		if s.port.StrVal != "db" || !s.pods.Matches(labels.Set{"app": "db", "tier": "b"}) ||
			s.pods.Matches(labels.Set{"app": "db", "tier": "c"}) {
			t.Errorf("%s: %+v", version, s)
		}
		if selects := s.externals.Matches(labels.Set{"app": "vm"}); selects != strings.Contains(text, external) {
			t.Errorf("%s: it selects ExternalWorkloads: %t", version, selects)
		}
	}
}
