package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// process is this binary, run as a process of its own. Its log lines are read one by one.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the process is ended then, and so are its lines
	t.Cleanup(cancel)
	p := &process{t: t, cmd: exec.CommandContext(ctx, binary, args...)}
	p.cmd.Env = append(os.Environ(), asProcess+"=1")
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}

	p.lines = bufio.NewScanner(stderr)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// logged waits for a line with this message, or any that has one if it is empty, and these fields, and returns it.
func (p *process) logged(msg string, fields ...string) map[string]any {
	p.t.Helper()
	var read []string

	for p.lines.Scan() {
		read = append(read, p.lines.Text())
		var line map[string]any
		if json.Unmarshal(p.lines.Bytes(), &line) != nil || msg != "" && line["msg"] != msg {
			continue
		}

		matches := true
		for i := 0; i < len(fields); i += 2 {
			matches = matches && line[fields[i]] == fields[i+1]
		}
		if matches {
			return line
		}
	}

	p.t.Fatalf("no log line %q %q in\n%s", msg, fields, strings.Join(read, "\n"))
	return nil
}

// ends waits for the end of the process, and returns what it logged last.
func (p *process) ends() (string, error) {
	var rest []string
	for p.lines.Scan() {
		rest = append(rest, p.lines.Text())
	}
	return strings.Join(rest, "\n"), p.cmd.Wait()
}

// writeCertificate writes a new certificate for 127.0.0.1 into a directory, as a kubelet does: all files
// change at once.
func writeCertificate(t *testing.T, dir string, serial int64) *x509.CertPool {
	t.Helper()
	certificate, key := cmdtest.Certificate(t, "linkerd-sp-validator.linkerd.svc", serial)
	mount(t, dir, certificate, key)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return pool
}

// mount makes dir look like a Secret's volume with these contents: files are links into ..data, which is a
// link itself and is replaced.
func mount(t *testing.T, dir string, certificate, key []byte) {
	t.Helper()
	data := filepath.Join(dir, "..data")
	before, _ := os.Readlink(data)
	version := filepath.Join(dir, cmp.Or(before, "..version")+"+")
	if err := os.Mkdir(version, 0o700); err != nil {
		t.Fatal(err)
	}

	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(version, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if before == "" {
			if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}

	if err := os.Symlink(filepath.Base(version), data+"_tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(data+"_tmp", data); err != nil {
		t.Fatal(err)
	}

	if before != "" {
		if err := os.RemoveAll(filepath.Join(dir, before)); err != nil {
			t.Fatal(err)
		}
	}
}

var (
	validProfile   = profileWith(`{"method":"GET"}`)
	invalidProfile = profileWith(`{}`)
)

func profileWith(condition string) string {
	return `{"metadata":{"name":"web.shop.svc.cluster.local"},"spec":{"routes":[{"name":"a","condition":` +
		condition + `}]}}`
}

func review(profile string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":` +
		`{"uid":"u1","namespace":"shop","name":"web","operation":"CREATE","object":` + profile + `}}`
}

// The whole command, as its container runs it: it answers reviews over TLS 1.3, logs, and ends
// in order.
func TestValidator(t *testing.T) {
	dir := t.TempDir()
	pool := writeCertificate(t, dir, 1)

	p := start(
		t,
		"sp-validator",
		"-addr=127.0.0.1:0",
		"-metrics-addr",
		"127.0.0.1:0",
		"--tls-dir",
		dir,
		"-log-level=info",
		"-log-format=json",
		"-enable-pprof=false",
		"-kubeconfig=",
	)
	addrs := map[any]string{}

	for range 2 {
		line := p.logged("HTTP server listens")
		addrs[line["server"]] = line["addr"].(string)
	}
	hook, admin := "https://"+addrs["webhook"]+"/", "http://"+addrs["admin"]
	trust := &tls.Config{RootCAs: pool, ServerName: "linkerd-sp-validator.linkerd.svc"}

	code, body, err := cmdtest.Request(t, hook, review(validProfile), trust)
	const want = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u1","allowed":true}}`
	if err != nil || code != http.StatusOK || body != want+"\n" {
		t.Errorf("a valid profile: %d %s %v", code, body, err)
	}
	code, body, err = cmdtest.Request(t, hook, review(invalidProfile), trust)
	if err != nil || code != http.StatusOK || !strings.Contains(body, `"allowed":false`) ||
		!strings.Contains(body, "spec.routes[0].condition needs") {
		t.Errorf("an invalid profile: %d %s %v", code, body, err)
	}

	denied := p.logged("Denied a ServiceProfile", "namespace", "shop", "name", "web")
	if !strings.Contains(denied["reason"].(string), "spec.routes[0].condition needs") {
		t.Errorf("logged %v", denied)
	}
	old := trust.Clone()
	old.MaxVersion = tls.VersionTLS12
	if _, _, err := cmdtest.Request(t, hook, review(validProfile), old); err == nil ||
		!strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}

	for ready := http.StatusInternalServerError; ready == http.StatusInternalServerError; { // soon, once it listens
		code, _, err := cmdtest.Request(t, admin+"/ready", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		ready = code
	}
	for path, want := range map[string]string{"/ready": "ok\n", "/ping": "pong\n"} {
		if code, body, err := cmdtest.Request(t, admin+path, "", nil); err != nil || code != http.StatusOK ||
			body != want {
			t.Errorf("%s: %d %q %v", path, code, body, err)
		}
	}

	if code, _, err := cmdtest.Request(t, admin+"/debug/pprof/", "", nil); err != nil ||
		code != http.StatusNotFound {
		t.Errorf("/debug/pprof/: %d %v", code, err)
	}

	_, body, err = cmdtest.Request(t, admin+"/metrics", "", nil)
	for _, want := range []string{
		`fingerpost_profile_reviews_total{verdict="allowed"} 1`,
		`fingerpost_profile_reviews_total{verdict="denied"} 1`,
		`fingerpost_certificate_expiry_timestamp_seconds{server="webhook"} 4e+09`, "go_goroutines ", "process_cpu_seconds_total ",
	} {
		if err != nil || !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %s: %v", want, err)
		}
	}

	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if rest, err := p.ends(); err != nil {
		t.Errorf("the process ends with %v:\n%s", err, rest)
	}
}

