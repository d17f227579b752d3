package cli

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// ErrNoLinks is that the CRD of Links is not there.
var ErrNoLinks = errors.New("the API server serves no Links: is this the cluster that links others?")

// ListLinks returns the Links of a namespace, of all if it is empty, and the client of the newest version that is
// served.
func ListLinks(
	ctx context.Context, config *rest.Config, namespace string,
) (dynamic.NamespaceableResourceInterface, []unstructured.Unstructured, error) {
	clients, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}

	for _, version := range linkerd.LinkVersions {
		client := clients.Resource(linkerd.Links.WithVersion(version))
		list, err := client.Namespace(namespace).List(ctx, metav1.ListOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("list Links: %w", err)
		}
		return client, list.Items, nil
	}
	return nil, nil, ErrNoLinks
}

// ConditionsOf returns the conditions that a Link shows; none if they cannot be read.
func ConditionsOf(link *unstructured.Unstructured) []metav1.Condition {
	var l struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(link.Object, &l) != nil {
		return nil
	}
	return l.Status.Conditions
}
