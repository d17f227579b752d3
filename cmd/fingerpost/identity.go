package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/internal/logs"
	"github.com/fingerpost/fingerpost/serving"
)

const (
	issuerDir    = "/var/run/linkerd/identity/issuer"
	linkerdTLS   = "linkerd.io/tls"
	meshToken    = "/var/run/secrets/tokens/linkerd-identity-token" //nolint:gosec // where it is mounted
	maxLifetime  = 10 * 365 * 24 * time.Hour
	maxClockSkew = time.Hour
)

// issuanceFlags are those of what issues certificates, by itself and in serve.
type issuanceFlags struct {
	dir, scheme    string
	anchors        string
	lifetime, skew lenientDuration
}

// addTo adds them with the names that each command has for the files.
func (f *issuanceFlags) addTo(fs *flag.FlagSet, dirFlag, scheme string, to *app.IdentityOptions) {
	fs.StringVar(&f.dir, dirFlag, issuerDir,
		"directory of the certificate and the key of the issuer, as its Secret is mounted; read again when they change")
	fs.StringVar(&f.scheme, "identity-scheme", scheme,
		"names of the files in it: with "+linkerdTLS+" crt.pem and key.pem, otherwise tls.crt and tls.key, as of "+
			"cert-manager")
	fs.StringVar(&f.anchors, "identity-trust-anchors", anchorsFile,
		"file of the trust anchors of the mesh (PEM), which may be several; read again when it changes")

	f.lifetime = lenientDuration{value: 24 * time.Hour, least: time.Minute, most: maxLifetime}
	f.skew = lenientDuration{value: 10 * time.Second, most: maxClockSkew}
	fs.Var(&f.lifetime, "identity-issuance-lifetime",
		"how long a certificate of a proxy lasts; what cannot be read, or is less than a minute, is the default")
	fs.Var(&f.skew, "identity-clock-skew-allowance",
		"how much earlier it begins and later it ends, for clocks that differ; what cannot be read is the default")

	fs.BoolVar(&to.RequireAudience, "identity-require-audience", false,
		"refuse tokens that are not for the audience "+identity.Audience+", such as those that the kubelet puts into "+
			"each Pod by itself")
	fs.BoolVar(&to.Events, "identity-events", true,
		"send Events about certificates, on ServiceAccounts: five a second, and one of an account in 15 minutes")
	fs.BoolVar(&to.TLS, "identity-tls", false,
		"serve proxies over TLS, with certificates that this process issues to itself: for a Pod without a proxy")
}

// apply sets what follows from the flags.
func (f *issuanceFlags) apply(to *app.IdentityOptions) {
	to.Issuer = server.IssuerFilesIn(f.dir, f.scheme, f.anchors)
	to.Terms = identity.Terms{Lifetime: f.lifetime.value, Skew: f.skew.value}
}

// logWarnings logs values that are not used.
func (f *issuanceFlags) logWarnings(log logr.Logger) {
	for name, of := range map[string]lenientDuration{
		"identity-issuance-lifetime": f.lifetime, "identity-clock-skew-allowance": f.skew,
	} {
		if of.unread != "" {
			logs.Warn(log, "A flag is not used, because its value is no duration that can be one",
				"flag", "-"+name, "value", fmt.Sprintf("%.40q", of.unread), "using", of.value.String(),
				"least", of.least.String(), "most", of.most.String())
		}
	}
}

// A lenientDuration is a duration as a flag, which keeps its default with a value that is none, as Linkerd's does.
type lenientDuration struct {
	value, least, most time.Duration
	unread             string // such a value
}

// Set reads a duration. It never fails: the log has what could not be read.
func (d *lenientDuration) Set(text string) error {
	read, err := time.ParseDuration(text)
	if isUsable := err == nil && read >= d.least && read <= d.most; isUsable {
		d.value, d.unread = read, ""
	} else {
		d.unread = text
	}
	return nil
}

// String returns the duration that counts.
func (d *lenientDuration) String() string { return d.value.String() }

// identityOptions are the flags of identity.
type identityOptions struct {
	addr, metricsAddr string
	domain            identity.Domain
	issuance          issuanceFlags
	identity          app.IdentityOptions
	access            access
	qps               float64 // this and what follows has no effect
	burst             int
	traceCollector    string
	commonOptions
}

func (o *identityOptions) addFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.addr, "addr", ":8080",
		"address of the gRPC server of Linkerd's Identity API, which serves plaintext to a proxy beside it unless "+
			"-identity-tls is set")
	fs.StringVar(&o.metricsAddr, "admin-addr", ":9990",
		"address of the admin server: /metrics, /ping, /live, /ready")
	fs.StringVar(&o.domain.Namespace, "controller-namespace", "",
		"namespace of the mesh's control plane, which is a part of identities; it must be given")
	fs.StringVar(&o.domain.TrustDomain, "identity-trust-domain", "",
		"trust domain, with which identities end; it must be given")
	o.issuance.addTo(fs, "issuer", "", &o.identity)

	const unpaced = "has no effect: at most 100 tokens are under review at a time, and API servers have limits"
	fs.Float64Var(&o.qps, "kube-apiclient-qps", 100, unpaced)
	fs.IntVar(&o.burst, "kube-apiclient-burst", 200, unpaced)
	fs.StringVar(&o.access.kubeconfig, "kubeconfig", "", "file with access to the cluster; empty in a Pod")
	fs.StringVar(&o.traceCollector, "trace-collector", "", "has no effect in this version")
	o.addCommonFlags(fs)
}

