package server

import (
	"crypto/tls"
	"maps"
)

// Certificates are those of one listener that has several names, such as one for each Service that leads to it. They
// are as many as flags have directories.
type Certificates []*Certificate

// ServerConfig returns the settings of a server of a TLS version and newer ones, which asks clients for no certificate.
// It presents the first certificate that has the name which the client expects, and can use. Without one it presents
// the first: the client then refuses it, and knows why.
func (all Certificates) ServerConfig(minVersion uint16) *tls.Config {
	return &tls.Config{
		MinVersion: minVersion,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			for _, c := range all {
				if pair := c.pair.load(); pair != nil && hello.SupportsCertificate(pair) == nil {
					return pair, nil
				}
			}
			return all[0].present(hello)
		},
	}
}

// Unreadable returns why files could not be read when that was tried last, by their paths.
func (all Certificates) Unreadable() map[string]string {
	problems := map[string]string{}
	for _, c := range all {
		maps.Copy(problems, c.Unreadable())
	}
	return problems
}
