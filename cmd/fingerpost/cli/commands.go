// Package cli has the commands that ask replicas, and the one that links clusters.
package cli

import "github.com/spf13/cobra"

// cliCommands returns the commands of a binary of this version.
func Commands(version string) []*cobra.Command {
	return []*cobra.Command{
		clustersCommand(version), diffCommand(version), endpointsCommand(version), explainCommand(version), linkCommand(version),
		metricsCommand(version), profileCommand(version), streamsCommand(version),
	}
}
