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

// externalPermissions are those that slices of ExternalWorkloads need.
var externalPermissions = append(slices.Clip(permissions),
	apply.Permission{Resource: linkerd.ExternalWorkloads, Verbs: readVerbs})

// reviewExternal returns nil if the cluster serves ExternalWorkloads.
func reviewExternal(ctx context.Context, t *apply.Target) error {
	_, err := listWorkloads(ctx, t.Dynamic, metav1.NamespaceAll, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return apply.ErrNothingToWrite
	}
	return err
}
