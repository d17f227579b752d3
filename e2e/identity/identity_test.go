package identity

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	destination "github.com/linkerd/linkerd2-proxy-api/go/destination"
	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

const nameOfWeb = "web.shop.serviceaccount.identity.linkerd.cluster.local"

// A proxy gets from the environment that was written into its Pod to a certificate, and with that to the first answers
// of discovery and policy. One of the two authorities is gone by then.
func TestProxyStarts(t *testing.T) {
	s := newSite(t)
	s.startAuthority()
	s.startAuthority()
	s.startReplica()
	s.ready(append(s.authorities, s.replica)...)
	proxy := s.pod()
	s.writeToken("web-token", "web", "shop")
	s.do(s.authorities[0].Stop())

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	began := time.Now()
	leaf, err := proxy.Certify(ctx, s.path("web-token"))
	s.do(err)
	if proxy.Name() != nameOfWeb || leaf.Subject.CommonName != nameOfWeb {
		t.Errorf("the certificate is of %q, the proxy %q", leaf.Subject.CommonName, proxy.Name())
	}
	s.do(ask(ctx, proxy))
	t.Logf("ready after %s", time.Since(began).Round(time.Millisecond))

	// An Event that the API server does not take at once is sent again 10 s later, and those after it wait for that.
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s.do(mesh.Eventually(ctx, func(ctx context.Context) error {
		const each = `{range .items[*]}{.reason} {.note}{"\n"}{end}`
		events, err := s.Print(ctx, "shop", "events.events.k8s.io", "", each)
		if want := "IssuedLeafCertificate Certificate issued for " + nameOfWeb + " until "; err == nil &&
			!strings.Contains(events, want) {
			err = fmt.Errorf("the Events are %q, want %s", events, want)
		}
		return err
	}))
}

// ask opens the streams that a proxy opens first, with its certificate, and checks the first message of each.
func ask(ctx context.Context, p *mesh.Proxy) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	discovery, err := p.Dial("DESTINATION")
	if err != nil {
		return err
	}
	defer discovery.Close()
	rules, err := p.Dial("POLICY")
	if err != nil {
		return err
	}
	defer rules.Close()

	const authority = "web.shop.svc.cluster.local:8080"
	to := &destination.GetDestination{Path: authority, ContextToken: p.Setting("DESTINATION_CONTEXT")}
	api := destination.NewDestinationClient(discovery)
	profile, err := first(api.GetProfile(ctx, to))
	if err != nil || profile.GetFullyQualifiedName() != "web.shop.svc.cluster.local" {
		return fmt.Errorf("GetProfile: %v, %w", profile, wrong(err))
	}
	update, err := first(api.Get(ctx, to))
	if err != nil || len(update.GetAdd().GetAddrs()) != 1 {
		return fmt.Errorf("Get: %v, %w", update, wrong(err))
	}

	in, err := first(inbound.NewInboundServerPoliciesClient(rules).WatchPort(ctx, &inbound.PortSpec{
		Workload: p.Setting("POLICY_WORKLOAD"), Port: 8080,
	}))
	if err == nil {
		_, err = policy.DecodeInbound(in)
	}
	if err != nil {
		return fmt.Errorf("WatchPort: %w", err)
	}
	out, err := first(outbound.NewOutboundPoliciesClient(rules).Watch(ctx, &outbound.TrafficSpec{
		SourceWorkload: p.Setting("POLICY_WORKLOAD"), Target: &outbound.TrafficSpec_Authority{Authority: authority},
	}))
	if err == nil {
		_, err = policy.DecodeOutbound(out)
	}
	if err != nil {
		return fmt.Errorf("Watch: %w", err)
	}
	return nil
}

// wrong returns an error, also if there was none.
func wrong(err error) error {
	if err == nil {
		err = errNone
	}
	return err
}

