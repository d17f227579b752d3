package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The script on API servers in memory; make test-e2e plays it on real control planes.
func TestMemory(t *testing.T) {
	stage, err := newMemory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &play{stage: stage}
	reported := 0
	if err := p.once(t.Context(), func(format string, args ...any) {
		t.Logf(format, args...)
		reported++
	}); err != nil {
		t.Error(err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
	if want := len(p.steps()); reported != want {
		t.Errorf("%d steps were reported, want %d", reported, want)
	}
}

var escapes = regexp.MustCompile("\x1b\\[[?0-9;]*[A-Za-z]")

// The screen fits its terminal, and shows what there is.
func TestScreen(t *testing.T) {
	contact := time.Now()
	sc := &scene{
		label: "IN MEMORY", page: "http://127.0.0.1:1/",
		clusters: []fingerpost.Cluster{
			{Name: east, State: "Live", LastContact: &contact},
			{Name: west, State: "Stale", LastContact: &contact, Contact: "no answer within 3s"},
		},
		held:     map[string]int{east: 2, west: 4},
		messages: slices.Repeat([]string{"  add 10.1.0.1:8080"}, 50),
		number:   3, of: 10, step: step{does: "cut west off", seen: "nothing is withdrawn"}, next: "building, 43 %",
	}
	for _, size := range [][2]int{{60, 18}, {110, 30}, {200, 60}} {
		width, height := size[0], size[1]
		screen := escapes.ReplaceAllString(draw(sc.lines(height), width, height), "")
		lines := strings.Split(screen, "\n")
		if len(lines) >= height {
			t.Errorf("%d lines on a terminal of %d", len(lines), height)
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > width {
				t.Errorf("a line is longer than %d: %q", width, line)
			}
		}
		for _, want := range []string{
			"IN MEMORY", "http://127.0.0.1:1/", "[ west ] ╌╌╌╌╌╳╌╌╌╌╌ [ east", "████ 4 kept", "not linked",
			"Step 3 of 10: cut west off",
			"expected: nothing is withdrawn", "building, 43 %", "add 10.1.0.1:8080",
		} {
			if !strings.Contains(screen, want) {
				t.Errorf("at %dx%d the screen has no %q:\n%s", width, height, want, screen)
			}
		}
	}
	sc.output = "+  10.1.0.1:8080  east\n"
	screen := draw(sc.lines(30), 110, 30)
	if !strings.Contains(screen, "OUTPUT") || !strings.Contains(screen, sc.output[:9]) {
		t.Errorf("the output of a step is not shown:\n%s", screen)
	}
}
