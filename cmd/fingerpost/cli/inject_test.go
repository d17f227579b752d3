package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// TestCases are the contract cases of the command line of injection that are about what it reads and prints.
func TestCases(t *testing.T) {
	t.Run("IJ160", testInjectFile)
	t.Run("IJ161", testInjectOtherKinds)
	t.Run("IJ162", testInjectSources)
	t.Run("IJ166", testInjectRefused)
	t.Run("IJ168", testInjectIngress)
	t.Run("IJ169", testInjectControlPlane)
	t.Run("IJ171", testInjectJSON)
	t.Run("IJ181", testInjectBroken)
}

const (
	deploymentX = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: x
spec:
  template:
    spec:
      containers:
      - name: app
        image: app:1
`
	deploymentXInjected = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: x
spec:
  template:
    spec:
      containers:
      - name: app
        image: app:1
    metadata:
      annotations:
        linkerd.io/inject: enabled
`
	configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"
)

// injected is what a command has made of manifests.
type injected struct {
	out, report string
	err         error
}

// runInjection runs a command that reads no cluster; stdin is for an argument -.
func runInjection(t *testing.T, stdin string, args ...string) injected {
	t.Helper()
	cmd := command(args...)
	var out, report bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&report)
	err := cmd.ExecuteContext(t.Context())
	return injected{out.String(), report.String(), err}
}

func injectText(t *testing.T, stdin string, flags ...string) injected {
	t.Helper()
	return runInjection(t, stdin, append([]string{"inject", "--ignore-cluster", "-"}, flags...)...)
}

// want compares all of a result; the error is one with an exit code.
func (r injected) want(t *testing.T, out, report string, code int) {
	t.Helper()
	if diff := cmp.Diff(out, r.out); diff != "" {
		t.Errorf("stdout (-want +got) %s", diff)
	}
	if diff := cmp.Diff(report, r.report); diff != "" {
		t.Errorf("stderr (-want +got) %s", diff)
	}
	if ExitCode(r.err) != code {
		t.Errorf("exit code %d, want %d: %v", ExitCode(r.err), code, r.err)
	}
}

func writeBelow(t *testing.T, directory, name, text string) string {
	t.Helper()
	path := filepath.Join(directory, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func testInjectFile(t *testing.T) {
	path := writeBelow(t, t.TempDir(), "x.yaml", deploymentX)
	runInjection(t, "", "inject", path, "--ignore-cluster").
		want(t, deploymentXInjected, "deployment \"x\" injected\n", 0)
}

func testInjectOtherKinds(t *testing.T) {
	const all = "kind: Namespace\napiVersion: v1\nmetadata:\n  name: shop\n---\n" +
		"kind: Service\napiVersion: v1\nmetadata:\n  name: s\n---\n" + configMap
	injectText(t, all, "--opaque-ports=3306").want(t,
		"kind: Namespace\napiVersion: v1\nmetadata:\n  name: shop\n  annotations:\n"+
			"    config.linkerd.io/opaque-ports: \"3306\"\n    linkerd.io/inject: enabled\n---\n"+
			"kind: Service\napiVersion: v1\nmetadata:\n  name: s\n  annotations:\n"+
			"    config.linkerd.io/opaque-ports: \"3306\"\n---\n"+configMap,
		"namespace \"shop\" annotated\nservice \"s\" annotated\n", 0)

	injectText(t, configMap, "-v").want(t, configMap, "configmap \"c\" unchanged\n", 0)
}

func testInjectSources(t *testing.T) {
	const list = `{"apiVersion": "v1", "kind": "List", "items": [
		{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}},
		{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}},
		{"apiVersion": "v1", "kind": "List", "items": [
			{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
		]}
	]}`
	const three = "pod \"p\" injected\nconfigmap \"c\" unchanged\nnamespace \"n\" annotated\n"
	const one = "deployment \"x\" injected\n"
	report := func(want string, got injected) {
		t.Helper()
		if got.report != want || got.err != nil {
			t.Errorf("%q, want %q: %v", got.report, want, got.err)
		}
	}
	report(three, injectText(t, list, "-v"))
	report(one+one, injectText(t, "# first\n---\n"+deploymentX+"--- # second\n"+deploymentX))

	directory := t.TempDir()
	writeBelow(t, directory, "b/c.yml", deploymentX)
	writeBelow(t, directory, "a.json", list)
	writeBelow(t, directory, "README.md", "- not: [a manifest")
	report(three+one, runInjection(t, "", "inject", "--ignore-cluster", "-v", directory))

	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://127.0.0.1/", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte(deploymentX))
	}))
	defer server.Close()
	get := func(url string) (string, error) {
		of := injectCommand("test", server.Client())
		root := cmdtest.Root([]*cobra.Command{of}, "inject", "--ignore-cluster", url)
		return cmdtest.Execute(t, root)
	}
	if out, err := get(server.URL + "/x"); err != nil || out != deploymentXInjected+one {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := get(server.URL + "/away"); err == nil || !strings.Contains(err.Error(), "not https") {
		t.Errorf("away from https: %v\n%s", err, out)
	}
	got := runInjection(t, "", "inject", "--ignore-cluster", "http://"+server.Listener.Addr().String())
	if ExitCode(got.err) != ExitUsage || got.out != "" {
		t.Errorf("http: exit code %d, %v", ExitCode(got.err), got)
	}
}

