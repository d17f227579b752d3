package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	TableWidth = 100 // columns of a table; wider only if there are too many of them
	tableGap   = 2
	leastCell  = 8  // columns that a cell is not cut to less than, if its header is not longer
	leastNote  = 30 // columns that the last cell keeps until all others are cut to the least
)

// A table is for people: it is within tableWidth columns. Cells that do not fit are cut in their middle, the last one of a row goes on
// in the next line. What is cut is in the JSON.
type table struct {
	header      []string
	rows        [][]string
	keepColumns int // so many columns are cut last: those that people copy
}

func newTable(header ...string) *table { return &table{header: header} }

func (t *table) addRow(cells ...string) {
	for i, cell := range cells {
		cells[i] = Printable(cell)
	}
	t.rows = append(t.rows, cells)
}

// without leaves out a column.
func (t *table) dropColumn(i int) {
	t.header = slices.Delete(t.header, i, i+1)
	for j, row := range t.rows {
		t.rows[j] = slices.Delete(row, i, i+1)
	}
}

// printable leaves out what a terminal would act upon.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}

// printableLines does the same to a text of several lines, such as joined errors.
func PrintableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Printable(line)
	}
	return strings.Join(lines, "\n")
}

func (t *table) print(to io.Writer) error {
	widths := t.widths()
	last := len(widths) - 1
	var b strings.Builder
	for _, row := range append([][]string{t.header}, t.rows...) {
		indent := 0
		for i, width := range widths[:last] {
			cell := shorten(row[i], width)
			fmt.Fprintf(&b, "%s%s", cell, strings.Repeat(" ", width-utf8.RuneCountInString(cell)+tableGap))
			indent += width + tableGap
		}
		for i, line := range Wrap(row[last], widths[last]) {
			if i > 0 {
				b.WriteString("\n" + strings.Repeat(" ", indent))
			}
			b.WriteString(line)
		}
		b.WriteString("\n")
	}
	for line := range strings.Lines(b.String()) {
		if _, err := io.WriteString(to, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// widths returns the width of each column: what its cells need, less what is too much taken from the widest.
func (t *table) widths() []int {
	widths := make([]int, len(t.header))
	for _, row := range append([][]string{t.header}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	last := len(widths) - 1
	left := TableWidth - tableGap*last
	note := min(widths[last], leastNote)
	sum := 0
	for _, from := range []int{min(t.keepColumns, last), 0} {
		for {
			widest := -1
			sum = 0
			for i, width := range widths[:last] {
				sum += width
				least := max(leastCell, utf8.RuneCountInString(t.header[i]))
				if i >= from && width > least && (widest < 0 || width > widths[widest]) {
					widest = i
				}
			}
			widths[last] = max(note, left-sum)
			if sum+note <= left {
				return widths
			}
			if widest < 0 {
				break
			}
			widths[widest]--
		}
	}
	widths[last] = max(min(note, leastCell), left-sum)
	return widths
}

// cut keeps both ends: names begin alike.
func shorten(cell string, width int) string {
	runes := []rune(cell)
	if len(runes) <= width {
		return cell
	}
	head := (width - 1) / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(width-1-head):])
}

func Wrap(cell string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(cell) {
		word = shorten(word, width)
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// printJSON prints what is for machines.
func PrintJSON(to io.Writer, page any) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	return encoder.Encode(page)
}
