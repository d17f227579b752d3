// Package drills plays faults that operators meet on two real control planes, and asserts what 'fingerpost check' and
// the status page report of each, and within what time. Played here is what depends on how an API server behaves: how
// it deletes a CRD with all Links, how it takes a permission away, how it stops answering. All other faults are
// scenarios in cmd/fingerpost/app (drills-services, drills-clusters, drills-anchors, drills-writers), on virtual time.
package drills

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// A fleet is two clusters, of which the first has a replica and links the other.
type fleet struct {
	*testing.T
	*mesh.Mesh
	west               *mesh.Site
	binary, kubeconfig string
	stream             *mesh.Watch // of the federated Service
}

// check runs 'fingerpost check', and returns what does not succeed.
func (f *fleet) check(ctx context.Context) string {
	command := exec.CommandContext(ctx, f.binary, f.arguments("--wait=0s")...)
	out, err := command.Output()
	var exit *exec.ExitError
	if failed := strings.Contains(string(out), "\n× ") || strings.HasPrefix(string(out), "× "); err != nil &&
		(!errors.As(err, &exit) || !failed) {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return string(out)
}

func (f *fleet) arguments(more ...string) []string {
	return append([]string{
		"check", "-o", "short", "--timeout=3s", "--kubeconfig", f.kubeconfig, "--debug-addr", f.Server.Debug,
		"--addr", f.Server.Addr,
	}, more...)
}

// reports waits until check reports all of the texts, five times as long as that may take.
func (f *fleet) reports(within time.Duration, want ...string) {
	f.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(f.Context(), 5*within)
	defer cancel()
	err := mesh.Eventually(ctx, func(ctx context.Context) error {
		out := strings.Join(strings.Fields(f.check(ctx)), " ")
		for _, text := range want {
			if !strings.Contains(out, text) {
				return fmt.Errorf("check does not report %q:\n%s", text, out)
			}
		}
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Logf("reported after %s: %s", time.Since(began).Round(time.Millisecond), want[0])
}

// shows asserts that the status page shows a problem that an operator must act on, and no other such problem.
func (f *fleet) shows(title string) {
	f.Helper()
	page, err := f.Server.Page(f.Context())
	f.do(err)
	var titles []string
	for _, found := range severe.FindAllStringSubmatch(page, -1) {
		titles = append(titles, html.UnescapeString(found[1]))
	}
	if !slices.Equal(titles, []string{title}) {
		f.Errorf("the status page shows %q, want %q", titles, title)
	}
}

// severe finds the titles of problems on the status page that an operator must act on.
var severe = regexp.MustCompile(`<li class="bad"><p><strong>(.*?)</strong>`)

// isWell waits until check reports nothing.
func (f *fleet) isWell(within time.Duration) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 5*within)
	defer cancel()
	err := mesh.Eventually(ctx, func(ctx context.Context) error {
		if out := f.check(ctx); out != "Status check results are √\n" {
			return errors.New(out)
		}
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fleet) do(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func TestDrills(t *testing.T) {
	clusters := controlplane.AllForTest(t, controlplane.Options{Name: "east"}, controlplane.Options{Name: "west"})
	binary, err := fingerpost.Build(t.Context(), t.TempDir(), fingerpost.Race)
	if err != nil {
		t.Fatal(err)
	}
	m, err := mesh.New(t.Context(), "shop", 2, clusters...)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{T: t, Mesh: m, west: m.Remotes[0], binary: binary, kubeconfig: filepath.Join(t.TempDir(), "admin")}
	f.do(os.WriteFile(f.kubeconfig, m.Local.Kubeconfig(m.Local.Admin(), ""), 0o600))
	m.Slices = true
	f.do(m.Federate(t.Context(), true, mesh.Service+"@west"))
	f.do(m.Install(t.Context(), mesh.Linkerd, "", ""))
	f.do(m.Serve(t.Context(), fingerpost.Options{
		Binary: binary, Dir: t.TempDir(),
		Args: []string{"-probe-interval=1s", "-suspect-after=3s", "-stale-after=8s"},
	}))
	t.Cleanup(func() {
		if err := m.Server.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", m.Server.Tail())
		}
	})
	f.do(m.Link(t.Context(), f.west))
	f.isWell(10 * time.Second)
	if f.stream, err = m.Watch(t.Context(), m.Authority(mesh.Federated)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.stream.Close)
	f.do(f.stream.Until(t.Context(), "both clusters", func(w *mesh.Watch) bool { return w.Len() == 4 }))
	f.blackHole()
	f.readOnly()
	f.noCRD()
}

// blackHole: the API server of a linked cluster does not answer. check reports that while it waits, and ends when it
// is interrupted.
func (f *fleet) blackHole() {
	f.do(f.west.Proxy.Silence())
	f.reports(15*time.Second, "× west is in contact it is Stale, last contact", " within 3s")
	f.shows("west is Stale")
	command := exec.CommandContext(f.Context(), f.binary, f.arguments("--wait=10m")...)
	var out bytes.Buffer
	command.Stdout = &out
	progress, err := command.StderrPipe()
	f.do(err)
	f.do(command.Start())
	lines := bufio.NewScanner(progress)
	for lines.Scan() && !strings.Contains(lines.Text(), "for: west is in contact") {
		f.Logf("%s", lines.Text())
	}
	f.do(command.Process.Signal(syscall.SIGINT))
	interrupted := time.Now()
	for lines.Scan() { // until its end
		f.Logf("%s", lines.Text())
	}
	err = command.Wait()
	if text := out.String(); err == nil || !strings.Contains(text, "× west is in contact\n    it is Stale") ||
		strings.Count(text, "×") != 2 || time.Since(interrupted) > 5*time.Second {
		f.Errorf("interrupted after %s: %v\n%s", time.Since(interrupted), err, text)
	}
	f.do(f.west.Proxy.Pass())
	f.isWell(10 * time.Second)
}

// readOnly: the permission to write slices in the local cluster is taken away.
func (f *fleet) readOnly() {
	const resource = "endpointslices.discovery.k8s.io"
	ctx, local := f.Context(), f.Local
	f.do(local.Deny(ctx, local.Identity, "update", resource))
	f.do(f.west.Scale(ctx, f.Namespace, mesh.Service, 3))
	f.reports(10*time.Second, "× Fingerpost can write to east permissions are missing: grant update on "+resource)
	f.shows("Nothing is written into east")
	f.do(local.Allow(ctx, local.Identity, "update", resource))
	f.do(f.Server.Stop()) // it reviews permissions again after minutes, or when it starts
	f.do(f.Serve(ctx, fingerpost.Options{
		Binary: f.binary, Dir: f.TempDir(),
		Args: []string{"-probe-interval=1s", "-suspect-after=3s", "-stale-after=8s"},
	}))
	f.isWell(15 * time.Second)
}

// noCRD: the CRD of Links is deleted, and with it the only Link. Its cluster stays linked, and nothing is withdrawn;
// with the CRD and the Link all is well again.
func (f *fleet) noCRD() {
	stream, err := f.Watch(f.Context(), f.Authority(mesh.Federated))
	f.do(err)
	defer stream.Close()
	f.do(stream.Until(f.Context(), "both clusters", func(w *mesh.Watch) bool { return w.Len() == 5 }))
	events, _ := stream.Events()
	_, err = f.Local.Kubectl(f.Context(), "delete", "crd", "links."+links.Group)
	f.do(err)
	f.reports(5*time.Second, "× no Link was deleted with many others shop/west: deleted ",
		"the CRD of Links was deleted", "the cluster stays linked for 5m0s")
	f.shows("Link shop/west was deleted")
	if held, err := f.Server.Metric(f.Context(), "fingerpost_links_held"); err != nil || held != 1 {
		f.Errorf("fingerpost_links_held is %v: %v", held, err)
	}
	if after, _ := stream.Events(); len(after) != len(events) {
		f.Errorf("something was sent:\n%s", stream.Transcript(len(events)))
	}
	f.do(f.Local.Apply(f.Context(), links.CRD))
	again, cancel := context.WithTimeout(f.Context(), time.Minute)
	defer cancel()
	// For a moment the definition is there, and the kind of the deleted one is still gone.
	f.do(mesh.Eventually(again, func(ctx context.Context) error { return f.Link(ctx, f.west) }))
	f.isWell(20 * time.Second)
	if after, _ := stream.Events(); len(after) != len(events) {
		f.Errorf("something was sent:\n%s", stream.Transcript(len(events)))
	}
}
