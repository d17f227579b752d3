// Package k3d asks k3d, without Docker, what it would make of the files of the kit in e2e/k3d.
package k3d

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/k3d-io/k3d/v5/pkg/config"
	"github.com/k3d-io/k3d/v5/pkg/config/v1alpha5"
	"github.com/k3d-io/k3d/v5/pkg/runtimes"
	k3d "github.com/k3d-io/k3d/v5/pkg/types"
	"github.com/spf13/viper"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kit is the directory of the files.
const kit = "../../e2e/k3d"

var clusters = []string{"east", "west", "north"}

func TestClusters(t *testing.T) {
	ranges := map[netip.Prefix]string{}
	for _, name := range clusters {
		c := load(t, name)
		if c.Name != name {
			t.Errorf("%s.yaml makes a cluster %s", name, c.Name)
		}
		if c.Network.Name != "fingerpost" || !c.Network.External {
			t.Errorf("%s: network %s, which is k3d's own: %t; want the one that run.sh makes", name,
				c.Network.Name, !c.Network.External)
		}
		zones := map[string]bool{}
		for _, node := range c.Nodes {
			switch node.Role {
			case k3d.ServerRole:
				for _, flag := range []string{"--cluster-cidr=", "--service-cidr="} {
					ranges[cidr(t, name, node.Args, flag)] += name + " " + flag + " "
				}
				if len(node.Files) != 1 || !strings.Contains(string(node.Files[0].Content), "kind: Policy") {
					t.Errorf("%s: no audit policy in %s: %v", name, node.Name, node.Files)
				} else if arg := "--kube-apiserver-arg=audit-policy-file=" +
					node.Files[0].Destination; !slices.Contains(node.Args, arg) {
					t.Errorf("%s: the audit policy is not used, there is no %s in %q", name, arg, node.Args)
				}
			case k3d.AgentRole:
				zones[node.K3sNodeLabels["topology.kubernetes.io/zone"]] = true
			default:
				t.Errorf("%s: %s is a %s", name, node.Name, node.Role)
			}
		}
		if len(zones) != 2 || zones[""] {
			t.Errorf("%s: nodes in zones %v, want two", name, zones)
		}
	}
	if len(ranges) != 2*len(clusters) {
		t.Errorf("ranges are used twice: %v", ranges)
	}
	for a := range ranges {
		for b := range ranges {
			if a != b && a.Overlaps(b) {
				t.Errorf("%s (%s) overlaps %s (%s): no flat network", a, ranges[a], b, ranges[b])
			}
		}
	}
}

// load takes a file through all that `k3d cluster create --config` does before it asks Docker.
func load(t *testing.T, name string) *v1alpha5.ClusterConfig {
	t.Helper()
	path := filepath.Join(kit, name+".yaml")
	if err := config.ValidateSchemaFile(path, []byte(v1alpha5.JSONSchema)); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	v := viper.New()
	v.SetConfigFile(path)
	if err := v.ReadInConfig(); err != nil {
		t.Fatal(err)
	}
	simple, err := config.SimpleConfigFromViper(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := config.ProcessSimpleConfig(&simple); err != nil {
		t.Fatal(err)
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := config.TransformSimpleToClusterConfig(t.Context(), runtimes.Docker, simple, absolute)
	if err != nil {
		t.Fatal(err)
	}
	if cluster, err = config.ProcessClusterConfig(*cluster); err != nil {
		t.Fatal(err)
	}
	if err := config.ValidateClusterConfig(t.Context(), runtimes.Docker, *cluster); err != nil {
		t.Fatal(err)
	}
	return cluster
}

func cidr(t *testing.T, name string, args []string, flag string) netip.Prefix {
	t.Helper()
	for _, arg := range args {
		if value, found := strings.CutPrefix(arg, flag); found {
			prefix, err := netip.ParsePrefix(value)
			if err != nil {
				t.Fatalf("%s: %s: %v", name, arg, err)
			}
			return prefix
		}
	}
	t.Fatalf("%s: no %s in %q", name, flag, args)
	return netip.Prefix{}
}
