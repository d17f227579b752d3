package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

// TableWidth is how many columns reports have that are not printed as tables.
const TableWidth = 100

const (
	tableGap = 2  // columns between cells
	minCell  = 8  // columns that a cell keeps when it is cut, unless its header is longer
	minLast  = 30 // columns that the last cell keeps until all others are cut to the least
)

// A table is for people. In a pipe it is as wide as its cells need. On a terminal it fits into the width:
// cells that are too long are cut in the middle, because names have the same beginnings, and the last one of
// a row is wrapped, or cut if oneLine is set. What is cut is in -o json.
type table struct {
	header      []string
	rows        []*row
	keepColumns int      // so many columns from the left are cut last: those that people copy
	whole       []string // headers of what is never cut, because a part of it is of no use
	oneLine     bool     // a row is one line
	optional    []string // headers that a narrow terminal does without, in this order
	volatile    []string // headers of what changes by itself: a row is the same if the others are
}

// A row is its cells, and the colours of some of them, by header.
type row struct {
	cells   []string
	colours map[string]Colour
}

func newTable(header ...string) *table { return &table{header: header} }

// addRow adds a row of values, as fmt prints them.
func (t *table) addRow(values ...any) *row {
	r := &row{colours: map[string]Colour{}}
	for _, v := range values {
		r.cells = append(r.cells, Printable(fmt.Sprint(v)))
	}
	t.rows = append(t.rows, r)
	return r
}

// dropColumn removes a column, if there is one of that header.
func (t *table) dropColumn(header string) {
	i := slices.Index(t.header, header)
	if i < 0 {
		return
	}
	t.header = slices.Delete(t.header, i, i+1)
	for _, r := range t.rows {
		r.cells = slices.Delete(r.cells, i, i+1)
	}
}

func (t *table) printTo(to io.Writer) error {
	f := frame{Screen: NewScreen(to)}
	f.addTable(t)
	return f.printAll()
}

// render returns the lines of the table. All lines of a row have the row's key, so that what is wrapped is
// printed again as a whole.
func (t *table) render(screen Screen) (lines []line) {
	widths := t.widths(screen.width)
	for screen.width > 0 && len(t.optional) > 0 && total(widths) > screen.width {
		t.dropColumn(t.optional[0])
		t.optional = t.optional[1:]
		widths = t.widths(screen.width)
	}

	last := len(widths) - 1
	for _, row := range append([]*row{{cells: t.header}}, t.rows...) {
		wrapped := []string{ShortenEnd(row.cells[last], widths[last])}
		if !t.oneLine && screen.width > 0 {
			wrapped = Wrap(row.cells[last], widths[last])
		}

		for i, end := range wrapped {
			var text strings.Builder
			for c, width := range widths[:last] {
				cell := ""
				if i == 0 {
					cell = debug.Shorten(row.cells[c], width)
				}
				text.WriteString(screen.Paint(row.colours[t.header[c]], cell))
				text.WriteString(strings.Repeat(" ", width+tableGap-utf8.RuneCountInString(cell)))
			}

			text.WriteString(screen.Paint(row.colours[t.header[last]], end))
			lines = append(lines, line{strings.TrimRight(text.String(), " "), t.keyOf(row)})
		}
	}

	return lines
}

func (t *table) keyOf(r *row) string {
	cells := slices.Clone(r.cells)
	for c, name := range t.header {
		if slices.Contains(t.volatile, name) {
			cells[c] = ""
		}
	}
	return strings.Join(cells, "\x00")
}

// widths returns the width of each column. Columns have what their cells need; if that is more than limit,
// the widest of them lose a column at a time: first those after keepColumns, then all, once no optional one is left.
func (t *table) widths(limit int) []int {
	widths := make([]int, len(t.header))
	for i, name := range t.header {
		widths[i] = utf8.RuneCountInString(name)
		for _, r := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r.cells[i]))
		}
	}
	if limit == 0 {
		return widths
	}

	last := len(widths) - 1
	left := limit - tableGap*last
	least := min(widths[last], minLast)

	for _, from := range []int{min(t.keepColumns, last), 0} {
		if from < t.keepColumns && len(t.optional) > 0 {
			break
		}

		for sum(widths[:last])+least > left {
			widest := t.widest(widths[:last], from)
			if widest < 0 {
				break
			}
			widths[widest]--
		}
	}

	rest := left - sum(widths[:last])
	if rest < least && len(t.optional) == 0 {
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
		if slices.Contains(t.whole, t.header[i]) {
			continue
		}
		if widths[i] > least && (widest < 0 || widths[i] > widths[widest]) {
			widest = i
		}
	}
	return widest
}

func total(widths []int) int { return sum(widths) + tableGap*(len(widths)-1) }

func sum(numbers []int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// ShortenEnd cuts the end off a text that has more columns than width.
func ShortenEnd(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:max(width-1, 0)]) + "…"
}

// Wrap breaks a text into lines, at least one.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		word = debug.Shorten(word, width)
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
func dash(s string) string { return cmp.Or(s, "-") }

// PrintJSON prints a page for machines.
func PrintJSON(to io.Writer, page any) error {
	b, err := json.MarshalIndent(page, "", "  ")
	if err != nil {
		return err
	}
	return writeJSON(to, b)
}

// writeJSON writes a document as a line, or lines, with escapes for what a terminal would interpret: to a machine it is
// the same.
func writeJSON(to io.Writer, document []byte) error {
	shown := make([]byte, 0, len(document)+1)
	for _, r := range string(document) {
		if r == '\n' || unicode.IsPrint(r) {
			shown = utf8.AppendRune(shown, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			shown = fmt.Appendf(shown, `\u%04x`, unit)
		}
	}
	_, err := to.Write(append(shown, '\n'))
	return err
}

// printPage prints a page for machines in one of the forms that -o names.
func printPage(to io.Writer, page any, output string) error {
	if output != yamlOutput {
		return PrintJSON(to, page)
	}
	b, err := marshalYAML(page)
	if err != nil {
		return err
	}
	_, err = to.Write(b)
	return err
}
