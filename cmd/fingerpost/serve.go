package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
)

func serveCommand() *cobra.Command {
	var options serveOptions
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	options.addFlags(fs)

	cmd := &cobra.Command{
		Use:     "serve",
		Aliases: []string{"destination"},
		Short:   "Serve Linkerd's Destination API for this cluster and all linked clusters",
		Long: `Serve Linkerd's Destination API for this cluster and all linked clusters; with -policy-addr its policy
API as well, with -webhook-addr its admission webhooks, and with -identity-addr its Identity API.

Flags may have one dash or two, and are those of Linkerd's destination container, which this
replaces; of a flag that is given twice the last value counts. Links (multicluster.linkerd.io)
link clusters, and so do the labelled Secrets that 'linkerd multicluster link-gen' prints.

HOSTNAME is the name of the replica, which no other replica may have. A Pod has it; if it is not
set, it is the name of the host.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if options.printVersion {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), binaryVersion())
				return err
			}
			given := map[string]bool{}
			cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
			return serve(cmd.Context(), options, given)
		},
	}

	cmd.Flags().AddGoFlagSet(fs)
	return cmd
}

// serve runs until ctx ends.
func serve(ctx context.Context, options serveOptions, given map[string]bool) error {
	log, err := server.NewLogger(options.logLevel, options.logFormat)
	if err = errors.Join(err, options.validate()); err != nil {
		return cli.WithExitCode(cli.ExitUsage, err)
	}
	log.Info("Fingerpost starts", "version", binaryVersion(), "cluster", options.ClusterName)
	options.logWarnings(log, given)
	if options.Config, options.InCluster, err = options.access.config(); err != nil {
		return err
	}

	options.setReadOnly(log, given["read-only"])
	setPingDefaults()
	options.Version = binaryVersion()
	a, err := app.New(ctx, log, options.Options)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// setReadOnly sets that nothing is written by a process outside of a Pod, with the permissions of who has started it,
// unless a flag decides.
func (o *serveOptions) setReadOnly(log logr.Logger, given bool) {
	if !given {
		o.ReadOnly = !o.InCluster
	}
	if o.ReadOnly {
		log.Info("Nothing is written into any cluster; -read-only=false has slices, mirrors and statuses " +
			"written, as in a Pod")
	}
}

// access is how the local cluster is reached. All of it may be empty.
type access struct {
	kubeconfig             string
	context, cluster, user string   // of the kubeconfig
	as                     string   // who is impersonated
	asGroups               []string // of as
}

// config returns the access to the local cluster, and whether this process runs in a Pod of it. It does not limit the
// rate of requests: client-go's default of 5 a second makes Events wait for minutes, each in a goroutine, and API
// servers have limits of their own.
func (a *access) config() (config *rest.Config, inCluster bool, err error) {
	if a.kubeconfig+a.context+a.cluster+a.user != "" {
		files := clientcmd.NewDefaultClientConfigLoadingRules()
		files.ExplicitPath = a.kubeconfig
		overrides := &clientcmd.ConfigOverrides{CurrentContext: a.context}
		overrides.Context.Cluster, overrides.Context.AuthInfo = a.cluster, a.user
		config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(files, overrides).ClientConfig()
		if err != nil {
			return nil, false, fmt.Errorf("-kubeconfig: %w", err)
		}
		inCluster = os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	} else {
		config, err = rest.InClusterConfig()
		if err != nil {
			return nil, false, fmt.Errorf("this is no Pod of a cluster (%w): set -kubeconfig", err)
		}
		inCluster = true
	}

	if a.as == "" && len(a.asGroups) > 0 {
		return nil, false, errors.New("-as-group needs -as: groups are impersonated with a user")
	}
	config.Impersonate.UserName, config.Impersonate.Groups = a.as, a.asGroups
	config.QPS = -1
	return config, inCluster, nil
}

// setPingDefaults makes HTTP/2 clients detect a dead connection to an API server within 15 s, unless the
// environment sets other times. client-go reads them from the environment only.
func setPingDefaults() {
	defaults := map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"}
	for name, seconds := range defaults {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, seconds) // it fails for invalid names only
		}
	}
}
