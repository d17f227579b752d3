package gobuild

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestShowWritesLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		stop := Show(&out, "walking", func() int { return 7 })
		<-time.NewTimer(2500 * time.Millisecond).C
		stop()
		if got, want := out.String(), "walking, 7 %, 1s so far\nwalking, 7 %, 2s so far\n"; got != want {
			t.Errorf("after 2.5 s: %q, want %q", got, want)
		}
	})
}

// A Build counts the packages that are not in the cache, and returns what the compiler prints about the others.
func TestBuild(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "go.mod", "module example.test/m\n\ngo 1.26\n")
	write(t, dir, "main.go", "package main\n\nimport _ \"example.test/m/part\"\n\nfunc main() {}\n")
	write(t, dir, "part/part.go", "package part\n// "+time.Now().String()+"\n") // in no cache
	env := append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	build := &Build{Dir: dir, Package: ".", Target: filepath.Join(dir, "m"), Env: env}
	sizes, err := build.outdated(t.Context())
	if err != nil || sizes["example.test/m/part"] == 0 || sizes["example.test/m"] == 0 || sizes["runtime"] != 0 {
		t.Fatalf("what is to be built: %v, %v; want the two packages of the module", sizes, err)
	}
	if output, err := build.Run(t.Context()); err != nil || len(output) > 0 {
		t.Fatalf("%v: %s", err, output)
	}
	if _, err := os.Stat(build.Target); err != nil {
		t.Error(err)
	}
	if sizes, err := build.outdated(t.Context()); err != nil || sizes["example.test/m/part"] != 0 {
		t.Errorf("after the build: %v, %v; want no package", sizes, err)
	}

	write(t, dir, "part/part.go", "package part\nvar x int = true\n")
	output, err := build.Run(t.Context())
	if err == nil || !strings.Contains(string(output), "part.go:2") {
		t.Errorf("an invalid package: %v: %q, want the line of the compiler", err, output)
	}
}

func TestPercent(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "go.mod", "module example.test/m\n\ngo 1.26\n")
	comment := time.Now().String() + strings.Repeat("x", linkShare)
	write(t, dir, "main.go", "package main // "+comment+"\n\nfunc main() {}\n")
	build := &Build{Dir: dir, Package: ".", Target: filepath.Join(dir, "m"), Env: append(os.Environ(), "GOFLAGS=")}
	if output, err := build.Run(t.Context()); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if got := build.Percent(); got < 50 || got > 60 { // of the compiler, which has as much to do as the linker
		t.Errorf("%d %% once all is compiled, want half", got)
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
