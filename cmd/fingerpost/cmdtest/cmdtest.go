// Package cmdtest has what the tests of several commands need. Only tests import it.
package cmdtest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Execute runs a command line, and returns what it prints.
func Execute(t *testing.T, cmd *cobra.Command) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// Root returns a command line with these commands.
func Root(commands []*cobra.Command, args ...string) *cobra.Command {
	root := &cobra.Command{Use: "fingerpost", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(commands...)
	root.SetArgs(args)
	return root
}

// DebugServer serves pages as a replica's debug server does, and returns its address.
func DebugServer(t *testing.T, pages map[string]any) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		page, found := pages[request.URL.Path]
		if refusal, is := page.(error); is {
			http.Error(writer, refusal.Error(), http.StatusBadRequest)
			return
		}
		if !found {
			http.NotFound(writer, request)
			return
		}

		writer.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(writer).Encode(page)
	}))

	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// DecodeJSON decodes what a command has printed.
func DecodeJSON[T any](t *testing.T, text string) (page T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &page); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return page
}

// newKubeconfig returns a kubeconfig for a server at url, whose certificate is of an authority (PEM).
func newKubeconfig(url string, authority []byte) clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: authority}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "token"}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	return *config
}

// WriteKubeconfig writes a kubeconfig for a server at url, and returns its path.
func WriteKubeconfig(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(newKubeconfig(url, nil), path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Kubeconfig returns a kubeconfig for a TLS server at url.
func Kubeconfig(t *testing.T, server *httptest.Server, url string) []byte {
	t.Helper()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	b, err := clientcmd.Write(newKubeconfig(url, authority))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// NotAfter is when the certificates of tests expire.
var NotAfter = time.Unix(4e9, 0)

// Certificate returns a self-signed certificate and its key, both in PEM.
func Certificate(t *testing.T, name string, serial int64) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: NotAfter, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}

	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
	return certificate, key
}

// Request sends a request over a connection of its own.
func Request(t *testing.T, url, body string, config *tls.Config) (int, string, error) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}

	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}

	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b), err
}
