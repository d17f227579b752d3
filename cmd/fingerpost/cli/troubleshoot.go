package cli

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cluster"
)

// diagnosisTimeout is how long a replica may take for all steps.
const diagnosisTimeout = 40 * time.Second

func troubleshootCommand(version string) *cobra.Command {
	flags := newDebugCommand(version)
	cmd := &cobra.Command{
		Use:   "troubleshoot CLUSTER",
		Short: "Go the way from each replica to a cluster, step by step",
		Long: `Go the way from each replica to the API server of a cluster, step by step: the name, TCP, TLS with
the certificate that is presented and those that are trusted, HTTP and what answers it, the
credentials and whom they are taken for, a list of each kind, and whether Fingerpost may write.

The replicas do it, because they have the credentials and the network. They use connections of
their own, and change nothing. The first step that fails (×) is the cause: those behind it are not
tried. It takes a second, and half a minute where packets are dropped.

The exit code is 1 if a step of any replica fails.`,
		Example: `  fingerpost troubleshoot west
  fingerpost troubleshoot west -o json | jq '.[].diagnoses[].steps[] | select(.ok | not)'`,
		Args: arguments("CLUSTER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.patience = diagnosisTimeout
			return show(cmd, &flags, view[[]cluster.Diagnosis, []replicaDiagnoses]{
				path:  "/debug/troubleshoot/" + url.PathEscape(args[0]),
				merge: mergeDiagnoses, print: printDiagnoses, check: checkDiagnoses,
			})
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return flags.clusterNames(cmd), cobra.ShellCompDirectiveNoFileComp
		},
	}

	flags.AddFlags(cmd)
	addOutputFlag(cmd, &flags.output)
	return cmd
}

// replicaDiagnoses are what one replica has found.
type replicaDiagnoses struct {
	Replica   string              `json:"replica"`
	Diagnoses []cluster.Diagnosis `json:"diagnoses"`
}

func mergeDiagnoses(responses []Response[[]cluster.Diagnosis]) []replicaDiagnoses {
	all := []replicaDiagnoses{}
	for _, r := range responses {
		all = append(all, replicaDiagnoses{r.Replica, r.Page})
	}
	return all
}

// checkDiagnoses returns an error for the first step that has failed.
func checkDiagnoses(all []replicaDiagnoses) error {
	for _, r := range all {
		if len(r.Diagnoses) == 0 {
			return WithExitCode(ExitNo, errors.New(
				"there are no usable credentials to try: see the Link, and its Secret"))
		}
		for _, d := range r.Diagnoses {
			for _, step := range d.Steps {
				if !step.OK {
					return WithExitCode(ExitNo, fmt.Errorf("%s fails, from replica %s", step.Name, r.Replica))
				}
			}
		}
	}
	return nil
}

func printDiagnoses(frame *frame, all []replicaDiagnoses, several bool, _ time.Time) {
	for i, r := range all {
		for j, diagnosis := range r.Diagnoses {
			if i+j > 0 {
				frame.printf("")
			}
			from := "with " + diagnosis.Source
			if several {
				from = "from replica " + r.Replica + ", " + from
			}
			frame.printf("%s", from)

			table := newTable("", "STEP", "TOOK", "WHAT")

			for _, step := range diagnosis.Steps {
				mark, text, colour := "√", step.Text, Green
				if !step.OK {
					mark, colour = "×", Red
				}
				if step.Remedy != "" {
					text += ": " + step.Remedy
				}
				row := table.addRow(mark, step.Name, step.Took.Round(time.Millisecond/10), text)
				row.colours[""] = colour
			}
			frame.addTable(table)
		}
	}
}
