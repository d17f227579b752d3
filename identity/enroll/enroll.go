// Package enroll gets a certificate of the mesh from its authority, with the steps of a proxy: Linkerd's Identity API
// (io.linkerd.proxy.identity) is asked with the token of a ServiceAccount, and answers with a certificate for the
// identity of that account.
package enroll

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/identity"
)

// callTimeout bounds an attempt: a name is looked up, a connection opened, and a token reviewed.
const callTimeout = 10 * time.Second

// A Client gets certificates.
type Client struct {
	Addr   string // host and port of the authority
	Domain identity.Domain
	Token  func() (string, error)

	Dial func(ctx context.Context, network, address string) (net.Conn, error) // nil for TCP
}

// Obtain returns a new certificate with a new key, once it has verified it against the anchors, as it does with the
// authority's own.
func (c *Client) Obtain(ctx context.Context, anchors *x509.CertPool) (*tls.Certificate, error) {
	token, err := c.Token()
	if err != nil {
		return nil, err
	}
	name, err := c.nameIn(token)
	if err != nil {
		return nil, err
	}

	key, err := identity.NewKey()
	if err != nil {
		return nil, err
	}
	signing, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
	}, key)
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.call(ctx, anchors, &pb.CertifyRequest{
		Identity: name, Token: []byte(token), CertificateSigningRequest: signing,
	})
	if err != nil {
		return nil, fmt.Errorf("the authority at %s: %s", c.Addr, status.Convert(err).Message())
	}
	return read(answer, name, key, anchors)
}

// nameIn returns the identity of the account that a token is of. Its signature is not looked at: the authority has the
// token reviewed.
func (c *Client) nameIn(token string) (string, error) {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return "", errors.New("the token of the ServiceAccount is no JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Subject string `json:"sub"`
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return "", errors.New("the token of the ServiceAccount has no claims that can be read")
	}

	name, is := c.Domain.NameOf(claims.Subject)
	if !is {
		return "", errors.New("the token is not that of a ServiceAccount")
	}
	return name, nil
}

// call asks over a connection of its own. TLS is below gRPC, whose own would refuse a proxy in front of the authority:
// that negotiates no protocol.
func (c *Client) call(
	ctx context.Context, anchors *x509.CertPool, request *pb.CertifyRequest,
) (*pb.CertifyResponse, error) {
	dial := c.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}

	secure := func(ctx context.Context, address string) (net.Conn, error) {
		raw, err := dial(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}

		conn := tls.Client(raw, &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
			RootCAs: anchors, ServerName: c.Domain.Authority(),
		})
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return conn, nil
	}

	conn, err := grpc.NewClient("passthrough:///"+c.Addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(secure))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return pb.NewIdentityClient(conn).Certify(ctx, request)
}

// read returns what an answer holds, if that is what was asked for.
func read(
	answer *pb.CertifyResponse, name string, key *ecdsa.PrivateKey, anchors *x509.CertPool,
) (*tls.Certificate, error) {
	certificate, err := x509.ParseCertificate(answer.GetLeafCertificate())
	if err != nil {
		return nil, fmt.Errorf("the authority has answered with what is no certificate: %w", err)
	}

	above := x509.NewCertPool()
	for _, der := range answer.GetIntermediateCertificates() {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("the authority has answered with a chain that cannot be read: %w", err)
		}
		above.AddCert(c)
	}

	_, err = certificate.Verify(x509.VerifyOptions{DNSName: name, Roots: anchors, Intermediates: above})
	switch {
	case err != nil:
		return nil, fmt.Errorf("the certificate that the authority has issued does not verify: %w", err)
	case !key.PublicKey.Equal(certificate.PublicKey):
		return nil, errors.New("the certificate that the authority has issued is for another key")
	}
	leaf := &identity.Leaf{Certificate: certificate, Chain: answer.GetIntermediateCertificates()}
	return leaf.With(key), nil
}
