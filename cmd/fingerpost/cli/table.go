package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// TableWidth is how many columns a table has. It has more only if its headers do not fit.
const TableWidth = 100

const (
	tableGap = 2  // columns between cells
	minCell  = 8  // columns that a cell keeps when it is cut, unless its header is longer
	minLast  = 30 // columns that the last cell keeps until all others are cut to the least
)

// A table is for people. It fits into TableWidth columns: cells that are too long are cut in the middle,
// because names have the same beginnings, and the last one of a row is wrapped. What is cut is in the JSON.
// text/tabwriter aligns the columns; it does not fit them into a width.
type table struct {
	header      []string
	rows        [][]string
	keepColumns int // so many columns from the left are cut last: those that people copy
}

func newTable(header ...string) *table { return &table{header: header} }

func (t *table) addRow(cells ...string) {
	for i, cell := range cells {
		cells[i] = Printable(cell)
	}
	t.rows = append(t.rows, cells)
}

func (t *table) dropColumn(i int) {
	t.header = slices.Delete(t.header, i, i+1)
	for j, row := range t.rows {
		t.rows[j] = slices.Delete(row, i, i+1)
	}
}

// Printable drops the characters that a terminal interprets, such as escapes: texts of servers are not
// trusted.
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

// PrintableLines does the same to a text of several lines, such as joined errors.
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
	aligned := tabwriter.NewWriter(&b, 0, 0, tableGap, ' ', 0)
	for _, row := range append([][]string{t.header}, t.rows...) {
		cells := make([]string, last)
		for i, width := range widths[:last] {
			cells[i] = shorten(row[i], width)
		}
		for _, line := range Wrap(row[last], widths[last]) {
			fmt.Fprintln(aligned, strings.Join(append(cells, line), "\t"))
			cells = make([]string, last) // before what is wrapped
		}
	}
	if err := aligned.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := io.WriteString(to, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// widths returns the width of each column. Columns have what their cells need; if that is too much, the
// widest of them lose a column at a time: first those after keepColumns, then all.
func (t *table) widths() []int {
	widths := make([]int, len(t.header))
	for _, row := range append([][]string{t.header}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	last := len(widths) - 1
	left := TableWidth - tableGap*last
	least := min(widths[last], minLast)
	for _, from := range []int{min(t.keepColumns, last), 0} {
		for sum(widths[:last])+least > left {
			widest := t.widest(widths[:last], from)
			if widest < 0 {
				break
			}
			widths[widest]--
		}
	}
	rest := left - sum(widths[:last])
	if rest < least {
		least = min(least, minCell)
	}
	widths[last] = max(least, rest)
	return widths
}

// widest returns the widest column that can lose width, of those from an index on; -1 if there is none.
func (t *table) widest(widths []int, from int) int {
	widest := -1
	for i := from; i < len(widths); i++ {
		least := max(minCell, utf8.RuneCountInString(t.header[i]))
		if widths[i] > least && (widest < 0 || widths[i] > widths[widest]) {
			widest = i
		}
	}
	return widest
}

func sum(numbers []int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// shorten cuts the middle out of a cell that is too long.
func shorten(cell string, width int) string {
	runes := []rune(cell)
	if len(runes) <= width {
		return cell
	}
	head := (width - 1) / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(width-1-head):])
}

// Wrap breaks a text into lines, at least one.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
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

// dash fills an empty cell.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// PrintJSON prints a page for machines.
func PrintJSON(to io.Writer, page any) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	return encoder.Encode(page)
}
