package cli

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/links"
)

// writeFile writes a file of a test, and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// linked describes what a file links: cluster, namespace, token, address and whether it is written into.
func linked(t *testing.T, path string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]string{}
	for document := range strings.SplitSeq(string(text), "---\n") {
		var secret corev1.Secret
		if err := yaml.Unmarshal([]byte(document), &secret); err == nil && secret.Kind == "Secret" {
			config, err := links.Credentials(secret.Data[links.KubeconfigKey], anyHost)
			if err != nil {
				t.Fatal(err)
			}
			host := strings.ReplaceAll(config.Host, "127.0.0.1", "loopback")
			all = append(all, fmt.Sprintf("%s in %s by %s", clusterOf(&secret), secret.Namespace, config.BearerToken))
			if !strings.Contains(host, "loopback") {
				all[len(all)-1] += " at " + host
			}
			continue
		}
		var link unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &link.Object); err != nil {
			t.Fatal(err)
		}
		written[link.GetName()] = link.GetAnnotations()[links.SlicesKey]
	}
	for i, text := range all {
		name, _, _ := strings.Cut(text, " ")
		if value, has := written[name]; !has {
			all[i] += ", no Link"
		} else if value != "" {
			all[i] += ", slices " + value
		}
	}
	return all
}

// A fleet is linked by a file for each cluster that reads others, with what links those to it, in the namespace where
// it reads Links.
func TestLinkFleet(t *testing.T) {
	kubeconfig := kubeconfigOf(t, map[string]map[string]any{
		"east": deployments([]string{"serve", "-link-namespace=easts"}), "it'swest": deployments([]string{"serve"}),
		"admin@north": nil,
	})
	fleet := writeFile(t, "fleet.yaml", `clusters:
- {name: east, apiServerAddress: "https://east.example"}
- {name: west, context: "it'swest", reads: [east], writes: [east]}
- {name: north, context: admin@north, reads: []}
`)
	to := filepath.Join(t.TempDir(), "links")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "east.yaml"), nil, 0o644); err != nil { // that others may read
		t.Fatal(err)
	}

	const east, fromWest, fromNorth = "token-of-east", "token-of-it'swest", "token-of-admin@north"
	for verb, suffix := range map[string]string{"gen": ".yaml", "rotate": ".secrets.yaml"} {
		out, err := fingerpost(t, "link", verb, "--kubeconfig", kubeconfig, "--fleet", fleet, "--dir", to)
		want := fmt.Sprintf("kubectl --context east apply -f %[1]s/east%[2]s\n"+
			`kubectl --context 'it'\''swest' apply -f %[1]s/west%[2]s`+"\n", to, suffix)
		const ends = "The first of 3 tokens, of east, is valid until 2030-01-04T00:00:00Z: "
		if err != nil || !strings.Contains(out, want) || strings.Count(out, "valid until") != 1 ||
			!strings.Contains(out, ends) || strings.Count(out, "rejects the kubeconfig") != 2 {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}

		wanted := map[string][]string{
			"east": {"north in easts by " + fromNorth, "west in easts by " + fromWest},
			"west": {"east in fingerpost by " + east + " at https://east.example, slices enabled"},
		}
		if verb == "rotate" {
			wanted = map[string][]string{
				"east": {"north in easts by " + fromNorth + ", no Link", "west in easts by " + fromWest + ", no Link"},
				"west": {"east in fingerpost by " + east + " at https://east.example, no Link"},
			}
		}
		for name, want := range wanted {
			path := filepath.Join(to, name+suffix)
			if diff := cmp.Diff(want, linked(t, path)); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", verb, path, diff)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s can be read by others: %v", path, info.Mode())
			}
		}
		if _, err := os.Stat(filepath.Join(to, "north"+suffix)); !os.IsNotExist(err) {
			t.Errorf("%s: north reads nothing, and has a file: %v", verb, err)
		}
	}
}

// Nothing is written unless every cluster can be read, and it is known where each reads Links.
func TestLinkFleetWritesAllOrNothing(t *testing.T) {
	kubeconfig := kubeconfigOf(t, map[string]map[string]any{"east": deployments([]string{"serve"}), "bare": nil})
	to := filepath.Join(t.TempDir(), "links")
	for other, want := range map[string]string{
		"nowhere": "nowhere (context nowhere): ",
		"bare":    "bare (context bare): in which namespace does it read Links? Set --link-namespace: ",
	} {
		fleet := writeFile(t, "fleet.yaml", "clusters: [{name: east}, {name: "+other+"}]")
		out, err := fingerpost(t, "link", "gen", "--kubeconfig", kubeconfig, "--fleet", fleet, "--dir", to)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\n%s", other, err, out)
		}
	}
	if _, err := os.Stat(to); !os.IsNotExist(err) {
		t.Errorf("something was written: %v", err)
	}
}

