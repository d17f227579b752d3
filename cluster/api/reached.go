package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/internal/words"
)

// What was reached instead of an API server, and how far a request came: for probes and for diagnoses, in the same
// words.

const maxShownNames = 4 // of a certificate, or addresses of a name

// A progress is how far a request has come.
type progress struct{ awaited atomic.Pointer[stage] }

// A stage is what a request waits for, and what works already; the latter may be empty.
type stage struct{ awaited, works string }

// trace returns a context for a request, and its progress. A dialer of ours that is none of package net does not report
// that it has connected.
func trace(ctx context.Context) (context.Context, *progress) {
	p := &progress{}
	connects, responds := &stage{"TLS handshake", "TCP connects"}, &stage{"response", "TCP and TLS work"}
	p.awaited.Store(&stage{awaited: "TCP connection"})
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeStart: func() { p.awaited.Store(connects) },
		TLSHandshakeDone:  func(tls.ConnectionState, error) { p.awaited.Store(responds) },
		GotConn:           func(httptrace.GotConnInfo) { p.awaited.Store(responds) },
	}), p
}

// timeout describes that nothing came within a time.
func (p *progress) timeout(patience time.Duration) error {
	at := p.awaited.Load()
	text := fmt.Sprintf("no %s within %s", at.awaited, patience.Round(time.Second/10))
	if at.works != "" {
		text += ", although " + at.works
	}
	return errors.New(text)
}

// untrusted returns why a certificate is not trusted, if an error is about that; empty if it is not.
func untrusted(err error) string {
	if unknown, is := errors.AsType[x509.UnknownAuthorityError](err); is {
		if unknown.Cert == nil {
			return "an authority that is not trusted has issued the certificate"
		}
		return fmt.Sprintf("%s has issued the certificate (sha256 %s), and is not trusted",
			cmp.Or(unknown.Cert.Issuer.String(), "an authority without a name"), fingerprint(unknown.Cert))
	}

	if name, is := errors.AsType[x509.HostnameError](err); is {
		return strings.TrimPrefix(name.Error(), "x509: ")
	}
	if invalid, is := errors.AsType[x509.CertificateInvalidError](err); is {
		if invalid.Reason == x509.Expired && invalid.Cert != nil {
			from, to := invalid.Cert.NotBefore.UTC(), invalid.Cert.NotAfter.UTC()
			return fmt.Sprintf("the certificate is valid from %s to %s only", from.Format(time.RFC3339),
				to.Format(time.RFC3339))
		}
		return variableParts.ReplaceAllString(strings.TrimPrefix(invalid.Error(), "x509: "), "$1")
	}
	return ""
}

// trustedText describes the authorities in a configuration.
func trustedText(config *rest.Config) string {
	if len(config.CAData) == 0 {
		return "trusted are " + cmp.Or(config.CAFile, "the authorities of this host")
	}

	var all []string
	for block, next := pem.Decode(config.CAData); block != nil; block, next = pem.Decode(next) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err == nil {
			all = append(all, fmt.Sprintf("%s (sha256 %s)", certificate.Subject, fingerprint(certificate)))
		}
	}
	return "trusted is " + some(all)
}

// certificateText describes a certificate that is presented.
func certificateText(c *x509.Certificate) string {
	names := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return fmt.Sprintf("%s, issued by %s, for %s, until %s (sha256 %s)", cmp.Or(c.Subject.String(), "no subject"),
		c.Issuer, some(names), c.NotAfter.UTC().Format(time.RFC3339), fingerprint(c))
}

// fingerprint returns the first bytes of that of a certificate: enough to compare.
func fingerprint(c *x509.Certificate) string {
	hash := sha256.Sum256(c.Raw)
	return hex.EncodeToString(hash[:6])
}

// some returns the first of several names, and how many there are more.
func some(all []string) string {
	if len(all) == 0 {
		return "nothing"
	}
	return words.Some(all, maxShownNames)
}

// isForeign reports whether something else than an API server has sent a response.
func isForeign(response *http.Response) bool { return response.Header.Get("Server") != "" }

// answerer names what has sent a response. kube-apiserver sends no header Server, and what stands before it mostly
// does.
func answerer(response *http.Response) string {
	if name := response.Header.Get("Server"); name != "" {
		return fmt.Sprintf("%q, in front of the API server,", name)
	}
	return "the API server"
}
