// Package cli has the commands that read replicas, and those about how clusters are linked.
//
// A command finds replicas by [ReplicaFlags]. A debugCommand shows a page of the debug servers of all of them, merged
// by a view: changes, clusters, explain, streams, traffic and troubleshoot. A grpcCommand opens a stream to one of
// them, as a proxy does: endpoints and profile. The commands certs, link, drain, undrain and release read and write
// objects of API servers, which they reach by kubeFlags, and no replica. The commands inject and uninject change
// manifests.
//
// What comes from replicas and API servers is printed by [Printable] only, and fits a terminal where it is a table. All
// errors end the command with one of the exit codes in usage.go. [Prepare] gives commands their help and usage errors.
package cli

import "github.com/spf13/cobra"

// Commands returns the commands of a binary of this version.
func Commands(version string) []*cobra.Command {
	return []*cobra.Command{
		certsCommand(version), changesCommand(version), clustersCommand(version), drainCommand(version),
		endpointsCommand(version), explainCommand(version), injectCommand(version, nil), linkCommand(version),
		metricsCommand(version), profileCommand(version), releaseCommand(version), reportCommand(version),
		streamsCommand(version), trafficCommand(version), troubleshootCommand(version), undrainCommand(version),
		uninjectCommand(nil), versionCommand(version),
	}
}
