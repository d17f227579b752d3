package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	sigsyaml "sigs.k8s.io/yaml"
)

// meshVersions are the kinds of Linkerd that are read, with the versions that API servers serve of them. The last one
// is stored.
var meshVersions = map[string]string{
	"serviceprofiles.linkerd.io":                   "v1alpha2",
	"externalworkloads.workload.linkerd.io":        "v1alpha1 v1beta1",
	"servers.policy.linkerd.io":                    "v1alpha1 v1beta1 v1beta2 v1beta3",
	"serverauthorizations.policy.linkerd.io":       "v1alpha1 v1beta1",
	"authorizationpolicies.policy.linkerd.io":      "v1alpha1",
	"meshtlsauthentications.policy.linkerd.io":     "v1alpha1",
	"networkauthentications.policy.linkerd.io":     "v1alpha1",
	"httplocalratelimitpolicies.policy.linkerd.io": "v1alpha1",
	"egressnetworks.policy.linkerd.io":             "v1alpha1",
	"httproutes.policy.linkerd.io":                 "v1alpha1 v1beta1 v1beta2 v1beta3",
}

// A definition is what the test reads of a CustomResourceDefinition.
type definition struct {
	Kind     string
	Metadata struct {
		Name                string
		Labels, Annotations map[string]string
	}
	Spec struct {
		Conversion struct{ Strategy string }
		Versions   []struct {
			Name            string
			Served, Storage bool
			Schema          struct{ OpenAPIV3Schema map[string]any }
		}
	}
}

// definitions are those that a release renders, by name.
func definitions(t *testing.T, r release) map[string]definition {
	t.Helper()
	manifests, _, err := r.render(server)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]definition{}
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var d definition
		if err := sigsyaml.Unmarshal([]byte(document), &d); err != nil {
			t.Fatal(err)
		}
		if d.Kind == "CustomResourceDefinition" {
			all[d.Metadata.Name] = d
		}
	}
	return all
}

// With crds.mesh every kind is defined, with all versions that Linkerd serves, and outlives the release. Without it
// none is.
func TestMeshDefinitions(t *testing.T) {
	r := release{name: "east", namespace: "mesh", set: "{crds: {mesh: true}}"}
	got := map[string]string{}
	for name, d := range definitions(t, r) {
		var served []string
		for i, v := range d.Spec.Versions {
			if v.Served {
				served = append(served, v.Name)
			}
			if v.Storage != (i == len(d.Spec.Versions)-1) || v.Schema.OpenAPIV3Schema["properties"] == nil {
				t.Errorf("%s %s: stored %v, schema %v", name, v.Name, v.Storage, v.Schema)
			}
		}
		got[name] = strings.Join(served, " ")

		if d.Spec.Conversion.Strategy != "None" || d.Metadata.Annotations["helm.sh/resource-policy"] != "keep" ||
			d.Metadata.Labels["app.kubernetes.io/instance"] != "east" {
			t.Errorf("%s: converted by %q, with %v, %v", name, d.Spec.Conversion.Strategy, d.Metadata.Annotations,
				d.Metadata.Labels)
		}
	}
	if diff := cmp.Diff(meshVersions, got); diff != "" {
		t.Error(diff)
	}

	r.set = "{crds: {mesh: false}}"
	if all := definitions(t, r); len(all) > 0 {
		t.Errorf("without crds.mesh: %d definitions", len(all))
	}
}

// A definition that is there stays as it is, unless it is of this release: what Helm does not render it would remove.
func TestDefinitionsOfOthers(t *testing.T) {
	of := func(name, namespace string) map[string]string {
		return map[string]string{"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace}
	}
	there := defined{
		"servers.policy.linkerd.io":        {},
		"serviceprofiles.linkerd.io":       of("linkerd-crds", "mesh"),
		"httproutes.policy.linkerd.io":     of("east", "other"),
		"egressnetworks.policy.linkerd.io": of("east", "mesh"),
	}
	all := definitions(t, release{
		name: "east", namespace: "mesh", set: "{crds: {mesh: true}, controllerNamespace: default}", cluster: there,
	})
	want := maps.Clone(meshVersions)
	for _, name := range []string{
		"servers.policy.linkerd.io", "serviceprofiles.linkerd.io", "httproutes.policy.linkerd.io",
	} {
		delete(want, name)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(all))); diff != "" {
		t.Error(diff)
	}
}

// defined is a cluster with definitions, by name, and their annotations.
type defined map[string]map[string]string

func (d defined) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	if kind != "CustomResourceDefinition" {
		return bare{}.GetClientFor(apiVersion, kind)
	}
	resource := schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	var objects []runtime.Object
	for name, annotations := range d {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		o.SetName(name)
		o.SetAnnotations(annotations)
		objects = append(objects, o)
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{resource: kind + "List"}, objects...)
	return client.Resource(resource), false, nil
}
