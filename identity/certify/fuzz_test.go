package certify_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/fingerpost/fingerpost/identity/identitytest"
)

type seed struct {
	identity, token string
	signing         []byte
}

// seeds are requests that are right, and some that are wrong by little.
func seeds(tb testing.TB) []seed {
	tb.Helper()
	right := identitytest.Signing(tb, identitytest.P256(tb), name)
	other := strings.Replace(name, "sa.ns", "sb.ns", 1)
	return []seed{
		{name, user, right},
		{name, "system:serviceaccount:ns:sb", right},
		{other, "system:serviceaccount:ns:sb", identitytest.Signing(tb, identitytest.P256(tb), other)},
		{name, "system:serviceaccount:ns:sa\x00", right},
		{name, "", right},
		{name, "alice", identitytest.Signing(tb, identitytest.RSA(tb), name)},
		{name + ".", user, right},
		{strings.ToUpper(name), user, right},
		{name, user, right[:len(right)-1]},
		{name, user, identitytest.Flip(right)},
		{name, user, append(bytes.Clone(right), right...)},
		{strings.Repeat("a", 1<<12), strings.Repeat("a", 1<<12), bytes.Repeat([]byte{0x30, 0x80}, 1<<12)},
		{name, user, []byte{0x30, 0x84, 0xff, 0xff, 0xff, 0xff}},
	}
}

// wantsHarmless asks with any bytes, of an API server that takes each token for the name of its user. A leaf may only
// have the name of that user, which was asked for.
func (w *world) wantsHarmless(identity, token string, signing []byte) {
	w.t.Helper()
	w.api.answer = func(
		_ context.Context, spec authenticationv1.TokenReviewSpec,
	) (authenticationv1.TokenReviewStatus, error) {
		return authenticated(spec.Token, spec.Audiences...), nil
	}

	response, err := w.certify(w.t.Context(), identity, token, signing)
	if err != nil {
		if code := status.Code(err); code != codes.InvalidArgument && code != codes.FailedPrecondition {
			w.t.Errorf("%q, %q: %v", identity, token, err)
		}
		if sent := string(signing); len(token) > 8 && strings.Contains(err.Error(), token) ||
			len(sent) > 8 && strings.Contains(err.Error(), sent) {
			w.t.Errorf("the error has what was sent in it: %v", err)
		}
		return
	}

	leaf := w.verified(response, identity)
	account, is := strings.CutPrefix(token, "system:serviceaccount:")
	ns, sa, _ := strings.Cut(account, ":")
	if !is || leaf.DNSNames[0] != sa+"."+ns+".serviceaccount.identity.linkerd.cluster.local" {
		w.t.Errorf("a leaf for %q with the token of %q", leaf.DNSNames, token)
	}
	if len(leaf.EmailAddresses)+len(leaf.IPAddresses)+len(leaf.URIs) > 0 || leaf.IsCA {
		w.t.Errorf("%+v", leaf)
	}
	if asked, err := x509.ParseCertificateRequest(signing); err != nil || asked.CheckSignature() != nil {
		w.t.Errorf("a leaf for a request that is not signed: %v", err)
	}
}

func FuzzCertify(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s.identity, s.token, s.signing)
	}
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, identity, token string, signing []byte) {
		at := *w // its log is of all
		at.t = t
		at.wantsHarmless(identity, token, signing)
	})
}
