package tokenreview

import (
	"context"
	"errors"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/identity"
)

// askAgain is how often it is asked whether a right that was missing has been granted.
const askAgain = 10 * time.Second

// A Right is whether this process may have tokens reviewed. It is asked for at the start, and seen in each review that
// is refused. While the API server does not answer that, it is not known, and nothing is missing.
type Right struct {
	reviews identity.Reviewer
	access  kubernetes.Interface
	missing watch.Value[string] // empty: nothing, as far as is known
	refused chan struct{}
}

var _ identity.Reviewer = (*Right)(nil)

// NewRight returns the Right that a Reviewer depends on.
func NewRight(reviews identity.Reviewer, access kubernetes.Interface) *Right {
	r := &Right{reviews: reviews, access: access, refused: make(chan struct{}, 1)}
	r.missing.Store("it was not asked for yet")
	return r
}

// Missing returns what is missing, if anything is.
func (r *Right) Missing() *watch.Value[string] { return &r.missing }

// Review has a token reviewed.
func (r *Right) Review(ctx context.Context, token, audience string) (identity.Review, error) {
	review, err := r.reviews.Review(ctx, token, audience)
	if errors.Is(err, ErrForbidden) {
		select {
		case r.refused <- struct{}{}:
		default:
		}
	}
	return review, err
}

// Start asks for the right until it is granted, and again after each refusal, until ctx ends.
func (r *Right) Start(ctx context.Context) error {
	again := time.NewTicker(askAgain)
	defer again.Stop()
	r.ask(ctx)

	for {
		missing, _ := r.missing.Load()
		due := again.C
		if missing == "" {
			due = nil
		}

		select {
		case <-ctx.Done():
			return nil
		case <-r.refused:
			r.ask(ctx)
		case <-due:
			r.ask(ctx)
		}
	}
}

func (r *Right) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askAgain)
	defer cancel()
	answer, err := api.ReviewAccess(ctx, r.access, authorizationv1.ResourceAttributes{
		Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews",
	})

	missing := ""
	if err == nil && !answer.Allowed {
		missing = ErrForbidden.Error()
	}
	if before, _ := r.missing.Load(); before != missing {
		r.missing.Store(missing)
	}
}
