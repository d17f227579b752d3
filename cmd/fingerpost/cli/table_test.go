package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A table is never wider than it should be, loses no row, and lets nothing through that a terminal acts upon.
func TestTableWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(1, 10).Draw(t, "columns")
		cells := func() (row []string) {
			for range columns {
				row = append(
					row,
					rapid.StringOfN(rapid.SampledFrom([]rune("abc-. \n\x1bé")), 0, 60, -1).Draw(t, "cell"),
				)
			}
			return row
		}
		header := make([]string, columns)
		for i := range header {
			header[i] = "H"
		}
		table := newTable(header...)
		rows := rapid.IntRange(0, 5).Draw(t, "rows")
		for range rows {
			table.addRow(cells()...)
		}
		var out bytes.Buffer
		if err := table.print(&out); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n"); n < rows+1 {
			t.Fatalf("%d lines for %d rows", n, rows)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > TableWidth {
				t.Fatalf("a line of %d columns: %q", n, line)
			}
			if strings.Contains(line, "\x1b") {
				t.Fatalf("an escape in %q", line)
			}
		}
	})
}

// As many columns as can be fit into the width of a table, whatever they hold.
func TestTableOfManyColumns(t *testing.T) {
	row := slices.Repeat([]string{"as-long-as-the-name-of-a-pod as-long-as-the-name-of-a-pod"}, 10)
	table := newTable(strings.Fields("A B C D E F G H I J")...)
	table.addRow(row...)
	var out bytes.Buffer
	if err := table.print(&out); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > TableWidth {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
}

func TestTableCuts(t *testing.T) {
	table := newTable("NAME", "STATE", "NOTE")
	table.addRow(
		"a-name-that-is-so-long-that-it-cannot-stand-there-as-a-whole-and-has-to-lose-its-middle",
		"Live",
		"some words that go on in the next line because there is no room",
	)
	table.addRow("b", "Stale", "")
	var out bytes.Buffer
	if err := table.print(&out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`NAME                                                           STATE  NOTE
a-name-that-is-so-long-that-it…ole-and-has-to-lose-its-middle  Live   some words that go on in the
                                                                      next line because there is no
                                                                      room
b                                                              Stale
`, out.String()); diff != "" {
		t.Error(diff)
	}
}
