package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// Bounds of a file that describes a fleet.
const (
	maxFleetBytes    = 256 << 10
	maxFleetClusters = 100
	maxContextName   = 253
)

// A FleetCluster is a cluster of a fleet.
type FleetCluster struct {
	Name    string `json:"name"`
	Context string `json:"context,omitempty"` // by which commands reach it; its name if there is none

	// By which Fingerpost reaches the API server, if it is not the address in the kubeconfig.
	APIServerAddress string `json:"apiServerAddress,omitempty"`

	Reads  []string `json:"reads,omitempty"`  // clusters; all others if there is none
	Writes []string `json:"writes,omitempty"` // those of them into which it may write EndpointSlices
}

// ReadFleet reads the file of a fleet, such as
//
//	clusters:
//	- {name: east}
//	- {name: west, context: admin@west, apiServerAddress: "https://west.example:6443"}
//	- {name: edge, reads: [east], writes: [east]}
func ReadFleet(path string) ([]FleetCluster, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--fleet: %w", err)
	}
	defer func() { _ = file.Close() }()

	text, err := io.ReadAll(io.LimitReader(file, maxFleetBytes+1))
	if err == nil && len(text) > maxFleetBytes {
		err = fmt.Errorf("it has more than %d KiB", maxFleetBytes>>10)
	}
	if err != nil {
		return nil, fmt.Errorf("--fleet %s: %w", path, err)
	}

	clusters, err := parseFleet(text)
	if err != nil {
		return nil, fmt.Errorf("--fleet %s: %w", path, err)
	}
	return clusters, nil
}

// parseFleet returns the clusters of a fleet, at least two, each with what the file leaves out.
func parseFleet(text []byte) ([]FleetCluster, error) {
	var file struct {
		Clusters []FleetCluster `json:"clusters"`
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, err
	}

	names := sets.New[string]()
	for _, c := range file.Clusters {
		if names.Has(c.Name) {
			return nil, fmt.Errorf("it has cluster %q twice", c.Name)
		}
		names.Insert(c.Name)
	}

	switch n := len(file.Clusters); {
	case n < 2:
		return nil, errors.New("it needs two clusters or more")
	case n > maxFleetClusters:
		return nil, fmt.Errorf("it has %d clusters, and at most %d can be linked at once", n, maxFleetClusters)
	}

	for i := range file.Clusters {
		if err := file.Clusters[i].complete(names); err != nil {
			return nil, err
		}
	}
	return file.Clusters, nil
}

// complete checks a cluster, and sets what the file leaves out. names are those of the fleet.
func (c *FleetCluster) complete(names sets.Set[string]) error {
	if err := checkName(c.Name); err != nil {
		return err
	}
	if c.Context == "" {
		c.Context = c.Name
	}
	if len(c.Context) > maxContextName || Printable(c.Context) != c.Context {
		return fmt.Errorf("%s: the context is too long, or cannot be printed", c.Name)
	}

	if c.Reads == nil {
		c.Reads = sets.List(names.Clone().Delete(c.Name))
	}

	for list, all := range map[string][]string{"reads": c.Reads, "writes": c.Writes} {
		for i, other := range all {
			switch {
			case !names.Has(other):
				return fmt.Errorf("%s %s %q, which is not in the fleet", c.Name, list, other)
			case other == c.Name:
				return fmt.Errorf("%s %s itself", c.Name, list)
			case slices.Contains(all[:i], other):
				return fmt.Errorf("%s %s %s twice", c.Name, list, other)
			case !slices.Contains(c.Reads, other):
				return fmt.Errorf("%s writes %s, and does not read it", c.Name, other)
			}
		}
	}
	return nil
}

func checkName(name string) error {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return fmt.Errorf("%q cannot name a cluster: a name has up to 63 small letters, digits and dashes, as in "+
			"-cluster-name", name)
	}
	return nil
}

// nameOrFleet requires the name of a cluster, unless a fleet is given.
func (o *linkOptions) nameOrFleet(cmd *cobra.Command, args []string) error {
	if o.fleet != "" {
		return arguments()(cmd, args)
	}
	return arguments("NAME")(cmd, args)
}

// OfOneCluster returns an error if a flag is given that is of one cluster, and not of a fleet.
func OfOneCluster(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s is of one cluster, and --fleet of many", name)
		}
	}
	return nil
}

