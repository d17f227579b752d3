package mirror

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/apply"
)

// permissionRetry is how long a missing permission is not reviewed again.
const permissionRetry = time.Minute

// permissions caches access reviews of the local cluster. A write without permission is not tried, so that it
// does not fill the audit log.
type permissions struct {
	log    logr.Logger
	client kubernetes.Interface

	mu    sync.Mutex
	known map[writePermission]*accessReview
}

// A writePermission allows one verb on one core resource in one namespace.
type writePermission struct{ verb, resource, namespace string }

func (p writePermission) String() string {
	return fmt.Sprintf("%s %s in namespace %s", p.verb, p.resource, p.namespace)
}

// An accessReview is the last access review of a permission.
type accessReview struct {
	// Taken while the review is sent: other workers wait for its answer, or for the end of their term. It guards
	// the rest.
	turn       chan struct{}
	allowed    bool
	reviewedAt time.Time // zero: never
}

const noPermissionPrefix = "missing permission: "

// errNoPermission names a missing permission.
type errNoPermission struct{ writePermission }

func (e errNoPermission) Error() string {
	return fmt.Sprintf(noPermissionPrefix+"%s: grant it, or set -mirror-services=off", e.writePermission)
}

// require returns an errNoPermission if a permission is missing.
func (p *permissions) require(ctx context.Context, needed writePermission) error {
	p.mu.Lock()
	if p.known == nil {
		p.known = map[writePermission]*accessReview{}
	}
	review := p.known[needed]
	if review == nil {
		review = &accessReview{turn: make(chan struct{}, 1)}
		p.known[needed] = review
	}
	p.mu.Unlock()

	select {
	case review.turn <- struct{}{}:
		defer func() { <-review.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}

	never := review.reviewedAt.IsZero()
	if never || !review.allowed && time.Since(review.reviewedAt) >= permissionRetry {
		err := apply.Review(ctx, p.client, apply.Permission{
			Resource: corev1.Resource(needed.resource), Namespace: needed.namespace, Verbs: []string{needed.verb},
		})
		missing := apply.IsMissingPermissions(err)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil // the API server answers no reviews: the write itself shows it
		}
		if err != nil && !missing {
			return fmt.Errorf("the permission to %s: %w", needed, err)
		}

		if missing && never {
			p.log.Info("A permission to write mirrors is missing",
				"verb", needed.verb, "resource", needed.resource, "namespace", needed.namespace)
		}
		review.allowed, review.reviewedAt = !missing, time.Now()
	}

	if !review.allowed {
		return errNoPermission{needed}
	}
	return nil
}

// invalidate drops a review after a write was forbidden all the same.
func (p *permissions) invalidate(needed writePermission) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, needed)
}
