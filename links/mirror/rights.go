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
const refusedFor = time.Minute

// rights knows what we may write in the local cluster. It is asked before a write, so that what we may not do is not tried.
type rights struct {
	log    logr.Logger
	client kubernetes.Interface

	mu    sync.Mutex
	known map[right]*grant
}

// right is to do one thing with one core resource in one namespace.
type right struct{ verb, resource, namespace string }

func (r right) String() string {
	return fmt.Sprintf("%s %s in namespace %s", r.verb, r.resource, r.namespace)
}

// grant is what is known of a right.
type grant struct {
	mu      sync.Mutex // held while it is asked for: once is enough
	allowed bool
	asked   time.Time // zero: it was not
}

const errForbiddenPrefix = "we may not "

// errForbidden says which right is missing.
type errForbidden struct{ right }

func (e errForbidden) Error() string {
	return fmt.Sprintf(errForbiddenPrefix+"%s: grant it, or leave mirroring to others", e.right)
}

// check returns an errForbidden if we may not do it.
func (r *rights) check(ctx context.Context, asked right) error {
	r.mu.Lock()
	if r.known == nil {
		r.known = map[right]*grant{}
	}
	g := r.known[asked]
	if g == nil {
		g = &grant{}
		r.known[asked] = g
	}
	r.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked.IsZero() || !g.allowed && time.Since(g.asked) >= refusedFor {
		status, err := cluster.Review(ctx, r.client, authorizationv1.ResourceAttributes{
			Namespace: asked.namespace, Verb: asked.verb, Resource: asked.resource,
		})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil // nobody can tell: it is tried
		}
		if err != nil {
			return fmt.Errorf("ask whether we may %s: %w", asked, err)
		}
		if !status.Allowed && (g.asked.IsZero() || g.allowed) {
			r.log.Info("A right to write mirrors is missing", "verb", asked.verb, "resource", asked.resource, "namespace", asked.namespace)
		}
		g.allowed, g.asked = status.Allowed, time.Now()
	}
	if !g.allowed {
		return errForbidden{asked}
	}
	return nil
}

// refused notes that a write was refused: what was known of the right may be true no more.
func (r *rights) refused(asked right) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, asked)
}
