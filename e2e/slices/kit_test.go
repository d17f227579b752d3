package slices

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/links"
)

// The scenarios of the kit for Docker, from the same file, on three bare clusters with the charts installed
// as the kit does.
func TestKit(t *testing.T) {
	const system = "fingerpost"
	dir := t.TempDir()
	put := func(name, content string) { do(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)) }
	link := func(from, name string) { do(t, os.Symlink(from, filepath.Join(dir, name))) }
	link(binary, "fingerpost")
	link(clusters[0].KubectlPath(), "kubectl")
	for _, s := range clusters {
		t.Cleanup(func() { // other tests read the Secrets in the namespace of the control plane
			ctx := context.WithoutCancel(t.Context())
			_, err := s.Kubectl(ctx, "-n", linkerd, "delete", "secrets", "-l", links.ClusterNameLabel)
			if err == nil {
				_, err = s.Kubectl(ctx, "delete", "--wait=false", "namespace", system, "shop")
			}
			if err != nil {
				t.Error(err)
			}
		})
		in, err := charts.Install(t.Context(), s.Cluster, charts.Server, system,
			fmt.Sprintf("{cluster: {name: %s}, crds: {links: true}}", s.Name()))
		do(t, err)
		_, err = charts.Install(t.Context(), s.Cluster, charts.Link, system, "")
		do(t, err)
		server := s.serve(t, s.Name()+"-0", in, "")
		put(s.Name(), string(s.AdminKubeconfig()))
		put(s.Name()+".addr", server.Addr)
		put(s.Name()+".url", s.URL())
		link(s.AuditLog(), s.Name()+".audit")
	}

	asked, fromScript, err := os.Pipe()
	do(t, err)
	toScript, answers, err := os.Pipe()
	do(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	script := exec.CommandContext(ctx, "testdata/kit.sh", dir)
	script.Env = append(os.Environ(), "HOME="+dir)
	script.ExtraFiles = []*os.File{fromScript, toScript}
	script.WaitDelay = 10 * time.Second
	var out strings.Builder
	script.Stdout, script.Stderr = &out, &out
	began := time.Now()
	do(t, script.Start())
	do(t, fromScript.Close())
	do(t, toScript.Close())
	paused := map[string]bool{}
	for lines := bufio.NewScanner(asked); lines.Scan(); {
		what, name, _ := strings.Cut(lines.Text(), " ")
		answer := "ok"
		if err := pause(name, what == "pause"); err != nil {
			answer = err.Error()
		}
		paused[name] = what == "pause"
		fmt.Fprintln(answers, answer)
	}
	for name, still := range paused { // the other tests need them
		if still {
			do(t, pause(name, false))
		}
	}
	do(t, asked.Close())
	do(t, answers.Close())
	err = script.Wait()
	t.Logf("%s\n%s", time.Since(began).Round(time.Millisecond), out.String())
	if err != nil {
		t.Fatal(err)
	}
	if len(paused) != 1 {
		t.Errorf("API servers of %v were paused", paused)
	}
}

// pause freezes the API server of a cluster, or ends that.
func pause(name string, stop bool) error {
	for _, s := range clusters {
		switch {
		case s.Name() != name:
		case stop:
			return s.Pause()
		default:
			return s.Continue()
		}
	}
	return fmt.Errorf("there is no cluster %q", name)
}
