package certify_test

import (
	"context"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

// TestCases are the contract cases of one call.
func TestCases(t *testing.T) {
	t.Run("IC01", testLeaf)
	t.Run("IC03", testIntermediates)
	t.Run("IC04", testEmptyFields)
	t.Run("IC05", testGarbage)
	t.Run("IC06", testTrailingBytes)
	t.Run("IC07", testNames)
	t.Run("IC08", testOtherNames)
	t.Run("IC09", testCommonName)
	t.Run("IC11", testNothingIsCopied)
	t.Run("IC12", testKeys)
	t.Run("IC14", testOtherAccount)
	t.Run("IC15", testUnknownToken)
	t.Run("IC16", testReviewError)
	t.Run("IC17", testNoAccount)
	t.Run("IC18", testOtherPrefix)
	t.Run("IC19", testAccountWithDot)
	t.Run("IC20", testLongName)
	t.Run("IC21", testTokenWithoutAudience)
	t.Run("IC23", testAudienceNotLookedAt)
	t.Run("IC24", testAudience)
	t.Run("IC25", testNoAnswer)
	t.Run("IC27", testNoReviewInVain)
	t.Run("IC28", func(t *testing.T) { testMany(t, false) })
	t.Run("IC29", func(t *testing.T) { testMany(t, true) })
	t.Run("IC31", testAnyBytes)
	t.Run("IC32", testDomain)
	t.Run("IC40", testValidity)
	t.Run("IC42", testUsages)
	t.Run("IC43", testAlgorithms)
}

// IC01: a proxy gets a leaf for its name.
func testLeaf(t *testing.T) {
	inWorld(t, func(w *world) {
		leaf := w.wants(w.signing, codes.OK)
		if leaf.Subject.String() != "CN="+name {
			t.Errorf("subject %q", leaf.Subject)
		}
		asked, err := x509.ParseCertificateRequest(w.signing)
		if err != nil || !slices.Equal(asked.RawSubjectPublicKeyInfo, leaf.RawSubjectPublicKeyInfo) {
			t.Errorf("the leaf has another key than the request: %v", err)
		}
		if got, want := leaf.AuthorityKeyId, w.issuer.Certificate.SubjectKeyId; !slices.Equal(got, want) {
			t.Errorf("authority key %x, want %x", got, want)
		}
	})
}

// IC03: what is above the issuer follows it.
func testIntermediates(t *testing.T) {
	inWorld(t, func(w *world) {
		above := identitytest.NewCA(t, "above", identitytest.P256(t), w.anchor)
		issuer := identitytest.NewCA(t, "below", identitytest.P256(t), above)
		w.use(issuer.Source(t, w.anchor, above))
		response, err := w.certify(w.t.Context(), name, token, w.signing)
		if err != nil {
			t.Fatal(err)
		}
		w.verified(response, name)
		want := [][]byte{issuer.Certificate.Raw, above.Certificate.Raw}
		if got := response.GetIntermediateCertificates(); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%d intermediates, want the issuer and the one above it", len(got))
		}

		w.use(issuer.Source(t, w.anchor, above, w.anchor)) // the anchor is what the caller has
		if response, err = w.certify(w.t.Context(), name, token, w.signing); err != nil ||
			!slices.EqualFunc(response.GetIntermediateCertificates(), want, slices.Equal) {
			t.Errorf("with the anchor in the file: %d intermediates, %v",
				len(response.GetIntermediateCertificates()), err)
		}
		w.use(w.anchor.Source(t, w.anchor)) // unless it signs itself
		response, err = w.certify(w.t.Context(), name, token, w.signing)
		if err != nil || len(response.GetIntermediateCertificates()) != 1 {
			t.Errorf("an anchor as the issuer: %d intermediates, %v", len(response.GetIntermediateCertificates()), err)
		}
	})
}

// IC04: nothing may be missing.
func testEmptyFields(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, r := range []*pb.CertifyRequest{
			{Token: []byte(token), CertificateSigningRequest: w.signing},
			{Identity: name, CertificateSigningRequest: w.signing},
			{Identity: name, Token: []byte(token)},
		} {
			if _, err := w.server.Certify(w.t.Context(), r); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v", err)
			}
		}
	})
}

// IC05: a signing request is DER.
func testGarbage(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wants([]byte("garbage"), codes.InvalidArgument)
		w.wants(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: w.signing}), codes.InvalidArgument)
	})
}

// IC06: and nothing but that.
func testTrailingBytes(t *testing.T) {
	inWorld(t, func(w *world) { w.wants(append(w.signing, 0), codes.InvalidArgument) })
}