func testInjectRefused(t *testing.T) {
	const text = "kind: Pod\napiVersion: v1\nmetadata: {name: p,   annotations: {linkerd.io/inject: disabled}}\nspec: {}\n"
	injectText(t, text).want(t, text,
		"‼ pod \"p\": linkerd.io/inject is disabled\npod \"p\" skipped\n", 0)
}

func testInjectIngress(t *testing.T) {
	injectText(t, deploymentX, "--ingress").want(t,
		strings.ReplaceAll(deploymentXInjected, "enabled", "ingress"), "deployment \"x\" injected\n", 0)
}

func testInjectControlPlane(t *testing.T) {
	text := strings.Replace(deploymentX, "    spec:",
		"    metadata:\n      labels:\n        linkerd.io/control-plane-component: destination\n    spec:", 1)
	got := injectText(t, text+"---\n"+configMap)
	got.want(t, configMap, "× stdin, document 1: deployment \"x\": it belongs to the control plane, which is injected "+
		"with --manual only\n", ExitNo)

	certificate, _ := cmdtest.Certificate(t, "root", 1)
	anchors := writeBelow(t, t.TempDir(), "anchors.pem", string(certificate))
	got = injectText(t, text, "--manual", "--trust-anchors", anchors, "--proxy-version", "edge-1")
	if got.err != nil || !strings.Contains(got.out, "image: cr.l5d.io/linkerd/proxy:edge-1\n") {
		t.Errorf("%v %s\n%s", got.err, got.report, got.out)
	}
}

func testInjectJSON(t *testing.T) {
	got := injectText(t, deploymentX+"---\n# nothing\n---\n"+deploymentX, "-o", "json")
	decoder := json.NewDecoder(strings.NewReader(got.out))
	want, err := yaml.YAMLToJSON([]byte(deploymentXInjected))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var object json.RawMessage
		var flat bytes.Buffer
		if err := decoder.Decode(&object); err != nil {
			t.Fatalf("%v\n%s", err, got.out)
		}
		if err := json.Compact(&flat, object); err != nil || flat.String() != string(want) {
			t.Errorf("%v %s, want %s", err, flat.String(), want)
		}
	}
	if decoder.More() || got.err != nil {
		t.Errorf("more than two: %v", got)
	}
}

func testInjectBroken(t *testing.T) {
	const unknown = "kind: What\nspec: {metadata: 1}\n"
	got := injectText(t, deploymentX+"---\na: [\n---\n"+unknown)
	if got.out != deploymentXInjected+"---\n"+unknown || ExitCode(got.err) != ExitNo ||
		!strings.Contains(got.report, "× stdin, document 2: ") {
		t.Errorf("exit code %d %s\n%s", ExitCode(got.err), got.report, got.out)
	}
}

// What no Pod can be injected with is left out, and reported.
func TestInjectFails(t *testing.T) {
	for spec, want := range map[string]string{
		"hostNetwork: true":                            "the Pod uses the network of its node",
		"containers: [{name: istio-proxy}]":            "the Pod has a proxy already",
		"initContainers: [{ports: [{protocol: UDP}]}]": "a container has a port of UDP, which no proxy takes",
		"containers: 7":                                "it cannot be read: ",
	} {
		got := injectText(t, "kind: Pod\napiVersion: v1\nmetadata: {name: \"p\\e[2J\"}\nspec: {"+spec+"}\n")
		if got.out != "" || ExitCode(got.err) != ExitNo || !strings.Contains(got.report, want) ||
			strings.Contains(got.report, "\x1b") {
			t.Errorf("%s: %v %q %s", spec, got.err, got.report, got.out)
		}
	}
}