// first returns the first message of a stream.
func first[M any](stream grpc.ServerStreamingClient[M], err error) (*M, error) {
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// An anchor and an issuer are replaced in the documented sequence while a proxy asks again and again: no call is
// refused, and the replica has a certificate of the new issuer by itself, 70 % into the minute that certificates last.
func TestRotation(t *testing.T) {
	s := newSite(t)
	s.startAuthority("-identity-issuance-lifetime=1m")
	s.startReplica()
	s.ready(append(s.authorities, s.replica)...)
	proxy := s.pod()
	s.writeToken("web-token", "web", "shop")

	s.newAnchor("second")
	s.certifyWhile(proxy, "a bundle of both anchors", func(leaf *x509.Certificate) bool { return leaf != nil })
	s.use("first", "first", "second")
	both := append(s.read("first.crt"), s.read("second.crt")...)
	proxy.Trust(both)
	s.use("second", "first", "second")
	s.certifyWhile(proxy, "the new issuer", func(leaf *x509.Certificate) bool {
		return leaf.CheckSignatureFrom(parse(t, s.read("second-crt.pem"))) == nil
	})

	later := proxy.At(s.hosts()) // a Pod that is made once the old anchor is gone
	later.Trust(s.read("second.crt"))
	s.certifyWhile(proxy, "certificates of the control plane under the new anchor", func(*x509.Certificate) bool {
		_, err := later.Certify(t.Context(), s.path("web-token"))
		return err == nil && ask(t.Context(), later) == nil
	})
	s.use("second", "second")
	s.certifyWhile(later, "the old anchor gone", func(*x509.Certificate) bool { return ask(t.Context(), later) == nil })
}

// certifyWhile certifies a proxy again and again until something is so. No call may be refused.
func (s *site) certifyWhile(p *mesh.Proxy, what string, is func(*x509.Certificate) bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 2*time.Minute)
	defer cancel()
	began, calls := time.Now(), 0
	s.do(mesh.Eventually(ctx, func(ctx context.Context) error {
		leaf, err := p.Certify(ctx, s.path("web-token"))
		if err != nil {
			s.Fatalf("until %s: call %d: %v", what, calls, err)
		}
		calls++
		if !is(leaf) {
			return fmt.Errorf("waiting for %s", what)
		}
		return nil
	}))
	s.Logf("%s: after %s and %d calls", what, time.Since(began).Round(time.Millisecond), calls)
}

// Tokens are reviewed by the API server: one of another account, one without the audience, and one that is none.
func TestTokens(t *testing.T) {
	s := newSite(t)
	s.startAuthority()
	s.startAuthority("-identity-require-audience")
	s.startReplica()
	s.ready(s.authorities...)
	proxy := s.pod()
	web := &controlplane.Identity{Namespace: "shop", Name: "web"}
	_, err := s.CreateIdentity(t.Context(), "shop", "other", nil)
	s.do(err)

	token := func(account *controlplane.Identity, audience string) string {
		token, err := s.TokenFor(t.Context(), account, audience)
		s.do(err)
		return token
	}
	bound, err := s.Mint(t.Context(), web)
	s.do(err)
	for _, test := range []struct {
		what, token     string
		lenient, strict codes.Code
	}{
		{"a token for proxies", token(web, audience), codes.OK, codes.OK},
		{"a token for the API server", bound.Token, codes.OK, codes.InvalidArgument},
		{"a token for others", token(web, "vault"), codes.InvalidArgument, codes.InvalidArgument},
		{
			"a token of another account", token(&controlplane.Identity{Namespace: "shop", Name: "other"}, audience),
			codes.FailedPrecondition, codes.FailedPrecondition,
		},
		{"garbage", "garbage", codes.InvalidArgument, codes.InvalidArgument},
	} {
		s.write("token", []byte(test.token))
		hosts := s.hosts()
		for i, want := range []codes.Code{test.lenient, test.strict} {
			hosts["linkerd-identity-headless.linkerd.svc.cluster.local.:8080"] = []string{s.authorities[i].Identity}
			_, err := proxy.At(hosts).Certify(t.Context(), s.path("token"))
			if got := status.Code(err); got != want {
				t.Errorf("%s, authority %d: %v, want %s", test.what, i, err, want)
			}
		}
	}
}

// 2,000 proxies that start at once have a certificate within 20 s, as after an outage. Each has a connection of its
// own, and asks again after an error.
func TestManyProxiesStart(t *testing.T) {
	const proxies, claimed = 2000, 20 * time.Second
	s := newSite(t)
	s.startAuthority()
	s.startReplica()
	s.ready(append(s.authorities, s.replica)...)
	pod := s.pod()
	s.writeToken("web-token", "web", "shop")

	ctx, cancel := context.WithTimeout(t.Context(), 5*claimed)
	defer cancel()
	began := time.Now()
	var errs atomic.Int64
	var all sync.WaitGroup
	for range proxies {
		proxy := pod.At(s.hosts())
		all.Go(func() {
			err := mesh.Eventually(ctx, func(ctx context.Context) error {
				_, err := proxy.Certify(ctx, s.path("web-token"))
				if err != nil {
					errs.Add(1)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()

	took := time.Since(began).Round(time.Millisecond)
	metrics, err := s.authorities[0].Metrics(t.Context())
	s.do(err)
	t.Logf("%d proxies: %s (claimed: %s), %d errors on the way\n%s", proxies, took, claimed, errs.Load(),
		lines(metrics, "fingerpost_token_review_seconds_count", "fingerpost_certify_total", "process_cpu_seconds_total",
			"process_resident_memory_bytes", "fingerpost_certify_events_dropped_total"))
}

// lines returns those of a page that begin with one of some names.
func lines(page string, names ...string) (some string) {
	for line := range strings.Lines(page) {
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(line, name) }) {
			some += line
		}
	}
	return some
}

// join copies between two connections until one ends.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}
	both.Go(func() { pipe(a, b) })
	both.Go(func() { pipe(b, a) })
	both.Wait()
}

func parse(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
