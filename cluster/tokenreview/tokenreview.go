// Package tokenreview reports who sends a token, by asking the API server that issues ServiceAccounts' tokens.
package tokenreview

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
	typed "k8s.io/client-go/kubernetes/typed/authentication/v1"
)

// How tokens are reviewed.
//
// Anybody may send any text as a token, as often as they like, and only the API server knows whether it is one. So
// what is asked of it is bounded, and what one sender causes is not paid by another:
//
//   - An answer is kept: an account for a minute, in which a token that was revoked still counts, and that there is
//     none for ten seconds. What is kept is the SHA-256 of a token, never the token.
//   - A source, such as an address, has one review under way. Its other requests wait for that, and find its answer
//     if they bring the same token. Reviews of all sources begin one after another, so many a second, in the sequence
//     in which they came: a source that sends garbage without end delays the others by one review.
//   - Who waits is counted. Past the bounds a request is refused at once, unless it is the only one of its source.
//
// A failure of the API server is no answer. A token that it has never accepted is not accepted then; one that it
// accepted in the last ten minutes still is, because replicas ask each other when something does not answer. While
// reviews fail, that is not asked again for some seconds.
//
// Example, with 50 reviews a second: a Pod sends 1,000 other texts a second. 50 of them are reviewed each second. A new
// replica sends its token: it is the second one in the sequence, waits for 20 ms, and for a minute after that for
// nothing.
const (
	acceptedFor = time.Minute
	refusedFor  = 10 * time.Second
	keptFor     = 10 * time.Minute // an account, while reviews fail
	failedFor   = 5 * time.Second  // until the API server is asked again about a token that it has accepted

	reviewTimeout = 2 * time.Second
	maxKept       = 1024 // answers of each kind
	maxWaiting    = 2048 // requests of all sources, and one more of each
	maxOfSource   = 256
	maxToken      = 16 << 10 // bytes
)

// An Account is who a token is of.
type Account struct {
	User string // such as system:serviceaccount:NAMESPACE:NAME
	Pod  string // that the token is bound to; empty for none
}

// ErrRefused is returned for what is no token for the audience, or no longer one.
var ErrRefused = errors.New("the API server knows no such token for this audience")

// ErrBusy is returned where so many reviews wait that this one would wait for too long.
var ErrBusy = errors.New("too many tokens are being reviewed")

// A Reviewer remembers what the API server has answered about tokens for one audience.
type Reviewer struct {
	client   *Client
	audience string
	pace     *rate.Limiter

	mu       sync.Mutex // guards all below
	accepted *simplelru.LRU[digest, verdict]
	refused  *simplelru.LRU[digest, time.Time] // since when
	sources  map[string]*source                // those that ask now
	waiting  int                               // requests of all of them
	failed   time.Time                         // when the last review failed; zero if it was answered
}

type (
	digest  [sha256.Size]byte
	verdict struct {
		account Account
		at      time.Time
	}
	source struct {
		turn    chan struct{} // has a token while a review is under way
		waiting int
	}
)

// New returns a Reviewer that asks so many times a second at most. It takes the right to create tokenreviews.
func New(client typed.TokenReviewInterface, audience string, perSecond int) *Reviewer {
	r := &Reviewer{
		client: NewClient(client), audience: audience, sources: map[string]*source{},
		pace: rate.NewLimiter(rate.Limit(perSecond), 1),
	}
	r.accepted, _ = simplelru.NewLRU[digest, verdict](maxKept, nil) // it only fails for a size of 0
	r.refused, _ = simplelru.NewLRU[digest, time.Time](maxKept, nil)
	return r
}

// Review returns whose token it is that a source has sent. ErrRefused: that of no account. ErrBusy, and any other
// error: it is not known, and the token does not count.
func (r *Reviewer) Review(ctx context.Context, from, token string) (Account, error) {
	if token == "" || len(token) > maxToken {
		return Account{}, ErrRefused
	}
	key := digest(sha256.Sum256([]byte(token)))
	if v, err := r.known(key); err == nil || errors.Is(err, ErrRefused) {
		return v, err
	}

	release, err := r.waitTurn(ctx, from)
	if err != nil {
		return Account{}, err
	}
	defer release()
	if v, err := r.known(key); err == nil || errors.Is(err, ErrRefused) {
		return v, err // the request before this one had the same token
	}

	account, err := r.ask(ctx, token)
	return r.keep(key, account, err)
}

var errUnknown = errors.New("it was not reviewed")

// known returns what was answered about a token, as long as that counts.
func (r *Reviewer) known(key digest) (Account, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since, found := r.refused.Get(key); found && time.Since(since) < refusedFor {
		return Account{}, ErrRefused
	}
	v, found := r.accepted.Get(key)
	age, failing := time.Since(v.at), time.Since(r.failed) < failedFor
	if found && (age < acceptedFor || failing && age < keptFor) {
		return v.account, nil
	}
	return Account{}, errUnknown
}

// waitTurn waits until no other review of a source is under way, and returns what ends the turn.
func (r *Reviewer) waitTurn(ctx context.Context, from string) (release func(), err error) {
	r.mu.Lock()
	queue := r.sources[from]
	if queue == nil {
		queue = &source{turn: make(chan struct{}, 1)}
	}

	if queue.waiting >= maxOfSource || queue.waiting > 0 && r.waiting >= maxWaiting {
		r.mu.Unlock()
		return nil, ErrBusy
	}
	r.sources[from] = queue
	queue.waiting++
	r.waiting++
	r.mu.Unlock()

	leave := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.waiting--
		queue.waiting--
		if queue.waiting == 0 {
			delete(r.sources, from)
		}
	}

	select {
	case queue.turn <- struct{}{}:
		return func() { <-queue.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// ask asks the API server, in turn with all others. It goes on if the client leaves: the answer is kept.
func (r *Reviewer) ask(ctx context.Context, token string) (Account, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
	defer cancel()
	if r.pace.Wait(ctx) != nil {
		return Account{}, ErrBusy
	}

	review, err := r.client.create(ctx, token, r.audience)
	if err != nil {
		return Account{}, err
	}

	status := review.Status
	if !status.Authenticated || !slices.Contains(status.Audiences, r.audience) {
		return Account{}, ErrRefused // without audiences the API server has not looked at ours
	}
	account := Account{User: status.User.Username}
	if pods := status.User.Extra[podName]; len(pods) == 1 {
		account.Pod = pods[0]
	}
	return account, nil
}

// podName is the key under which API servers have the Pod of a token (KEP-4193).
const podName = "authentication.kubernetes.io/pod-name"

// keep keeps an answer, and returns what counts.
func (r *Reviewer) keep(key digest, account Account, err error) (Account, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	now := time.Now()
	switch {
	case err == nil:
		r.failed = time.Time{}
		r.accepted.Add(key, verdict{account, now})
	case errors.Is(err, ErrRefused):
		r.failed = time.Time{}
		r.accepted.Remove(key)
		r.refused.Add(key, now)
	default:
		if !errors.Is(err, ErrBusy) {
			r.failed = now
		}
		if v, found := r.accepted.Get(key); found && now.Sub(v.at) < keptFor {
			return v.account, nil
		}
	}

	return account, err
}

// Bearer returns the token of an Authorization header; empty for none.
func Bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
