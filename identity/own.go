package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"time"
)

// ErrNoIssuer is returned while an Authority has none.
var ErrNoIssuer = errors.New("this authority has no issuer yet")

// IssueOwn returns a certificate for an identity of the control plane itself, with a new key: the process of an
// Authority has no need to ask anybody for one.
func (a *Authority) IssueOwn(name string) (*tls.Certificate, error) {
	issuer := a.issuer.Load()
	if issuer == nil {
		return nil, ErrNoIssuer
	}

	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	leaf, err := issuer.Sign(Subject{Name: name, CommonName: name, Key: &key.PublicKey}, a.options.Terms, time.Now())
	if err != nil {
		return nil, err
	}
	return leaf.With(key), nil
}

// NewKey returns a key of the kind that proxies have: ECDSA with P-256.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// With returns what a client or a server presents that has a leaf and its key.
func (l *Leaf) With(key *ecdsa.PrivateKey) *tls.Certificate {
	return &tls.Certificate{
		Certificate: append([][]byte{l.Certificate.Raw}, l.Chain...), PrivateKey: key, Leaf: l.Certificate,
	}
}

// Authority returns the identity of the account that has the authority of certificates.
func (d Domain) Authority() string { return d.Name(d.Namespace, "linkerd-identity") }

// Destination returns the identity of the account that has discovery and policy, as proxies know it.
func (d Domain) Destination() string { return d.Name(d.Namespace, "linkerd-destination") }

// NameOf returns the identity of a user; false: it is no ServiceAccount.
func (d Domain) NameOf(user string) (name string, is bool) {
	namespace, account, is := parseUser(user)
	if !is {
		return "", false
	}
	return d.Name(namespace, account), true
}
