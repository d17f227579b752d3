package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// render returns the lines of a table on a terminal of so many columns; 0 is no terminal.
func render(t *table, columns int) (lines []string) {
	for _, l := range t.render(Screen{width: columns}) {
		lines = append(lines, l.text)
	}
	return lines
}

// A table is never wider than a terminal, loses no row, and lets nothing through that a terminal acts upon.
// Elsewhere it has a line for each row, and nothing is cut.
func TestTableWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(1, 10).Draw(t, "columns")
		cells := func() (row []any) {
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
		whole := render(table, 0)
		if len(whole) != rows+1 {
			t.Fatalf("%d lines for %d rows", len(whole), rows)
		}
		for i, r := range table.rows {
			for _, cell := range r.cells {
				if !strings.Contains(whole[i+1], strings.TrimRight(cell, " ")) {
					t.Fatalf("%q is cut: %q", cell, whole[i+1])
				}
			}
		}
		width := rapid.IntRange(100, 200).Draw(t, "width")
		if table.oneLine = rapid.Bool().Draw(t, "one line"); table.oneLine && columns > 2 {
			table.optional = []string{"H"}
		}
		fitted := render(table, width)
		if n := len(fitted); n < rows+1 || table.oneLine && n != rows+1 {
			t.Fatalf("%d lines for %d rows", n, rows)
		}
		for _, line := range fitted {
			if n := utf8.RuneCountInString(line); n > width {
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
	row := slices.Repeat([]any{"as-long-as-the-name-of-a-pod as-long-as-the-name-of-a-pod"}, 10)
	table := newTable(strings.Fields("A B C D E F G H I J")...)
	table.addRow(row...)
	for _, line := range render(table, 100) {
		if n := utf8.RuneCountInString(line); n > 100 {
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
	if diff := cmp.Diff(`NAME                                                           STATE  NOTE
a-name-that-is-so-long-that-it…ole-and-has-to-lose-its-middle  Live   some words that go on in the
                                                                      next line because there is no
                                                                      room
b                                                              Stale
`, strings.Join(render(table, 100), "\n")+"\n"); diff != "" {
		t.Error(diff)
	}
}

// A narrow terminal does without some columns; colours and columns that change by themselves stay those of
// their columns.
func TestNarrowTable(t *testing.T) {
	table := newTable("A", "LONG-HEADER", "B", "C")
	table.optional, table.volatile = []string{"LONG-HEADER"}, []string{"B"}
	table.addRow("a", "x", "b", "c").colours["C"] = Red
	table.addRow("a", "y", "bb", "c")
	lines := table.render(Screen{width: 12, Colours: true})
	want := "A  B   C|a  b   \x1b[31mc\x1b[0m|a  bb  c"
	if diff := cmp.Diff(want, lines[0].text+"|"+lines[1].text+"|"+lines[2].text); diff != "" {
		t.Error(diff)
	}
	if lines[1].key != lines[2].key {
		t.Errorf("the rows differ in what changes by itself only: %q", lines)
	}
}

// JSON does nothing to a terminal, and to a machine it is what it was.
func TestJSONIsPrintable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		odd := rapid.SampledFrom(
			[]string{"\x1b[2J", "\u009b31m", "\u202e", "\x7f", "\u2028", "\U000e0001", "é", "朱", "\"\\\n"},
		)
		page := map[string][]string{"names": rapid.SliceOf(rapid.OneOf(rapid.String(), odd)).Draw(t, "names")}
		var to bytes.Buffer
		if err := PrintJSON(&to, page); err != nil {
			t.Fatal(err)
		}
		unprintable := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
		if strings.ContainsFunc(to.String(), unprintable) {
			t.Fatalf("it prints %q", to.String())
		}
		var got map[string][]string
		if err := json.Unmarshal(to.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(page, got); diff != "" {
			t.Fatal(diff)
		}
	})
}
