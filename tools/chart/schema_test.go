package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cert-manager/cert-manager/pkg/apis/certmanager"
	monitoring "github.com/prometheus-operator/prometheus-operator/example"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// Every object whose kind is not Kubernetes' own is one that the definition of its kind takes, as its authors
// publish it. Of Kubernetes' own a real API server is asked, in e2e/live.
func TestForeignKinds(t *testing.T) {
	definitions := map[schema.GroupVersionKind]*jsonschema.Schema{}
	for _, text := range foreign(t) {
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(text), &crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind}
			definitions[kind] = compile(t, v.Schema.OpenAPIV3Schema)
		}
	}
	seen := map[string]bool{}
	for name, r := range renders {
		manifests, _, err := r.render(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		for text := range strings.SplitSeq(manifests, "\n---\n") {
			var object map[string]any
			if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
				t.Fatal(err)
			}
			version, _ := object["apiVersion"].(string)
			kind, _ := object["kind"].(string)
			gvk := schema.FromAPIVersionAndKind(version, kind)
			if scheme.Scheme.Recognizes(gvk) {
				continue
			}
			seen[kind] = true
			if definitions[gvk] == nil {
				t.Errorf("%s: there is no definition of %s", name, gvk)
			} else if err := definitions[gvk].Validate(object); err != nil {
				t.Errorf("%s: %s: %v", name, kind, err)
			}
		}
	}
	if len(seen) < 3 {
		t.Errorf("renders have objects of %v alone", seen)
	}
}

// foreign returns the CRDs of kinds of others that the charts render. Those of cert-manager are in its
// module, and in none of its packages.
func foreign(t *testing.T) []string {
	t.Helper()
	var all bytes.Buffer
	if err := monitoring.PrintAll(&all); err != nil {
		t.Fatal(err)
	}
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/cert-manager/cert-manager").Output()
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "deploy", "crds",
		certmanager.GroupName+"_*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("CRDs of cert-manager: %v %v", paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString("\n---\n")
		all.Write(text)
	}
	return strings.Split(all.String(), "\n---\n")
}

// compile makes a JSON schema of one that is decoded, or of the OpenAPI schema of a CRD, and closes its
// objects: `kubectl apply` too refuses fields that a CRD does not name.
func compile(t *testing.T, decoded any) *jsonschema.Schema {
	t.Helper()
	closeObjects(decoded)
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("schema.json", decoded); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func closeObjects(decoded any) {
	switch s := decoded.(type) {
	case map[string]any:
		open := s["additionalProperties"] != nil || s["x-kubernetes-preserve-unknown-fields"] != nil
		if s["type"] == "object" && s["properties"] != nil && !open {
			s["additionalProperties"] = false
		}
		for _, member := range s {
			closeObjects(member)
		}
	case []any:
		for _, member := range s {
			closeObjects(member)
		}
	}
}
