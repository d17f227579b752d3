package certify_test

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/fingerpost/fingerpost/cluster/tokenreview"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/certify"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	token = "header.payload.signature"
	user  = "system:serviceaccount:ns:sa"
	name  = "sa.ns.serviceaccount.identity.linkerd.cluster.local"
)

// apiServer plays one: it reviews tokens as a test has it.
type apiServer struct {
	typed.TokenReviewInterface
	answer func(ctx context.Context, spec authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus, error)

	reviews, underWay, most atomic.Int64
	mu                      sync.Mutex
	audiences               [][]string // asked for, in order
}

func (s *apiServer) Create(
	ctx context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions,
) (*authenticationv1.TokenReview, error) {
	s.reviews.Add(1)
	for n, most := s.underWay.Add(1), s.most.Load(); n > most; most = s.most.Load() {
		if s.most.CompareAndSwap(most, n) {
			break
		}
	}
	defer s.underWay.Add(-1)

	s.mu.Lock()
	s.audiences = append(s.audiences, review.Spec.Audiences)
	s.mu.Unlock()
	out := review.DeepCopy()
	var err error
	out.Status, err = s.answer(ctx, review.Spec)
	return out, err
}

// knows has the API server know one token, which is for the audience, as that of a user.
func (s *apiServer) knows(is string) {
	s.answer = func(
		_ context.Context, spec authenticationv1.TokenReviewSpec,
	) (status authenticationv1.TokenReviewStatus, err error) {
		if spec.Token == token {
			status = authenticated(is, spec.Audiences...)
		}
		return status, nil
	}
}

// answers has the API server answer one thing to everything.
func (s *apiServer) answers(status authenticationv1.TokenReviewStatus, err error) {
	s.answer = func(context.Context, authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus, error) {
		return status, err
	}
}

func authenticated(user string, audiences ...string) (status authenticationv1.TokenReviewStatus) {
	status.Authenticated, status.User.Username, status.Audiences = true, user, audiences
	return status
}

// A world is an authority with the fixtures of the cases, and its callers.
type world struct {
	t            testing.TB
	api          *apiServer
	anchor       *identitytest.CA
	issuer       *identitytest.CA
	domain       identity.Domain
	terms        identity.Terms
	authority    *identity.Authority
	server       *certify.Server
	signing      []byte
	log          strings.Builder
	needAudience bool
}

func newWorld(tb testing.TB, changes ...func(*world)) *world {
	tb.Helper()
	w := &world{
		t: tb, api: &apiServer{},
		domain: identity.Domain{Namespace: "linkerd", TrustDomain: "cluster.local"},
		terms:  identity.Terms{Lifetime: 24 * time.Hour, Skew: 20 * time.Second},
	}
	w.api.knows(user)
	inYears := identitytest.Ends(time.Now().AddDate(10, 0, 0))
	w.anchor = identitytest.NewCA(tb, "root", identitytest.P256(tb), nil, inYears)
	w.issuer = identitytest.NewCA(tb, "issuer", identitytest.P256(tb), w.anchor)
	for _, change := range changes {
		change(w)
	}

	w.authority = identity.NewAuthority(identity.Options{
		Domain: w.domain, Terms: w.terms, Reviewer: tokenreview.NewClient(w.api), RequireAudience: w.needAudience,
	})
	w.use(w.issuer.Source(tb, w.anchor))
	var mu sync.Mutex
	log := funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		w.log.WriteString(prefix + args + "\n")
	}, funcr.Options{Verbosity: 10})
	w.server = certify.NewServer(log, w.authority, certify.Outcomes{})
	w.signing = identitytest.Signing(tb, identitytest.P256(tb), name)
	return w
}

// use has the authority sign with another issuer.
func (w *world) use(source identity.Source) {
	w.t.Helper()
	issuer, err := identity.NewIssuer(source, w.domain, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	w.authority.Use(issuer)
}

// inWorld plays a case at a fixed time.
func inWorld(t *testing.T, play func(w *world), changes ...func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { play(newWorld(t, changes...)) })
}

func (w *world) certify(ctx context.Context, identity, token string, signing []byte) (*pb.CertifyResponse, error) {
	return w.server.Certify(ctx, &pb.CertifyRequest{
		Identity: identity, Token: []byte(token), CertificateSigningRequest: signing,
	})
}

// wants asks with a signing request, and checks the code, and for OK the leaf.
func (w *world) wants(signing []byte, want codes.Code) *x509.Certificate {
	w.t.Helper()
	return w.wantsFor(name, signing, want)
}

func (w *world) wantsFor(name string, signing []byte, want codes.Code) *x509.Certificate {
	w.t.Helper()
	response, err := w.certify(w.t.Context(), name, token, signing)
	if got := status.Code(err); got != want {
		w.t.Errorf("%v: %v, want %v", got, err, want)
	}
	if err != nil {
		return nil
	}
	return w.verified(response, name)
}

// verified returns the leaf of an answer, which must be for a name, and verify as a proxy does it.
func (w *world) verified(response *pb.CertifyResponse, name string) *x509.Certificate {
	w.t.Helper()
	leaf, err := x509.ParseCertificate(response.GetLeafCertificate())
	if err != nil {
		w.t.Fatal(err)
	}
	if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != name {
		w.t.Errorf("the leaf is for %q, want %s", leaf.DNSNames, name)
	}
	if until := response.GetValidUntil().AsTime(); !until.Equal(leaf.NotAfter) {
		w.t.Errorf("valid until %v, the leaf until %v", until, leaf.NotAfter)
	}

	above := x509.NewCertPool()
	for _, der := range response.GetIntermediateCertificates() {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			w.t.Fatal(err)
		}
		above.AddCert(c)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := leaf.Verify(x509.VerifyOptions{
			DNSName: name, Roots: w.anchor.Pool(), Intermediates: above, CurrentTime: time.Now(),
			KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			w.t.Errorf("usage %d: %v", usage, err)
		}
	}
	return leaf
}

var (
	errAway = errors.New("connection refused")
	err500  = apierrors.NewGenericServerResponse(http.StatusInternalServerError, "create",
		authenticationv1.Resource("tokenreviews"), "", "no", 0, true)
)