// Flags become annotations where they differ from what the mesh was installed with.
func TestInjectFlags(t *testing.T) {
	values := "linkerdVersion: edge-1\nproxy: {logLevel: debug, image: {version: edge-2}}\n" +
		"identity: {serviceAccountTokenProjection: false}\n"
	certificate, _ := cmdtest.Certificate(t, "root", 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data := map[string]map[string]string{
			"/api/v1/namespaces/mesh/configmaps/" + linkerd.ConfigName:  {linkerd.ConfigValuesKey: values},
			"/api/v1/namespaces/mesh/configmaps/" + linkerd.AnchorsName: {linkerd.AnchorsKey: string(certificate)},
		}[r.URL.Path]
		if data == nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "ConfigMap", "apiVersion": "v1", "data": data})
	}))
	defer server.Close()
	run := func(stdin string, args ...string) injected {
		return runInjection(t, stdin, append([]string{
			"inject", "-", "--kubeconfig", cmdtest.WriteKubeconfig(t, server.URL), "-l", "mesh",
		}, args...)...)
	}

	got := run(deploymentX, "--proxy-log-level=debug", "--proxy-version=edge-2", "--image-pull-policy=IfNotPresent",
		"--proxy-cpu=100m", "--native-sidecar", "--opaque-ports=http,1-3", "--wait-before-exit-seconds=0")
	got.want(t, strings.Replace(deploymentXInjected, "        linkerd.io/inject",
		"        config.linkerd.io/opaque-ports: http,1-3\n        config.linkerd.io/proxy-cpu-request: 100m\n"+
			"        config.linkerd.io/proxy-enable-native-sidecar: \"true\"\n        linkerd.io/inject", 1),
		"deployment \"x\" injected\n", 0)

	got = run(strings.Replace(deploymentX, "    spec:", "    metadata:\n      annotations:\n        "+
		"config.linkerd.io/proxy-log-level: warn\n    spec:", 1), "--proxy-log-level=debug")
	if !strings.Contains(got.out, "config.linkerd.io/proxy-log-level: debug\n") {
		t.Errorf("an annotation that a flag overrides: %s", got.out)
	}
	got = run(deploymentX, "--manual")
	if got.err != nil || !strings.Contains(got.out, "image: cr.l5d.io/linkerd/proxy:edge-2\n") ||
		!strings.Contains(got.out, "linkerd.io/created-by: fingerpost/cli test\n") {
		t.Errorf("%v\n%s", got.err, got.out)
	}
	got = run(strings.Replace(deploymentX, "    spec:\n", "    spec:\n      automountServiceAccountToken: false\n", 1))
	if got.out != "" || !strings.Contains(got.report, "no token of the ServiceAccount") {
		t.Errorf("%v\n%s", got.report, got.out)
	}
}

// A wrong command line is one before anything is read.
func TestInjectUsage(t *testing.T) {
	for _, line := range []string{
		"inject", "inject - x", "inject - --admin-port=0", "inject - --admin-port=70000",
		"inject - --proxy-uid=-2", "inject - --image-pull-policy=x", "inject - --proxy-image=a\u00a0\x01b",
		"inject - --proxy-cpu-limit=x", "inject - --proxy-memory=-1", "inject - --opaque-ports=8-7",
		"inject - --opaque-ports=_", "inject - --skip-inbound-ports=http",
		"inject - --require-identity-on-inbound-ports=x", "inject - --default-inbound-policy=x",
		"inject - --wait-before-exit-seconds=x", "inject - --close-wait-timeout=10",
		"inject - --native-sidecar=x", "inject - -o xml", "inject - --manual",
		"inject - --manual --trust-anchors=/nowhere", "inject - --trust-anchors=/nowhere",
		"inject - --manual --trust-anchors=/nowhere --proxy-version=e",
	} {
		got := runInjection(t, deploymentX, append(strings.Fields(line), "--ignore-cluster")...)
		if ExitCode(got.err) != ExitUsage || got.out != "" {
			t.Errorf("%q: exit code %d, %v", line, ExitCode(got.err), got.err)
		}
	}
}

// What is read is bounded.
func TestManifestBounds(t *testing.T) {
	endless := &sources{stdin: zeros{}, left: 10}
	err := endless.each(t.Context(), "-", (&changed{cmd: command(), flags: &manifestFlags{}}).read)
	if err == nil || !strings.Contains(err.Error(), "MiB of manifests") {
		t.Error(err)
	}
	if got := runInjection(t, "", "inject", "--ignore-cluster", t.TempDir()); ExitCode(got.err) != ExitFailed {
		t.Error(got.err)
	}
}

type zeros struct{}

func (zeros) Read(to []byte) (int, error) { return copy(to, "a: 0\n"), nil }

func TestUninject(t *testing.T) {
	certificate, _ := cmdtest.Certificate(t, "root", 1)
	anchors := writeBelow(t, t.TempDir(), "anchors.pem", string(certificate))
	manual := injectText(t, deploymentX, "--manual", "--trust-anchors", anchors, "--proxy-version", "edge-1")
	runInjection(t, manual.out, "uninject", "-").want(t, deploymentX, "deployment \"x\" uninjected\n", 0)
	runInjection(t, deploymentX, "uninject", "-").want(t, deploymentX, "deployment \"x\" skipped\n", 0)
}
