package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/inject"
)

// injectorOptions are the flags of proxy-injector.
type injectorOptions struct {
	addr, metricsAddr string
	tlsDir, namespace string
	files             app.InjectionFiles
	access            access
	commonOptions
}

const (
	valuesFile  = "/var/run/linkerd/config/values"
	anchorsFile = "/var/run/linkerd/identity/trust-roots/ca-bundle.crt"
)

func (o *injectorOptions) addFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.addr, "addr", ":8443", "address of the webhook, with TLS 1.3")
	fs.StringVar(&o.metricsAddr, "metrics-addr", ":9995",
		"address of the admin server: /metrics, /ping, /live, /ready")
	fs.StringVar(&o.tlsDir, "tls-dir", "/var/run/linkerd/tls",
		"directory of the certificate, tls.crt, and its key, tls.key; read again when they change")

	fs.StringVar(&o.namespace, "linkerd-namespace", "linkerd", "namespace of the mesh's control plane")
	fs.StringVar(&o.access.kubeconfig, "kubeconfig", "",
		"file with access to the local cluster; empty in a Pod")
	fs.StringVar(&o.files.Values, "injector-values", valuesFile,
		"file of the values that the mesh was installed with, as the ConfigMap linkerd-config has them; read again "+
			"when it changes")
	fs.StringVar(&o.files.Anchors, "injector-trust-anchors", anchorsFile,
		"file of the trust anchors of the mesh (PEM); read again when it changes")
	addServiceFlags(fs, &o.files)
	o.addCommonFlags(fs)
}

// addServiceFlags adds where proxies reach the control plane.
func addServiceFlags(fs *flag.FlagSet, files *app.InjectionFiles) {
	const usual = "; empty for that of Linkerd's chart"
	for name, of := range map[string]*inject.Service{
		"destination": &files.Services.Destination, "policy": &files.Services.Policy,
		"identity": &files.Services.Identity,
	} {
		fs.StringVar(&of.Addr, "injector-"+name+"-addr", "",
			"host and port at which injected proxies reach the "+name+" service"+usual)
		fs.StringVar(&of.Name, "injector-"+name+"-name", "",
			"TLS identity that injected proxies expect of the "+name+" service"+usual)
	}
}

func validateServices(files app.InjectionFiles) error {
	if err := files.Services.Validate(); err != nil {
		return fmt.Errorf("-injector-%w", err)
	}
	return nil
}

func injectorCommand() *cobra.Command {
	var options injectorOptions
	fs := flag.NewFlagSet("proxy-injector", flag.ContinueOnError)
	options.addFlags(fs)

	cmd := &cobra.Command{
		Use:   "proxy-injector",
		Short: "Serve the admission webhook that adds proxies to Pods",
		Long: `Serve the admission webhook that adds proxies to Pods of Namespaces, or Pods, with the annotation
linkerd.io/inject: enabled, and the annotation of opaque ports to Pods and Services.

Flags may have one dash or two, and are those of Linkerd's proxy-injector container, which this
replaces. A MutatingWebhookConfiguration (linkerd-proxy-injector-webhook-config in Linkerd's chart)
leads API servers to it. Its caBundle must have signed the certificate in -tls-dir.

It reads metadata of Namespaces, ReplicaSets and Jobs, and sends Events. Whatever keeps it from an
answer is an error to the API server, whose failurePolicy decides: no Pod is refused by it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if options.printVersion {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), binaryVersion())
				return err
			}
			return serveInjector(cmd.Context(), options)
		},
	}

	cmd.Flags().AddGoFlagSet(fs)
	return cmd
}

// serveInjector runs until ctx ends.
func serveInjector(ctx context.Context, options injectorOptions) error {
	log, err := server.NewLogger(options.logLevel, options.logFormat)
	err = errors.Join(err, validateServices(options.files))
	for name, value := range map[string]string{
		"addr": options.addr, "linkerd-namespace": options.namespace,
		"injector-values": options.files.Values, "injector-trust-anchors": options.files.Anchors,
	} {
		if value == "" {
			err = errors.Join(err, errors.New("-"+name+" must not be empty"))
		}
	}

	if err != nil {
		return cli.WithExitCode(cli.ExitUsage, err)
	}

	config, _, err := options.access.config()
	if err != nil {
		return err
	}

	log.Info("Fingerpost starts to inject", "version", binaryVersion())
	setPingDefaults()

	injector, err := app.NewInjector(log, app.InjectorOptions{
		Version: binaryVersion(), Config: config, AdminAddr: options.metricsAddr, Pprof: options.enablePprof,
		Namespace: options.namespace,
		Webhooks: app.WebhookOptions{
			Addrs: []string{options.addr}, TLS: webhookFiles(options.tlsDir), Flag: "-tls-dir", Inject: options.files,
		},
	})
	if err != nil {
		return err
	}
	return injector.Run(ctx)
}
