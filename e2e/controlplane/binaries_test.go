package controlplane

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestBinariesAreCached(t *testing.T) {
	first, err := Binaries(t.Context(), os.Stderr)
	must(t, err)
	t.Chdir("/")
	var out bytes.Buffer
	second, err := Binaries(t.Context(), &out)
	must(t, err)
	if first != second || out.Len() > 0 {
		t.Errorf("the second call returned %s and printed %q, want %s and nothing", second, out.String(), first)
	}
	for _, name := range []string{
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok",
	} {
		if _, err := os.Stat(filepath.Join(first, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestBinariesWithoutGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Binaries(t.Context(), os.Stderr)
	if err == nil || !strings.Contains(err.Error(), "install Go") {
		t.Errorf("without the go command: %v, want the way out", err)
	}
}

// smallBuild is a build of one file, with the same steps.
func smallBuild(t *testing.T, source string) *kubeBuild {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module small\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600))
	return &kubeBuild{
		source: dir,
		dir:    filepath.Join(t.TempDir(), "hash", "kube"),
		env:    append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="),
	}
}

func TestBuildHappensOnce(t *testing.T) {
	build := smallBuild(t, "package main\nfunc main() {}\n")
	outs := make([]bytes.Buffer, 3)
	failures := make([]error, 3)
	var wg sync.WaitGroup
	for i := range outs {
		wg.Go(func() { failures[i] = build.once(t.Context(), &outs[i]) })
	}
	wg.Wait()
	built := 0
	for i := range outs {
		must(t, failures[i])
		built += strings.Count(outs[i].String(), "built in")
	}
	if built != 1 {
		t.Errorf("3 callers built %d times", built)
	}
	entries, err := os.ReadDir(filepath.Dir(build.dir))
	must(t, err)
	if len(entries) != 2 {
		t.Errorf("the build left %v, want the programs and a lock", entries)
	}
}

func TestBuildThatFails(t *testing.T) {
	build := smallBuild(t, "package main\nfunc main() { nonesuch() }\n")
	err := build.once(t.Context(), &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "undefined: nonesuch") {
		t.Errorf("a build that fails: %v, want what the compiler prints", err)
	}
	if build.exists() {
		t.Error("a build that failed left programs")
	}
}
