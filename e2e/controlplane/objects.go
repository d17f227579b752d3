package controlplane

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/jsonpath"
)

// These do what kubectl does. They need no process each time, which a test that polls notices.

// Print returns what `kubectl -n NAMESPACE get RESOURCE NAME -o jsonpath=TEMPLATE`
// prints; without a name that is about a list. A resource is given as kubectl takes it,
// in the plural and with its group: links.multicluster.linkerd.io.
func (c *Cluster) Print(ctx context.Context, namespace, resource, name, template string) (string, error) {
	path := jsonpath.New(resource).AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return "", err
	}
	objects, err := c.resource(namespace, resource)
	if err != nil {
		return "", err
	}
	var content map[string]any
	if name == "" {
		list, err := objects.List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		content = list.UnstructuredContent()
	} else {
		object, err := objects.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		content = object.Object
	}
	var text strings.Builder
	err = path.Execute(&text, content)
	return text.String(), err
}

// Delete deletes objects of a namespace, RESOURCE/NAME each, but for those that are not there.
func (c *Cluster) Delete(ctx context.Context, namespace string, names ...string) error {
	for _, one := range names {
		resource, name, _ := strings.Cut(one, "/")
		objects, err := c.resource(namespace, resource)
		if err == nil {
			err = objects.Delete(ctx, name, metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s of namespace %s from cluster %q: %w", one, namespace, c.name, err)
		}
	}
	return nil
}

func (c *Cluster) resource(namespace, resource string) (dynamic.ResourceInterface, error) {
	clients := c.client()
	full, err := clients.mapper.ResourceFor(schema.ParseGroupResource(resource).WithVersion(""))
	if err != nil {
		return nil, err
	}
	return clients.dynamic.Resource(full).Namespace(namespace), nil
}
