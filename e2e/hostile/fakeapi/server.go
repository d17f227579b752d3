// Package fakeapi plays the API servers of many clusters behind one HTTPS address, each below a path of its
// own. They list in pages, by streaming lists and by watches, in protobuf and in JSON, as kube-apiserver
// does, and misbehave as they are configured to.
//
// Objects are made when they are asked for: a cluster of 100,000 Pods takes no memory here.
package fakeapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A Server listens on loopback for all of its clusters.
type Server struct {
	url       string
	authority []byte // PEM
	http      *http.Server
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	mu       sync.Mutex
	clusters map[string]*Cluster
}

// Start starts a Server without clusters.
func Start() (*Server, error) {
	certificate, authority, err := selfSigned()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{url: "https://" + listener.Addr().String(), authority: authority, clusters: map[string]*Cluster{}}
	s.ctx, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	s.http = &http.Server{
		Handler:   http.HandlerFunc(s.serve),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ErrorLog:  log.New(io.Discard, "", 0), // clients that hang up
	}
	s.wg.Go(func() { _ = s.http.ServeTLS(listener, "", "") }) // it ends with Close
	return s, nil
}

// Close hangs up on all clients and stops listening.
func (s *Server) Close() error {
	s.cancel()
	err := s.http.Close()
	s.wg.Wait()
	return err
}

// Cluster returns the cluster of that name, which is made, empty, when it is first asked for.
func (s *Server) Cluster(name string) *Cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clusters[name]
	if c == nil {
		c = newCluster(s, name)
		s.clusters[name] = c
	}
	return c
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	s.mu.Lock()
	c := s.clusters[name]
	s.mu.Unlock()
	s.wg.Add(1) // net/http does not wait for handlers
	defer s.wg.Done()
	if c == nil {
		http.NotFound(w, r)
		return
	}
	c.serve(w, r, path)
}

// Kubeconfig returns how a client reaches the cluster with a token.
func (c *Cluster) Kubeconfig(token string) []byte {
	named := func(kind string, value map[string]any) []any { return []any{map[string]any{"name": "c", kind: value}} }
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": named("cluster", map[string]any{
			"server":                     c.server.url + "/" + c.Name,
			"certificate-authority-data": c.server.authority,
		}),
		"users":    named("user", map[string]any{"token": token}),
		"contexts": named("context", map[string]any{"cluster": "c", "user": "c"}),
	})
	if err != nil {
		panic(err) // strings can be encoded
	}
	return text
}

func selfSigned() (_ tls.Certificate, authority []byte, _ error) {
	key, keyErr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fake"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err := errors.Join(keyErr, err); err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
