package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/links"
)

// linkServer is an API server with a Link of the cluster west in a version that is not the newest.
type linkServer struct {
	kubeconfig  string
	annotations map[string]*string
	statuses    []metav1.Condition // of Drained, one for each list after the first; the last one stays; "" fails
}

func newLinkServer(t *testing.T) *linkServer {
	t.Helper()
	s := &linkServer{annotations: map[string]*string{}}
	lists := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const all = "/apis/multicluster.linkerd.io/v1alpha2/links"
		link := map[string]any{
			"apiVersion": "multicluster.linkerd.io/v1alpha2", "kind": "Link",
			"metadata": map[string]any{"namespace": "mc", "name": "to-west"},
			"spec":     map[string]any{"targetClusterName": "west"},
		}
		var out any = link
		switch path := r.Method + " " + r.URL.Path; path {
		case "GET " + all:
			n := min(lists, len(s.statuses))
			lists++
			if n > 0 && s.statuses[n-1].Type == "" {
				http.Error(w, "etcd has no leader", http.StatusServiceUnavailable)
				return
			}
			if n > 0 {
				link["status"] = map[string]any{"conditions": []any{s.statuses[n-1]}}
			}
			out = map[string]any{
				"apiVersion": "multicluster.linkerd.io/v1alpha2", "kind": "LinkList", "items": []any{link},
			}
		case "PATCH " + strings.Replace(all, "links", "namespaces/mc/links/to-west", 1):
			body, err := io.ReadAll(r.Body)
			var patch struct {
				Metadata struct{ Annotations map[string]*string }
			}
			if err != nil || json.Unmarshal(body, &patch) != nil ||
				r.Header.Get("Content-Type") != "application/merge-patch+json" {
				t.Errorf("%s: %s", r.Header.Get("Content-Type"), body)
			}
			s.annotations = patch.Metadata.Annotations
		default:
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	}))
	t.Cleanup(server.Close)
	s.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(s.kubeconfig, cmdtest.Kubeconfig(t, server, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *linkServer) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return cmdtest.Execute(t, cmdtest.Root(Commands("test"), append(args, "--kubeconfig", s.kubeconfig)...))
}

// Each command sets one annotation of the Link, to a value that Fingerpost reads.
func TestDrainCommands(t *testing.T) {
	s := newLinkServer(t)
	annotation := func(key string, args ...string) *string {
		t.Helper()
		out, err := s.run(t, args...)
		if err != nil || !strings.HasPrefix(out, "west ") || !strings.Contains(out, "(Link mc/to-west)") {
			t.Fatalf("%v: %s, %v", args, out, err)
		}
		value, found := s.annotations[key]
		if len(s.annotations) != 1 || !found {
			t.Fatalf("%v annotates %v", args, s.annotations)
		}
		return value
	}
	if v := annotation(policy.DrainKey, "drain", "west"); *v != "true" {
		t.Errorf("at once: %q", *v)
	}
	if v := annotation(policy.DrainKey, "undrain", "west"); v != nil {
		t.Errorf("back at once: %q", *v)
	}
	for command, up := range map[string]bool{"drain": false, "undrain": true} {
		v := annotation(policy.DrainKey, command, "west", "--over", "5m")
		if d, ok := policy.ParseDrain(*v); !ok || d.Over != 5*time.Minute || d.Up != up || time.Since(d.From) < 0 {
			t.Errorf("%s over 5m: %q", command, *v)
		}
	}
	if v := annotation(links.ReleasedAtKey, "release", "west"); v == nil {
		t.Error("nothing is released")
	} else if _, err := time.Parse(time.RFC3339, *v); err != nil {
		t.Error(err)
	}
}

// What cannot be done is refused with what would be right.
func TestDrainRefusals(t *testing.T) {
	s := newLinkServer(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"drain"}, ExitUsage, "CLUSTER is missing"},
		{[]string{"drain", "west", "--over", "-1s"}, ExitUsage, "--over -1s"},
		{[]string{"undrain", "west", "--over", "169h"}, ExitUsage, "from 0 to 168h"},
		{[]string{"drain", "east"}, ExitNotFound, `no Link links a cluster "east": Links link west`},
		{[]string{"release", "west", "--link-namespace", "none"}, ExitNotFound, "the API server serves no Links"},
	} {
		root := cmdtest.Root(Commands("test"), append(c.args, "--kubeconfig", s.kubeconfig)...)
		Prepare(root, "fingerpost")
		out, err := cmdtest.Execute(t, root)
		if ExitCode(err) != c.code || !strings.Contains(fmt.Sprint(out, err), c.want) {
			t.Errorf("%v: exit code %d, %s%v", c.args, ExitCode(err), out, err)
		}
	}
	if len(s.annotations) > 0 {
		t.Errorf("%v", s.annotations)
	}
}

// --wait prints progress until the cluster is drained, or turns out to be needed, also while Links cannot be listed.
func TestDrainWait(t *testing.T) {
	old := drainPoll
	drainPoll = time.Millisecond
	t.Cleanup(func() { drainPoll = old })
	s := newLinkServer(t)
	draining := metav1.Condition{
		Type: links.Drained, Status: metav1.ConditionFalse, Reason: "Draining", Message: "50 % is taken away",
	}
	needed := draining
	needed.Reason, needed.Message = links.ReasonStillNeeded, "no other cluster has endpoints of 1 Services: shop/web"
	done := metav1.Condition{Type: links.Drained, Status: metav1.ConditionTrue, Reason: links.Drained}

	s.statuses = []metav1.Condition{draining, {}, draining, done}
	out, err := s.run(t, "drain", "west", "--wait")
	if err != nil || strings.Count(out, "waiting: 50 % is taken away") != 2 ||
		!strings.Contains(out, "waiting: list Links: ") ||
		!strings.HasSuffix(out, "west is drained\n") {
		t.Errorf("%s, %v", out, err)
	}
	s = newLinkServer(t)
	s.statuses = []metav1.Condition{needed}
	if out, err = s.run(t, "drain", "west", "--wait"); ExitCode(err) != ExitNo ||
		!strings.Contains(fmt.Sprint(err), "west is still needed: "+needed.Message) {
		t.Errorf("%s, %v", out, err)
	}
}
