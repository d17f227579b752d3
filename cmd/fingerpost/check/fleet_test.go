package check

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/federation"
)

// fleetMember is a cluster whose replica reports that it has this name, and which clusters are linked there.
func fleetMember(t *testing.T, own string, linked ...string) *environment {
	t.Helper()
	local := cluster.Status{Name: own, Local: true, State: federation.Live, Synced: true}
	page := debug.ClustersPage{Clusters: []debug.ClusterEntry{{Status: local}}}
	for _, name := range linked {
		status := cluster.Status{Name: name, State: federation.Live, Synced: true, Source: "a Secret"}
		page.Clusters = append(page.Clusters, debug.ClusterEntry{Status: status, Link: "mesh/" + name})
	}
	page.FindProblems(time.Now())
	replica := cli.Replica{Name: "replica", Addr: cmdtest.DebugServer(t, map[string]any{
		"/debug/clusters": page, "/debug/problems": debug.ProblemsPage{}, "/debug/digests": debug.DigestsPage{},
	})}

	server := httptest.NewServer(&clusterAPI{objects: map[string]any{
		"/api/v1/namespaces/linkerd": corev1.Namespace{TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}},
	}})
	t.Cleanup(server.Close)
	return &environment{
		direct: func() bool { return false },
		access: func() (*rest.Config, error) { return &rest.Config{Host: server.URL}, nil },
		open:   func(context.Context) ([]cli.Replica, error) { return []cli.Replica{replica}, nil },
		ways:   func([]cli.Replica) ([]cli.Way, error) { return nil, nil },
	}
}

// Each cluster of a fleet is checked by its own context, and compared with the file. The worst comes first, and one
// line reports how it stands.
func TestFleet(t *testing.T) {
	members := map[string]*environment{
		"east": fleetMember(t, "east", "west"),
		"west": fleetMember(t, "wset", "elsewhere"),
		"north": {
			direct: func() bool { return false },
			access: func() (*rest.Config, error) { return nil, errors.New("no such context") },
		},
	}
	clusters := []cli.FleetCluster{
		{Name: "east", Context: "x", Reads: []string{"west"}},
		{Name: "north", Context: "admin@north", Reads: []string{"east"}},
		{Name: "west", Context: "west", Reads: []string{"east", "north"}},
	}
	run := fleetRun{
		runner: func() *runner { return newRunner(0, 10*time.Second) },
		environment: func(c cli.FleetCluster) *environment {
			e := members[c.Name]
			e.fleet = &c
			return e
		},
	}

	reports := run.run(t.Context(), clusters)
	var order, wrong []string
	for _, report := range reports {
		order = append(order, report.Name)
		for _, in := range report.Categories {
			for _, c := range in.Checks {
				if c.Result == resultError {
					wrong = append(wrong, report.Name+": "+c.Description+": "+c.Error)
				}
			}
		}
	}
	want := []string{
		"west: it has the name that the fleet has for it: its name is wset: set cluster.name of the chart, or correct the file",
		"west: all that it reads is linked: east, north: not linked: apply what 'fingerpost link gen --fleet' writes " +
			"for this cluster",
		"north: the API server answers: no such context",
	}
	if diff := cmp.Diff(want, wrong); diff != "" || strings.Join(order, " ") != "west north east" {
		t.Errorf("%s: (-want +got):\n%s", order, diff)
	}

	var out bytes.Buffer
	err := run.finish(&out, reports)
	const summary = "\nStatus check results are ×: 3 clusters, 2 with failures, 0 with warnings\n"
	if text := out.String(); !errors.Is(err, ErrFailed) || !strings.HasSuffix(text, summary) ||
		!strings.HasPrefix(text, "× west (context west): ") || !strings.Contains(text, "\n√ east (context x): ") {
		t.Errorf("%v\n%s", err, text)
	}

	out.Reset()
	run.json = true
	err = run.finish(&out, reports)
	page := cmdtest.DecodeJSON[struct {
		Success  bool
		Clusters []struct {
			Name, Context string
			checkReport
		}
	}](t, out.String())
	if !errors.Is(err, ErrFailed) || page.Success || len(page.Clusters) != 3 || page.Clusters[0].Context != "west" ||
		page.Clusters[0].Success || !page.Clusters[2].Success || len(page.Clusters[2].Categories) < 3 {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// A fleet is the file's, with contexts that do not exist too, and no flag beside it names one cluster.
func TestFleetFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(path, []byte("clusters: [{name: a, context: c}, {name: b}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := cmdtest.WriteKubeconfig(t, "https://unused.example")
	out, err := fingerpostCheck(t, "check", "--fleet", path, "--kubeconfig", kubeconfig, "--wait", "0s")
	if !errors.Is(err, ErrFailed) || !strings.Contains(out, "× a (context c): 1 check, 1 failed, 0 warnings\n") ||
		!strings.Contains(out, `context "c" does not exist`) {
		t.Errorf("%v\n%s", err, out)
	}
	for args, want := range map[string]string{
		"--fleet " + path + " --context c":      "--context is of one cluster",
		"--fleet " + path + " --debug-addr a:1": "--debug-addr is of one cluster",
		"--fleet /nonexistent":                  "--fleet: open /nonexistent",
	} {
		_, err := fingerpostCheck(t, append([]string{"check"}, strings.Fields(args)...)...)
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
