package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
)

func serveCommand() *cobra.Command {
	var o serveOptions
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	o.addFlags(fs)
	cmd := &cobra.Command{
		Use:     "serve",
		Aliases: []string{"destination"},
		Short:   "Serve Linkerd's Destination API from this cluster and those that are linked",
		Long: `Serve Linkerd's Destination API from this cluster and those that are linked.

Flags may be written with one dash or two, and are those of Linkerd's destination container, which this
replaces; given twice, the last one wins. Clusters are linked by Links (multicluster.linkerd.io) and by the
labelled Secrets that 'linkerd multicluster link-gen' prints.

HOSTNAME must be set, unless EndpointSlices are off: it is the name by which replicas tell each other
apart. In a Pod it is; elsewhere say HOSTNAME=$(hostname) fingerpost serve.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.printVersion {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), binaryVersion())
				return err
			}
			given := map[string]bool{}
			cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
			return serve(cmd.Context(), o, given)
		},
	}
	cmd.Flags().AddGoFlagSet(fs)
	return cmd
}

// serve runs until ctx ends.
func serve(ctx context.Context, o serveOptions, given map[string]bool) error {
	if err := o.validate(); err != nil {
		return err
	}
	log, err := server.NewLogger(o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	log.Info("Fingerpost starts", "version", binaryVersion(), "cluster", o.ClusterName)
	o.logWarnings(log, given)
	if o.Config, o.InCluster, err = localConfig(o.kubeconfig); err != nil {
		return err
	}
	setPingDefaults()
	o.Version = binaryVersion()
	a, err := app.New(ctx, log, o.Options)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// hostConfig returns how to reach the cluster that we run in, and whether we run in a Pod of it. It sets no limit on the rate of
// requests: client-go's own, of 5 a second, makes Events wait for minutes, each in a goroutine, and the API server has better ones.
func localConfig(kubeconfig string) (config *rest.Config, inCluster bool, err error) {
	defer func() {
		if config != nil {
			config.QPS = -1
		}
	}()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, false, fmt.Errorf("-kubeconfig: %w", err)
		}
		return config, os.Getenv("KUBERNETES_SERVICE_HOST") != "", nil
	}
	config, err = rest.InClusterConfig()
	if err != nil {
		return nil, false, fmt.Errorf("this is no Pod of a cluster (%w): give a -kubeconfig", err)
	}
	return config, true, nil
}

// setPings makes clients notice within 15 s that a connection to an API server is dead, unless the environment says otherwise.
func setPingDefaults() {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, seconds) // it can only fail for a name that is none
		}
	}
}