// A new certificate is taken without a restart. Until it can be read the old one serves.
func TestCertificateIsReloaded(t *testing.T) {
	dir := t.TempDir()
	pools := []*x509.CertPool{writeCertificate(t, dir, 1)}
	p := start(t, "sp-validator", "-addr=127.0.0.1:0", "-metrics-addr=", "-tls-dir", dir, "-log-format=json")
	p.logged("Certificate is in use", "serial", "1")

	hook := "https://" + p.logged("HTTP server listens", "server", "webhook")["addr"].(string) + "/"
	served := func(pool *x509.CertPool) error {
		code, _, err := cmdtest.Request(
			t,
			hook,
			review(validProfile),
			&tls.Config{RootCAs: pool, ServerName: "linkerd-sp-validator.linkerd.svc"},
		)
		if err == nil && code != http.StatusOK {
			t.Errorf("answered with %d", code)
		}
		return err
	}

	for serial := int64(2); serial <= 3; serial++ {
		pools = append(pools, writeCertificate(t, dir, serial))
		p.logged("Certificate is in use", "serial", big.NewInt(serial).String())
		if err := served(pools[serial-1]); err != nil {
			t.Errorf("certificate %d: %v", serial, err)
		}
		if err := served(pools[serial-2]); err == nil {
			t.Errorf("certificate %d is served after %d", serial-1, serial)
		}
	}

	mount(t, dir, []byte("no certificate"), []byte("no key"))
	p.logged("Certificate cannot be read: the previous one stays in use")
	if err := served(pools[2]); err != nil {
		t.Errorf("the old certificate is not served any more: %v", err)
	}

	writeCertificate(t, dir, 4)
	p.logged("Certificate is in use", "serial", "4")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if rest, err := p.ends(); err != nil {
		t.Errorf("the process ends with %v:\n%s", err, rest)
	}
}

// What cannot work refuses to start, in a sentence that names the flag.
func TestValidatorRefusesToStart(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir, 1)

	taken := start(t, "sp-validator", "-addr=127.0.0.1:0", "-metrics-addr=", "-tls-dir", dir, "-log-format=json")
	addr := taken.logged("HTTP server listens")["addr"].(string)

	for want, args := range map[string][]string{
		"-tls-dir":                      {"-tls-dir=/nowhere/at/all"},
		"-addr must not be empty":       {"-addr="},
		"-log-level":                    {"-log-level=loud"},
		"-log-format":                   {"-log-format=xml"},
		"address of the webhook server": {"-tls-dir", dir, "-metrics-addr=", "-addr", addr},
		"address of the admin server":   {"-tls-dir", dir, "-addr=127.0.0.1:0", "-metrics-addr", addr},
	} {
		code := cli.ExitUsage
		if want == "-tls-dir" || strings.HasPrefix(want, "address") {
			code = cli.ExitFailed
		}
		err := command(append([]string{"sp-validator"}, args...)).ExecuteContext(t.Context())
		if cli.ExitCode(err) != code || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d %v, want %d %s", args, cli.ExitCode(err), err, code, want)
		}
	}

	if err := taken.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = taken.ends()
}

// The flags of Linkerd's sp-validator, with their defaults there.
func TestValidatorFlags(t *testing.T) {
	validator, _, err := command(nil).Find([]string{"sp-validator"})
	if err != nil {
		t.Fatal(err)
	}
	for name, byDefault := range map[string]string{
		"addr": ":8443", "metrics-addr": ":9997", "kubeconfig": "", "enable-pprof": "false", "log-level": "info",
		"log-format": "plain", "version": "false",
	} {
		if f := validator.Flags().Lookup(name); f == nil || f.DefValue != byDefault {
			t.Errorf("-%s: %+v, want %q by default", name, f, byDefault)
		}
	}
}
