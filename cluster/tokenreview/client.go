package tokenreview

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/fingerpost/fingerpost/identity"
)

// ErrForbidden is returned where this process may not have tokens reviewed.
var ErrForbidden = errors.New("grant create on tokenreviews.authentication.k8s.io")

// A Client has tokens reviewed, each time anew: it keeps nothing of one. How many are under way at a time is bounded by
// who asks. It takes the right to create tokenreviews.
type Client struct {
	reviews typed.TokenReviewInterface
	seconds *prometheus.HistogramVec
}

var _ identity.Reviewer = (*Client)(nil)

// NewClient returns a Client.
func NewClient(reviews typed.TokenReviewInterface) *Client {
	return &Client{reviews: reviews, seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "fingerpost_token_review_seconds",
		Help: "How long the API server takes to review a token that is to be certified, by result: accepted, refused " +
			"or failed.",
		Buckets: []float64{.005, .02, .1, .5, 2, 10},
	}, []string{"result"})}
}

// Collectors returns the metrics of reviews.
func (c *Client) Collectors() []prometheus.Collector { return []prometheus.Collector{c.seconds} }

// Review returns what the API server reports of a token for an audience, or for its own if that is empty. ErrForbidden,
// and any other error: there is no answer.
func (c *Client) Review(ctx context.Context, token, audience string) (identity.Review, error) {
	began := time.Now()
	review, err := c.create(ctx, token, audience)
	if err != nil {
		c.observe("failed", began)
		return identity.Review{}, err
	}

	status := review.Status
	result := "refused"
	if status.Authenticated {
		result = "accepted"
	}
	c.observe(result, began)
	return identity.Review{
		Authenticated: status.Authenticated, User: status.User.Username, UID: status.User.UID,
		Audiences: status.Audiences, Problem: status.Error,
	}, nil
}

func (c *Client) observe(result string, since time.Time) {
	c.seconds.WithLabelValues(result).Observe(time.Since(since).Seconds())
}

// create sends a token. Its errors have nothing of one.
func (c *Client) create(ctx context.Context, token, audience string) (*authenticationv1.TokenReview, error) {
	spec := authenticationv1.TokenReviewSpec{Token: token}
	if audience != "" {
		spec.Audiences = []string{audience}
	}
	review, err := c.reviews.Create(ctx, &authenticationv1.TokenReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return nil, problemOf(err)
	}
	return review, nil
}

// problemOf returns why there is no answer, without what a token or an API server may have put into the error.
func problemOf(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return ErrForbidden
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return fmt.Errorf("the API server does not review tokens (%s)", apierrors.ReasonForError(err))
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the API server does not answer")
	default:
		return fmt.Errorf("tokens cannot be reviewed: %w", err)
	}
}
