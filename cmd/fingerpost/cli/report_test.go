package cli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

const someJWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyZWFkZXIifQ.c2lnbmF0dXJl"

// A report has pages, metrics and logs of each replica, Links and Events, and names what it could not read. It asks for
// no Secret, and what looks like one is in none of its files.
func TestReport(t *testing.T) {
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/debug/digests":
			http.Error(w, "too busy", http.StatusServiceUnavailable)
		case "/metrics":
			_, _ = io.WriteString(w, "fingerpost_streams 3\n")
		default:
			_, _ = io.WriteString(w, `{"page": "`+r.URL.Path+`", "token": "`+someJWT+`"}`)
		}
	}))
	defer replica.Close()

	first := pod("fingerpost-1", podSelectors[0], true)
	first.Labels["app.kubernetes.io/name"] = "fingerpost,app.kubernetes.io/component=destination"
	first.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "destination", RestartCount: 1}}
	pods := &apiServer{t: t, target: strings.TrimPrefix(replica.URL, "http://"), pods: []corev1.Pod{first}}
	var asked []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pods.mu.Lock()
		asked = append(asked, r.URL.Path)
		pods.mu.Unlock()
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/log"):
			_, _ = io.WriteString(w, r.URL.Query().Get("container")+" "+r.URL.Query().Get("previous")+
				" Authorization: Bearer abcdefghijkl\n-----BEGIN EC PRIVATE KEY-----\nMIIB\n-----END EC PRIVATE KEY-----\nend\n")
		case strings.HasSuffix(path, "/links"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind": "LinkList", "apiVersion": "multicluster.linkerd.io/v1alpha3", "items": [
				{"kind": "Link", "apiVersion": "multicluster.linkerd.io/v1alpha3", "metadata": {"name": "west",
				"managedFields": [{"manager": "x"}], "annotations": {
				"kubectl.kubernetes.io/last-applied-configuration": "old"}}}]}`)
		case strings.HasSuffix(path, "/events"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind": "EventList", "apiVersion": "events.k8s.io/v1", "items": [
				{"metadata": {"name": "e", "creationTimestamp": "2026-01-01T00:00:00Z"}, "type": "Normal",
				"reason": "MemberLeft", "regarding": {"kind": "Service", "namespace": "shop", "name": "web"},
				"note": "member left"}]}`)
		default:
			pods.ServeHTTP(w, r)
		}
	}))
	defer server.Close()

	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, cmdtest.Kubeconfig(t, server, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	shown, err := fingerpost(t, "report", "--kubeconfig", kubeconfig)
	if err != nil || !strings.HasSuffix(shown, "'fingerpost report -f report.tar.gz' writes it.\n") {
		t.Fatalf("%v\n%s", err, shown)
	}
	file := filepath.Join(t.TempDir(), "report.tar.gz")
	if shown, err = fingerpost(t, "report", "-f", file, "--kubeconfig", kubeconfig); err != nil {
		t.Fatal(err)
	}

	files := filesOf(t, file)
	var names []string
	for name, body := range files {
		names = append(names, name)
		short := strings.TrimPrefix(name, "fingerpost-report/")
		if !strings.Contains(shown, short) {
			t.Errorf("%s is written, and not shown:\n%s", short, shown)
		}
		for _, secret := range []string{"eyJ", "MIIB", "abcdefghijkl", "last-applied", "managedFields"} {
			if strings.Contains(body, secret) {
				t.Errorf("%s has %q:\n%s", name, secret, body)
			}
		}
	}
	slices.Sort(names)
	of := "fingerpost-report/replicas/fingerpost-1/"
	want := []string{
		"fingerpost-report/cluster/events.txt", "fingerpost-report/cluster/links.yaml", "fingerpost-report/errors.txt",
		of + "changes.json", of + "clusters.json", of + "destination.log", of + "destination.previous.log",
		of + "metrics.txt", of + "problems.json", of + "proxy.log", of + "streams.json", of + "version.json",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{
		of + "metrics.txt":                     "fingerpost_streams 3",
		of + "clusters.json":                   `{"page": "/debug/clusters", "token": "[redacted]"}`,
		of + "destination.log":                 "destination  Authorization: [redacted]\n[redacted]\nend\n",
		of + "destination.previous.log":        "destination true ",
		"fingerpost-report/cluster/links.yaml": "name: west",
		"fingerpost-report/cluster/events.txt": "Normal MemberLeft Service/shop/web member left",
		"fingerpost-report/errors.txt":         "digests.json: too busy",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q:\n%s", name, want, files[name])
		}
	}
	for _, path := range asked {
		if strings.Contains(path, "secrets") || strings.Contains(path, "configmaps") {
			t.Errorf("%s was read", path)
		}
	}
}

// Replicas that are given by their addresses need no kubeconfig, and -f - leaves stdout to the archive.
func TestReportByAddress(t *testing.T) {
	server := cmdtest.DebugServer(t, map[string]any{"/debug/version": "v1", "/metrics": "x"})
	t.Setenv("KUBECONFIG", "/dev/null")
	out, err := fingerpost(t, "report", "--debug-addr", server, "--metrics-addr", server)
	noCluster := strings.Contains(out, "not read: cluster: which cluster?")
	if err != nil || !noCluster || !strings.Contains(out, "metrics.txt") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = fingerpost(t, "report", "--debug-addr", "http://"+server, "--metrics-addr", "http://"+server)
	if err != nil || !strings.Contains(out, "metrics.txt") || strings.Contains(out, "metrics.txt: ") {
		t.Errorf("an address that is a URL: %v\n%s", err, out)
	}
	if _, err := fingerpost(t, "report", "--debug-addr", server, "-f", "/nowhere/report"); err == nil {
		t.Error("a file that cannot be written is no error")
	}
}

func filesOf(t *testing.T, name string) map[string]string {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	compressed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files, archive := map[string]string{}, tar.NewReader(compressed)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(body)
	}
}
