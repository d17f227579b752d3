package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
)

// validatorOptions are the flags of sp-validator.
type validatorOptions struct {
	addr, metricsAddr  string
	kubeconfig, tlsDir string
	commonOptions
}

func (o *validatorOptions) addFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.addr, "addr", ":8443", "address of the webhook, with TLS 1.3")
	fs.StringVar(&o.metricsAddr, "metrics-addr", ":9997",
		"address of the admin server: /metrics, /ping, /ready")
	fs.StringVar(&o.tlsDir, "tls-dir", "/var/run/linkerd/tls",
		"directory of the certificate, tls.crt, and its key, tls.key; read again when they change")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "",
		"has no effect: a ServiceProfile is validated without access to a cluster")
	o.addCommonFlags(fs)
}

func validatorCommand() *cobra.Command {
	var options validatorOptions
	fs := flag.NewFlagSet("sp-validator", flag.ContinueOnError)
	options.addFlags(fs)

	cmd := &cobra.Command{
		Use:   "sp-validator",
		Short: "Serve the admission webhook that rejects invalid ServiceProfiles",
		Long: `Serve the admission webhook that rejects invalid ServiceProfiles: 'kubectl apply' then fails with
the route and the field that is wrong, instead of the profile having no effect.

Flags may have one dash or two, and are those of Linkerd's sp-validator container, which this
replaces. A ValidatingWebhookConfiguration (linkerd-sp-validator-webhook-config in Linkerd's
chart) leads API servers to it. Its caBundle must have signed the certificate in -tls-dir. A
certificate that changes is read again; the old one is used until the new one can be read.

Try it without a cluster:

  fingerpost sp-validator -tls-dir . -addr 127.0.0.1:8443
  jq '{request: {uid: "1", object: .}}' profile.json | \
    curl -k -H 'Content-Type: application/json' --data-binary @- https://127.0.0.1:8443/`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if options.printVersion {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), binaryVersion())
				return err
			}
			return serveWebhook(cmd.Context(), options)
		},
	}

	cmd.Flags().AddGoFlagSet(fs)
	return cmd
}

// serveWebhook runs until ctx ends.
func serveWebhook(ctx context.Context, options validatorOptions) error {
	log, err := server.NewLogger(options.logLevel, options.logFormat)
	if options.addr == "" {
		err = errors.Join(err, errors.New("-addr must not be empty"))
	}
	if err != nil {
		return cli.WithExitCode(cli.ExitUsage, err)
	}

	log.Info("Fingerpost starts to validate ServiceProfiles", "version", binaryVersion())
	process, err := app.NewValidator(log, app.ValidatorOptions{
		Version: binaryVersion(), AdminAddr: options.metricsAddr, Pprof: options.enablePprof,
		Webhooks: app.WebhookOptions{
			Addrs: []string{options.addr}, TLS: webhookFiles(options.tlsDir), Flag: "-tls-dir", Profiles: true,
		},
	})
	if err != nil {
		return err
	}
	return process.Run(ctx)
}

// webhookServer is who presents the only certificate of webhooks, in metrics and the log.
const webhookServer = "webhook"

// webhookFiles are the certificates and keys in directories, separated by commas, each as a Secret of TLS is mounted.
// Where there are several, each has the last element of its directory in its name.
func webhookFiles(dirs string) (all []app.WebhookFiles) {
	for dir := range strings.SplitSeq(dirs, ",") {
		all = append(all, app.WebhookFiles{Server: webhookServer, TLSFiles: server.TLSFiles{
			Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		}})
	}

	if len(all) > 1 {
		for i, files := range all {
			all[i].Server += "-" + filepath.Base(filepath.Dir(files.Certificate))
		}
	}
	return all
}