// What is wrong with a fleet, or with flags beside it, is a wrong command line.
func TestLinkFleetUsage(t *testing.T) {
	fleet := writeFile(t, "fleet.yaml", "clusters: [{name: a}, {name: b}]")
	for args, want := range map[string]string{
		"--fleet /nonexistent":                 "--fleet: open /nonexistent: ",
		"--fleet " + writeFile(t, "f", "[]"):   "--fleet /",
		"--fleet " + fleet + " --context c":    "--context is of one cluster",
		"--fleet " + fleet + " --into c":       "--into is of one cluster",
		"a --fleet " + fleet:                   `unexpected argument "a"`,
		"":                                     "NAME is missing",
		"a.b":                                  `"a.b" cannot name a cluster`,
		"a --preset istio":                     "it is fingerpost or linkerd",
		"a --token-duration 1m":                "--token-duration 1m0s is too short",
		"--token-duration 1m --fleet " + fleet: "--token-duration 1m0s is too short",
		"a --fleet " + fleet + " --output xml": "it is yaml or json",
		"--fleet " + fleet + " --api-server-address https://a": "--api-server-address is of one cluster",
	} {
		out, err := fingerpost(t, append([]string{"link", "gen"}, strings.Fields(args)...)...)
		if ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}

// The file of a fleet is read as it is meant, or what is wrong with it is named.
func TestReadFleet(t *testing.T) {
	many := "clusters:\n" + strings.Repeat("- {}\n", maxFleetClusters+1)
	for i := range maxFleetClusters + 1 {
		many = strings.Replace(many, "{}", fmt.Sprintf("{name: c%d}", i), 1)
	}
	for text, want := range map[string]string{
		"":                                                         "it needs two clusters or more",
		"clusters: [{name: a}]":                                    "it needs two clusters or more",
		"clusters: [{name: a}, {name: a}]":                         `it has cluster "a" twice`,
		"clusters: [{name: East}, {name: b}]":                      `"East" cannot name a cluster`,
		"clusters: [{}, {name: b}]":                                `"" cannot name a cluster`,
		"clusters: [{name: a}, {name: b}]\nx: 1":                   `unknown field "x"`,
		"clusters: [{name: a, read: [b]}]":                         `unknown field "read"`,
		"clusters: [{name: a, name: b}]":                           `key "name" already set`,
		"clusters: {a: {}}":                                        "cannot unmarshal",
		"clusters: [{name: a, reads: [c]}, {name: b}]":             `a reads "c", which is not in the fleet`,
		"clusters: [{name: a, reads: [a]}, {name: b}]":             "a reads itself",
		"clusters: [{name: a, reads: [b, b]}, {name: b}]":          "a reads b twice",
		"clusters: [{name: a, reads: [], writes: [b]}, {name: b}]": "a writes b, and does not read it",
		"clusters: [{name: a, context: \"x\\ny\"}, {name: b}]":     "a: the context is too long, or cannot be printed",
		many: "it has 101 clusters, and at most 100",
		"# " + strings.Repeat("x", maxFleetBytes):                    "it has more than 256 KiB",
		"clusters: [{name: a, context: x, writes: [b]}, {name: b}]":  "a x [b] [b]; b b [a] []",
		"clusters: [{name: a, reads: []}, {name: b}, {name: c}]":     "a a [] []; b b [a c] []; c c [a b] []",
		"clusters: [{name: a, reads: [c, b]}, {name: b}, {name: c}]": "a a [c b] []; b b [a c] []; c c [a b] []",
	} {
		clusters, err := ReadFleet(writeFile(t, "fleet.yaml", text))
		var all []string
		for _, c := range clusters {
			all = append(all, fmt.Sprint(c.Name, " ", c.Context, " ", c.Reads, " ", c.Writes))
		}
		got := strings.Join(all, "; ")
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%.80q: %s, want %s", text, got, want)
		}
	}
}

// The file on the page of fleets is one.
func TestFleetOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/fleets.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	clusters, err := parseFleet([]byte(text))
	if err != nil || len(clusters) != 5 || clusters[1].APIServerAddress == "" || len(clusters[3].Writes) != 1 {
		t.Errorf("%v: %+v\n%s", err, clusters, text)
	}
}

// Whatever a file has, of a fleet that is accepted every cluster can be named, reads others only, and writes none that
// it does not read; and what it leaves out is the same once it is written down.
func FuzzFleet(f *testing.F) {
	for _, text := range []string{
		"clusters: [{name: a}, {name: b, context: x, apiServerAddress: 'https://b'}]",
		"clusters:\n- &a {name: a, reads: [b], writes: [b]}\n- {<<: *a, name: b, reads: []}\n",
		`{"clusters": [{"name": "a", "reads": null}, {"name": "b"}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		clusters, err := parseFleet(text)
		if err != nil {
			return
		}
		names := map[string]bool{}
		for _, c := range clusters {
			names[c.Name] = true
		}
		if len(clusters) < 2 || len(clusters) != len(names) {
			t.Fatalf("%d clusters have the names %v", len(clusters), slices.Collect(maps.Keys(names)))
		}
		for _, c := range clusters {
			reads := sets.New(c.Reads...)
			if checkName(c.Name) != nil || c.Context == "" || Printable(c.Context) != c.Context ||
				len(reads) != len(c.Reads) || reads.Has(c.Name) || !reads.HasAll(c.Writes...) {
				t.Errorf("%+v is accepted", c)
			}
			for _, other := range c.Reads {
				if !names[other] {
					t.Errorf("%s reads %q", c.Name, other)
				}
			}
		}

		// A list that is empty and one that is left out differ, and only the former is written as such.
		complete := slices.DeleteFunc(slices.Clone(clusters), func(c FleetCluster) bool { return len(c.Reads) == 0 })
		if len(complete) != len(clusters) {
			return
		}
		written, err := yaml.Marshal(map[string]any{"clusters": clusters})
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseFleet(written)
		if diff := cmp.Diff(clusters, again); err != nil || diff != "" {
			t.Errorf("%v (-read +written and read again):\n%s", err, diff)
		}
	})
}
