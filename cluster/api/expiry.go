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

// Expiry returns when the credentials in config expire, as far as they contain it: a token that is a JWT
// (RFC 7519, exp), or a client certificate. It is zero for credentials that do not expire, or do not
// contain it. Nothing is verified: the API server does that.
func Expiry(config *rest.Config) time.Time {
	if token := config.BearerToken; token != "" {
		return tokenExpiry(token)
	}
	block, _ := pem.Decode(config.CertData)
	if block == nil {
		return time.Time{}
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return certificate.NotAfter
}

func tokenExpiry(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Expiry *float64 `json:"exp"` // a NumericDate may have a fraction
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.Expiry == nil {
		return time.Time{}
	}
	seconds := *claims.Expiry
	if seconds < 0 || seconds > 1e11 { // no time, and it would overflow
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}
