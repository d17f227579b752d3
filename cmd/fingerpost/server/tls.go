package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// tlsFiles are what a server without a proxy beside it needs to speak TLS itself. They are read again when they change.
type TLSFiles struct{ Certificate, Key, ClientCA string }

func (f *TLSFiles) Validate() error {
	switch {
	case (f.Certificate == "") != (f.Key == ""):
		return errors.New("-tls-cert-file and -tls-key-file go together: one of them is not set")
	case f.ClientCA != "" && f.Certificate == "":
		return errors.New("-tls-client-ca-file needs -tls-cert-file and -tls-key-file")
	}
	return nil
}

// listen lets a listener speak TLS, if there are files to do so, and metrics tell when the certificate ends; wg waits for what follows the
// files until ctx ends. TLS is not gRPC's own: that refuses clients which offer no ALPN, and linkerd2-proxy is one.
func (f *TLSFiles) wrap(ctx context.Context, wg *sync.WaitGroup, log logr.Logger, metrics prometheus.Registerer, listener net.Listener) (net.Listener, error) {
	if f.Certificate == "" {
		return listener, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	if f.ClientCA != "" {
		authorities := &clientAuthorities{file: f.ClientCA, log: log}
		if err := authorities.reload(); err != nil {
			return nil, fmt.Errorf("-tls-client-ca-file: %w", err)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
		config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := config.Clone()
			c.GetConfigForClient, c.ClientCAs = nil, authorities.currentPool()
			return c, nil
		}
	}
	certificate, err := certwatcher.New(f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("-tls-cert-file, -tls-key-file: %w", err)
	}
	config.GetCertificate = certificate.GetCertificate
	metrics.MustRegister(CertificateExpiry("fingerpost_certificate_not_after_seconds", "When the certificate of the gRPC server ends, in seconds since 1970.", certificate))
	wg.Go(func() {
		if err := certificate.Start(ctx); err != nil {
			log.Error(err, "A new certificate will not be noticed until a restart", "file", f.Certificate)
		}
	})
	return tls.NewListener(listener, config), nil
}

// certificateEnd is the metric of when a certificate that is watched ends.
func CertificateExpiry(name, help string, certificate *certwatcher.CertWatcher) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		c, _ := certificate.GetCertificate(nil) // it was read once, and is kept
		return float64(c.Leaf.NotAfter.Unix())
	})
}

// authorities is a file of certificates that may be replaced at any time.
type clientAuthorities struct {
	file string
	log  logr.Logger

	mu      sync.Mutex
	changed time.Time // of the file that pool is from
	pool    *x509.CertPool
}

// current returns the authorities of the file as it is now, and those of before if it cannot be read.
func (a *clientAuthorities) currentPool() *x509.CertPool {
	if err := a.reload(); err != nil {
		a.log.Error(err, "The authorities of clients cannot be read; those of before go on", "file", a.file)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pool
}

func (a *clientAuthorities) reload() error {
	info, err := os.Stat(a.file)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if info.ModTime().Equal(a.changed) {
		return nil
	}
	pem, err := os.ReadFile(a.file)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no certificate", a.file)
	}
	a.changed, a.pool = info.ModTime(), pool
	return nil
}
