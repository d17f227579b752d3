package repo

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/check"
	"github.com/fingerpost/fingerpost/links"
)

// docsURL is what links of the product and of the charts begin with.
const docsURL = "https://github.com/fingerpost/fingerpost/blob/main/docs/"

// An alertRule is an alert of the chart. Its annotation problems names the Classes that it reports.
type alertRule struct {
	Alert               string
	Labels, Annotations map[string]string
}

// classes returns the Classes that an alert reports.
func (r alertRule) classes() (all []problem.Class) {
	for name := range strings.SplitSeq(r.Annotations["problems"], ", ") {
		if name != "" {
			all = append(all, problem.Class(name))
		}
	}
	return all
}

// runbook returns the page and heading that an alert leads to.
func (r alertRule) runbook() string { return strings.TrimPrefix(r.Annotations["runbook_url"], docsURL) }

func alertRules(t *testing.T) (all []alertRule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alertRule } }
	if err := yaml.Unmarshal([]byte(read(t, root+"/charts/fingerpost/files/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

const aboutProblems = "What can be wrong, and what to do, by class. The [status page](cli.md#the-status-page), " +
	"`fingerpost clusters` and [checks](checks.md) show Problems; [conditions of a Link]" +
	"(operations.md#conditions-of-a-link) and Events have the class, or a finer [reason](#reasons); [alerts]" +
	"(operations.md#alerts) name it. The message has the details. What is urgent fails its check; the rest is a " +
	"warning or information. In commands, capitals stand for names."

// problemsPage has a section for each Class.
func problemsPage(t *testing.T) string {
	t.Helper()
	rules, all := alertRules(t), problem.Descriptions()
	page := "# Problems\n\nGenerated from `cluster/problem` by `make generate`.\n\n" + wrapped("", aboutProblems) + "\n"

	page += "| | classes |\n|---|---|\n"
	for i, group := range groupsOf(all) {
		if i > 0 {
			page += "\n"
		}
		page += fmt.Sprintf("| [%s](#%s) | %s |", group, slug(string(group)), classLinks(classesIn(all, group), ""))
	}
	page += "\n| [Reasons](#reasons) | of requests that fail |\n"

	var group problem.Group
	command := ""
	for _, d := range all {
		if d.Group != group {
			group, command = d.Group, usualCommand(all, d.Group)
			page += fmt.Sprintf("\n## %s\n\n`%s` has more.\n", group, command)
		}
		page += "\n" + problemSection(d, command, rules)
	}
	return page + "\n" + reasonsSection()
}

func groupsOf(all []problem.Description) (groups []problem.Group) {
	for _, d := range all {
		groups = append(groups, d.Group)
	}
	return slices.Compact(groups)
}

func classesIn(all []problem.Description, group problem.Group) (classes []problem.Class) {
	for _, d := range all {
		if d.Group == group {
			classes = append(classes, d.Class)
		}
	}
	return classes
}

// usualCommand returns the command of most Classes of a group, the first of several.
func usualCommand(all []problem.Description, group problem.Group) string {
	counts, commands := map[string]int{}, []string{}
	for _, d := range all {
		if d.Group == group {
			counts[d.Command]++
			commands = append(commands, d.Command)
		}
	}
	return slices.MaxFunc(commands, func(a, b string) int { return counts[a] - counts[b] })
}

// problemSection is that of one Class. Its command is left out if it is the usual one.
func problemSection(d problem.Description, usual string, rules []alertRule) string {
	text := "### " + string(d.Class) + "\n\n" + wrapped("", d.Means) + "\n"
	if d.Affects != "" {
		text += wrapped("* ", "*Affected:* "+d.Affects)
	}
	remedy := ""
	if d.Remedy != "" {
		remedy = asCode(strings.ToUpper(d.Remedy[:1])+d.Remedy[1:]) + ". "
	}
	text += wrapped("* ", "*To do:* "+remedy+d.Advice)

	see := reportedBy(d.Class, rules)
	command := quoted.FindStringSubmatch(d.Remedy)
	if d.Command != usual && (command == nil || !strings.HasPrefix(d.Command, command[1])) {
		see = append([]string{"`" + d.Command + "`"}, see...)
	}
	if d.More != "" {
		_, anchor, _ := strings.Cut(d.More, "#")
		see = append(see, fmt.Sprintf("[%s](%s)", strings.ReplaceAll(anchor, "-", " "), d.More))
	}
	return text + wrapped("* ", "*See:* "+strings.Join(see, "; "))
}

var (
	quoted = regexp.MustCompile(`'(fingerpost [^']*)'`)                // a command in a remedy
	name   = regexp.MustCompile(`(^| )(-[a-z-]+|[a-z.]+\.io/[a-z-]+)`) // a flag or an annotation
)

// asCode returns a remedy, which is printed elsewhere, as Markdown.
func asCode(remedy string) string {
	return name.ReplaceAllString(quoted.ReplaceAllString(remedy, "`$1`"), "$1`$2`")
}

// unit is what is not broken into lines.
var unit = regexp.MustCompile("(?:`[^`]*`|\\[[^\\]]*\\]\\([^)]*\\)|\\S)+")

// wrapped returns a paragraph, or an item of a list, in lines of 150 characters.
func wrapped(mark, text string) string {
	lines := []string{strings.TrimSpace(mark)}
	for _, word := range unit.FindAllString(text, -1) {
		last := &lines[len(lines)-1]
		if utf8.RuneCountInString(*last)+utf8.RuneCountInString(word) >= 150 {
			lines = append(lines, strings.Repeat(" ", max(0, len(mark)-1)))
			last = &lines[len(lines)-1]
		}
		if *last != "" {
			*last += " "
		}
		*last += word
	}
	return strings.Join(lines, "\n") + "\n"
}

// shownOnly are the Classes that no condition, check or alert reports, and what shows them.
var shownOnly = map[problem.Class]string{
	problem.NotGranted:    "`fingerpost clusters -o wide`",
	problem.NoneReadyHere: "status page",
	problem.SlowClients:   "status page",
}

// reportedBy returns what reports Problems of a Class.
func reportedBy(class problem.Class, rules []alertRule) (all []string) {
	for _, c := range links.Conditions() {
		if slices.Contains(c.Classes, class) {
			all = append(all, "condition "+c.Type)
		}
	}
	for _, s := range check.Subjects() {
		if slices.Contains(s.Classes, class) {
			all = append(all, fmt.Sprintf("check [%s](checks.md#%s)", s.Title, s.Anchor))
		}
	}
	for _, r := range rules {
		if slices.Contains(r.classes(), class) {
			all = append(all, fmt.Sprintf("alert [%s](operations.md#alerts)", r.Alert))
		}
	}

	if shown := shownOnly[class]; shown != "" {
		all = append(all, shown)
	}
	return all
}

func reasonsSection() string {
	text := "## Reasons\n\nWhy an API server does not do what it is asked for, in conditions, Problems and metrics.\n\n" +
		"| reason | means | to do |\n|---|---|---|\n"
	for _, r := range api.Reasons() {
		todo := asCode(r.Remedy)
		if r.Advice != "" {
			todo = strings.TrimPrefix(todo+"; "+r.Advice, "; ")
		}
		text += fmt.Sprintf("| `%s` | %s | %s |\n", r.Reason, r.Means, todo)
	}
	return text
}

// classLinks leads to the sections of Classes, from a page beside theirs, or from their own.
func classLinks(classes []problem.Class, page string) string {
	var all []string
	for _, c := range classes {
		all = append(all, fmt.Sprintf("[%s](%s#%s)", c, page, strings.ToLower(string(c))))
	}
	return strings.Join(all, ", ")
}

// checksTable has a row for each subject of checks.
func checksTable(*testing.T) string {
	text, category := "| check | passes if | else see |\n|---|---|---|\n", ""
	for _, s := range check.Subjects() {
		if s.Category != category {
			category = s.Category
			text += fmt.Sprintf("| **%s** | | |\n", category)
		}
		see := classLinks(s.Classes, "problems.md")
		if see == "" {
			see = fmt.Sprintf("[below](#%s)", s.Anchor)
		}
		text += fmt.Sprintf("| %s | %s | %s |\n", s.Title, s.Passes, see)
	}
	return text
}

// conditionsTable has a row for each condition of a Link.
func conditionsTable(*testing.T) string {
	text := "| condition | True means | present | else, the reason |\n|---|---|---|---|\n"
	for _, c := range links.Conditions() {
		present := c.Present
		if present == "" {
			present = "always"
		}
		text += fmt.Sprintf("| %s | %s | %s | %s |\n", c.Type, c.Means, present, classLinks(c.Classes, "problems.md"))
	}
	return text
}

var (
	installation = regexp.MustCompile(` \(installation [^)]*\)|\{\{ \$labels\.installation \}\}: `)
	label        = regexp.MustCompile(`\{\{ \$labels\.\w+ \}\}`)
	value        = regexp.MustCompile(`\{\{ \$value[^}]* \}\}`)
	alternatives = regexp.MustCompile(`\{\{ with .* end \}\}`)
)

// alertsTable has a row for each alert.
func alertsTable(t *testing.T) string {
	t.Helper()
	text := "| alert | severity | means | what to do |\n|---|---|---|---|\n"
	for _, r := range alertRules(t) {
		means := installation.ReplaceAllString(r.Annotations["summary"], "")
		means = strings.ToUpper(means[:1]) + means[1:]
		for _, pattern := range []*regexp.Regexp{alternatives, label, value} {
			means = pattern.ReplaceAllString(means, "…")
		}

		todo := classLinks(r.classes(), "problems.md")
		if own, is := strings.CutPrefix(r.runbook(), "operations.md"); is {
			todo = fmt.Sprintf("[below](%s)", own)
		}
		text += fmt.Sprintf("| %s | %s | %s | %s |\n",
			r.Alert, r.Labels["severity"], strings.TrimSuffix(means, "."), todo)
	}
	return text
}

// Each Class and each Reason is described, and something shows it; alerts name Classes that there are, and lead to one
// of them.
func TestProblemsAreDocumented(t *testing.T) {
	rules, all := alertRules(t), problem.Descriptions()
	described := map[string]bool{}
	for _, d := range all {
		described[string(d.Class)] = true
		if d.Means == "" || d.Remedy+d.Advice == "" || d.Command == "" {
			t.Errorf("%s is not described completely: %+v", d.Class, d)
		}
		if n := len(reportedBy(d.Class, rules)); n == 0 || n > 1 && shownOnly[d.Class] != "" {
			t.Errorf("%d conditions, checks and alerts report %s, and %q", n, d.Class, shownOnly[d.Class])
		}
	}
	for _, r := range api.Reasons() {
		described[string(r.Reason)] = true
		if r.Means == "" || r.Remedy+r.Advice == "" {
			t.Errorf("%s is not described completely", r.Reason)
		}
	}

	declared := regexp.MustCompile(`(?m)^\t\w+ +(?:Class|Reason) += "(\w+)"`)
	for _, path := range []string{"/cluster/problem/classes.go", "/cluster/api/connection.go"} {
		found := declared.FindAllStringSubmatch(read(t, root+path), -1)
		if len(found) < 10 {
			t.Errorf("%s declares %d", path, len(found))
		}
		for _, match := range found {
			if !described[match[1]] {
				t.Errorf("docs/problems.md does not have %s", match[1])
			}
		}
	}
	for _, r := range rules {
		checkAlert(t, r, described)
	}
}

// checkAlert checks the Problems that an alert names, and where it leads.
func checkAlert(t *testing.T, r alertRule, described map[string]bool) {
	t.Helper()
	if !leads(t, root+"/docs/problems.md", r.runbook()) {
		t.Errorf("%s leads to %s, and there is no such heading", r.Alert, r.runbook())
	}
	ofClass := strings.HasPrefix(r.runbook(), "problems.md#")
	if own := "operations.md#" + strings.ToLower(r.Alert); !ofClass && r.runbook() != own {
		t.Errorf("%s leads to %s, want a class or %s", r.Alert, r.runbook(), own)
	}
	if ofClass && len(r.classes()) == 0 {
		t.Errorf("%s names no Problem, and leads to one", r.Alert)
	}
	for _, class := range r.classes() {
		if !described[string(class)] {
			t.Errorf("%s names the Problem %s, and there is none", r.Alert, class)
		}
	}
}
