package identity

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/internal/proc"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// The process with the key of the issuer opens connections to its API server alone: while it certifies, while anchor
// and issuer are replaced, and while it sends Events. It asks no name server, and has no socket for UDP.
func TestAuthorityOpensNothingElse(t *testing.T) {
	s := newSite(t)
	s.startAuthority()
	s.startReplica()
	s.ready(append(s.authorities, s.replica)...)
	proxy := s.pod()
	s.writeToken("web-token", "web", "shop")
	at, err := url.Parse(s.AdminConfig().Host)
	s.do(err)
	server, err := netip.ParseAddrPort(at.Host)
	s.do(err)

	seen := map[netip.AddrPort]int{}
	look := func() {
		t.Helper()
		remotes, udp, err := proc.Opened(s.authorities[0].PID())
		s.do(err)
		for _, remote := range remotes {
			if seen[remote]++; remote != server {
				t.Fatalf("it has a connection to %s, and the API server is %s", remote, server)
			}
		}
		if udp != 0 {
			t.Fatalf("it has %d sockets for UDP", udp)
		}
	}
	look()

	s.certifyWhile(proxy, "the first certificate", func(leaf *x509.Certificate) bool {
		look()
		return leaf != nil
	})
	s.newAnchor("second")
	s.use("second", "first", "second")
	proxy.Trust(append(s.read("first.crt"), s.read("second.crt")...))
	s.certifyWhile(proxy, "the new issuer", func(leaf *x509.Certificate) bool {
		look()
		return leaf.CheckSignatureFrom(parse(t, s.read("second-crt.pem"))) == nil
	})

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for namespace, reason := range map[string]string{"shop": "IssuedLeafCertificate", "linkerd": "IssuerUpdated"} {
		s.do(mesh.Eventually(ctx, func(ctx context.Context) error {
			look()
			reasons, err := s.Print(ctx, namespace, "events.events.k8s.io", "", `{range .items[*]}{.reason} {end}`)
			if err == nil && !strings.Contains(reasons, reason) {
				err = fmt.Errorf("the Events in %s are %q, want %s", namespace, reasons, reason)
			}
			return err
		}))
	}
	if seen[server] == 0 {
		t.Error("no connection to its API server was seen")
	}
	t.Logf("connections that were seen: %v", seen)
}
