package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/cluster/tokenreview"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// OwnAccount lets in who has a token of the ServiceAccount that this process has, too: other replicas. Without a token,
// or with one that the API server does not know, a request is answered 401, with that of another account 403, and
// while that is not known 503.
type OwnAccount struct {
	Log      logr.Logger
	Reviewer *tokenreview.Reviewer
	Token    func() (string, error) // of this process, for the same audience

	mu      sync.Mutex // guards all below
	user    string     // of this process; empty while it is not known
	problem string     // why no peer can be let in, as last logged
}

const maxAccountRetry = 30 * time.Second

// Start reviews the token of this process, until there is an answer: a right that is missing is reported before another
// replica needs it.
func (a *OwnAccount) Start(ctx context.Context) error {
	for pause := time.Second; ; pause = min(2*pause, maxAccountRetry) {
		_, err := a.ownUser(ctx)
		a.report(err)
		if err == nil {
			return nil
		}

		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// ownUser returns the user that this process is. It does not change while it runs.
func (a *OwnAccount) ownUser(ctx context.Context) (string, error) {
	a.mu.Lock()
	user := a.user
	a.mu.Unlock()
	if user != "" {
		return user, nil
	}
	token, err := a.Token()
	if err != nil {
		return "", err
	}

	account, err := a.Reviewer.Review(ctx, "", token)
	if errors.Is(err, tokenreview.ErrRefused) {
		err = errors.New("the local API server does not take the token of this replica: -peer-token-file must hold " +
			"one of its ServiceAccount, with the audience " + PeerAudience)
	}
	if err != nil {
		return "", err
	}
	a.mu.Lock()
	defer a.mu.Unlock()

	a.user = account.User
	return a.user, nil
}

// PeerAudience is that of the tokens by which replicas know each other. No API server takes such a token.
const PeerAudience = "peers.fingerpost.io"

// report logs why other replicas cannot be let in, once for each reason, and that they can be again.
func (a *OwnAccount) report(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	a.mu.Lock()
	before := a.problem
	a.problem = problem
	a.mu.Unlock()

	switch problem {
	case before:
	case "":
		a.Log.Info("Other replicas are let in again")
	default:
		logs.Warn(a.Log, "Other replicas get nothing from this one, because who they are cannot be reviewed",
			"reason", problem)
	}
}

type callerKey struct{}

// Wrap has a handler serve those who are let in.
func (a *OwnAccount) Wrap(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, code := a.admit(r)
		switch code {
		case http.StatusOK:
			handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
			return
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, http.StatusText(code), code)
	})
}

// admit returns the Pod that sends a request, and the code of the answer unless it is let in.
func (a *OwnAccount) admit(request *http.Request) (caller string, code int) {
	token := tokenreview.Bearer(request.Header.Get("Authorization"))
	if token == "" {
		return "", http.StatusUnauthorized
	}

	account, err := a.Reviewer.Review(request.Context(), RemoteHost(request), token)
	if errors.Is(err, tokenreview.ErrRefused) {
		return "", http.StatusUnauthorized
	}

	own := ""
	if err == nil {
		own, err = a.ownUser(request.Context())
	}
	if !errors.Is(err, tokenreview.ErrBusy) && request.Context().Err() == nil {
		a.report(err)
	}

	switch {
	case err != nil:
		return "", http.StatusServiceUnavailable
	case account.User != own:
		return "", http.StatusForbidden
	}
	return account.Pod, http.StatusOK
}

// Caller names who sends a request: the Pod that [OwnAccount] has let in, or the address that it comes from.
func Caller(r *http.Request) string {
	pod, _ := r.Context().Value(callerKey{}).(string)
	return cmp.Or(pod, RemoteHost(r))
}

// RemoteHost returns the address that a request comes from, without the port.
func RemoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
