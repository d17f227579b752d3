package repo

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is generated")

// Generated pages are up to date; make generate writes them.
func TestGenerated(t *testing.T) {
	for path, want := range map[string]string{
		root + "/docs/flags.md":    flagsPage(t),
		root + "/docs/problems.md": problemsPage(t),
		root + "/docs/checks.md":   withTables(t, "checks.md", map[string]string{"checks": checksTable(t)}),
		root + "/docs/operations.md": withTables(t, "operations.md", map[string]string{
			"conditions": conditionsTable(t), "alerts": alertsTable(t),
		}),
		root + "/docs/dependencies.txt": dependencies(t),
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

// withTables returns a page with tables that are generated: each stands between two comments, of which the first has
// its name.
func withTables(t *testing.T, name string, tables map[string]string) string {
	t.Helper()
	page := read(t, root+"/docs/"+name)
	for table, text := range tables {
		begin, end := "<!-- generated: "+table+" -->\n\n", "\n<!-- end -->\n"
		before, rest, found := strings.Cut(page, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("docs/%s has no place for the table %s", name, table)
		}
		page = before + begin + text + end + after
	}
	return page
}

func flagsPage(t *testing.T) string {
	t.Helper()
	page := "# Flags\n\nGenerated from `fingerpost serve --help`, `fingerpost sp-validator --help`, " +
		"`fingerpost policy --help` and `fingerpost proxy-injector --help` by `make generate`. One dash does as well as two.\n" +
		"Defaults that follow the processors and GOMEMLIMIT are those for two processors, without GOMEMLIMIT.\n"
	for _, name := range []string{"serve", "sp-validator", "policy", "proxy-injector"} {
		_, flags, _ := strings.Cut(fingerpost(t, name, "--help"), "Flags:\n")
		page += "\n## `fingerpost " + name + "`\n\n```\n" + strings.TrimRight(flags, "\n") + "\n```\n"
	}
	return page
}

// dependencies lists the modules that are linked into the binary: a new one is a line in a diff.
func dependencies(t *testing.T) string {
	t.Helper()
	out := goCommand(t, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", binary)
	modules := strings.Fields(out)
	slices.Sort(modules)
	return strings.Join(slices.Compact(modules), "\n") + "\n"
}
