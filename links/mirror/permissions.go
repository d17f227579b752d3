package mirror

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster"
)

// refusedFor is how long a right that we lack is not asked for again.
const permissionRetry = time.Minute

// rights knows what we may write in the local cluster. It is asked before a write, so that what we may not do is not tried.
type permissions struct {
	log    logr.Logger
	client kubernetes.Interface

	mu    sync.Mutex
	known map[permission]*review
}

// right is to do one thing with one core resource in one namespace.
type permission struct{ verb, resource, namespace string }

func (r permission) String() string {
	return fmt.Sprintf("%s %s in namespace %s", r.verb, r.resource, r.namespace)
}

// grant is what is known of a right.
type review struct {
	mu         sync.Mutex // held while it is asked for: once is enough
	allowed    bool
	reviewedAt time.Time // zero: it was not
}

const noPermissionPrefix = "we may not "

// errForbidden says which right is missing.
type errNoPermission struct{ permission }

func (e errNoPermission) Error() string {
	return fmt.Sprintf(noPermissionPrefix+"%s: grant it, or leave mirroring to others", e.permission)
}

// check returns an errForbidden if we may not do it.
func (r *permissions) require(ctx context.Context, asked permission) error {
	r.mu.Lock()
	if r.known == nil {
		r.known = map[permission]*review{}
	}
	g := r.known[asked]
	if g == nil {
		g = &review{}
		r.known[asked] = g
	}
	r.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reviewedAt.IsZero() || !g.allowed && time.Since(g.reviewedAt) >= permissionRetry {
		status, err := cluster.Review(ctx, r.client, authorizationv1.ResourceAttributes{
			Namespace: asked.namespace, Verb: asked.verb, Resource: asked.resource,
		})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil // nobody can tell: it is tried
		}
		if err != nil {
			return fmt.Errorf("ask whether we may %s: %w", asked, err)
		}
		if !status.Allowed && (g.reviewedAt.IsZero() || g.allowed) {
			r.log.Info("A right to write mirrors is missing", "verb", asked.verb, "resource", asked.resource, "namespace", asked.namespace)
		}
		g.allowed, g.reviewedAt = status.Allowed, time.Now()
	}
	if !g.allowed {
		return errNoPermission{asked}
	}
	return nil
}

// refused notes that a write was refused: what was known of the right may be true no more.
func (r *permissions) invalidate(asked permission) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, asked)
}
