// Package cli has the commands that read replicas, and the one that links clusters. A command finds replicas
// by [ReplicaFlags]; a debugCommand shows a page of their debug servers, a grpcCommand opens a stream to one
// of them.
package cli

import "github.com/spf13/cobra"

// Commands returns the commands of a binary of this version.
func Commands(version string) []*cobra.Command {
	return []*cobra.Command{
		clustersCommand(version), drainCommand(version), endpointsCommand(version), explainCommand(version),
		linkCommand(version), metricsCommand(version), profileCommand(version), releaseCommand(version),
		streamsCommand(version), trafficCommand(version), undrainCommand(version), versionCommand(version),
	}
}
