package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// authority is the certificate authority of one cluster. It signs the serving
// certificate of the API server and the certificates of clients.
type authority struct {
	root *x509.Certificate
	key  *ecdsa.PrivateKey
	// All in PEM.
	ca          []byte
	servingCert []byte
	servingKey  []byte
}

// validity is that of all certificates but clients'. It begins in the past, so
// that clocks of the same machine may disagree.
const validity = 10 * 365 * 24 * time.Hour

// newAuthority makes an authority and a serving certificate for loopback,
// which also covers the proxies.
func newAuthority(cluster string) (*authority, error) {
	now := time.Now().Add(-time.Hour)
	root := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: cluster + "-ca"},
		NotBefore:             now,
		NotAfter:              now.Add(validity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:    now,
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		DNSNames:     []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
	}
	rootKey, err := newKey()
	if err != nil {
		return nil, err
	}
	leafKey, err := newKey()
	if err != nil {
		return nil, err
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, &rootKey.PublicKey, rootKey)
	if err != nil {
		return nil, fmt.Errorf("sign the CA certificate: %w", err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, &leafKey.PublicKey, rootKey)
	if err != nil {
		return nil, fmt.Errorf("sign the serving certificate: %w", err)
	}
	leafKeyPEM, err := encodeKey(leafKey)
	if err != nil {
		return nil, err
	}
	return &authority{
		root:        root,
		key:         rootKey,
		ca:          encode("CERTIFICATE", rootDER),
		servingCert: encode("CERTIFICATE", leafDER),
		servingKey:  leafKeyPEM,
	}, nil
}

// certify makes a certificate for a client that is known by a name, and its key.
func (a *authority) certify(name string, lifetime time.Duration) (certificate, key []byte, err error) {
	now := time.Now()
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    a.root.NotBefore,
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	leafKey, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.root, &leafKey.PublicKey, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a client certificate: %w", err)
	}
	key, err = encodeKey(leafKey)
	return encode("CERTIFICATE", der), key, err
}

// newServiceAccountKey makes the key that signs ServiceAccount tokens. It is
// apart from the authority, so that tokens survive a new CA.
func newServiceAccountKey() ([]byte, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	return encodeKey(key)
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