// signing returns a request of a new key, changed in one respect.
func signing(t *testing.T, change func(*x509.CertificateRequest)) []byte {
	t.Helper()
	return identitytest.Signing(t, identitytest.P256(t), name, change)
}

// IC07: a request names the identity, once.
func testNames(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, names := range [][]string{{name, "other.example"}, {"other.example"}, nil} {
			change := func(r *x509.CertificateRequest) { r.DNSNames = names }
			w.wants(signing(t, change), codes.FailedPrecondition)
		}
	})
}

// IC08: and nothing else.
func testOtherNames(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, change := range []func(*x509.CertificateRequest){
			func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b.example"} },
			func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{10, 0, 0, 1}} },
			func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "td"}} },
		} {
			w.wants(signing(t, change), codes.FailedPrecondition)
		}
	})
}

// IC09: the common name is the identity, or empty.
func testCommonName(t *testing.T) {
	inWorld(t, func(w *world) {
		for common, want := range map[string]codes.Code{
			name: codes.OK, "": codes.OK, "other.example": codes.FailedPrecondition,
		} {
			change := func(r *x509.CertificateRequest) { r.Subject.CommonName = common }
			if leaf := w.wants(signing(t, change), want); leaf != nil && leaf.Subject.CommonName != common {
				t.Errorf("the leaf has the common name %q, want %q", leaf.Subject.CommonName, common)
			}
		}
	})
}

// IC11: what else is in a request gets into no leaf.
func testNothingIsCopied(t *testing.T) {
	inWorld(t, func(w *world) {
		authority, err := asn1.Marshal(struct{ IsCA bool }{true})
		if err != nil {
			t.Fatal(err)
		}
		usage, err := asn1.Marshal(asn1.BitString{Bytes: []byte{0xff}, BitLength: 8})
		if err != nil {
			t.Fatal(err)
		}
		leaf := w.wants(signing(t, func(r *x509.CertificateRequest) {
			r.Subject.Organization, r.Subject.Country = []string{"o"}, []string{"c"}
			r.Subject.OrganizationalUnit = []string{"system:masters"}
			r.ExtraExtensions = []pkix.Extension{
				{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: authority},
				{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Critical: true, Value: usage},
				{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: []byte{5, 0}},
			}
		}), codes.OK)

		if leaf.Subject.String() != "CN="+name || len(leaf.Subject.Names) != 1 {
			t.Errorf("subject %q", leaf.Subject)
		}
		if leaf.IsCA || leaf.KeyUsage != x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment {
			t.Errorf("a CA: %v, usage %b", leaf.IsCA, leaf.KeyUsage)
		}
		for _, e := range leaf.Extensions {
			if e.Id.Equal(asn1.ObjectIdentifier{1, 2, 3, 4}) {
				t.Error("the leaf has an extension of the request")
			}
		}
	})
}

// IC12: keys are those of proxies, and callers have them.
func testKeys(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wants(w.signing, codes.OK)
		w.wants(identitytest.Signing(t, identitytest.Curve(t, elliptic.P384()), name), codes.OK)
		w.wants(identitytest.Signing(t, identitytest.Curve(t, elliptic.P521()), name), codes.OK)
		w.wants(identitytest.Signing(t, identitytest.Curve(t, elliptic.P224()), name), codes.FailedPrecondition)
		w.wants(identitytest.Signing(t, identitytest.RSA(t), name), codes.FailedPrecondition)
		w.wants(identitytest.Signing(t, identitytest.Ed25519(t), name), codes.FailedPrecondition)
		w.wants(identitytest.Flip(w.signing), codes.FailedPrecondition)
	})
}

// wantsCode has the API server answer a review, and checks the code of a call.
func (w *world) wantsCode(answer authenticationv1.TokenReviewStatus, err error, want codes.Code) {
	w.t.Helper()
	w.api.answers(answer, err)
	w.wants(w.signing, want)
}

// IC14: a token is good for the name of its account alone.
func testOtherAccount(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wantsCode(authenticated("system:serviceaccount:ns:other", identity.Audience), nil, codes.FailedPrecondition)
		w.wantsCode(authenticated("system:serviceaccount:other:sa", identity.Audience), nil, codes.FailedPrecondition)
	})
}

// IC15: a token counts if the API server authenticates it.
func testUnknownToken(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wantsCode(authenticationv1.TokenReviewStatus{}, nil, codes.FailedPrecondition)
	})
}

// IC16: an error about a token is its caller's.
func testReviewError(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wantsCode(authenticationv1.TokenReviewStatus{Error: "token expired"}, nil, codes.InvalidArgument)
	})
}

