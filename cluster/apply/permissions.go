package apply

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

// A Permission is what RBAC must grant us.
type Permission struct {
	Resource  schema.GroupResource
	Namespace string // empty: all
	Verbs     []string
}

func (p Permission) String() string {
	where := "in all namespaces"
	if p.Namespace != "" {
		where = "in namespace " + p.Namespace
	}
	return fmt.Sprintf("%s on %s %s", strings.Join(p.Verbs, ", "), p.Resource, where)
}

// MissingPermissions is the error that a cluster does not permit us to write.
type MissingPermissions struct{ All []Permission }

func (e *MissingPermissions) Error() string {
	var all []string
	for _, p := range e.All {
		all = append(all, p.String())
	}
	return "the credentials do not permit writing: grant " + strings.Join(all, ", and ")
}

// IsMissingPermissions reports whether an error is, or wraps, a [MissingPermissions].
func IsMissingPermissions(err error) bool {
	_, is := errors.AsType[*MissingPermissions](err)
	return is
}

// Review returns nil if all permissions are granted, [MissingPermissions] if some are not, or why the review
// failed.
func Review(ctx context.Context, client kubernetes.Interface, permissions ...Permission) error {
	var missing MissingPermissions
	for _, p := range permissions {
		denied := Permission{Resource: p.Resource, Namespace: p.Namespace}
		for _, verb := range p.Verbs {
			status, err := api.ReviewAccess(ctx, client, authorizationv1.ResourceAttributes{
				Group: p.Resource.Group, Resource: p.Resource.Resource, Namespace: p.Namespace, Verb: verb,
			})
			if err != nil {
				return fmt.Errorf("review permissions: %w", err)
			}
			if !status.Allowed {
				denied.Verbs = append(denied.Verbs, verb)
			}
		}

		if len(denied.Verbs) > 0 {
			missing.All = append(missing.All, denied)
		}
	}

	if len(missing.All) > 0 {
		return &missing
	}
	return nil
}

// appendProblem adds a problem to those that are known, once.
func appendProblem(all, one string) string {
	switch {
	case one == "" || strings.Contains(all, one):
		return all
	case all == "":
		return one
	default:
		return all + "; " + one
	}
}