// writeFleet writes a file for each cluster, with what links to it those that it reads. Nothing is written unless
// every cluster can be read. Each file has tokens of its own.
func (o *linkOptions) writeFleet(cmd *cobra.Command, withLink bool) error {
	err := OfOneCluster(cmd, "context", "into", "api-server-address", "gateway-addresses")
	if err != nil {
		return usageError(cmd, err)
	}
	clusters, err := ReadFleet(o.fleet)
	if err != nil {
		return WithExitCode(ExitUsage, err)
	}

	opened := map[string]*linkable{}
	for _, c := range clusters {
		of := *o
		of.overrides.CurrentContext, of.server = c.Context, c.APIServerAddress
		if opened[c.Name], err = of.open(cmd, c.Name, withLink); err != nil {
			return fmt.Errorf("%s (context %s): %w", c.Name, c.Context, err)
		}
	}

	namespaces := make([]string, len(clusters))
	for i, c := range clusters {
		if namespaces[i], err = opened[c.Name].linksIn(); err != nil && len(c.Reads) > 0 {
			return fmt.Errorf("%s (context %s): %w", c.Name, c.Context, err)
		}
	}

	written := make([]fleetManifests, len(clusters))
	var wg sync.WaitGroup
	for i, c := range clusters {
		wg.Go(func() { written[i] = o.manifestsOf(cmd.Context(), c, namespaces[i], opened) })
	}
	wg.Wait()
	return o.writeFiles(cmd, clusters, written, withLink)
}

// fleetManifests are what is applied to one cluster of a fleet.
type fleetManifests struct {
	text   bytes.Buffer
	tokens tokenEnds
	err    error
}

// manifestsOf makes what links to a cluster those that it reads.
func (o *linkOptions) manifestsOf(
	ctx context.Context, c FleetCluster, namespace string, opened map[string]*linkable,
) (all fleetManifests) {
	var manifests []manifest
	for _, name := range c.Reads {
		more, ends, err := opened[name].manifests(ctx, namespace, slices.Contains(c.Writes, name))
		if err != nil {
			all.err = fmt.Errorf("%s for %s: %w", name, c.Name, err)
			return all
		}
		manifests = append(manifests, more...)
		all.tokens.add(name, ends)
	}
	all.err = o.writeManifests(&all.text, manifests)
	return all
}

// writeFiles writes the files of a fleet, and prints how to apply them.
func (o *linkOptions) writeFiles(
	cmd *cobra.Command, clusters []FleetCluster, written []fleetManifests, withLink bool,
) error {
	var tokens tokenEnds
	for i := range written {
		if written[i].err != nil {
			return written[i].err
		}
		tokens.merge(written[i].tokens)
	}

	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	suffix := "." + o.output
	if !withLink {
		suffix = ".secrets" + suffix // those of gen stay, to be applied again
	}

	for i, target := range clusters {
		if len(target.Reads) == 0 {
			continue
		}
		path := filepath.Join(o.dir, target.Name+suffix)
		if err := os.Chmod(path, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(path, written[i].text.Bytes(), 0o600); err != nil { // it has tokens
			return err
		}
		inContext := shellWord(target.Context)
		fmt.Fprintf(cmd.OutOrStdout(), "kubectl --context %s apply -f %s\n", inContext, shellWord(path))
	}

	tokens.report(cmd.ErrOrStderr())
	return nil
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord returns a text as one word for a shell: what is printed for a fleet may be piped into one.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// tokenEnds are how many tokens end, and the first end.
type tokenEnds struct {
	count   int
	first   time.Time
	cluster string // whose token ends first
}

// add counts a token of a cluster; one without an end is not counted.
func (t *tokenEnds) add(cluster string, end time.Time) {
	if !end.IsZero() {
		t.merge(tokenEnds{1, end, cluster})
	}
}

func (t *tokenEnds) merge(others tokenEnds) {
	if others.count > 0 && (t.count == 0 || others.first.Before(t.first)) {
		t.first, t.cluster = others.first, others.cluster
	}
	t.count += others.count
}

// report writes when tokens end, in one line.
func (t *tokenEnds) report(to io.Writer) {
	const renewal = "'fingerpost link rotate' makes new ones, and 'fingerpost link renew' keeps them valid"
	end := t.first.UTC().Format(time.RFC3339)
	switch t.count {
	case 0:
	case 1:
		fmt.Fprintf(to, "The token of %s is valid until %s: %s.\n", t.cluster, end, renewal)
	default:
		fmt.Fprintf(to, "The first of %d tokens, of %s, is valid until %s: %s.\n", t.count, t.cluster, end, renewal)
	}
}
