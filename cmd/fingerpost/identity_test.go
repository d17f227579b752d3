package main

import (
	"flag"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/identity"
)

// identityChartArgs are the arguments that Linkerd's chart has for its identity container, with its defaults.
var identityChartArgs = []string{
	"identity", "-log-level=info", "-log-format=plain", "-controller-namespace=linkerd",
	"-identity-trust-domain=cluster.local", "-identity-issuance-lifetime=24h0m0s", "-identity-clock-skew-allowance=20s",
	"-identity-scheme=linkerd.io/tls", "-enable-pprof=false", "-kube-apiclient-qps=100", "-kube-apiclient-burst=200",
}

// parsedIdentity returns the options that arguments of identity stand for.
func parsedIdentity(t *testing.T, args ...string) (o identityOptions) {
	t.Helper()
	fs := flag.NewFlagSet("identity", flag.ContinueOnError)
	o.addFlags(fs)
	cmd := &cobra.Command{
		Use: "identity", SilenceErrors: true, SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error { return o.validate() },
	}
	cmd.Flags().AddGoFlagSet(fs)
	cmd.SetArgs(doubleDashes(args)[1:])
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	o.issuance.apply(&o.identity)
	return o
}

// startIdentity starts the command as Linkerd's chart does, but for fixed ports and a Pod's access to an API server.
func startIdentity(t *testing.T, others ...string) *process {
	t.Helper()
	return start(t, append(append(slices.Clip(identityChartArgs),
		"-addr=127.0.0.1:0", "-admin-addr=127.0.0.1:0", "-issuer="+t.TempDir(), "-log-format=json",
		"-kubeconfig="+cmdtest.WriteKubeconfig(t, "http://127.0.0.1:1")), others...)...)
}

// IC45: a lifetime that cannot be read is that of the default, and the log has a warning.
func testUnreadableLifetime(t *testing.T) {
	for _, value := range []string{"abc", "-1h", "1s", "1000000h"} {
		o := parsedIdentity(t, append(identityChartArgs, "-identity-issuance-lifetime="+value)...)
		if got := o.identity.Terms.Lifetime; got != 24*time.Hour {
			t.Errorf("with %s a certificate lasts for %s", value, got)
		}
	}
	p := startIdentity(t, "-identity-issuance-lifetime=abc")
	line := p.logged("A flag is not used, because its value is no duration that can be one")
	if line["level"] != "warn" || line["flag"] != "-identity-issuance-lifetime" || line["value"] != `"abc"` ||
		line["using"] != "24h0m0s" {
		t.Errorf("the log has %v", line)
	}
	p.stop()
}

// IC70: the arguments of Linkerd's chart have the ports and the files that they have there, and the process listens,
// without an issuer and without an API server.
func testIdentityChartFlags(t *testing.T) {
	o := parsedIdentity(t, identityChartArgs...)
	files := server.IssuerFiles{
		Certificate: "/var/run/linkerd/identity/issuer/crt.pem", Key: "/var/run/linkerd/identity/issuer/key.pem",
		Anchors: "/var/run/linkerd/identity/trust-roots/ca-bundle.crt",
	}
	terms := identity.Terms{Lifetime: 24 * time.Hour, Skew: 20 * time.Second}
	if o.addr != ":8080" || o.metricsAddr != ":9990" || o.identity.Issuer != files || o.identity.Terms != terms ||
		o.identity.RequireAudience || o.identity.TLS || !o.identity.Events {
		t.Errorf("%+v", o)
	}

	p := startIdentity(t)
	addrs := p.listening("identity", "admin")
	for path, want := range map[string]int{"/live": http.StatusOK, "/ready": http.StatusInternalServerError} {
		code, body, err := cmdtest.Request(t, "http://"+addrs["admin"]+path, "", nil)
		if err != nil || code != want || path == "/ready" && !strings.Contains(body, "issuer (") {
			t.Errorf("%s: %d %s %v", path, code, body, err)
		}
	}
	p.stop()
}

// IC71: of an empty trust domain, or a namespace that is none, no identity can be made.
func testIdentityDomains(t *testing.T) {
	for _, bad := range []string{
		"-identity-trust-domain=", "-controller-namespace=a.b", "-identity-scheme=", "-addr=",
	} {
		p := startIdentity(t, bad)
		out, err := p.ends()
		if name, _, _ := strings.Cut(bad, "="); err == nil || !strings.Contains(out, name) {
			t.Errorf("%s: the process ends with %v and %s", bad, err, out)
		}
	}
}

// Flags of serve that exclude each other are refused, and named.
func TestIdentityFlagsOfServe(t *testing.T) {
	for _, bad := range [][]string{
		{"-identity-from=a:1", "-identity-addr=:0"},
		{"-identity-from=a:1", "-identity-tls"},
		{"-identity-tls"},
		{"-identity-from=a:1", "-tls-cert-file=x", "-tls-key-file=y"},
		{"-identity-from=a:1", "-identity-token-file="},
	} {
		refuses(t, bad...)
	}
}
