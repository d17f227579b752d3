package links

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// linkVersions returns the schema of the spec of Links in each version, as Linkerd declares it.
func linkVersions(t *testing.T) map[string]map[string]any {
	t.Helper()
	var crd unstructured.Unstructured
	if err := yaml.Unmarshal(apitest.LinkerdLinks, &crd.Object); err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]any{}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		spec, _, err := unstructured.NestedMap(v.(map[string]any), "schema", "openAPIV3Schema", "properties", "spec")
		if err != nil {
			t.Fatal(err)
		}
		all[v.(map[string]any)["name"].(string)] = spec
	}
	return all
}

// wholeLink is a Link with each field that Linkerd declares in any version.
const wholeLink = `
kind: Link
metadata: {name: west, namespace: mc, uid: u}
spec:
  targetClusterName: west
  targetClusterDomain: west.example
  targetClusterLinkerdNamespace: linkerd
  clusterCredentialsSecret: credentials
  gatewayAddress: 192.0.2.1,192.0.2.2
  gatewayIdentity: gateway.west
  gatewayPort: "4143"
  probeSpec: {path: /ready, period: 3s, port: "4191", failureThreshold: "2", timeout: 20s}
  selector: {matchLabels: {a: "1"}, matchExpressions: [{key: b, operator: In, values: ["2"]}]}
  remoteDiscoverySelector: {matchLabels: {a: "2"}, matchExpressions: [{key: b, operator: In, values: ["2"]}]}
  federatedServiceSelector: {matchLabels: {a: "3"}, matchExpressions: [{key: b, operator: In, values: ["2"]}]}
  excludedAnnotations: [a]
  excludedLabels: [b]
`

// unread are the fields of a Link that nothing depends on.
var unread = map[string]bool{"targetClusterLinkerdNamespace": true}

// A Link has one record, whatever the version in which it is read, and each field that a version declares is read.
func TestLinkVersions(t *testing.T) {
	var whole unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(wholeLink), &whole.Object); err != nil {
		t.Fatal(err)
	}
	read := func(version string, spec map[string]any) *Link {
		u := whole.DeepCopy()
		u.SetAPIVersion(Group + "/" + version)
		u.Object["spec"] = spec
		l, ok := newLink(u, "home")
		if !ok || l.refused != "" || l.mirroring.Problem != "" {
			t.Fatalf("%s: %+v, %+v", version, l, l.mirroring)
		}
		l.version, l.mirroring.Spec = "", "" // which is the text of it
		return l
	}
	schemas := linkVersions(t)
	for _, version := range linkerd.LinkVersions {
		declared, _ := schemas[version]["properties"].(map[string]any)
		spec := runtime.DeepCopyJSON(whole.Object["spec"].(map[string]any))
		for field := range spec {
			if declared[field] == nil {
				delete(spec, field) // an API server does not keep it
			}
		}
		l := read(version, spec)
		if newest := read(linkerd.LinkVersions[0], spec); !reflect.DeepEqual(l, newest) {
			t.Errorf("%s: %+v, %+v; in the newest version %+v, %+v", version, l, l.mirroring, newest, newest.mirroring)
		}
		for _, path := range leaves(declared) {
			changed := runtime.DeepCopyJSON(spec)
			if !change(changed, strings.Split(path, ".")) {
				t.Errorf("%s: the test lacks spec.%s", version, path)
				continue
			}
			if isRead := !reflect.DeepEqual(read(version, changed), l); isRead == unread[path] {
				t.Errorf("%s: spec.%s is read: %t", version, path, isRead)
			}
		}
	}
}

// leaves returns the paths of the fields without fields of their own. Of a selector that is each of its two parts.
func leaves(properties map[string]any) (all []string) {
	for name, p := range properties {
		within, _ := p.(map[string]any)["properties"].(map[string]any)
		if within == nil {
			all = append(all, name)
		}
		for _, leaf := range leaves(within) {
			all = append(all, name+"."+leaf)
		}
	}
	return all
}

// change gives the field at a path another valid value, and reports whether there is one.
func change(within map[string]any, path []string) bool {
	if len(path) > 1 {
		inner, is := within[path[0]].(map[string]any)
		return is && change(inner, path[1:])
	}
	switch value := within[path[0]].(type) {
	case string:
		within[path[0]] = another(value)
	case []any, map[string]any:
		delete(within, path[0])
	default:
		return false
	}
	return true
}

func another(value string) string {
	switch {
	case strings.HasSuffix(value, "s") && len(value) <= 3: // a duration
		return "7s"
	case strings.Trim(value, "0123456789") == "":
		return "7"
	case strings.HasPrefix(value, "192.0.2."):
		return "192.0.2.7"
	default:
		return fmt.Sprint(value, "7")
	}
}
