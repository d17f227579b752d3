package endpointslice

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fingerpost/fingerpost/cluster/apply"
)

var (
	leaseResource   = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	sliceResource   = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	serviceResource = schema.GroupResource{Resource: "services"}
)

var readVerbs = []string{"list", "watch"}

// leasePermission is what campaigning for a Lease in a namespace needs.
func leasePermission(namespace string) apply.Permission {
	verbs := []string{"get", "list", "watch", "create", "update"}
	return apply.Permission{Resource: leaseResource, Namespace: namespace, Verbs: verbs}
}

// writerPermissions are those that each kind of slices needs in a cluster with its Leases in namespace.
func writerPermissions(namespace string) []apply.Permission {
	return []apply.Permission{
		leasePermission(namespace),
		{Resource: sliceResource, Verbs: []string{"list", "watch", "create", "update", "delete"}},
		{Resource: serviceResource, Verbs: []string{"get", "list", "watch"}},
	}
}
