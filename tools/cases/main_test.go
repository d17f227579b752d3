package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each contract case has a test that carries its id, in a package whose tests are played; and no scenario is of a case
// that there is not.
func TestEachCaseIsPlayed(t *testing.T) {
	const root = "../.."
	sections, err := read(filepath.Join(root, "docs", "cases.md"))
	if err != nil {
		t.Fatal(err)
	}
	scenarios, err := filepath.Glob(filepath.Join(root, casesDir, "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	carried := subtests(t, root)
	for _, path := range scenarios {
		id := strings.TrimSuffix(filepath.Base(path), ".txtar")
		carried[id] = hasTranscript(path)
	}

	listed := map[string]bool{}
	for _, s := range sections {
		for _, c := range s.cases {
			listed[c.id] = true
			if !carried[c.id] && c.supersededBy == "" {
				t.Errorf("no test carries case %s", c.id)
			}
		}
	}
	for _, path := range scenarios {
		if id := strings.TrimSuffix(filepath.Base(path), ".txtar"); !listed[id] {
			t.Errorf("docs/cases.md has no case %s, of which there is a scenario", id)
		}
	}

	page, err := os.ReadFile(filepath.Join(root, "docs", "cases.md"))
	if err != nil {
		t.Fatal(err)
	}
	if count := fmt.Sprintf(" %d numbered cases", len(listed)); !strings.Contains(string(page), count) {
		t.Errorf("docs/cases.md does not have the number of its rows, %d", len(listed))
	}
}

// subtests returns the ids that name subtests of TestCases: in a call of Run, or first in a row of a table.
func subtests(t *testing.T, root string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, m := range modules {
		for _, pattern := range m.packages {
			top := filepath.Join(root, m.dir, strings.TrimSuffix(pattern, "/..."))
			err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
				if entry.IsDir() && path != top && !strings.HasSuffix(pattern, "/...") {
					return fs.SkipDir
				}
				if err != nil || !strings.HasSuffix(path, "_test.go") {
					return err
				}
				return addSubtests(all, path)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

func addSubtests(to map[string]bool, path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}

	add := func(e ast.Expr) {
		if literal, is := e.(*ast.BasicLit); is && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil && id.MatchString(text) {
				to[text] = true
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if run, is := n.Fun.(*ast.SelectorExpr); is && run.Sel.Name == "Run" && len(n.Args) == 2 {
				add(n.Args[0])
			}
		case *ast.KeyValueExpr:
			add(n.Key)
		case *ast.CompositeLit:
			if len(n.Elts) > 0 {
				add(n.Elts[0])
			}
		}
		return true
	})
	return nil
}

var id = regexp.MustCompile(`^[A-Z]{1,2}[0-9]+[a-z]?$`)
