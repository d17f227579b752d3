package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestImage builds what the Dockerfile builds, by its own command, from what .dockerignore lets in. No registry and no container
// engine is asked.
func TestImage(t *testing.T) {
	stages := dockerfile(t)
	if len(stages) != 2 {
		t.Fatalf("the Dockerfile has %d stages, want one that builds and one that is the image", len(stages))
	}
	build, image := stages[0], stages[1]

	t.Run("toolchain", func(t *testing.T) {
		mod, err := os.ReadFile("../../go.mod")
		if err != nil {
			t.Fatal(err)
		}
		version := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(mod)
		if want := "--platform=$BUILDPLATFORM golang:" + string(version[1]) + " AS build"; build["FROM"][0] != want {
			t.Errorf("built FROM %s, want %s", build["FROM"][0], want)
		}
	})
	t.Run("image", func(t *testing.T) {
		if from := image["FROM"][0]; from != "scratch" {
			t.Errorf("FROM %s, want scratch", from)
		}
		// A number: where runAsNonRoot is asked for, a kubelet cannot tell whether a name is root's.
		if user := image["USER"]; !slices.Equal(user, []string{"65532:65532"}) {
			t.Errorf("USER %q", user)
		}
		if entrypoint := image["ENTRYPOINT"]; !slices.Equal(entrypoint, []string{`["/usr/local/bin/fingerpost"]`}) {
			t.Errorf("ENTRYPOINT %q", entrypoint)
		}
		for _, run := range image["RUN"] {
			t.Errorf("RUN %s, where there is no shell", run)
		}
	})
	t.Run("binary", func(t *testing.T) {
		at := regexp.MustCompile(`CGO_ENABLED.*`).FindString(build["RUN"][len(build["RUN"])-1])
		command := strings.ReplaceAll(at, "/out/", "$OUT/")
		if command == at {
			t.Fatalf("the last RUN builds nothing into /out/: %q", at)
		}
		dir, out := buildContext(t), t.TempDir()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "OUT="+out, "TARGETOS=linux", "TARGETARCH="+runtime.GOARCH, "VERSION=v1.2.3-test")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, text)
		}
		binary := filepath.Join(out, "fingerpost")
		file, err := elf.Open(binary)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for _, p := range file.Progs {
			if p.Type == elf.PT_INTERP {
				t.Error("it asks for a dynamic linker, which the image has not")
			}
		}
		if runtime.GOOS != "linux" {
			return // it cannot run here
		}
		version, err := exec.CommandContext(t.Context(), binary, "version").Output()
		if err != nil || string(version) != "v1.2.3-test\n" {
			t.Errorf("it says version %q, error %v", version, err)
		}
	})
}

// dockerfile returns the arguments of the instructions of each stage, by instruction.
func dockerfile(t *testing.T) (stages []map[string][]string) {
	t.Helper()
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", "")) {
		instruction, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		if instruction == "" || instruction == "#" {
			continue
		}
		if instruction == "FROM" {
			stages = append(stages, map[string][]string{})
		}
		if len(stages) == 0 {
			t.Fatalf("%s stands before the first FROM", instruction)
		}
		stage := stages[len(stages)-1]
		stage[instruction] = append(stage[instruction], args)
	}
	return stages
}

// buildContext copies what .dockerignore lets in: everything is left out, but what is named with a !, but for patterns below.
func buildContext(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	var names, without []string
	everything := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		name, in := strings.CutPrefix(line, "!")
		switch below, deep := strings.CutPrefix(line, "**/"); {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == "*":
			everything = true
		case in:
			names = append(names, name)
		case deep:
			without = append(without, below)
		default:
			t.Fatalf("%q in .dockerignore is no pattern that is known here", line)
		}
	}
	if !everything {
		t.Fatal(".dockerignore does not begin with nothing")
	}
	dir := t.TempDir()
	for _, name := range names {
		if out, err := exec.CommandContext(t.Context(), "cp", "-R", filepath.Join("..", "..", name), dir).CombinedOutput(); err != nil {
			t.Fatalf("%s of .dockerignore: %v\n%s", name, err, out)
		}
	}
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, pattern := range without {
			if out, err := filepath.Match(pattern, entry.Name()); err != nil {
				return err
			} else if !out {
				continue
			}
			if err := os.RemoveAll(path); err != nil || !entry.IsDir() {
				return err
			}
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
