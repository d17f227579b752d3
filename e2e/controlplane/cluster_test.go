package controlplane

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsBecomeEndpoints(t *testing.T) {
	cluster := commonCluster(t)
	must(t, cluster.Apply(t.Context(), app("endpoints", 4)))
	found, err := cluster.WaitEndpoints(t.Context(), "endpoints", "web", 4)
	must(t, err)

	perZone := make(map[string]int)
	for _, endpoint := range found[0].Endpoints {
		perZone[*endpoint.Zone]++
		if want := *endpoint.Zone + "-1"; *endpoint.NodeName != want {
			t.Errorf("an endpoint in zone %s is on node %s, want %s", *endpoint.Zone, *endpoint.NodeName, want)
		}
		address := netip.MustParseAddr(endpoint.Addresses[0])
		if !cluster.PodCIDR().Contains(address) {
			t.Errorf("the pod address %v is not in %v", address, cluster.PodCIDR())
		}
	}
	if diff := cmp.Diff(map[string]int{"common-a": 2, "common-b": 2}, perZone); diff != "" {
		t.Errorf("endpoints per zone (-want +got):\n%s", diff)
	}

	must(t, cluster.Scale(t.Context(), "endpoints", "web", 1))
	_, err = cluster.WaitEndpoints(t.Context(), "endpoints", "web", 1)
	must(t, err)
}

