package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// chartFlags are those that Linkerd's chart passes to its policy container, with the chart's defaults.
var chartFlags = [][2]string{
	{"--admin-addr", "[::]:9990"},
	{"--control-plane-namespace", "linkerd"},
	{"--grpc-addr", "[::]:8090"},
	{"--server-addr", "[::]:9443"},
	{"--server-tls-key", "/var/run/linkerd/tls/tls.key"},
	{"--server-tls-certs", "/var/run/linkerd/tls/tls.crt"},
	{"--cluster-networks", "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"},
	{"--identity-domain", "cluster.local"},
	{"--cluster-domain", "cluster.local"},
	{"--default-policy", "all-unauthenticated"},
	{"--log-level", "info"},
	{"--log-format", "plain"},
	{"--default-opaque-ports", "25,587,3306,4444,5432,6379,9300,11211"},
	{"--global-egress-network-namespace", "linkerd-egress"},
	{"--probe-networks", "0.0.0.0/0,::/0"},
}

// chartArgs are the arguments of the command, with = or a blank between flags and values, and then others.
func chartArgs(blank bool, others ...string) []string {
	args := []string{"policy"}
	for _, f := range chartFlags {
		if blank {
			args = append(args, f[0], f[1])
			continue
		}
		args = append(args, f[0]+"="+f[1])
	}
	return append(args, others...)
}

// translated returns the options of serve that arguments of policy stand for.
func translated(t *testing.T, args ...string) (options serveOptions, given map[string]bool, err error) {
	t.Helper()
	var o policyOptions
	fs := flag.NewFlagSet("policy", flag.ContinueOnError)
	o.addFlags(fs)
	cmd := &cobra.Command{Use: "policy", SilenceErrors: true, SilenceUsage: true}
	cmd.Flags().AddGoFlagSet(fs)
	cmd.SetArgs(doubleDashes(append([]string{"policy"}, args...))[1:])

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		visited := map[string]bool{}
		cmd.Flags().Visit(func(f *pflag.Flag) { visited[f.Name] = true })
		var err error
		if given, err = o.translate(visited); err != nil {
			return err
		}
		return o.serve.validate()
	}
	err = cmd.Execute()
	return o.serve, given, err
}

