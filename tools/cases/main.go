// Command cases runs the tests of the contract cases and prints, for each section of docs/cases.md, how many
// of its cases are covered. A case is covered if its scenario passed and its transcript holds an expected
// message or status, if the subtest of its id in one of TestCases passed, or if a case that supersedes it is
// covered.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := run(root); err != nil {
		fmt.Fprintln(os.Stderr, "cases:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	sections, err := read(filepath.Join(root, "docs", "cases.md"))
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "cases: running the tests")
	passed, failed, err := play(root)
	if err != nil {
		return err
	}
	covered := map[string]bool{}
	for test := range passed {
		kind, id, _ := strings.Cut(test, "/")
		if kind == "TestCases" || hasTranscript(filepath.Join(root, casesDir, id+".txtar")) {
			covered[id] = true
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SECTION\tCOVERED\tTOTAL\tMISSING")
	have, total := 0, 0
	for _, s := range sections {
		var missing []string
		for _, c := range s.cases {
			if !covered[c.id] && !covered[c.supersededBy] {
				missing = append(missing, c.id)
			}
		}
		n := len(s.cases) - len(missing)
		have, total = have+n, total+len(s.cases)
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", s.name, n, len(s.cases), short(missing))
	}
	fmt.Fprintf(w, "\t%d\t%d\t\n", have, total)
	if err := w.Flush(); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s; see go test -run with one of them", strings.Join(failed, " "))
	}
	return nil
}

// casesDir has the scenarios of cases.
const casesDir = "cmd/fingerpost/app/testdata/cases"

// short lists ids as far as a line goes.
func short(ids []string) string {
	if len(ids) > 12 {
		return strings.Join(ids[:12], " ") + " ..."
	}
	return strings.Join(ids, " ")
}

type section struct {
	name  string
	cases []contractCase
}

type contractCase struct{ id, supersededBy string }

var (
	heading    = regexp.MustCompile(`^## ([A-Z]{1,2})\. `)
	row        = regexp.MustCompile(`^\| ([A-Z]{1,2}[0-9]+[a-z]?) +\| [=+] `)
	superseded = regexp.MustCompile(`Superseded by ([A-Z]{1,2}[0-9]+[a-z]?)`)
)

func read(path string) (sections []section, err error) {
	page, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(page)) {
		if m := heading.FindStringSubmatch(line); m != nil {
			sections = append(sections, section{name: m[1]})
		}
		m := row.FindStringSubmatch(line)
		if m == nil || len(sections) == 0 {
			continue
		}
		c := contractCase{id: m[1]}
		if by := superseded.FindStringSubmatch(line); by != nil {
			c.supersededBy = by[1]
		}
		last := &sections[len(sections)-1]
		last.cases = append(last.cases, c)
	}
	if len(sections) == 0 {
		return nil, errors.New(path + " lists no cases")
	}
	return sections, nil
}

// modules have the tests: TestScenarios, or TestCases, with a subtest for each case.
var modules = []struct {
	dir      string
	packages []string
}{
	{".", []string{
		"./cluster/endpointslice", "./cluster/routestatus", "./cmd/fingerpost/...", "./discovery/linkerd",
		"./discovery/policyapi", "./identity/...", "./inject/...",
	}},
	{"e2e", []string{"./inject", "./slices"}}, // on real control planes
}

// play runs the tests and returns the subtests that passed and those that failed.
func play(root string) (passed map[string]bool, failed []string, err error) {
	passed = map[string]bool{}
	for _, m := range modules {
		cmd := exec.Command("go", append([]string{
			"test", "-count=1", "-json", "-run", "^(TestScenarios|TestCases)$",
		}, m.packages...)...)
		cmd.Dir, cmd.Stderr = filepath.Join(root, m.dir), os.Stderr
		out, err := cmd.Output()
		if _, exit := errors.AsType[*exec.ExitError](err); err != nil && !exit {
			return nil, nil, err
		}
		found := 0
		for line := range strings.Lines(string(out)) {
			var event struct{ Action, Test string }
			if json.Unmarshal([]byte(line), &event) != nil || !strings.Contains(event.Test, "/") {
				continue // the compiler's words, or a test of many cases
			}
			switch event.Action {
			case "pass":
				passed[event.Test] = true
				found++
			case "fail":
				failed = append(failed, event.Test)
				found++
			}
		}
		if found == 0 {
			return nil, nil, fmt.Errorf("no test was run: see go test -C %s %s", m.dir, strings.Join(m.packages, " "))
		}
	}
	slices.Sort(failed)
	return passed, failed, nil
}

// hasTranscript reports whether the transcript of a case holds more than its script.
func hasTranscript(path string) bool {
	b, err := os.ReadFile(path)
	if err != nil {
		return false // no case
	}
	_, transcript, found := strings.Cut(string(b), "-- stream --\n")
	if !found {
		return false
	}
	for line := range strings.Lines(transcript) {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "> ") {
			return true
		}
	}
	return false
}
