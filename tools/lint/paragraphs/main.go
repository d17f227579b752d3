// Paragraphs reports two things that make functions hard to read, in the packages of the module at the directory that
// it is given:
//
//   - a block of a longer function in which more than twelve lines follow each other without a blank one, though they
//     are three statements or more: steps are to be apart;
//   - an if or a switch that does something: it begins with a call, an increment, or an assignment of which its
//     condition reads nothing. A condition asks; what is done stands on a line of its own.
//
// Tests, generated files and modules below are left out.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// longest is how many lines a function, or a part of one without a blank line, may have.
const longest = 12

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	problems, err := checkModule(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}

	for _, p := range problems {
		fmt.Println(p)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}

// checkModule returns the problems in a module, in the order of its files.
func checkModule(root string) (problems []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && isLeftOut(path, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}

		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found, err := checkFile(path, source)
		problems = append(problems, found...)
		return err
	})
	return problems, err
}

// isLeftOut reports whether nothing below a directory is checked: it has no sources, or is a module of its own.
func isLeftOut(path, name string) bool {
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil || name == "testdata" || strings.HasPrefix(name, ".")
}

// checkFile returns the problems of a file, in their order.
func checkFile(path string, source []byte) ([]string, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}

	c := &checker{set: set, source: source, lines: bytes.Split(source, []byte("\n"))}
	for _, d := range file.Decls {
		if f, is := d.(*ast.FuncDecl); is && f.Body != nil {
			isLong := c.line(f.Body.Rbrace)-c.line(f.Body.Lbrace)-1 > longest
			ast.Inspect(f.Body, func(n ast.Node) bool {
				c.checkHead(n)
				if isLong {
					c.checkBlock(n)
				}
				return true
			})
		}
	}
	return c.problems, nil
}

// A checker collects the problems of one file.
type checker struct {
	set      *token.FileSet
	source   []byte
	lines    [][]byte
	problems []string
}

func (c *checker) line(p token.Pos) int { return c.set.Position(p).Line }

func (c *checker) text(n ast.Node) string {
	return string(c.source[c.set.Position(n.Pos()).Offset:c.set.Position(n.End()).Offset])
}

func (c *checker) reportf(at token.Pos, format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf("%s: %s", c.set.Position(at), fmt.Sprintf(format, args...)))
}

// checkHead checks what an if or a switch begins with.
func (c *checker) checkHead(n ast.Node) {
	var does ast.Stmt
	var asks string
	switch n := n.(type) {
	case *ast.IfStmt:
		does, asks = n.Init, c.text(n.Cond)
	case *ast.SwitchStmt:
		does, asks = n.Init, c.text(n.Body) // the cases are conditions
		if n.Tag != nil {
			asks += c.text(n.Tag)
		}
	}

	switch does := does.(type) {
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt:
		c.reportf(does.Pos(), "the condition does something: %s", c.text(does))
	case *ast.AssignStmt:
		isRead := func(e ast.Expr) bool { return strings.Contains(asks, c.text(e)) }
		if !slices.ContainsFunc(does.Lhs, isRead) {
			c.reportf(does.Pos(), "the condition reads nothing of what it assigns: %s", c.text(does))
		}
	}
}

// checkBlock checks a list of statements for parts that are too long.
func (c *checker) checkBlock(n ast.Node) {
	var all []ast.Stmt
	switch n := n.(type) {
	case *ast.BlockStmt:
		all = n.List
	case *ast.CaseClause:
		all = n.Body
	case *ast.CommClause:
		all = n.Body
	}
	for len(all) > 0 {
		part := c.paragraph(all)
		all = all[len(part):]
		first, last := part[0], part[len(part)-1]
		switch first.(type) {
		case *ast.CaseClause, *ast.CommClause: // a list of cases needs none
			return
		}
		if n := c.line(last.End()) - c.line(first.Pos()) + 1; n > longest && len(part) > 2 {
			c.reportf(first.Pos(), "%d statements on %d lines without a blank one: keep steps apart", len(part), n)
		}
	}
}

// paragraph returns the statements up to the first blank line between two.
func (c *checker) paragraph(all []ast.Stmt) []ast.Stmt {
	for i := range len(all) - 1 {
		end, next := c.line(all[i].End()), c.line(all[i+1].Pos())
		between := c.lines[min(end, next-1) : next-1]
		isBlank := func(l []byte) bool { return len(bytes.TrimSpace(l)) == 0 }
		if slices.ContainsFunc(between, isBlank) {
			return all[:i+1]
		}
	}
	return all
}
