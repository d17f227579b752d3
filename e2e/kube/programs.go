package main

import (
	"context"
	"fmt"
	"os"
	_ "time/tzdata" // CronJobs may name a time zone, wherever this runs.

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version metric on /metrics
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserverapp "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanagerapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	schedulerapp "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwokcmd "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	kwoksignals "sigs.k8s.io/kwok/pkg/utils/signals"
)

func etcd() { etcdmain.Main(os.Args) }

func apiServer() { exit(apiserverapp.NewAPIServerCommand()) }

func controllerManager() { exit(controllermanagerapp.NewControllerManagerCommand()) }

func scheduler() { exit(schedulerapp.NewSchedulerCommand()) }

func exit(command *cobra.Command) { os.Exit(cli.Run(command)) }

func kubectl() {
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints it as users of kubectl know it, then exits
	}
}

func kwok() {
	// Kubernetes registers a --version of its own type among the global flags.
	// kwok's command wants a boolean of that name and panics when it finds it.
	pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ContinueOnError)

	if err := runKwok(kwoksignals.SetupSignalContext()); err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		os.Exit(1)
	}
}

// runKwok reads the flags twice, as kwok does: logging and configuration
// first, unknown flags allowed, because their values become the defaults of
// the command's own flags.
func runKwok(ctx context.Context) error {
	early := pflag.NewFlagSet("early", pflag.ContinueOnError)
	early.ParseErrorsAllowlist.UnknownFlags = true
	early.Usage = func() {}
	ctx, _ = kwoklog.InitFlags(ctx, early)
	ctx, err := kwokconfig.InitFlags(ctx, early)
	if err != nil {
		return err
	}
	command := kwokcmd.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(early)
	return command.ExecuteContext(ctx)
}