// IC17: only ServiceAccounts have identities.
func testNoAccount(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, user := range []string{"system:node:x", "alice", "system:serviceaccount:n", ""} {
			w.wantsCode(authenticated(user, identity.Audience), nil, codes.InvalidArgument)
		}
	})
}

// IC18: users that look like ServiceAccounts have none.
func testOtherPrefix(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, user := range []string{
			"system:foo:ns:name", "system:serviceaccount:ns:a:b", "system:serviceaccount:n.s:sa",
			"system:serviceaccount:ns:SA", "system:serviceaccount:ns:-sa", "system:serviceaccount:ns:s..a",
		} {
			w.wantsCode(authenticated(user, identity.Audience), nil, codes.InvalidArgument)
		}
	})
}

// IC19: names of ServiceAccounts may have dots.
func testAccountWithDot(t *testing.T) {
	inWorld(t, func(w *world) {
		const dotted = "a.b.ns.serviceaccount.identity.linkerd.cluster.local"
		w.api.knows("system:serviceaccount:ns:a.b")
		w.wantsFor(dotted, identitytest.Signing(t, identitytest.P256(t), dotted), codes.OK)
	})
}

// IC20: an identity that no DNS name can have is not certified.
func testLongName(t *testing.T) {
	inWorld(t, func(w *world) {
		account := strings.Repeat("a", 240)
		long := w.domain.Name("ns", account)
		w.api.knows("system:serviceaccount:ns:" + account)
		_, err := w.certify(w.t.Context(), long, token, identitytest.Signing(t, identitytest.P256(t), long))
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "too long") {
			t.Errorf("%v", err)
		}
	})
}

// IC21: a token from before there were audiences is reviewed once more, without one.
func testTokenWithoutAudience(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.answer = func(
			_ context.Context, spec authenticationv1.TokenReviewSpec,
		) (authenticationv1.TokenReviewStatus, error) {
			if len(spec.Audiences) > 0 {
				return authenticationv1.TokenReviewStatus{
					Error: `token audiences ["https://kubernetes.default.svc"] is invalid for the target audiences`,
				}, nil
			}
			return authenticated(user), nil
		}
		w.wants(w.signing, codes.OK)
		want := [][]string{{identity.Audience}, nil}
		if !slices.EqualFunc(w.api.audiences, want, slices.Equal) {
			t.Errorf("reviews for %q, want %q", w.api.audiences, want)
		}
	})
}

// IC23: where audiences are required, one must have been looked at.
func testAudienceNotLookedAt(t *testing.T) {
	for needed, want := range map[bool]codes.Code{true: codes.FailedPrecondition, false: codes.OK} {
		inWorld(t, func(w *world) { w.wantsCode(authenticated(user), nil, want) },
			func(w *world) { w.needAudience = needed })
	}
}

// IC24: and it is good if that was done.
func testAudience(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wantsCode(authenticated(user, identity.Audience), nil, codes.OK)
		w.wantsCode(authenticated(user, "other"), nil, codes.FailedPrecondition)
	}, func(w *world) { w.needAudience = true })
}

// IC25: without the API server no caller is certified, and none takes its token for wrong.
func testNoAnswer(t *testing.T) {
	inWorld(t, func(w *world) {
		began := time.Now()
		w.wantsCode(authenticationv1.TokenReviewStatus{}, errAway, codes.Unavailable)
		w.wantsCode(authenticationv1.TokenReviewStatus{}, err500, codes.Unavailable)
		if took := time.Since(began); took != 0 {
			t.Errorf("an answer after %v, want at once", took)
		}

		w.api.answer = func(
			ctx context.Context, _ authenticationv1.TokenReviewSpec,
		) (status authenticationv1.TokenReviewStatus, err error) {
			<-ctx.Done()
			return status, ctx.Err()
		}
		const second = time.Second
		for limit, want := range map[time.Duration]time.Duration{2 * second: 2 * second, 0: 10 * second} {
			ctx, cancel := w.t.Context(), func() {}
			if limit > 0 {
				ctx, cancel = context.WithTimeout(ctx, limit)
			}
			began = time.Now()
			_, err := w.certify(ctx, name, token, w.signing)
			if took := time.Since(began); status.Code(err) != codes.Unavailable || took != want {
				t.Errorf("deadline %v: %v after %v, want Unavailable after %v", limit, err, took, want)
			}
			cancel()
		}
	})
}

// IC27: what is wrong with a request alone costs no review.
func testNoReviewInVain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.answers(authenticationv1.TokenReviewStatus{}, nil)
		w.wants(signing(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"x"} }), codes.FailedPrecondition)
		w.wants(identitytest.Flip(w.signing), codes.FailedPrecondition)
		w.wants(identitytest.Signing(t, identitytest.Ed25519(t), name), codes.FailedPrecondition)
		if n := w.api.reviews.Load(); n != 0 {
			t.Errorf("%d reviews, want none", n)
		}
	})
}

