package main

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is generated")

// TestGenerated keeps generated pages up to date; make generate writes them.
func TestGenerated(t *testing.T) {
	for path, want := range map[string]string{
		"../../docs/flags.md":         flagsPage(t),
		"../../docs/dependencies.txt": dependencies(t),
	} {
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if have, err := os.ReadFile(path); err != nil {
			t.Error(err)
		} else if string(have) != want {
			t.Errorf("%s is out of date: run make generate", path)
		}
	}
}

func flagsPage(t *testing.T) string {
	t.Helper()
	page := "# Flags\n\nGenerated from `fingerpost serve --help` and `fingerpost sp-validator --help` by `make generate`. One dash does as well as two.\n"
	for _, name := range []string{"serve", "sp-validator"} {
		var out bytes.Buffer
		cmd := command([]string{name, "--help"})
		cmd.SetOut(&out)
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		_, flags, _ := strings.Cut(out.String(), "Flags:\n")
		page += "\n## `fingerpost " + name + "`\n\n```\n" + strings.TrimRight(flags, "\n") + "\n```\n"
	}
	return page
}

// dependencies lists the modules that are linked into the binary: a new one is a line in a diff.
func dependencies(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	return strings.Join(slices.Compact(modules), "\n") + "\n"
}
