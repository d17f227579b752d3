// Package check has the health report: what replicas report, and what can be seen from where the command
// runs.
//
// A [runner] runs checks, prints each result at once, and waits for those that may pass later by themselves.
// check.go has the command and its results, runner.go the runner, progress.go what it shows meanwhile, local.go
// the checks of the local cluster, mesh.go and webhooks.go those of the mesh in it, ways.go those of how clients reach
// replicas, replicas.go those of what replicas report of clusters, links.go of Links, services.go of Services, and
// compare.go how replicas differ. Nothing is sent to a linked cluster from here: replicas have the credentials, and
// report what they find. subjects.go has what checks are about, of which docs/checks.md has a table.
package check

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
)

// ErrFailed is the error of a report in which a check has failed. The report has been printed.
var ErrFailed = errors.New("a check has failed")

// errInterrupted is the error of a report without failures that is not complete.
var errInterrupted = errors.New("interrupted: not everything was checked")

const (
	docsURL  = "https://github.com/fingerpost/fingerpost/blob/main/docs/"
	hintsURL = docsURL + "checks.md#" // has a heading for each check that no Problem fails
)

// The results of a check, as Linkerd names them.
const (
	resultSuccess = "success"
	resultWarning = "warning"
	resultError   = "error"
)

var glyphs = map[string]string{resultSuccess: "√", resultWarning: "‼", resultError: "×"}

// A checkReport is what 'linkerd check' reads from an extension.
type checkReport struct {
	Success    bool             `json:"success"`
	Categories []*checkCategory `json:"categories"`
}

type checkCategory struct {
	Name   string        `json:"categoryName"`
	Checks []checkResult `json:"checks"`
}

type checkResult struct {
	Description string `json:"description"`
	Hint        string `json:"hint,omitempty"`
	Error       string `json:"error,omitempty"`
	Result      string `json:"result"`
}

// Once returns "result category: description: error" of what does not succeed of all checks of an installation, each
// tried once: of the cluster of config, and of replicas. A test can bring its own network for both.
func Once(ctx context.Context, config *rest.Config, namespace string, all []cli.Replica) (lines []string) {
	e := environment{
		namespace: namespace,
		access:    func() (*rest.Config, error) { return config, nil },
		open:      func(context.Context) ([]cli.Replica, error) { return all, nil },
		direct:    func() bool { return true },
		ways:      func([]cli.Replica) ([]cli.Way, error) { return nil, nil },
	}

	r := newRunner(0, 10*time.Second)
	e.run(ctx, r, false)
	for _, in := range r.report.Categories {
		for _, c := range in.Checks {
			if c.Result != resultSuccess {
				lines = append(lines, fmt.Sprintf("%s %s: %s: %s", c.Result, in.Name, c.Description, c.Error))
			}
		}
	}
	return lines
}

// Command returns the command of a binary of this version.
func Command(version string) *cobra.Command {
	flags := cli.NewReplicaFlags(version)
	environmentOf := func(flags *cli.ReplicaFlags) *environment {
		return &environment{
			version: version, installed: flags.Namespace,
			access: flags.RESTConfig, open: flags.Open, direct: flags.Direct, ways: flags.Ways,
		}
	}

	var output, fleet, namespace string
	var pre, proxy bool
	var wait, timeout time.Duration

	cmd := &cobra.Command{
		Use:     "check",
		Aliases: []string{"status"},
		Short:   "Check the health of Fingerpost and of the linked clusters",
		Long: `Check the health of Fingerpost and of the linked clusters: what replicas report, and what can be seen
of this cluster with your permissions. A stream is opened to each replica, as a proxy does. With --pre,
check that Fingerpost can be installed. The exit code is 1 if a check has failed (×); warnings (‼) do
not fail the report.

What may pass later by itself is waited for, for as long as --wait, while stderr shows what that is.
Ctrl-C ends that: what was not checked by then is marked as such.

Installed as linkerd-fingerpost it is part of 'linkerd check', for namespaces with the label
linkerd.io/extension=fingerpost.`,
		Example: "  fingerpost check\n  fingerpost check --pre\n  fingerpost check -o short --wait 0s\n" +
			"  fingerpost check --fleet fleet.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if proxy {
				flags.Namespace = "" // linkerd sets it to the namespace of proxies, which we do not check
			}
			progress := cli.NewProgress(cmd.ErrOrStderr())

			if fleet != "" {
				if err := cli.OfOneCluster(cmd, "context", "addr", "debug-addr"); err != nil {
					return cli.WithExitCode(cli.ExitUsage, err)
				}

				run := fleetRun{progress: progress, pre: pre, json: output == "json"}
				run.runner = func() *runner { return newRunner(wait, timeout) }
				run.environment = func(c cli.FleetCluster) *environment {
					e := environmentOf(flags.InContext(c.Context))
					e.namespace, e.fleet = namespace, &c
					return e
				}

				return run.ofFile(cmd, fleet)
			}

			runner := newRunner(wait, timeout)
			runner.progress = progress

			switch output {
			case "table", "basic":
				runner.to = cmd.OutOrStdout()
			case "short":
				runner.to, runner.short = cmd.OutOrStdout(), true
			case "json":
				if !runner.progress.Terminal {
					runner.progress = nil // 'linkerd check' runs the command so
				}
			}

			environment := environmentOf(&flags)
			environment.namespace = namespace
			environment.run(cmd.Context(), runner, pre)
			return runner.finish(cmd.OutOrStdout())
		},
	}

	flags.AddFlags(cmd)
	fs := cmd.Flags()
	flags.AddServerFlag(fs)
	fs.StringVarP(&namespace, "linkerd-namespace", "L", "",
		"namespace of the mesh's control plane; empty for that of Fingerpost's Deployment, or linkerd")
	fs.StringVar(&fleet, "fleet", "",
		"file of a fleet: check each of its clusters, and print what did not succeed, the worst first")

	cli.AddChoice(cmd, &output, "output", "o", "short has only what did not succeed: ",
		"table", "short", "json", "basic")
	fs.BoolVar(&pre, "pre", false, "check that Fingerpost can be installed")
	fs.DurationVar(&wait, "wait", 5*time.Minute, "how long to wait for checks that may pass later by themselves")
	fs.DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for a response")
	fs.BoolVar(&proxy, "proxy", false, "")
	fs.String("api-addr", "", "")
	fs.Bool("verbose", false, "")
	for _, name := range []string{"proxy", "api-addr", "verbose"} { // 'linkerd check' passes them
		_ = fs.MarkHidden(name)
	}

	return cmd
}
