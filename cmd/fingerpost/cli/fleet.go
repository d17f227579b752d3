package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// A fleetCluster is a cluster of a fleet, and the context by which the command reaches it.
type fleetCluster struct{ name, context string }

// nameOrFleet requires the name of a cluster, unless a fleet is given.
func (o *linkOptions) nameOrFleet(cmd *cobra.Command, args []string) error {
	if len(o.fleet) > 0 {
		return arguments()(cmd, args)
	}
	return arguments("NAME")(cmd, args)
}

// members returns the clusters of the fleet, at least two.
func (o *linkOptions) members(cmd *cobra.Command) (all []fleetCluster, err error) {
	for _, name := range []string{"context", "api-server-address", "gateway-addresses"} {
		if cmd.Flags().Changed(name) {
			return nil, fmt.Errorf("--%s is of one cluster, and --fleet of many", name)
		}
	}

	seen := map[string]bool{}
	for _, item := range o.fleet {
		name, context, both := strings.Cut(item, "=")
		if !both {
			context = name
		}
		if err := o.checkName(name); err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, fmt.Errorf("--fleet names %s twice", name)
		}

		seen[name] = true
		all = append(all, fleetCluster{name, context})
	}

	if len(all) < 2 {
		return nil, errors.New("--fleet needs two clusters or more")
	}
	return all, nil
}

// writeFleet writes a file for each cluster, with what links all others to it. Nothing is written unless
// every cluster can be read. Each file has tokens of its own.
func (o *linkOptions) writeFleet(cmd *cobra.Command, withLink bool) error {
	all, err := o.members(cmd)
	if err != nil {
		return usageError(cmd, err)
	}

	files := make([]bytes.Buffer, len(all))
	for position, target := range all {
		var manifests []manifest
		for _, linked := range all {
			if linked == target {
				continue
			}
			of := *o
			of.overrides.CurrentContext = linked.context
			more, err := of.manifestsFor(cmd, linked.name, withLink)
			if err != nil {
				return fmt.Errorf("%s (context %s): %w", linked.name, linked.context, err)
			}
			manifests = append(manifests, more...)
		}

		if err := o.writeManifests(&files[position], manifests); err != nil {
			return err
		}
	}

	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	suffix := "." + o.output
	if !withLink {
		suffix = ".secrets" + suffix // those of gen stay, to be applied again
	}

	for i, target := range all {
		path := filepath.Join(o.dir, target.name+suffix)
		if err := os.Chmod(path, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(path, files[i].Bytes(), 0o600); err != nil { // it has tokens
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "kubectl --context %s apply -f %s\n", target.context, path)
	}
	return nil
}
