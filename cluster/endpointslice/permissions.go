package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// A writePermission is what RBAC must grant us to write.
type writePermission struct {
	resource  schema.GroupResource
	namespace string // empty: all
	verbs     []string
}

func (p writePermission) String() string {
	where := "in all namespaces"
	if p.namespace != "" {
		where = "in namespace " + p.namespace
	}
	return fmt.Sprintf("%s on %s %s", strings.Join(p.verbs, ", "), p.resource, where)
}

// missingPermissions is the error that a cluster does not permit us to write.
type missingPermissions struct{ all []writePermission }

func (e *missingPermissions) Error() string {
	var all []string
	for _, p := range e.all {
		all = append(all, p.String())
	}
	return "the credentials do not permit writing: grant " + strings.Join(all, ", and ")
}

func isMissingPermissions(err error) bool {
	_, is := errors.AsType[*missingPermissions](err)
	return is
}

var (
	leaseResource   = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	sliceResource   = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	serviceResource = schema.GroupResource{Resource: "services"}
)

// leasePermission is what campaigning for a Lease in a namespace needs.
func leasePermission(namespace string) writePermission {
	return writePermission{leaseResource, namespace, []string{"get", "list", "watch", "create", "update"}}
}

// writerPermissions are those that each kind of slices needs in a cluster with its Leases in namespace.
func writerPermissions(namespace string) []writePermission {
	return []writePermission{
		leasePermission(namespace),
		{sliceResource, "", []string{"list", "watch", "create", "update", "delete"}},
		{serviceResource, "", []string{"get", "list", "watch"}},
	}
}

// reviewPermissions returns nil if all permissions are granted, [missingPermissions] if some are not, or
// why the review failed.
func reviewPermissions(ctx context.Context, client kubernetes.Interface, permissions []writePermission) error {
	var missing missingPermissions
	for _, p := range permissions {
		denied := writePermission{resource: p.resource, namespace: p.namespace}
		for _, verb := range p.verbs {
			status, err := api.ReviewAccess(ctx, client, authorizationv1.ResourceAttributes{
				Group: p.resource.Group, Resource: p.resource.Resource, Namespace: p.namespace, Verb: verb,
			})
			if err != nil {
				return fmt.Errorf("review permissions: %w", err)
			}
			if !status.Allowed {
				denied.verbs = append(denied.verbs, verb)
			}
		}
		if len(denied.verbs) > 0 {
			missing.all = append(missing.all, denied)
		}
	}
	if len(missing.all) > 0 {
		return &missing
	}
	return nil
}
