package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
)

// A Request is what a caller sends. Whatever is in it may be wrong.
type Request struct {
	Identity string // that it wants to have
	Token    []byte // of its ServiceAccount
	Signing  []byte // request for a certificate (PKCS #10), in DER
}

// parse checks that a Request is whole, and reads its signing request.
func (r Request) parse() (*x509.CertificateRequest, *Refusal) {
	switch {
	case r.Identity == "":
		return nil, malformed(CheckRequest, "the identity is empty")
	case len(r.Token) == 0:
		return nil, malformed(CheckRequest, "the token is empty")
	case len(r.Signing) == 0:
		return nil, malformed(CheckRequest, "the signing request is empty")
	}

	parsed, err := x509.ParseCertificateRequest(r.Signing)
	if err != nil { // which may quote what was sent
		return nil, malformed(CheckRequest, "the signing request is not one of PKCS #10 in DER, and nothing else")
	}
	return parsed, nil
}

// checkSigning checks that a signing request is for an identity and for nothing else, and that the caller has its key.
// The kind of key comes before the signature: that of an RSA key of any size takes as long as its caller likes.
func checkSigning(signing *x509.CertificateRequest, identity string) *Refusal {
	common := signing.Subject.CommonName

	switch {
	case len(signing.EmailAddresses)+len(signing.IPAddresses)+len(signing.URIs) > 0:
		return denied(CheckNames, "the signing request has names that are no DNS names")
	case len(signing.DNSNames) != 1:
		return denied(CheckNames, "the signing request must have one DNS name")
	case signing.DNSNames[0] != identity:
		return denied(CheckNames, "the DNS name of the signing request is not the identity")
	case common != "" && common != identity:
		return denied(CheckNames, "the common name of the signing request is not the identity")
	}

	switch {
	case !isProxyKey(signing.PublicKey):
		return denied(CheckKey, "the key of the signing request is not of ECDSA P-256, P-384 or P-521")
	case signing.CheckSignature() != nil:
		return denied(CheckSignature, "the signing request is not signed with its key")
	}
	return nil
}

func isProxyKey(public any) bool {
	key, is := public.(*ecdsa.PublicKey)
	if !is {
		return false
	}
	switch key.Curve {
	case elliptic.P256(), elliptic.P384(), elliptic.P521():
		return true
	}
	return false
}
