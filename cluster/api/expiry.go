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

// Expiry returns when the credentials in config end, as far as they say it themselves: a token that is a JWT (RFC 7519, exp), or a client
// certificate. It is zero for those that do not end, or do not say so. Nothing is verified: that is the API server's part.
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
	if err := json.Unmarshal(payload, &claims); err != nil || claims.Expiry == nil || *claims.Expiry < 0 || *claims.Expiry > 1e11 {
		return time.Time{}
	}
	return time.Unix(int64(*claims.Expiry), 0)
}
