package apitest

import (
	_ "embed" // for LinkerdLinks
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/yaml"
)

// LinkerdLinks is a definition of Links in YAML that declares what Linkerd's does, version by version.
//
//go:embed linkerdlinks.yaml
var LinkerdLinks []byte

const linkResource = "links.multicluster.linkerd.io"

// ownConditions is the schema of the conditions of a Link itself, which Fingerpost's definition adds to Linkerd's. They
// are merged by type; all other lists of a status are one value each.
const ownConditions = `{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [type], items: {
  type: object, properties: {type: {type: string}, status: {type: string}, reason: {type: string},
  message: {type: string}, lastTransitionTime: {type: string}, observedGeneration: {type: integer}}}}`

// A fieldSchema is a schema of OpenAPI, as a definition of a kind has it.
type fieldSchema map[string]any

// wholeStatus is the schema of the status of Links: Linkerd's, which is the same in each version that has one, with
// conditions of the Link. Older versions have it here as well, until Undeclare takes it away.
var wholeStatus = sync.OnceValue(func() fieldSchema {
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema fieldSchema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	mustParse(LinkerdLinks, &crd)
	newest := crd.Spec.Versions[len(crd.Spec.Versions)-1]
	status, _ := newest.Schema.OpenAPIV3Schema.property("status")
	var conditions map[string]any
	mustParse([]byte(ownConditions), &conditions)
	status["properties"].(map[string]any)["conditions"] = conditions
	return status
})

func mustParse(text []byte, into any) {
	if err := yaml.Unmarshal(text, into); err != nil {
		panic(err)
	}
}

// property returns the schema of a field of an object, or of the objects in an array.
func (s fieldSchema) property(name string) (fieldSchema, bool) {
	if items, is := s["items"].(map[string]any); is {
		return fieldSchema(items).property(name)
	}
	properties, _ := s["properties"].(map[string]any)
	p, found := properties[name].(map[string]any)
	return p, found
}

// without returns a schema without fields, such as mirrorServices.conditions.localRef.
func (s fieldSchema) without(fields []string) fieldSchema {
	if len(fields) == 0 {
		return s
	}

	s = runtime.DeepCopyJSON(s)
	for _, field := range fields {
		path := strings.Split(field, ".")
		within := s
		for _, name := range path[:len(path)-1] {
			within, _ = within.property(name)
		}
		if items, is := within["items"].(map[string]any); is {
			within = items
		}
		properties, _ := within["properties"].(map[string]any)
		delete(properties, path[len(path)-1])
	}

	return s
}

// keep drops from a value what the schema does not declare, and sets defaults.
func (s fieldSchema) keep(value any) any {
	switch value := value.(type) {
	case []any:
		items, _ := s["items"].(map[string]any)
		for i := range value {
			value[i] = fieldSchema(items).keep(value[i])
		}
	case map[string]any:
		properties, _ := s["properties"].(map[string]any)
		maps.DeleteFunc(value, func(name string, _ any) bool { return properties[name] == nil })
		for name, p := range properties {
			p := fieldSchema(p.(map[string]any))
			if given, found := value[name]; found {
				value[name] = p.keep(given)
			} else if p["default"] != nil {
				value[name] = p["default"]
			}
		}
	}
	return value
}

// linkStatus returns the schema of the status of Links; false if they have none. It needs s.mu.
func (s *Server) linkStatus() (fieldSchema, bool) {
	undeclared := s.resource(linkResource).undeclared
	if slices.Contains(undeclared, "status") {
		return nil, false
	}
	return wholeStatus().without(undeclared), true
}

// lacksStatus reports whether a request is about the status of Links, which have none. It needs s.mu.
func (s *Server) lacksStatus(r request) bool {
	return r.subresource == "status" && r.groupResource() == linkResource &&
		slices.Contains(s.resource(linkResource).undeclared, "status")
}

// keepDeclared drops what the schema of a resource does not declare from the status of an object. It needs s.mu.
func (s *Server) keepDeclared(resource string, o *unstructured.Unstructured) {
	status, found := o.Object["status"]
	if resource != linkResource || !found {
		return
	}
	if declared, is := s.linkStatus(); is {
		o.Object["status"] = declared.keep(runtime.DeepCopyJSONValue(status))
	} else {
		delete(o.Object, "status")
	}
}

// linkConverter returns what merges Links as their schemas have it. It needs s.mu.
func (s *Server) linkConverter() managedfields.TypeConverter {
	const untyped = `{"type": "object", "x-kubernetes-preserve-unknown-fields": true}`
	status := ""
	if declared, is := s.linkStatus(); is {
		text, err := json.Marshal(declared)
		if err != nil {
			panic(err)
		}
		status = `, "status": ` + string(text)
	}

	models := map[string]*spec.Schema{}
	for _, version := range served[linkResource] {
		text := fmt.Sprintf(`{"type": "object", "properties": {
			"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": %s, "spec": %s%s},
			"x-kubernetes-group-version-kind": [{"group": "multicluster.linkerd.io", "version": %q, "kind": "Link"}]}`,
			untyped, untyped, status, version)
		var model spec.Schema
		mustParse([]byte(text), &model)
		models["Link."+version] = &model
	}

	c, err := managedfields.NewTypeConverter(models, false)
	if err != nil {
		panic(err)
	}
	return c
}
