package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// A row is one figure.
type row struct{ what, figure, aim string }

// table holds what was measured.
type table struct{ rows []row }

// add adds a figure. aim is what it should be, empty if nothing was set.
func (t *table) add(what, aim, format string, args ...any) {
	t.rows = append(t.rows, row{what, fmt.Sprintf(format, args...), aim})
	last := t.rows[len(t.rows)-1]
	fmt.Fprintf(os.Stderr, "bench:       %s: %s\n", last.what, last.figure)
}

func (t *table) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tMEASURED\tAIM")
	for _, r := range t.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.what, r.figure, r.aim)
	}
	_ = w.Flush()
	return b.String()
}

// page returns the table as Markdown, with the machine's name.
func (t *table) page() string {
	var b strings.Builder
	fmt.Fprintf(
		&b, "# Results\n\nWritten by `make bench` on %s: %s, %d cores, %s. How each is measured: [README.md](README.md).\n\n",
		time.Now().UTC().Format(time.DateOnly), processor(), runtime.NumCPU(), runtime.Version())
	fmt.Fprintf(&b, "| what | measured | aim |\n|---|---|---|\n")
	for _, r := range t.rows {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.what, r.figure, r.aim)
	}
	return b.String()
}

// processor returns the model of the CPU.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
