package main

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/inject"
)

// asProcess in the environment makes the test binary the command itself.
const asProcess = "FINGERPOST_TEST_AS_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		main()
		return
	}
	if err := os.Setenv("HOSTNAME", "test"); err != nil { // as in a Pod
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// parsed returns the value of each flag of serve that args set, without serving.
func parsed(t *testing.T, args ...string) (map[string]string, error) {
	t.Helper()
	values := map[string]string{}
	root := command(append([]string{"serve"}, args...))
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	serve.RunE = func(cmd *cobra.Command, _ []string) error {
		cmd.Flags().Visit(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
		return nil
	}
	return values, root.Execute()
}

// The flags of Linkerd's destination, with their defaults there, and a value that is legal.
var theirs = map[string]struct{ byDefault, legal string }{
	"addr":                       {":8086", ":1234"},
	"metrics-addr":               {":9996", ":1235"},
	"kubeconfig":                 {"", "/some/file"},
	"controller-namespace":       {"linkerd", "mesh"},
	"outbound-transport-mode":    {"", "transport-header"},
	"enable-h2-upgrade":          {"true", "false"},
	"enable-endpoint-slices":     {"true", "true"},
	"enable-ipv6":                {"true", "false"},
	"identity-trust-domain":      {"", "example.org"},
	"cluster-domain":             {"", "example.local"},
	"default-opaque-ports":       {"", "25,3306-3310"},
	"enable-pprof":               {"false", "true"},
	"export-queue-metrics":       {"true", "false"},
	"stream-queue-capacity":      {"100", "7"},
	"trace-collector":            {"", "collector:55678"},
	"ext-endpoint-zone-weights":  {"false", "true"},
	"meshed-http2-client-params": {"", `{"keep_alive":{"interval":{"seconds":10}}}`},
	"log-level":                  {"info", "debug"},
	"log-format":                 {"plain", "json"},
	"version":                    {"false", "true"},
}

// Every flag of Linkerd's destination is taken, with one dash and with two, with = and where it is no switch
// with a space.
func TestDropInFlags(t *testing.T) {
	serve, _, err := command(nil).Find([]string{"destination"})
	if err != nil {
		t.Fatal(err)
	}

	for name, f := range theirs {
		flag := serve.Flags().Lookup(name)
		if flag == nil {
			t.Errorf("-%s is unknown", name)
			continue
		}

		if flag.DefValue != f.byDefault {
			t.Errorf("-%s is %q by default, want %q", name, flag.DefValue, f.byDefault)
		}
		forms := [][]string{{"-" + name + "=" + f.legal}, {"--" + name + "=" + f.legal}}
		if flag.NoOptDefVal == "" {
			forms = append(forms, []string{"-" + name, f.legal}, []string{"--" + name, f.legal})
		}

		for _, form := range forms {
			values, err := parsed(t, form...)
			if _, set := values[name]; err != nil || !set {
				t.Errorf("%q is not taken: %v", form, err)
			}
		}
	}
}

func TestTheLastOfTwoFlagsWins(t *testing.T) {
	values, err := parsed(t, "-addr=:1", "--addr=:2", "-addr", ":3", "-enable-ipv6", "-enable-ipv6=false")
	if err != nil {
		t.Fatal(err)
	}
	if values["addr"] != ":3" || values["enable-ipv6"] != "false" {
		t.Errorf("got %v", values)
	}
}

// A flag that makes no sense refuses to start, in a sentence that names it.
func TestFlagsThatAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"-enable-endpoint-slices=false"},
		{"-default-opaque-ports=25,seventy"},
		{"-default-opaque-ports=70000"},
		{"-allow-kubeconfig-hosts=10.0.0.0/99"},
		{"-suspect-after=1s"},
		{"-stale-after=1s"},
		{"-probe-interval=0s"},
		{"-first-sync-grace=-1s"},
		{"-max-connection-age=-1s"},
		{"-cluster-name="},
		{"-cluster-name=a b/c"},
		{"-cluster-name=East"},
		{"-addr="},
		{"-cluster-domain=.cluster.local"},
		{"-cluster-domain=cluster.local."},
		{"-cluster-domain=cluster..local"},
		{"-cluster-domain=a b"},
		{"-drain-window=-1s"},
		{"-request-timeout=0s"},
		{"-stall-timeout=0s"},
		{"-max-streams=0"},
		{"-max-connection-streams=0"},
		{"-max-bytes=0"},
		{"-max-connection-bytes=0"},
		{"-admission-connection-rate=0"},
		{"-admission-connection-burst=0"},
		{"-log-level=loud"},
		{"-log-format=xml"},
		{"-admission-rate=0"},
		{"-mirror-services=auto"},
		{"-peer-addr=:8087"},
		{"-peers=peers.test:8087"},
		{"-mirror-exclude-keys=example.com*"},
		{"-max-mirrors-per-link=-1"},
		{"-max-slices-per-source=-1"},
		{"-installation-namespaces=linkerd,Mesh"},
		{"-lease-duration=61s"},
		{"-kubeconfig=/nowhere/at/all"},
		{"-tls-cert-file=/tmp/cert.pem"},
		{"-tls-key-file=/tmp/key.pem"},
		{"-tls-client-ca-file=/tmp/ca.pem"},
	} {
		refuses(t, args...)
	}
}

