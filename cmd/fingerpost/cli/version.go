package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

// versions are those of this binary and of the replicas.
type versions struct {
	Client string          `json:"client"`
	Server []serverVersion `json:"server"` // of the replicas that respond
}

type serverVersion struct {
	Replica string `json:"replica"`
	debug.VersionPage
}

func versionCommand(version string) *cobra.Command {
	flags := NewReplicaFlags(version)

	var output string
	var clientOnly, short bool

	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this binary and of the replicas",
		Long: `Print the versions of this binary and of the replicas. That no replica can be read is no error:
the versions of those that respond are printed.`,
		Example: "  fingerpost version\n  fingerpost version --client --short\n  fingerpost version -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			versions := versions{Client: version, Server: []serverVersion{}}
			var failed error
			if !clientOnly {
				versions.Server, failed = flags.serverVersions(cmd)
			}
			if output != tableOutput {
				printError(cmd, failed)
				return printPage(cmd.OutOrStdout(), versions, output)
			}

			if short {
				fmt.Fprintln(cmd.OutOrStdout(), version)
			} else {
				fmt.Fprintln(cmd.OutOrStdout(), "Client version:", version)
			}

			for _, text := range versions.lines() {
				fmt.Fprintln(cmd.OutOrStdout(), "Server version:", text)
			}
			if failed != nil {
				fmt.Fprintln(cmd.OutOrStdout(), "Server version: unknown:", PrintableLines(failed.Error()))
			}
			return nil
		},
	}

	flags.AddFlags(cmd)
	addOutputFlag(cmd, &output)
	cmd.Flags().BoolVar(&clientOnly, "client", false, "the version of this binary only")
	cmd.Flags().BoolVar(&short, "short", false, "the version of this binary without words before it")
	return cmd
}

// serverVersions returns the versions of the replicas that respond.
func (r *ReplicaFlags) serverVersions(cmd *cobra.Command) ([]serverVersion, error) {
	all := []serverVersion{}
	replicas, err := r.Open(cmd.Context())
	if err != nil {
		return all, err
	}
	defer CloseAll(replicas)
	responses, err := FetchAll[debug.VersionPage](cmd.Context(), replicas, "/debug/version")
	for _, response := range responses {
		all = append(all, serverVersion{response.Replica, response.Page})
	}
	return all, err
}

// lines returns each version of replicas once, with the replicas that have it.
func (v versions) lines() (lines []string) {
	byVersion := map[string][]string{}
	for _, s := range v.Server {
		byVersion[s.Version] = append(byVersion[s.Version], s.Replica)
	}
	for version, replicas := range byVersion {
		slices.Sort(replicas)
		lines = append(lines, Printable(version+" ("+strings.Join(replicas, ", ")+")"))
	}
	slices.Sort(lines)
	return lines
}
