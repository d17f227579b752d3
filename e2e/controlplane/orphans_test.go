package controlplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// childVariable makes the test binary start a cluster and wait for its death.
const childVariable = "FINGERPOST_TEST_CHILD"

// playChild starts a cluster with one component stopped, which cannot notice
// anything, prints the state directory and stays.
func playChild(ctx context.Context) error {
	cluster, err := Start(ctx, Options{Name: "orphan"})
	if err != nil {
		return err
	}
	if err := cluster.Pause(Scheduler); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, cluster.Dir())
	<-ctx.Done()
	return nil
}

func TestNothingOutlivesItsParent(t *testing.T) {
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childVariable+"=1")
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	dir, err := bufio.NewReader(stdout).ReadString('\n')
	must(t, err)
	dir = strings.TrimSpace(dir)
	if running := processesOf(t, dir); len(running) != 5 {
		t.Fatalf("the child runs %v, want 5 processes", running)
	}

	must(t, child.Process.Kill())
	_ = child.Wait() // the error is that it was killed
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	begin := time.Now()
	must(t, until(ctx, func(context.Context) error {
		if running := processesOf(t, dir); len(running) > 0 {
			return fmt.Errorf("%v", running)
		}
		return nil
	}))
	t.Logf("all gone %v after their parent", time.Since(begin).Round(time.Millisecond))

	if _, err := os.Stat(filepath.Join(dir, "etcd")); err != nil {
		t.Fatalf("the state of the dead is gone before anybody swept: %v", err)
	}
	cluster := ForTest(t, Options{Light: true})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next start did not sweep %s: %v", dir, err)
	}
	if _, err := os.Stat(cluster.Dir()); err != nil {
		t.Errorf("the next start swept its own directory: %v", err)
	}
}

// TestThePipeAloneEndsOrphans leaves the death signal out, as on systems that
// have none.
func TestThePipeAloneEndsOrphans(t *testing.T) {
	binaries, err := Binaries(t.Context(), os.Stderr)
	must(t, err)
	watched, alive, err := os.Pipe()
	must(t, err)
	defer watched.Close()
	dir := t.TempDir()
	etcd := exec.CommandContext(t.Context(), filepath.Join(binaries, "etcd"), "--data-dir="+dir,
		"--listen-client-urls=unix://"+filepath.Join(dir, "client"),
		"--advertise-client-urls=unix://"+filepath.Join(dir, "client"),
		"--listen-peer-urls=http://127.0.0.1:0")
	etcd.ExtraFiles = []*os.File{watched}
	etcd.Env = append(os.Environ(), "FINGERPOST_PARENT_FD=3")
	must(t, etcd.Start())
	must(t, alive.Close())
	var exit *exec.ExitError
	if err := etcd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("etcd without a parent: %v, want exit status 1", err)
	}
}

// processesOf returns the names of the running programs that the state
// directory was given to.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("finds processes in /proc, as on Linux")
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	var names []string
	for _, file := range commands {
		command, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		args := strings.Split(string(command), "\x00")
		if slices.ContainsFunc(args[1:], func(arg string) bool { return strings.Contains(arg, dir) }) {
			names = append(names, filepath.Base(args[0]))
		}
	}
	slices.Sort(names)
	return names
}