// What has no subcommands rejects an argument as such, and not as a command.
func TestUnexpectedArguments(t *testing.T) {
	for _, name := range []string{"serve", "policy", "sp-validator", "check"} {
		root := command([]string{name, "x"})
		cli.Prepare(root, "fingerpost")
		err := root.Execute()
		if err == nil || !strings.HasPrefix(err.Error(), `unexpected argument "x"`) || cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// refuses checks that the process does not start with these arguments, and names the first.
func refuses(t *testing.T, args ...string) {
	t.Helper()
	err := command(append([]string{"serve"}, args...)).Execute()
	name, _, _ := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
	if err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("%q: %v, want an error that names -%s", args, err, name)
	}
}

// Outside of a Pod nothing is written unless that is asked for: the permissions are those of a person.
func TestReadOnlyByDefault(t *testing.T) {
	for _, c := range []struct{ inCluster, given, flag, want bool }{
		{inCluster: true, want: false},
		{inCluster: false, want: true},
		{inCluster: true, given: true, flag: true, want: true},
		{inCluster: false, given: true, flag: false, want: false},
	} {
		var options serveOptions
		options.InCluster, options.ReadOnly = c.inCluster, c.flag
		options.setReadOnly(logr.Discard(), c.given)
		if options.ReadOnly != c.want {
			t.Errorf("%+v: read-only is %t", c, options.ReadOnly)
		}
	}
}

// Where proxies reach the control plane is read before anything else, beside the rest and alone.
func TestInjectorServices(t *testing.T) {
	for _, bad := range []string{
		"-injector-destination-addr=a", "-injector-policy-addr=a:0", "-injector-identity-addr=a$(b):80",
		"-injector-identity-name=A b",
	} {
		refuses(t, bad)
		err := command([]string{"proxy-injector", bad, "-kubeconfig=/nowhere"}).Execute()
		name, _, _ := strings.Cut(bad, "=")
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", bad, err)
		}
	}

	var o injectorOptions
	fs := flag.NewFlagSet("proxy-injector", flag.ContinueOnError)
	o.addFlags(fs)
	err := fs.Parse([]string{
		"-injector-destination-addr=a.b.:1", "-injector-policy-name=c", "-injector-identity-addr=[::1]:2",
	})
	want := inject.Services{
		Destination: inject.Service{Addr: "a.b.:1"}, Policy: inject.Service{Name: "c"},
		Identity: inject.Service{Addr: "[::1]:2"},
	}
	if err = errors.Join(err, o.files.Services.Validate()); err != nil || o.files.Services != want {
		t.Errorf("%v, %v", o.files.Services, err)
	}
}