func TestUnreadyPods(t *testing.T) {
	cluster := commonCluster(t)
	must(t, cluster.Apply(t.Context(), app("unready", 2)))
	_, err := cluster.WaitEndpoints(t.Context(), "unready", "web", 2)
	must(t, err)
	kubectlIn := func(args ...string) {
		t.Helper()
		_, err := cluster.Kubectl(t.Context(), append([]string{"--namespace=unready"}, args...)...)
		must(t, err)
	}
	kubectlIn("annotate", "pod", "--selector=app=web", Unready+"=true")
	found, err := cluster.WaitEndpoints(t.Context(), "unready", "web", 0)
	must(t, err)
	if got := len(found[0].Endpoints); got != 2 {
		t.Errorf("%d endpoints while the pods are not ready, want 2 that are not ready", got)
	}
	kubectlIn("annotate", "pod", "--selector=app=web", Unready+"-")
	_, err = cluster.WaitEndpoints(t.Context(), "unready", "web", 2)
	must(t, err)

	// As the control plane does to the pods of a lost node.
	pods, err := cluster.client().typed.CoreV1().Pods("unready").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	kubectlIn("patch", "pod", pods.Items[0].Name, "--subresource=status",
		`--patch={"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	_, err = cluster.WaitEndpoints(t.Context(), "unready", "web", 2)
	must(t, err)
}

func TestHostNetworkPodsHaveTheNodeAddress(t *testing.T) {
	cluster := commonCluster(t)
	manifest := strings.Replace(string(app("hostnetwork", 1)), "      containers:",
		"      hostNetwork: true\n      containers:", 1)
	must(t, cluster.Apply(t.Context(), []byte(manifest)))
	found, err := cluster.WaitEndpoints(t.Context(), "hostnetwork", "web", 1)
	must(t, err)
	if diff := cmp.Diff([]string{"192.0.2.1"}, found[0].Endpoints[0].Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestJobsComplete(t *testing.T) {
	cluster := commonCluster(t)
	must(t, cluster.Apply(t.Context(), []byte(`
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: once, image: example.test/once}]}
`)))
	_, err := cluster.Kubectl(t.Context(), "wait", "--for=condition=complete", "job/once", "--timeout=60s")
	must(t, err)
}

func TestWaitEndpointsTellsWhatItSaw(t *testing.T) {
	cluster := commonCluster(t)
	must(t, cluster.Apply(t.Context(), app("seen", 1)))
	found, err := cluster.WaitEndpoints(t.Context(), "seen", "web", 1)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = cluster.WaitEndpoints(ctx, "seen", "web", 7)
	if err == nil {
		t.Fatal("one pod became seven addresses")
	}
	for _, want := range []string{"7 ready", "seen/web", `"common"`, found[0].Endpoints[0].Addresses[0]} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

func TestThreeClusters(t *testing.T) {
	clusters := AllForTest(t, Options{Name: "east"}, Options{Name: "west"},
		Options{Name: "north", PodCIDR: "10.250.0.0/16"})
	ranges := make(map[netip.Prefix]bool)
	for _, cluster := range clusters {
		must(t, cluster.Apply(t.Context(), app("shop", 2)))
		found, err := cluster.WaitEndpoints(t.Context(), "shop", "web", 2)
		must(t, err)
		if diff := cmp.Diff([]string{cluster.Name() + "-a", cluster.Name() + "-b"}, zones(found)); diff != "" {
			t.Errorf("zones of %s (-want +got):\n%s", cluster.Name(), diff)
		}
		ranges[cluster.PodCIDR()] = true
		ranges[cluster.ServiceCIDR()] = true
	}
	if len(ranges) != 6 {
		t.Errorf("3 clusters have %d ranges, want 6: %v", len(ranges), ranges)
	}
	if got, want := clusters[2].PodCIDR(), netip.MustParsePrefix("10.250.0.0/16"); got != want {
		t.Errorf("the pod range is %v, want %v as asked for", got, want)
	}
}

func TestStop(t *testing.T) {
	cluster, err := Start(t.Context(), Options{Light: true})
	must(t, err)
	if running := processesOf(t, cluster.Dir()); len(running) != 2 {
		t.Errorf("a light cluster runs %v, want 2 processes", running)
	}
	proxy, err := cluster.NewProxy()
	must(t, err)
	dir := cluster.Dir()
	for range 2 {
		must(t, cluster.Stop())
	}
	if running := processesOf(t, dir); len(running) > 0 {
		t.Errorf("after Stop there are still %v", running)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Stop the state directory is still there: %v", err)
	}
	if err := proxy.Pass(); err == nil {
		t.Error("a proxy of a stopped cluster can be used")
	}
	for what, err := range map[string]error{
		"restart": cluster.Restart(t.Context()),
		"kubectl": second(cluster.Kubectl(t.Context(), "version")),
		"proxy":   second(cluster.NewProxy()),
	} {
		if !errors.Is(err, errStopped) {
			t.Errorf("%s with a stopped cluster: %v, want %v", what, err, errStopped)
		}
	}
}

func TestChosenDirectoriesStay(t *testing.T) {
	dir, logs := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "logs")
	cluster := ForTest(t, Options{Name: "kept", Light: true, Dir: dir, Logs: logs})
	must(t, cluster.Stop())
	for _, path := range []string{filepath.Join(dir, "etcd"), filepath.Join(logs, "kept-kube-apiserver.log")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := Start(t.Context(), Options{Light: true, Dir: dir}); err == nil ||
		!strings.Contains(err.Error(), "not empty") {
		t.Errorf("start in a directory with state: %v, want a refusal", err)
	}
}

func TestStartTellsWhoFailed(t *testing.T) {
	binaries := t.TempDir()
	// An API server that gives up, between an etcd that works and an end.
	works, err := Binaries(t.Context(), os.Stderr)
	must(t, err)
	must(t, os.Symlink(filepath.Join(works, "kube"), filepath.Join(binaries, "etcd")))
	script := "#!/bin/sh\necho the hard disk is full of eels >&2\nexit 3\n"
	must(t, os.WriteFile(filepath.Join(binaries, "kube-apiserver"), []byte(script), 0o700))

	before := addressRangesInUse()
	_, err = Start(t.Context(), Options{Name: "doomed", Binaries: binaries})
	if err == nil {
		t.Fatal("the cluster started without an API server")
	}
	for _, want := range []string{`"doomed"`, "kube-apiserver has ended", "exit status 3", "full of eels"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if after := addressRangesInUse(); after != before {
		t.Errorf("a failed start keeps %d address ranges", after-before)
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	for name, options := range map[string]Options{
		"name":          {Name: "No Label"},
		"zone":          {Zones: []string{"a/b"}},
		"node address":  {NodeIP: "127.0.0.1"},
		"nodes":         {NodesPerZone: -1},
		"pod range":     {PodCIDR: "10.9.0.0"},
		"range overlap": {PodCIDR: commonCluster(t).PodCIDR().String()},
	} {
		t.Run(name, func(t *testing.T) {
			if cluster, err := Start(t.Context(), options); err == nil {
				must(t, cluster.Stop())
				t.Errorf("a cluster with %+v started", options)
			}
		})
	}
}

func addressRangesInUse() int {
	addressRanges.mu.Lock()
	defer addressRanges.mu.Unlock()
	return len(addressRanges.used)
}

// zones returns the zones of all endpoints, each once.
func zones(list []discoveryv1.EndpointSlice) []string {
	var zones []string
	for _, slice := range list {
		for _, endpoint := range slice.Endpoints {
			zones = append(zones, *endpoint.Zone)
		}
	}
	slices.Sort(zones)
	return slices.Compact(zones)
}
