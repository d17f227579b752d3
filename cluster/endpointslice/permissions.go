package endpointslice

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

var (
	sliceResource   = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	serviceResource = schema.GroupResource{Resource: "services"}
)

var readVerbs = []string{"list", "watch"}

// permissions are those that slices of each kind need.
var permissions = []apply.Permission{
	{Resource: sliceResource, Verbs: []string{"list", "watch", "create", "update", "delete"}},
	{Resource: serviceResource, Verbs: []string{"get", "list", "watch"}},
}

// reviewFederated returns nil if slices of federated Services can be written.
func reviewFederated(ctx context.Context, t *apply.Target) error {
	return apply.Review(ctx, t.Client, permissions...)
}

// reviewExternal returns nil if slices of ExternalWorkloads can be written.
func reviewExternal(ctx context.Context, t *apply.Target) error {
	workloads := apply.Permission{Resource: linkerd.ExternalWorkloads, Verbs: readVerbs}
	if err := apply.Review(ctx, t.Client, append(slices.Clip(permissions), workloads)...); err != nil {
		return err
	}
	_, err := listWorkloads(ctx, t.Dynamic, metav1.NamespaceAll, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return apply.ErrNothingToWrite
	}
	return err
}
