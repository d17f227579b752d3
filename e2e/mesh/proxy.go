package mesh

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"sync/atomic"
	"time"

	identity "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
)

// A Proxy is a client of a control plane that does what linkerd2-proxy does at its start, with the settings that its
// container has in its environment: it gets a certificate, and with that reaches discovery and policy over TLS.
type Proxy struct {
	env   map[string]string
	hosts Hosts
	roots *x509.CertPool
	own   *atomic.Pointer[tls.Certificate] // of nil before Certify
}

// Hosts are the addresses at which this machine has what a name with a port leads to in a cluster. They are tried in
// sequence.
type Hosts map[string][]string

// pause is that of linkerd2-proxy, between two attempts to connect.
var pause = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, Jitter: 0.1, MaxDelay: 10 * time.Second}

const proxyVariable = "LINKERD2_PROXY_"

// NewProxy returns a Proxy with the environment of a container of a Pod. fields are what the downward API has of the
// Pod, by path.
func NewProxy(env []corev1.EnvVar, fields map[string]string, hosts Hosts) (*Proxy, error) {
	p := &Proxy{
		env: map[string]string{}, hosts: hosts, roots: x509.NewCertPool(), own: new(atomic.Pointer[tls.Certificate]),
	}
	reference := regexp.MustCompile(`\$\(([A-Za-z0-9_]+)\)`)
	for _, v := range env {
		value := v.Value
		if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil {
			known := false
			if value, known = fields[v.ValueFrom.FieldRef.FieldPath]; !known {
				return nil, fmt.Errorf("%s is field %s, which is not known", v.Name, v.ValueFrom.FieldRef.FieldPath)
			}
		}
		p.env[v.Name] = reference.ReplaceAllStringFunc(value, func(of string) string { return p.env[of[2:len(of)-1]] })
	}

	if !p.roots.AppendCertsFromPEM([]byte(p.Setting("IDENTITY_TRUST_ANCHORS"))) {
		return nil, errors.New("the environment has no trust anchors")
	}
	return p, nil
}

// Setting returns a variable of the environment, by its name after LINKERD2_PROXY_.
func (p *Proxy) Setting(name string) string { return p.env[proxyVariable+name] }

// Name returns the identity of the Proxy.
func (p *Proxy) Name() string { return p.Setting("IDENTITY_LOCAL_NAME") }

// Trust has the Proxy trust other anchors, as a Pod does that is made again.
func (p *Proxy) Trust(anchors []byte) {
	p.roots = x509.NewCertPool()
	p.roots.AppendCertsFromPEM(anchors)
}

// Certify gets a certificate for a new key, with the token in a file, verifies it, and returns it.
func (p *Proxy) Certify(ctx context.Context, tokenFile string) (*x509.Certificate, error) {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	signing, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: p.Name()}, DNSNames: []string{p.Name()},
	}, key)
	if err != nil {
		return nil, err
	}

	conn, err := p.Dial("IDENTITY")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := identity.NewIdentityClient(conn).Certify(ctx, &identity.CertifyRequest{
		Identity: p.Name(), Token: token, CertificateSigningRequest: signing,
	})
	if err != nil {
		return nil, err
	}
	return p.take(answer, key)
}

// take verifies an answer as a proxy does, and has it presented from now on.
func (p *Proxy) take(answer *identity.CertifyResponse, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	leaf, err := x509.ParseCertificate(answer.GetLeafCertificate())
	if err != nil {
		return nil, err
	}
	own := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	above := x509.NewCertPool()
	for _, der := range answer.GetIntermediateCertificates() {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		above.AddCert(c)
		own.Certificate = append(own.Certificate, der)
	}

	_, err = leaf.Verify(x509.VerifyOptions{DNSName: p.Name(), Roots: p.roots, Intermediates: above})
	switch until := answer.GetValidUntil().AsTime(); {
	case err != nil:
		return nil, err
	case !until.Equal(leaf.NotAfter):
		return nil, fmt.Errorf("the answer is valid until %s, the certificate until %s", until, leaf.NotAfter)
	}
	p.own.Store(own)
	return leaf, nil
}

// Dial opens a connection to IDENTITY, DESTINATION or POLICY over TLS, without ALPN. It takes nothing but a certificate
// of the name that the environment has for it, and presents its own if it has one, the newest to each connection.
func (p *Proxy) Dial(service string) (*grpc.ClientConn, error) {
	addr := p.Setting(service + "_SVC_ADDR")
	name := p.Setting(service + "_SVC_NAME")
	settings := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: p.roots, ServerName: name}
	if service != "IDENTITY" {
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if own := p.own.Load(); own != nil {
				return own, nil
			}
			return new(tls.Certificate), nil
		}
	}

	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: 3 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return p.connect(ctx, addr, settings)
		}))
}

// connect tries the addresses that a name leads to.
func (p *Proxy) connect(ctx context.Context, addr string, settings *tls.Config) (net.Conn, error) {
	failed := fmt.Errorf("%s is no name of this cluster", addr)
	for _, host := range p.hosts[addr] {
		dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Second}, Config: settings}
		conn, err := dialer.DialContext(ctx, "tcp", host)
		if err == nil {
			return conn, nil
		}
		failed = err
	}
	return nil, failed
}

// At returns the Proxy as it is, with other addresses of names.
func (p *Proxy) At(hosts Hosts) *Proxy {
	other := *p
	other.hosts = hosts
	other.own = new(atomic.Pointer[tls.Certificate])
	other.own.Store(p.own.Load())
	return &other
}
