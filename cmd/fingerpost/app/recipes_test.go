package app_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	annotateCommand = regexp.MustCompile(`(?m)^kubectl annotate (service|link) (\S+) -n \S+ (.*)$`)
	readyOf         = regexp.MustCompile(`^(\d+) of (\d+)(, Stale)?$`)
)

// The recipes of docs/traffic.md, played as they stand there: the commands, and then each row of the table.
func TestTrafficRecipes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/traffic.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## Recipes\n")
	text, _, _ = strings.Cut(text, "\n## ")
	recipes := strings.Split(text, "\n### ")[1:]
	if len(recipes) < 5 {
		t.Fatalf("%d recipes", len(recipes))
	}
	for _, recipe := range recipes {
		title, text, _ := strings.Cut(recipe, "\n")
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			playRecipe(t, text)
		})
	}
}

func playRecipe(t *testing.T, text string) {
	t.Helper()
	verbs := []string{
		"apply local fleet/shop.yaml traffic/nodes.yaml", "endpoints local shop/web", "endpoints east shop/web",
		"endpoints west shop/web", "endpoints local shop/web-federated",
		"annotate local Service shop/web-federated members=web,web@east,web@west",
		"apply local fleet/east-link.yaml fleet/west-link.yaml",
	}
	commands := annotateCommand.FindAllStringSubmatch(text, -1)
	if len(commands) == 0 {
		t.Fatal("no command")
	}
	for _, c := range commands {
		object := "Service shop/" + c[2]
		if c[1] == "link" {
			object = "Link mc/" + c[2]
		}
		verbs = append(verbs, "annotate local "+object+" "+c[3])
	}
	verbs = append(verbs, "crowd c web-federated.shop.svc.mycluster.local:80")
	rows := 0
	played(t, verbs, func(s *scenario) {
		var columns []string
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "| ") {
				continue
			}
			cells := strings.Split(strings.Trim(line, "| \n"), " | ")
			if columns == nil {
				columns = cells
				continue
			}
			rows++
			s.playRow(columns, cells)
		}
	})
	if rows < 2 {
		t.Errorf("the table has %d rows", rows)
	}
}

// playRow gives each cluster the endpoints of its cell, and compares what a crowd holds with the last one.
func (s *scenario) playRow(columns, cells []string) {
	s.t.Helper()
	last := len(columns) - 1
	for i, cluster := range columns[:last] {
		m := readyOf.FindStringSubmatch(cells[i])
		if m == nil {
			s.t.Fatalf("%s: %q", cluster, cells[i])
		}
		ready, _ := strconv.Atoi(m[1]) // digits
		all, _ := strconv.Atoi(m[2])
		var numbers []string
		for n := 1; n <= all; n++ {
			number := strconv.Itoa(n)
			if n > ready {
				number += "!"
			}
			numbers = append(numbers, number)
		}
		s.do("endpoints", append([]string{cluster, "shop/web"}, numbers...))
		elapse(settle)
		if m[3] != "" {
			s.do("partition", []string{cluster})
			elapse(3 * time.Minute)
		} else if cluster != home {
			s.do("heal", []string{cluster, "2s"})
		}
	}
	elapse(settle)
	var got []string
	for line, n := range s.holdings("c") {
		got = append(got, fmt.Sprintf("%d get %s", n, line))
	}
	slices.Sort(got)
	want := strings.Split(cells[last], ", ")
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("%s: %s", cells, strings.Join(got, ", "))
	}
}
