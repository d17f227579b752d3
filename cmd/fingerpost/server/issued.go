package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

// An Obtain gets this process a new certificate, for those who trust authorities. It returns within some seconds.
type Obtain func(ctx context.Context, authorities *x509.CertPool) (*tls.Certificate, error)

// Issued is how a process is issued a certificate.
type Issued struct {
	Server  string             // that presents it, for the log and for metrics
	From    string             // who issues it, for people
	Anchors string             // file of those that all sides trust (PEM); it may come later
	Clients tls.ClientAuthType // which certificates clients have
	Obtain  Obtain
}

// IssuedCertificate returns a certificate that is issued to this process once it has started.
func IssuedCertificate(log logr.Logger, as Issued) *Certificate {
	certificate := newCertificate(log, as.Server, &issuedPair{from: as.From, obtain: as.Obtain})
	certificate.clients = as.Clients
	certificate.authorities = &reread[x509.CertPool]{paths: []string{as.Anchors}, parse: parseAuthorities}
	certificate.missing.Store(notYetIssued)
	return certificate
}

const (
	// renewAt is the part of its life after which a certificate is replaced, in percent: what is left is for failures.
	renewAt = 70

	maxRetryPause = 30 * time.Second // between two attempts that fail
)

// An issuedPair is issued to this process. It is replaced when most of its life is over, or when it does not verify any
// longer, because anchors have changed. After a failure the next attempt is made a second later, and twice as long
// after each further one.
type issuedPair struct {
	news
	from   string
	obtain Obtain
	value  atomic.Pointer[tls.Certificate]

	// Of who renews.
	verified *x509.CertPool // what the certificate was verified with
	pause    time.Duration  // after the last failure
	next     time.Time      // when an attempt may be made
	failure  error
}

func (p *issuedPair) load() *tls.Certificate { return p.value.Load() }
func (p *issuedPair) source() string         { return p.from }
func (p *issuedPair) complaint() string {
	return "Certificate was not issued: the previous one stays in use, if there was one"
}

func (p *issuedPair) renew(ctx context.Context, authorities *x509.CertPool) (changed bool, err error) {
	now := time.Now()
	if authorities == nil {
		return false, errors.New("the trust anchors were not read yet")
	}
	if p.verified != authorities && verifies(p.value.Load(), authorities, now) {
		p.verified = authorities
	}

	switch {
	case !p.isDue(now, authorities):
		return false, nil
	case now.Before(p.next):
		return false, p.failure
	}

	issued, err := p.obtain(ctx, authorities)
	if err != nil {
		p.pause = min(max(2*p.pause, rereadInterval), maxRetryPause)
		p.next, p.failure = time.Now().Add(p.pause), err
		return false, err
	}
	p.value.Store(issued)
	p.verified, p.pause, p.failure = authorities, 0, nil
	return true, nil
}

// isDue reports whether a new certificate is needed.
func (p *issuedPair) isDue(now time.Time, authorities *x509.CertPool) bool {
	current := p.value.Load()
	if current == nil {
		return true
	}
	life := current.Leaf.NotAfter.Sub(current.Leaf.NotBefore)
	return now.After(current.Leaf.NotBefore.Add(life*renewAt/100)) || p.verified != authorities
}

// verifies reports whether those who trust authorities accept a certificate; there may be none.
func verifies(of *tls.Certificate, authorities *x509.CertPool, now time.Time) bool {
	if of == nil {
		return false
	}
	above := x509.NewCertPool()
	for _, der := range of.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			above.AddCert(c)
		}
	}
	_, err := of.Leaf.Verify(x509.VerifyOptions{Roots: authorities, Intermediates: above, CurrentTime: now})
	return err == nil
}