// IC28, IC29: a thousand calls at once are answered, a hundred under review at a time, while issuers come and go.
func testMany(t *testing.T, rotate bool) {
	t.Helper()
	inWorld(t, func(w *world) {
		w.api.answer = func(
			_ context.Context, spec authenticationv1.TokenReviewSpec,
		) (authenticationv1.TokenReviewStatus, error) {
			<-time.NewTimer(50 * time.Millisecond).C
			return authenticated(user, spec.Audiences...), nil
		}
		const calls = 1000
		serials := make([]string, calls)
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() {
				response, err := w.certify(w.t.Context(), name, token, w.signing)
				if err != nil {
					t.Error(err)
					return
				}
				leaf, err := x509.ParseCertificate(response.GetLeafCertificate())
				if err != nil || leaf.SerialNumber.Sign() <= 0 || leaf.SerialNumber.BitLen() > 128 {
					t.Errorf("serial number %v: %v", leaf.SerialNumber, err)
				}
				serials[i] = leaf.SerialNumber.String()
			})
		}

		if rotate {
			for range 20 {
				w.use(identitytest.NewCA(t, "next", identitytest.P256(t), w.anchor).Source(t, w.anchor))
				<-time.NewTimer(20 * time.Millisecond).C
			}
		}
		all.Wait()
		slices.Sort(serials)
		if n := len(slices.Compact(serials)); n != calls {
			t.Errorf("%d serial numbers for %d leaves", n, calls)
		}
		if most := w.api.most.Load(); most != identity.MaxReviews {
			t.Errorf("%d reviews at a time, want %d", most, identity.MaxReviews)
		}
	})
}

// IC31: the seeds of FuzzCertify, which anything may follow.
func testAnyBytes(t *testing.T) {
	w := newWorld(t)
	for _, seed := range seeds(t) {
		w.wantsHarmless(seed.identity, seed.token, seed.signing)
	}
}

// IC32: an identity ends with the namespace of the control plane, and the trust domain.
func testDomain(t *testing.T) {
	inWorld(t, func(w *world) {
		const other = "sa.ns.serviceaccount.identity.l5d.td.example"
		w.wantsFor(other, identitytest.Signing(t, identitytest.P256(t), other), codes.OK)
		w.wants(w.signing, codes.FailedPrecondition)
	}, func(w *world) { w.domain = identity.Domain{Namespace: "l5d", TrustDomain: "td.example"} })
}

// IC40: a leaf begins as much earlier, and ends as much later, as clocks may differ.
func testValidity(t *testing.T) {
	inWorld(t, func(w *world) {
		leaf := w.wants(w.signing, codes.OK)
		from, to := time.Now().Add(-20*time.Second), time.Now().Add(24*time.Hour+20*time.Second)
		if !leaf.NotBefore.Equal(from) || !leaf.NotAfter.Equal(to) {
			t.Errorf("from %v to %v, want %v to %v", leaf.NotBefore, leaf.NotAfter, from, to)
		}
	})
}

// IC42: a leaf is for servers and clients, and certifies no other one.
func testUsages(t *testing.T) {
	inWorld(t, func(w *world) {
		leaf := w.wants(w.signing, codes.OK)
		if leaf.KeyUsage != x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment {
			t.Errorf("key usage %b", leaf.KeyUsage)
		}
		both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		if !slices.Equal(leaf.ExtKeyUsage, both) || !leaf.BasicConstraintsValid || leaf.IsCA {
			t.Errorf("usages %v, a CA: %v", leaf.ExtKeyUsage, leaf.IsCA)
		}
	})
}

// IC43: an issuer signs by its own algorithm.
func testAlgorithms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for want, issuer := range map[x509.SignatureAlgorithm]*identitytest.CA{
			x509.SHA256WithRSA:   identitytest.NewCA(t, "rsa", identitytest.RSA(t), w.anchor),
			x509.PureEd25519:     identitytest.NewCA(t, "ed25519", identitytest.Ed25519(t), w.anchor),
			x509.ECDSAWithSHA384: identitytest.NewCA(t, "p384", identitytest.Curve(t, elliptic.P384()), w.anchor),
		} {
			w.use(issuer.Source(t, w.anchor))
			if leaf := w.wants(w.signing, codes.OK); leaf.SignatureAlgorithm != want {
				t.Errorf("%v, want %v", leaf.SignatureAlgorithm, want)
			}
		}
	})
}
