package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// fieldManager is whom server-side apply knows us as.
const fieldManager = "fingerpost-e2e"

// Apply creates or changes the objects of a file of YAML documents, in their
// order, as `kubectl apply --server-side --force-conflicts` does. Objects that
// belong in a namespace and name none go to "default".
//
// It returns when the objects can be used: a namespace when pods may be made
// in it, a CustomResourceDefinition when its resources may be.
func (c *Cluster) Apply(ctx context.Context, manifest []byte) error {
	objects, err := decode(manifest)
	if err != nil {
		return fmt.Errorf("apply to cluster %q: %w", c.name, err)
	}
	for _, object := range objects {
		if err := c.applyObject(ctx, object); err != nil {
			return fmt.Errorf("apply %s %s to cluster %q: %w", object.GetKind(), objectName(object), c.name, err)
		}
	}
	return nil
}

// InstallCRDs applies every *.yaml file below the root of fsys.
func (c *Cluster) InstallCRDs(ctx context.Context, fsys fs.FS) error {
	found := false
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".yaml" {
			return err
		}
		found = true
		manifest, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		if err := c.Apply(ctx, manifest); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err == nil && !found {
		err = errors.New("there is no *.yaml file")
	}
	if err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	return nil
}

// Scale sets the number of replicas of a Deployment.
func (c *Cluster) Scale(ctx context.Context, namespace, deployment string, replicas int) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := c.client().typed.AppsV1().Deployments(namespace).Patch(ctx, deployment, types.MergePatchType,
		patch, metav1.PatchOptions{}, "scale")
	if err != nil {
		return fmt.Errorf("scale Deployment %s/%s of cluster %q: %w", namespace, deployment, c.name, err)
	}
	return nil
}

// decode splits a manifest into objects. Lists are taken apart.
func decode(manifest []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		switch {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("document %d: %w", len(objects)+1, err)
		case len(object.Object) == 0:
			continue // nothing between two separators
		case object.GetKind() == "" || object.GetAPIVersion() == "":
			return nil, fmt.Errorf("document %d has no kind or no apiVersion", len(objects)+1)
		case !object.IsList():
			objects = append(objects, object)
			continue
		}
		err = object.EachListItem(func(item runtime.Object) error {
			objects = append(objects, item.(*unstructured.Unstructured))
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", len(objects)+1, err)
		}
	}
}

func objectName(object *unstructured.Unstructured) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

func (c *Cluster) applyObject(ctx context.Context, object *unstructured.Unstructured) error {
	clients := c.client()
	mapping, err := clients.mapping(object.GroupVersionKind())
	if err != nil {
		return err
	}
	resource := dynamic.ResourceInterface(clients.dynamic.Resource(mapping.Resource))
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if object.GetNamespace() == "" {
			object.SetNamespace(metav1.NamespaceDefault)
		}
		resource = clients.dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if _, err := resource.Apply(ctx, object.GetName(), object, options); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	switch object.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Kind: "Namespace"}:
		if c.options.Light {
			return nil
		}
		return c.awaitServiceAccount(ctx, object.GetName())
	case schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
		return clients.awaitServed(ctx, object)
	default:
		return nil
	}
}

// mapping finds the resource of a kind. Discovery is cached, so before a kind
// is called unknown it is asked for once more.
func (c *clients) mapping(kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset()
		mapping, err = c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	return mapping, err
}

// awaitServed waits until discovery knows every version that the
// CustomResourceDefinition serves: the last thing to come true.
func (c *clients) awaitServed(ctx context.Context, definition *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	return until(ctx, func(context.Context) error {
		for _, version := range versions {
			fields, _ := version.(map[string]any)
			name, _, _ := unstructured.NestedString(fields, "name")
			if served, _, _ := unstructured.NestedBool(fields, "served"); !served {
				continue
			}
			if _, err := c.mapping(schema.GroupVersionKind{Group: group, Version: name, Kind: kind}); err != nil {
				return err
			}
		}
		return nil
	})
}
