package api

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// Validity returns when the credentials in config were issued and when they expire, as far as they contain
// it: a token that is a JWT (RFC 7519, iat and exp), or a client certificate. Either is zero for credentials
// that do not contain it, and both are for a token that is read from a file: client-go reads it again, so
// that config has an old one. Nothing is verified: the API server does that.
func Validity(config *rest.Config) (issued, expires time.Time) {
	switch {
	case config.BearerTokenFile != "":
		return time.Time{}, time.Time{}
	case config.BearerToken != "":
		return tokenValidity(config.BearerToken)
	}

	block, _ := pem.Decode(config.CertData)
	if block == nil {
		return time.Time{}, time.Time{}
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, time.Time{}
	}
	return certificate.NotBefore, certificate.NotAfter
}

func tokenValidity(token string) (issued, expires time.Time) {
	claims, _ := claimsOf(token)
	return numericDate(claims.Issued), numericDate(claims.Expiry)
}

// claims are what a token contains about itself (RFC 7519).
type claims struct {
	Issuer   string    `json:"iss"`
	Subject  string    `json:"sub"`
	Audience audiences `json:"aud"`
	Issued   *float64  `json:"iat"` // a NumericDate may have a fraction
	Expiry   *float64  `json:"exp"`
}

// audiences is one string, or a list of them.
type audiences []string

// UnmarshalJSON reads either form.
func (a *audiences) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*a = audiences{one}
		return nil
	}
	_ = json.Unmarshal(data, (*[]string)(a)) // what is neither is not shown, and the times count all the same
	return nil
}

// claimsOf returns those of a token; false if it has none that can be read.
func claimsOf(token string) (c claims, readable bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &c) != nil {
		return claims{}, false
	}
	return c, true
}

func numericDate(seconds *float64) time.Time {
	if seconds == nil || *seconds < 0 || *seconds > 1e11 { // no time, and it would overflow
		return time.Time{}
	}
	return time.Unix(int64(*seconds), 0)
}
