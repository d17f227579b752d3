package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster"
)

// A right is what must be granted to write.
type right struct {
	resource  schema.GroupResource
	namespace string // empty: all
	verbs     []string
}

func (r right) String() string {
	where := "in all namespaces"
	if r.namespace != "" {
		where = "in namespace " + r.namespace
	}
	return fmt.Sprintf("%s on %s %s", strings.Join(r.verbs, ", "), r.resource, where)
}

// A Refusal says which rights are missing to write into a cluster.
type Refusal struct{ missing []right }

func (e *Refusal) Error() string {
	var all []string
	for _, r := range e.missing {
		all = append(all, r.String())
	}
	return "the credentials do not let us write: grant " + strings.Join(all, ", and ")
}

var (
	leaseResource   = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	sliceResource   = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	serviceResource = schema.GroupResource{Resource: "services"}
)

// writerRights is what every writer of slices needs in a cluster whose Leases are in namespace.
func writerRights(namespace string) []right {
	return []right{
		{leaseResource, namespace, []string{"get", "list", "watch", "create", "update"}},
		{sliceResource, "", []string{"list", "watch", "create", "update", "delete"}},
		{serviceResource, "", []string{"get", "list", "watch"}},
	}
}

// ask returns nil if all rights are granted, a [Refusal] if some are not, or why it cannot be told.
func ask(ctx context.Context, client kubernetes.Interface, rights []right) error {
	var refusal Refusal
	for _, r := range rights {
		missing := right{resource: r.resource, namespace: r.namespace}
		for _, verb := range r.verbs {
			status, err := cluster.Review(ctx, client, authorizationv1.ResourceAttributes{
				Group: r.resource.Group, Resource: r.resource.Resource, Namespace: r.namespace, Verb: verb,
			})
			if err != nil {
				return fmt.Errorf("ask which rights there are: %w", err)
			}
			if !status.Allowed {
				missing.verbs = append(missing.verbs, verb)
			}
		}
		if len(missing.verbs) > 0 {
			refusal.missing = append(refusal.missing, missing)
		}
	}
	if len(refusal.missing) > 0 {
		return &refusal
	}
	return nil
}

// isRefusal reports whether err says that a right is missing.
func isRefusal(err error) bool {
	_, is := errors.AsType[*Refusal](err)
	return is
}
