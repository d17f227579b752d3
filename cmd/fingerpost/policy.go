package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
)

// policyOptions are the flags of policy, whose names, defaults and meanings are those of Linkerd's policy container.
// The command has nothing but them: a flag shares its value with one of serve, or translate makes one of it.
type policyOptions struct {
	serve serveOptions

	hookAddr    string
	hookFiles   server.TLSFiles
	withoutHook bool
	logFilter   string

	deployment  string // this and what follows has no effect
	patchMillis int
	skipLabeled bool
}

// logFilterEnv has the log filter unless a flag has it, as for Linkerd's policy container.
const logFilterEnv = "LINKERD_POLICY_CONTROLLER_LOG"

// useless are the flags of Linkerd's policy container that have no effect, with the reason.
var useless = map[string]string{
	"patch-timeout-ms":       "each request to an API server has a deadline of its own",
	"policy-deployment-name": "the Lease under which statuses are written has no owner",
	"skip-labeled-gateway-api-routes": "a route that cannot be used takes nothing from others, " +
		"and its status has the reason",
}

func (o *policyOptions) addFlags(fs *flag.FlagSet) {
	of := flag.NewFlagSet("serve", flag.ContinueOnError)
	o.serve.addFlags(of)
	o.serve.Addr, o.serve.webhookDir = "", "" // there is no discovery, and the webhook has files of its own

	share := func(name, other, byDefault, usage string) {
		shared := of.Lookup(other)
		if byDefault != "" {
			if err := shared.Value.Set(byDefault); err != nil {
				panic(err) // it is constant
			}
		}
		fs.Var(shared.Value, name, cmp.Or(usage, shared.Usage))
	}

	share("grpc-addr", "policy-addr", "0.0.0.0:8090",
		"address of the gRPC server, which serves plaintext to a proxy beside it")
	share("admin-addr", "metrics-addr", "0.0.0.0:8080", "address of the admin server: /live, /ready, /metrics")
	share("cluster-networks", "cluster-networks", "", "")
	share("identity-domain", "identity-trust-domain", "cluster.local", "trust domain of identities in this cluster")
	share("cluster-domain", "cluster-domain", "cluster.local", "")
	share("control-plane-namespace", "controller-namespace", "",
		"namespace of the mesh's control plane: it is a part of "+
			"identities, and has the Lease under which statuses are written")

	share("default-policy", "default-inbound-policy", "", "")
	share("probe-networks", "probe-networks", "", "")
	share("default-opaque-ports", "default-opaque-ports", "",
		"ports, and ranges of ports, of Services and EgressNetworks "+
			"without an annotation whose protocol proxies do not detect, separated by commas; it must be given")
	share("allow-l5d-request-headers", "allow-l5d-request-headers", "", "")
	share("global-egress-network-namespace", "global-egress-network-namespace", "", "")

	share("log-format", "log-format", "", "")
	share("kubeconfig", "kubeconfig", "", "")

	o.addWebhookFlags(fs)
	o.addAccessFlags(fs)
	fs.StringVar(&o.logFilter, "log-level", "info",
		"error, warn, info, debug or trace; of a log filter of Rust, such as linkerd=debug,warn, the first item "+
			"that is one of them. "+logFilterEnv+" has it where the flag is not given")

	const none = "has no effect: "
	fs.StringVar(&o.deployment, "policy-deployment-name", "linkerd-destination", none+useless["policy-deployment-name"])
	fs.IntVar(&o.patchMillis, "patch-timeout-ms", 5000, none+useless["patch-timeout-ms"])
	fs.BoolVar(&o.skipLabeled, "skip-labeled-gateway-api-routes", false,
		none+useless["skip-labeled-gateway-api-routes"])

	// Those that Linkerd's policy container has not.
	share("policy-app-protocol-grpc", "policy-app-protocol-grpc", "", "")
	share("policy-status", "policy-status", "", "")
	share("read-only", "read-only", "", "write nothing, neither statuses nor Leases (default true outside of a Pod)")
	o.serve.DebugAddr = ""
	fs.StringVar(&o.serve.DebugAddr, "debug-addr", "", of.Lookup("debug-addr").Usage)
	share("enable-pprof", "enable-pprof", "", "")
	share("version", "version", "", "")
}

func (o *policyOptions) addWebhookFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.hookAddr, "server-addr", "0.0.0.0:443",
		"address of the admission webhook of objects of policy and routes, with TLS 1.3")
	fs.StringVar(&o.hookFiles.Key, "server-tls-key", "",
		"private key (PEM) of -server-tls-certs; read again when it changes")
	fs.StringVar(&o.hookFiles.Certificate, "server-tls-certs", "",
		"certificate chain (PEM) of the webhook; read again when it changes")
	fs.BoolVar(&o.withoutHook, "admission-controller-disabled", false,
		"serve no webhook: -server-addr and its files are not used")
}

