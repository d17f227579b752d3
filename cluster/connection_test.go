package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"syscall"
	"testing"
	"time"
)

// The message of an outage does not change from one probe to the next.
func TestPlain(t *testing.T) {
	api := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 6443}
	reset := func(n int) error {
		return &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.ParseIP("fd00::1"), Port: 40000 + n}, Addr: api, Err: syscall.ECONNRESET}
	}
	for name, c := range map[string]struct {
		at   func(n int) error
		want string
	}{
		"reset":     {reset, "read tcp 192.0.2.1:6443: connection reset by peer"},
		"wrapped":   {func(n int) error { return fmt.Errorf("http: %w", reset(n)) }, "http: read tcp 192.0.2.1:6443: connection reset by peer"},
		"by a text": {func(n int) error { return errors.New("http: " + reset(n).Error()) }, "http: read tcp 192.0.2.1:6443: connection reset by peer"},
		"no name": {func(n int) error {
			server := fmt.Sprintf("10.96.0.%d:53", n)
			return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{
				Name: "east.test", Server: server, Err: fmt.Sprintf("read udp 10.0.0.5:%d->%s: connection refused", 40000+n, server),
			}}
		}, "dial tcp: lookup east.test: connection refused"},
		"no host": {func(int) error { return &net.DNSError{Name: "east.test", Server: "10.96.0.10:53", Err: "no such host"} }, "lookup east.test: no such host"},
		"expired": {func(n int) error {
			detail := fmt.Sprintf("current time %s is after 2000-01-01T00:00:00Z", time.Unix(1e9+int64(n), 0).UTC().Format(time.RFC3339))
			return x509.CertificateInvalidError{Reason: x509.Expired, Detail: detail}
		}, "x509: certificate has expired or is not yet valid: current time is after 2000-01-01T00:00:00Z"},
	} {
		for n := range 2 {
			if got := plain(&url.Error{Op: "Get", URL: "https://east.test:6443/readyz", Err: c.at(n)}).Error(); got != c.want {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
		}
	}
}