// PP10: a network that is none ends the start, and is quoted.
func testClusterNetworks(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "-policy-addr=:0", "-cluster-networks", "10.0.0.0/8,garbage"},
		{"policy", "--cluster-networks", "10.0.0.0/8,garbage"},
		{"policy", "--probe-networks=garbage"},
	} {
		err := command(args).Execute()
		if err == nil || !strings.Contains(err.Error(), `"garbage": neither a network nor an address`) ||
			!strings.Contains(err.Error(), "-networks") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// PP11: the arguments of Linkerd's chart have the ports and values that they have there, and the process starts.
func testChartFlags(t *testing.T) {
	for _, blank := range []bool{false, true} {
		o, given, err := translated(t, chartArgs(blank)[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		if o.Addr != "" || o.AdminAddr != "[::]:9990" || o.Policy.Addr != "[::]:8090" || o.DebugAddr != "" ||
			!slices.Equal(o.Webhooks.Addrs, []string{"[::]:9443"}) || !o.Webhooks.Policy || o.Webhooks.Profiles {
			t.Errorf("addresses %q %q %q %q, webhooks %+v", o.Addr, o.AdminAddr, o.Policy.Addr, o.DebugAddr, o.Webhooks)
		}
		if files := webhookFiles("/var/run/linkerd/tls"); !slices.Equal(o.Webhooks.TLS, files) {
			t.Errorf("files %+v", o.Webhooks.TLS)
		}

		r := o.Policy.Rules
		if !o.Policy.Status || !r.GRPCAppProtocol || r.AllowRequestHeaders ||
			r.DefaultPolicy != rules.AllUnauthenticated ||
			r.EgressNamespace != "linkerd-egress" || len(r.ClusterNetworks) != 5 || len(r.ProbeNetworks) != 2 ||
			o.Discovery.ControllerNamespace != "linkerd" || o.Discovery.ClusterDomain != "cluster.local" ||
			o.Discovery.TrustDomain != "cluster.local" || !o.Discovery.DefaultOpaquePorts.Contains(11211) ||
			o.logLevel != "info" {
			t.Errorf("%+v, %+v", r, o.Discovery)
		}
		if given["read-only"] || !given["cluster-domain"] {
			t.Errorf("given %v", given)
		}

		p, pool := startPolicy(t, blank)
		addrs := p.listening("policy", "webhook", "admin")
		checkPolicyProcess(t, addrs, pool)
		p.stop()
	}
}

// startPolicy starts the command with the flags of Linkerd's chart, but for what a test has not: fixed ports, files at
// fixed paths, and a Pod's access to an API server.
func startPolicy(t *testing.T, blank bool, others ...string) (*process, *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	pool := writeCertificate(t, dir, 1)
	return start(t, chartArgs(blank, append([]string{
		"--grpc-addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--server-addr=127.0.0.1:0",
		"--server-tls-key=" + filepath.Join(dir, "tls.key"), "--server-tls-certs=" + filepath.Join(dir, "tls.crt"),
		"--kubeconfig=" + cmdtest.WriteKubeconfig(t, "http://127.0.0.1:1"), "--log-format=json",
	}, others...)...)...), pool
}

// listening waits until servers of these names listen, and returns their addresses with those of others so far.
func (p *process) listening(names ...string) map[string]string {
	p.t.Helper()
	addrs := map[string]string{}
	isMissing := func(name string) bool { return addrs[name] == "" }
	for slices.ContainsFunc(names, isMissing) {
		line := p.logged("") // any
		name, _ := line["server"].(string)
		if line["msg"] == "gRPC server listens" {
			name, _ = line["serves"].(string)
		}
		if addr, is := line["addr"].(string); is {
			addrs[name] = addr
		}
	}
	return addrs
}

// stop ends the process in order, and returns what it has logged since.
func (p *process) stop() string {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	rest, err := p.ends()
	if err != nil {
		p.t.Errorf("the process ends with %v:\n%s", err, rest)
	}
	return rest
}

// checkPolicyProcess asks a process that has no API server: it lives, is not ready, and reviews.
func checkPolicyProcess(t *testing.T, addrs map[string]string, pool *x509.CertPool) {
	t.Helper()
	for path, want := range map[string]int{
		"/live": http.StatusOK, "/metrics": http.StatusOK,
		"/ready": http.StatusInternalServerError,
	} {
		if code, body, err := cmdtest.Request(t, "http://"+addrs["admin"]+path, "", nil); err != nil || code != want {
			t.Errorf("%s: %d %s %v", path, code, body, err)
		}
	}

	trust := &tls.Config{RootCAs: pool, ServerName: "linkerd-sp-validator.linkerd.svc"}
	for spec, want := range map[string]string{
		`{"podSelector":{},"port":80}`: `"allowed":true`, `{"podSelector":{},"port":0}`: "port 0 is not between",
	} {
		body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u1","kind":` +
			`{"group":"policy.linkerd.io","kind":"Server"},"object":{"metadata":{"namespace":"shop"},"spec":` + spec + `}}}`
		code, answer, err := cmdtest.Request(t, "https://"+addrs["webhook"]+"/", body, trust)
		if err != nil || code != http.StatusOK || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s %v", spec, code, answer, err)
		}
	}

	_, profile, err := cmdtest.Request(t, "https://"+addrs["webhook"]+"/", review(validProfile), trust)
	if err != nil || !strings.Contains(profile, "unsupported resource type") {
		t.Errorf("a ServiceProfile: %s %v", profile, err)
	}
}

// PP12: without the webhook nothing listens for it, and its files are not read.
func testWithoutWebhook(t *testing.T) {
	o, _, err := translated(t, chartArgs(false, "--admission-controller-disabled")[1:]...)
	if err != nil || len(o.Webhooks.Addrs) > 0 {
		t.Errorf("%+v %v", o.Webhooks, err)
	}

	p, _ := startPolicy(t, false, "--admission-controller-disabled", "--server-tls-key=/nowhere",
		"--server-tls-certs=/nowhere")
	addrs := p.listening("policy", "admin")
	if rest := p.stop(); addrs["webhook"] != "" || strings.Contains(rest, `"server":"webhook"`) {
		t.Errorf("there is a webhook: %v\n%s", addrs, rest)
	}
}

// PP14: without HOSTNAME the process starts, and campaigns under the name of its host.
func testWithoutHostname(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOSTNAME", "")
	o, _, err := translated(t, chartArgs(false)[1:]...)
	if err != nil || o.Replica != host {
		t.Errorf("the replica is %q, want %q: %v", o.Replica, host, err)
	}

	if err := os.Unsetenv("HOSTNAME"); err != nil { // Setenv has it restored
		t.Fatal(err)
	}
	p, _ := startPolicy(t, false)
	p.listening("policy", "admin", "webhook")
	p.stop()
}

// The flags of Linkerd's policy container, with their defaults there, and a value that is legal.
var theirPolicyFlags = map[string]struct{ byDefault, legal string }{
	"grpc-addr":                       {"0.0.0.0:8090", "[::]:8090"},
	"admin-addr":                      {"0.0.0.0:8080", ":9990"},
	"server-addr":                     {"0.0.0.0:443", ":9443"},
	"server-tls-key":                  {"", "/a/tls.key"},
	"server-tls-certs":                {"", "/a/tls.crt"},
	"admission-controller-disabled":   {"false", "true"},
	"cluster-networks":                {"10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16", "10.0.0.0/8,fd00::/8"},
	"identity-domain":                 {"cluster.local", "td.example"},
	"cluster-domain":                  {"cluster.local", "a.b"},
	"control-plane-namespace":         {"linkerd", "l5d"},
	"default-policy":                  {"all-unauthenticated", "cluster-authenticated"},
	"policy-deployment-name":          {"linkerd-destination", "d"},
	"probe-networks":                  {"", "0.0.0.0/0,::/0"},
	"default-opaque-ports":            {"", "25,3306-3310"},
	"patch-timeout-ms":                {"5000", "1"},
	"allow-l5d-request-headers":       {"false", "true"},
	"global-egress-network-namespace": {"linkerd-egress", "egress"},
	"skip-labeled-gateway-api-routes": {"false", "true"},
	"log-level":                       {"info", "linkerd=info,warn"},
	"log-format":                      {"plain", "json"},
	"kubeconfig":                      {"", "/some/file"},
	"context":                         {"", "c"},
	"cluster":                         {"", "c"},
	"user":                            {"", "u"},
	"as":                              {"", "system:admin"},
	"as-group":                        {"", "system:masters"},
}

// Every flag of Linkerd's policy container is taken, with one dash and with two, with = and where it is no switch with
// a blank.
func TestPolicyFlags(t *testing.T) {
	policy, _, err := command(nil).Find([]string{"policy"})
	if err != nil {
		t.Fatal(err)
	}
	required := []string{"--default-opaque-ports=25", "--server-tls-key=k", "--server-tls-certs=c", "--as=a"}

	for name, f := range theirPolicyFlags {
		flag := policy.Flags().Lookup(name)
		if flag == nil || flag.DefValue != f.byDefault {
			t.Errorf("-%s: %+v, want %q by default", name, flag, f.byDefault)
			continue
		}
		forms := [][]string{{"-" + name + "=" + f.legal}, {"--" + name + "=" + f.legal}}
		if flag.NoOptDefVal == "" {
			forms = append(forms, []string{"-" + name, f.legal}, []string{"--" + name, f.legal})
		}
		for _, form := range forms {
			if _, _, err := translated(t, append(form, required...)...); err != nil {
				t.Errorf("%q is not taken: %v", form, err)
			}
		}
	}
}

// What a policy container cannot do without is asked for by the name of the flag, before anything is read.
func TestPolicyRefusesToStart(t *testing.T) {
	opaque, files := "--default-opaque-ports=", []string{"--server-tls-key=/nowhere", "--server-tls-certs=/nowhere"}
	for want, args := range map[string][]string{
		"-default-opaque-ports must be given":           files,
		"-grpc-addr must not be empty":                  {opaque, "--grpc-addr="},
		"-server-addr must not be empty":                {opaque, "--server-addr="},
		"-server-tls-certs and -server-tls-key must be": {opaque, "--server-tls-key=a"},
		`"none" is none of all-unauthenticated`:         {opaque, "--default-policy=none"},
		"-cluster-networks must not be empty":           append(files, opaque, "--cluster-networks="),
		"-global-egress-network-namespace must be":      append(files, opaque, "--global-egress-network-namespace=A.b"),
		"-cluster-domain must be":                       append(files, opaque, "--cluster-domain=a..b"),
		"-log-format":                                   append(files, opaque, "--log-format=xml"),
	} {
		root := command(append([]string{"policy"}, args...))
		cli.Prepare(root, "fingerpost")
		err := root.Execute()
		if err == nil || !strings.Contains(err.Error(), want) || cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}

	// What cannot be read or listened at is named by the flag that has it.
	kubeconfig := "--kubeconfig=" + cmdtest.WriteKubeconfig(t, "http://127.0.0.1:1")
	for want, args := range map[string][]string{
		"-server-tls-certs, -server-tls-key: certificate /nowhere": append(files, opaque, kubeconfig),
		"-grpc-addr: listen tcp": {
			opaque, kubeconfig, "--admission-controller-disabled", "--grpc-addr=256.0.0.1:1",
			"--admin-addr=127.0.0.1:0",
		},
		"-as-group needs -as": append(files, opaque, kubeconfig, "--as-group=a"),
		"-kubeconfig: ":       append(files, opaque, kubeconfig, "--context=unknown"),
	} {
		err := command(append([]string{"policy"}, args...)).Execute()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

// Flags that have no effect are accepted, and the log has them; a log filter has a level.
func TestPolicyNotes(t *testing.T) {
	files := []string{"--default-opaque-ports=25", "--admission-controller-disabled"}
	notes := func(o serveOptions) (all []string) {
		for _, n := range o.notes {
			all = append(all, n.message)
		}
		return all
	}
	o, _, err := translated(t, append(files, "--patch-timeout-ms=7", "--policy-deployment-name=d",
		"--log-level=linkerd=debug")...)
	want := []string{
		"The log filter has no level that is for all, so that it is info", "-patch-timeout-ms has no effect",
		"-policy-deployment-name has no effect",
	}
	if err != nil || !slices.Equal(notes(o), want) {
		t.Errorf("%q %v", notes(o), err)
	}

	for filter, level := range map[string]string{
		"info,kubert=warn": "info", "linkerd=info,warn": "warn", "DEBUG": "debug", "kubert=warn , trace": "trace",
		"off": "panic", "": "info", "loud": "info",
	} {
		if o, _, err := translated(t, append(files, "--log-level="+filter)...); err != nil || o.logLevel != level {
			t.Errorf("%q is %s, want %s: %v", filter, o.logLevel, level, err)
		}
	}

	t.Setenv(logFilterEnv, "linkerd=info,error")
	if o, _, err := translated(t, files...); err != nil || o.logLevel != "error" {
		t.Errorf("of the environment: %s %v", o.logLevel, err)
	}
	if o, _, err := translated(t, append(files, "--log-level=debug")...); err != nil || o.logLevel != "debug" {
		t.Errorf("of a flag, beside the environment: %s %v", o.logLevel, err)
	}
}

// A process of policy alone has no address of discovery. One of neither does not start.
func TestServePolicy(t *testing.T) {
	var o serveOptions
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	o.addFlags(fs)
	if err := fs.Parse([]string{
		"-addr", "", "-policy-addr", ":8090", "-webhook-addr", ":8443, :9443",
		"-webhook-tls-dir=/a,/b/c",
	}); err != nil {
		t.Fatal(err)
	}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	want := app.WebhookOptions{
		Addrs: []string{":8443", ":9443"}, Flag: "-webhook-tls-dir", Profiles: true, Policy: true,
	}
	files := []app.WebhookFiles{
		{Server: "webhook-a", TLSFiles: server.TLSFiles{Certificate: "/a/tls.crt", Key: "/a/tls.key"}},
		{Server: "webhook-c", TLSFiles: server.TLSFiles{Certificate: "/b/c/tls.crt", Key: "/b/c/tls.key"}},
	}
	if !slices.Equal(o.Webhooks.TLS, files) {
		t.Errorf("files %+v", o.Webhooks.TLS)
	}
	if o.Addr != "" || o.Policy.Addr != ":8090" || !o.Policy.Status || !slices.Equal(o.Webhooks.Addrs, want.Addrs) ||
		o.Webhooks.Flag != want.Flag || !o.Webhooks.Profiles || !o.Webhooks.Policy {
		t.Errorf("%+v %+v", o.Policy, o.Webhooks)
	}

	refuses(t, "-addr=", "-policy-addr=")
	refuses(t, "-webhook-addr=8443")
	refuses(t, "-cluster-networks=", "-policy-addr=:0")
	refuses(t, "-default-inbound-policy=none")
	refuses(t, "-global-egress-network-namespace=", "-policy-addr=:0")
}

// The context, the user and who is impersonated are those of the flags.
func TestAccess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := os.WriteFile(path, []byte(`apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}, {name: b, context: {cluster: b, user: a}}]
clusters: [{name: a, cluster: {server: "https://a"}}, {name: b, cluster: {server: "https://b"}}]
users: [{name: a, user: {token: a}}, {name: b, user: {token: b}}]
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		access      access
		host, token string
	}{
		{access{}, "https://a", "a"},
		{access{context: "b"}, "https://b", "a"},
		{access{cluster: "b", user: "b", as: "me", asGroups: []string{"g", "h"}}, "https://b", "b"},
	} {
		c.access.kubeconfig = path
		config, inCluster, err := c.access.config()
		if err != nil || inCluster || config.Host != c.host || config.BearerToken != c.token ||
			config.Impersonate.UserName != c.access.as || !slices.Equal(config.Impersonate.Groups, c.access.asGroups) {
			t.Errorf("%+v: %+v %v", c.access, config, err)
		}
	}
	missing := access{kubeconfig: "/nowhere"}
	if _, _, err := missing.config(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