// addAccessFlags adds what is about the API server besides -kubeconfig.
func (o *policyOptions) addAccessFlags(fs *flag.FlagSet) {
	a := &o.serve.access
	fs.StringVar(&a.context, "context", "", "context of the kubeconfig; empty for its current one")
	fs.StringVar(&a.cluster, "cluster", "", "cluster of the kubeconfig; empty for that of the context")
	fs.StringVar(&a.user, "user", "", "user of the kubeconfig; empty for that of the context")
	fs.StringVar(&a.as, "as", "", "user to impersonate, such as system:serviceaccount:linkerd:linkerd-destination")
	fs.Func("as-group", "group to impersonate with -as; it may be given several times", func(group string) error {
		a.asGroups = append(a.asGroups, group)
		return nil
	})
}

func policyCommand() *cobra.Command {
	var options policyOptions
	fs := flag.NewFlagSet("policy", flag.ContinueOnError)
	options.addFlags(fs)

	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Serve Linkerd's policy API, with the flags of Linkerd's policy container",
		Long: `Serve Linkerd's policy API: which clients a port of a Pod lets in, and which routes, timeouts and
retries a client has for a Service or an address outside of the cluster. Besides it serves the
admission webhook of the objects that this follows from, and writes their status.

Flags may have one dash or two, a value after = or a blank, and are those of Linkerd's policy
container, which this replaces; those that are not needed are accepted, and the log has them. In
the container 'command' is left out, and the arguments begin with the name of this one:

  args: [policy, --grpc-addr=0.0.0.0:8090, --admin-addr=0.0.0.0:9990, ...]

It is 'fingerpost serve' without discovery: -addr "" -policy-addr :8090 -webhook-addr :9443, which
has further flags, such as bounds on streams. To serve both in one process, give serve -policy-addr.

Only the holder of the Lease policy-controller-write writes statuses, so that a policy container of
Linkerd may run at the same time. Links are read, because the ports of a mirror follow those of the
Service that it stands for; nothing is written for them.

Try it outside of a cluster, where nothing is written:

  fingerpost policy --kubeconfig ~/.kube/config --admission-controller-disabled \
    --default-opaque-ports 25,587,3306,4444,5432,6379,9300,11211`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if options.serve.printVersion {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), binaryVersion())
				return err
			}
			given := map[string]bool{}
			cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
			serveGiven, err := options.translate(given)
			if err != nil {
				return cli.WithExitCode(cli.ExitUsage, err)
			}
			return serve(cmd.Context(), options.serve, serveGiven)
		},
	}

	cmd.Flags().AddGoFlagSet(fs)
	return cmd
}

// translate makes options of serve of those that share no value with one, and returns which of serve's flags count as
// given.
func (o *policyOptions) translate(given map[string]bool) (serveGiven map[string]bool, err error) {
	switch {
	case o.serve.Policy.Addr == "":
		return nil, errors.New("-grpc-addr must not be empty: it is where proxies reach the policy API, such as :8090")
	case !given["default-opaque-ports"]:
		return nil, errors.New("-default-opaque-ports must be given: Linkerd's chart has " +
			"25,587,3306,4444,5432,6379,9300,11211, and an empty list is for none")
	case o.withoutHook:
	case o.hookAddr == "":
		return nil, errors.New("-server-addr must not be empty: -admission-controller-disabled is for no webhook")
	case o.hookFiles.Certificate == "" || o.hookFiles.Key == "":
		return nil, errors.New("-server-tls-certs and -server-tls-key must be given, for the webhook at " +
			"-server-addr: -admission-controller-disabled is for none")
	}

	o.serve.Policy.Flag = "-grpc-addr"
	o.serve.Webhooks = app.WebhookOptions{}
	if !o.withoutHook {
		o.serve.Webhooks = app.WebhookOptions{
			Addrs: []string{o.hookAddr}, TLS: []app.WebhookFiles{{Server: webhookServer, TLSFiles: o.hookFiles}},
			Flag: "-server-tls-certs, -server-tls-key", Policy: true,
		}
	}

	filter := o.logFilter
	if env := os.Getenv(logFilterEnv); env != "" && !given["log-level"] {
		filter = env
	}
	var found bool
	if o.serve.logLevel, found = levelOf(filter); !found {
		o.serve.note("The log filter has no level that is for all, so that it is info", "filter",
			fmt.Sprintf("%.100q", filter))
	}

	for _, name := range slices.Sorted(maps.Keys(useless)) {
		if given[name] {
			o.serve.note("-"+name+" has no effect", "reason", useless[name])
		}
	}
	return map[string]bool{
		"cluster-domain": true, "identity-trust-domain": true, "read-only": given["read-only"],
	}, nil
}

// levelOf returns the first item of a log filter of Rust that is a level, and whether there is one.
func levelOf(filter string) (level string, found bool) {
	for item := range strings.SplitSeq(filter, ",") {
		switch level = strings.ToLower(strings.TrimSpace(item)); level {
		case "off":
			return "panic", true
		case "error", "warn", "info", "debug", "trace":
			return level, true
		}
	}
	return "info", false
}
