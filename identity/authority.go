package identity

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Audience is that of tokens which are for this purpose, as proxies of Linkerd have them. Others that the API server
// takes for its own do as well, unless [Options.RequireAudience] is set.
const Audience = "identity.l5d.io"

const (
	// MaxReviews is how many tokens are under review at a time. Callers beyond it wait in line.
	MaxReviews = 100

	reviewTimeout = 10 * time.Second // for a caller without a deadline
)

// A Reviewer asks the issuer of tokens whose they are.
type Reviewer interface {
	// Review asks about a token for an audience, or for that of the API server if it is empty. An error means that
	// there is no answer.
	Review(ctx context.Context, token, audience string) (Review, error)
}

// A Review is what an API server reports of a token.
type Review struct {
	Authenticated bool
	User, UID     string
	Audiences     []string // those of the ones asked for that the token is for; none if it was not looked at
	Problem       string   // why it was not authenticated, where the API server gives a reason; may quote anything
}

// An Account is a ServiceAccount.
type Account struct{ Namespace, Name, UID string }

// Options are what an Authority depends on.
type Options struct {
	Domain   Domain
	Terms    Terms
	Reviewer Reviewer

	// RequireAudience refuses tokens that are not for the [Audience].
	RequireAudience bool
}

// An Authority certifies identities.
type Authority struct {
	options Options
	issuer  atomic.Pointer[Issuer]
	turns   chan struct{} // has a token for each caller whose token is under review
}

// NewAuthority returns an Authority without an Issuer, which refuses everything as Unavailable.
func NewAuthority(options Options) *Authority {
	return &Authority{options: options, turns: make(chan struct{}, MaxReviews)}
}

// Use has calls from now on be signed by an Issuer.
func (a *Authority) Use(issuer *Issuer) { a.issuer.Store(issuer) }

// Issuer returns the one in use; nil before the first.
func (a *Authority) Issuer() *Issuer { return a.issuer.Load() }

// Domain returns what all identities end with.
func (a *Authority) Domain() Domain { return a.options.Domain }

// Certify returns a leaf for a Request, or a [Refusal]. It takes as long as the review of the token, for which it waits
// until ctx ends, and 10 s at most if ctx has no deadline.
func (a *Authority) Certify(ctx context.Context, request Request) (*Leaf, *Refusal) {
	issuer := a.issuer.Load()
	if issuer == nil {
		return nil, unavailable(CheckIssuer, "this authority has no issuer yet", nil)
	}

	signing, refusal := request.parse()
	if refusal != nil {
		return nil, refusal
	}
	if err := issuer.Check(time.Now()); err != nil {
		return nil, unavailable(CheckChain, "the issuer of this authority does not verify", err)
	}
	if refusal := checkSigning(signing, request.Identity); refusal != nil {
		return nil, refusal
	}

	account, refusal := a.review(ctx, string(request.Token))
	if refusal != nil {
		return nil, refusal
	}
	name := a.options.Domain.Name(account.Namespace, account.Name)
	switch {
	case len(name) > maxName:
		return nil, denied(CheckIdentity, "the identity of the ServiceAccount is too long for a DNS name")
	case name != request.Identity:
		return nil, denied(CheckIdentity, "the identity is not that of the token's ServiceAccount")
	}

	subject := Subject{Name: name, CommonName: signing.Subject.CommonName, Key: signing.PublicKey}
	return a.sign(issuer, subject, account)
}

// sign signs with the Issuer that a call began with. The review may have taken longer than that lasted.
func (a *Authority) sign(issuer *Issuer, subject Subject, account Account) (*Leaf, *Refusal) {
	now := time.Now()
	leaf, err := issuer.Sign(subject, a.options.Terms, now)
	if err == nil {
		leaf.Account = account
		return leaf, nil
	}
	if expired := issuer.Check(now); expired != nil {
		return nil, unavailable(CheckChain, "the issuer of this authority does not verify", expired)
	}
	return nil, &Refusal{CheckLeaf, Bug, "the leaf that was signed does not verify", err}
}

// review returns the ServiceAccount that a token is of.
func (a *Authority) review(ctx context.Context, token string) (Account, *Refusal) {
	if _, bounded := ctx.Deadline(); !bounded {
		limited, cancel := context.WithTimeout(ctx, reviewTimeout)
		defer cancel()
		ctx = limited
	}
	select {
	case a.turns <- struct{}{}:
		defer func() { <-a.turns }()
	case <-ctx.Done():
		return Account{}, unavailable(CheckTurn, "too many tokens are being reviewed", ctx.Err())
	}

	answer, err := a.ask(ctx, token)
	switch {
	case err != nil:
		return Account{}, unavailable(CheckReview, "the API server does not review the token", err)
	case answer.Problem != "":
		return Account{}, malformed(CheckToken, "the API server reports an error about the token")
	case !answer.Authenticated:
		return Account{}, denied(CheckToken, "the API server does not know the token")
	case a.options.RequireAudience && !slices.Contains(answer.Audiences, Audience):
		return Account{}, denied(CheckAudience, "the token is not for the audience "+Audience)
	}

	namespace, name, is := parseUser(answer.User)
	if !is {
		return Account{}, malformed(CheckAccount, "the token is not that of a ServiceAccount")
	}
	return Account{namespace, name, answer.UID}, nil
}

var errNoAnswer = errors.New("the API server does not answer in time")

// ask asks about a token, and once more without an audience if that is what is wrong with it: it is then one that the
// kubelet has put into each Pod, before tokens had a purpose.
func (a *Authority) ask(ctx context.Context, token string) (Review, error) {
	answer, err := a.options.Reviewer.Review(ctx, token, Audience)
	if err == nil && !a.options.RequireAudience && strings.Contains(answer.Problem, "audience") {
		answer, err = a.options.Reviewer.Review(ctx, token, "")
	}
	if err != nil && ctx.Err() != nil {
		err = errNoAnswer
	}
	return answer, err
}
