package server

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// A client is presented the certificate of the name that it expects, also after that one was replaced; of an unknown
// name, or none, the first.
func TestCertificates(t *testing.T) {
	var all Certificates
	pools := map[string]*x509.CertPool{}
	put := func(write func(string, []byte) string, name string, serial int64) TLSFiles {
		cert, key := cmdtest.Certificate(t, name, serial)
		pools[name] = x509.NewCertPool()
		pools[name].AppendCertsFromPEM(cert)
		return TLSFiles{Certificate: write("tls.crt", cert), Key: write("tls.key", key)}
	}
	dirs := map[string]func(string, []byte) string{}
	for i, name := range []string{"profiles.test", "policy.test"} {
		dirs[name] = writeTo(t, t.TempDir())
		c, err := OpenCertificate(logr.Discard(), name, put(dirs[name], name, int64(i+1)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}

	listener, err := tls.Listen("tcp", "127.0.0.1:0", all.ServerConfig(tls.VersionTLS13))
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, conn) // until the client closes it, or fails
			_ = conn.Close()
		}
	}()
	defer func() {
		_ = listener.Close()
		<-stopped
	}()

	// presented returns the serial number of what a client is presented.
	presented := func(name string, roots *x509.CertPool) (int64, error) {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		client := tls.Client(conn, &tls.Config{ServerName: name, RootCAs: roots, InsecureSkipVerify: roots == nil})
		if err := client.Handshake(); err != nil {
			return 0, err
		}
		return client.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
	}
	expect := func(name string, roots *x509.CertPool, want int64) {
		t.Helper()
		if serial, err := presented(name, roots); err != nil || serial != want {
			t.Errorf("%q: certificate %d (%v), want %d", name, serial, err, want)
		}
	}

	expect("profiles.test", pools["profiles.test"], 1)
	expect("policy.test", pools["policy.test"], 2)
	expect("else.test", nil, 1)
	expect("", nil, 1)

	put(dirs["policy.test"], "policy.test", 3)
	all[1].reload(t.Context())
	expect("policy.test", pools["policy.test"], 3)
	if _, err := presented("policy.test", pools["profiles.test"]); err == nil {
		t.Error("a client takes a certificate of another authority")
	}

	dirs["policy.test"]("tls.key", nil)
	all[1].reload(t.Context())
	problems := all.Unreadable()
	if len(problems) != 1 || problems[all[1].pair.source()] == "" {
		t.Errorf("files that cannot be read: %v", problems)
	}
	expect("policy.test", pools["policy.test"], 3)
}
