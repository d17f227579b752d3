package repo

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Pages are true to the tree: the tests, scenarios, cases, metrics and commands that a page names exist, and
// so do the files and headings that its links lead to.
func TestDocs(t *testing.T) {
	var pages []string
	var source strings.Builder
	tests, scenarios := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := entry.Name(); {
		case entry.IsDir() && (name == ".git" || name == "bin"):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".md"):
			pages = append(pages, path)
		case strings.HasSuffix(name, ".txtar"):
			scenarios[strings.TrimSuffix(name, ".txtar")] = true
		case strings.HasSuffix(name, "_test.go"):
			for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, path),
				-1) {
				tests[match[1]] = true
			}
		case strings.HasSuffix(name, ".go"):
			source.WriteString(read(t, path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^\| ((?:[A-U]|P[A-Z])\d{2,3}[a-z]?) `).FindAllStringSubmatch(read(t,
		root+"/docs/cases.md"), -1) {
		cases[match[1]] = true
	}

	commands := map[string]bool{"destination": true, "status": true} // aliases, which are not completed
	for line := range strings.Lines(fingerpost(t, "__complete", "")) {
		name, _, _ := strings.Cut(line, "\t")
		commands[name] = true
	}

	named := 0
	check := func(page, what, pattern string, exists func(name string) bool) {
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, page), -1) {
			named++
			if !exists(match[1]) {
				t.Errorf("%s names %s %s, and there is none", page, what, match[1])
			}
		}
	}
	for _, page := range pages {
		check(page, "the test", `\b(Test[A-Z]\w*)`, func(name string) bool { return tests[name] })
		check(
			page,
			"the metric",
			`\b(fingerpost_[a-z_]*[a-z])\b`,
			func(name string) bool {
				gone := filepath.Base(page) == "CHANGELOG.md" // it names what had another name
				return gone || strings.Contains(source.String(), `"`+name+`"`)
			},
		)
		check(
			page,
			"the command",
			"(?m)(?:`|^ *|-- )fingerpost ([a-z-]+)",
			func(name string) bool { return commands[name] },
		)
		check(page, "the file", `\]\(([^)\s]+)\)`, func(link string) bool { return leads(t, page, link) })
	}
	// In these, italics are for scenarios.
	for _, page := range []string{root + "/docs/protocol.md", root + "/docs/drop-in.md"} {
		check(page, "the case", `\b((?:[A-U]|P[A-Z])\d{2,3}[a-z]?)\b`, func(name string) bool { return cases[name] })
		check(page, "the scenario", `\*([a-z0-9-]+)\*`, func(name string) bool { return scenarios[name] })
	}
	if named < 150 {
		t.Errorf("only %d names were found in %d pages", named, len(pages))
	}
}

// Links of alerts and dashboards lead to headings.
func TestLinksOfCharts(t *testing.T) {
	url, found := regexp.MustCompile(docsURL+`([a-z/.-]+#[a-z-]+)`), 0
	for _, pattern := range []string{"files/*.yaml", "dashboards/*.json"} {
		paths, err := filepath.Glob(root + "/charts/fingerpost/" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			for _, match := range url.FindAllStringSubmatch(read(t, path), -1) {
				found++
				if !leads(t, root+"/docs/README.md", match[1]) {
					t.Errorf("%s leads to %s, and there is no such heading", path, match[1])
				}
			}
		}
	}
	if found < 60 {
		t.Errorf("only %d links were found", found)
	}
}

// leads reports whether a link of a page leads to a file, and its anchor to a heading.
func leads(t *testing.T, page, link string) bool {
	t.Helper()
	if path, ours := strings.CutPrefix(link, "https://github.com/fingerpost/fingerpost/blob/main/"); ours {
		page, link = filepath.Join(root, "README.md"), path // of the charts, whose READMEs are read elsewhere
	}
	if strings.Contains(link, "://") {
		return true // not ours to ask
	}
	path, anchor, _ := strings.Cut(link, "#")
	to := page
	if path != "" {
		to = filepath.Join(filepath.Dir(page), path)
	}
	if _, err := os.Stat(to); err != nil {
		return false
	}
	if anchor == "" {
		return true
	}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(read(t, to), -1) {
		if slug(heading[1]) == anchor {
			return true
		}
	}
	return false
}

var punctuation = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// slug returns the anchor of a heading, as GitHub makes them: small letters, dashes for blanks, no punctuation.
func slug(heading string) string {
	return strings.ReplaceAll(punctuation.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