func identityCommand() *cobra.Command {
	var options identityOptions
	fs := flag.NewFlagSet("identity", flag.ContinueOnError)
	options.addFlags(fs)

	cmd := &cobra.Command{
		Use:   "identity",
		Short: "Issue the certificates of a mesh: serve Linkerd's Identity API",
		Long: `Issue the certificates of a mesh: serve Linkerd's Identity API. A proxy sends the token of its Pod's
ServiceAccount and a signing request, and gets a certificate for the identity of that account.

Flags may have one dash or two, and are those of Linkerd's identity container, which this replaces.
The issuer comes from a Secret of either form, and the trust anchors from a ConfigMap, both mounted.
They may come late, in any order, and be replaced at any time: a pair that cannot sign is not taken,
and the one before stays in use. 'fingerpost certs' makes and rotates them.

It takes the right to create tokenreviews.authentication.k8s.io and Events, and reads nothing. Each
replica issues by itself, and stores nothing.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if options.printVersion {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), binaryVersion())
				return err
			}
			return serveIdentity(cmd.Context(), options)
		},
	}

	cmd.Flags().AddGoFlagSet(fs)
	return cmd
}

// validate reports flags with which no certificate can be issued.
func (o *identityOptions) validate() error {
	var missing error
	if o.addr == "" {
		missing = errors.New("-addr must not be empty: it is where proxies reach the Identity API, such as :8080")
	}
	if o.issuance.scheme == "" {
		missing = errors.Join(missing, fmt.Errorf("-identity-scheme must be given: %s, or kubernetes.io/tls as of "+
			"cert-manager", linkerdTLS))
	}

	if err := o.domain.Validate(); err != nil {
		missing = errors.Join(missing, fmt.Errorf("-controller-namespace and -identity-trust-domain, now %q and %q: %w",
			o.domain.Namespace, o.domain.TrustDomain, err))
	}
	return missing
}

// serveIdentity runs until ctx ends.
func serveIdentity(ctx context.Context, options identityOptions) error {
	log, err := server.NewLogger(options.logLevel, options.logFormat)
	if err = errors.Join(err, options.validate()); err != nil {
		return cli.WithExitCode(cli.ExitUsage, err)
	}
	config, _, err := options.access.config()
	if err != nil {
		return err
	}

	log.Info("Fingerpost starts to issue certificates", "version", binaryVersion(),
		"namespace", options.domain.Namespace, "trustDomain", options.domain.TrustDomain)
	options.issuance.logWarnings(log)
	if options.traceCollector != "" {
		log.Info("-trace-collector has no effect in this version", "collector", options.traceCollector)
	}
	setPingDefaults()

	options.identity.Addr, options.identity.Flag = options.addr, "-addr"
	options.issuance.apply(&options.identity)
	authority, err := app.NewAuthority(log, app.AuthorityOptions{
		Version: binaryVersion(), Config: config, AdminAddr: options.metricsAddr, Pprof: options.enablePprof,
		Domain: options.domain, Serving: serving.DefaultConfig(), Identity: options.identity,
	})
	if err != nil {
		return err
	}
	return authority.Run(ctx)
}

// addIdentityFlags adds what is about certificates of the mesh to serve.
func (o *serveOptions) addIdentityFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.Identity.Addr, "identity-addr", "",
		"address of the gRPC server of Linkerd's Identity API, which issues certificates to proxies; empty: none are "+
			"issued")
	o.issuance.addTo(fs, "identity-issuer", linkerdTLS, &o.Identity)
	fs.StringVar(&o.Identity.From, "identity-from", "",
		"host and port of the mesh's authority, such as linkerd-identity-headless.linkerd.svc:8080: -addr, "+
			"-policy-addr and -peer-addr then present a certificate from there, as a proxy beside them would; empty "+
			"for none")
	fs.StringVar(&o.Identity.TokenFile, "identity-token-file", meshToken,
		"token of this process's ServiceAccount, for -identity-from, with the audience "+identity.Audience+
			" (a projected volume)")
}

// validateIdentity rejects combinations of flags of certificates.
func (o *serveOptions) validateIdentity() error {
	of := &o.Identity
	o.issuance.apply(of)

	switch {
	case of.From != "" && (of.TLS || of.Addr != ""):
		return errors.New("-identity-from is the authority of another process: leave it out with -identity-addr and " +
			"-identity-tls")
	case of.TLS && of.Addr == "":
		return errors.New("-identity-tls needs -identity-addr: without it this process issues no certificates, and " +
			"-identity-from is where it gets one")

	case (of.TLS || of.From != "") && o.TLS.Certificate != "":
		return errors.New("-tls-cert-file has a certificate: leave it out with -identity-tls and -identity-from")
	case of.From != "" && of.TokenFile == "":
		return errors.New("-identity-from needs -identity-token-file: the authority knows this process by it")
	case of.From+of.Addr == "":
		return nil
	}

	domain := identity.Domain{Namespace: o.Discovery.ControllerNamespace, TrustDomain: o.Discovery.TrustDomain}
	if err := domain.Validate(); err != nil {
		return fmt.Errorf("-controller-namespace and -identity-trust-domain, now %q and %q: %w", domain.Namespace,
			domain.TrustDomain, err)
	}
	return nil
}
