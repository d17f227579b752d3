package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// A Screen is where a command prints: a terminal, which has a size and may have colours, or anything else,
// such as a pipe or a file, where nothing is cut.
type Screen struct {
	io.Writer
	Terminal bool
	Colours  bool
	width    int // columns; 0 for no limit
	height   int // rows; 0 for no limit
}

// NewScreen returns the Screen of an output. NO_COLOR in the environment turns colours off (no-color.org).
func NewScreen(to io.Writer) Screen {
	s := Screen{Writer: to}
	file, is := to.(*os.File)
	if !is || !term.IsTerminal(int(file.Fd())) {
		return s
	}
	s.Terminal = true
	s.Colours = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if width, height, err := term.GetSize(int(file.Fd())); err == nil {
		s.width, s.height = width, height
	}
	return s
}

// A Colour is one of those that every terminal has, by its number.
type Colour int

// The colours, and what they are for.
const (
	Plain  Colour = 0
	Red    Colour = 31 // the user must act
	Green  Colour = 32 // in order
	Yellow Colour = 33 // the user should look
)

// Paint returns a text in a colour, if the Screen has colours.
func (s Screen) Paint(c Colour, text string) string {
	if !s.Colours || c == Plain || text == "" {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", int(c), text)
}

// A frame is what a command prints at once.
type frame struct {
	Screen
	lines []line
}

type line struct {
	text string // with its colours
	key  string // without them, and without what changes by itself, such as ages
}

// printf adds a line.
func (f *frame) printf(format string, args ...any) {
	text := Printable(fmt.Sprintf(format, args...))
	f.lines = append(f.lines, line{text, text})
}

func (f *frame) addTable(t *table) { f.lines = append(f.lines, t.render(f.Screen)...) }

// printAll prints all lines.
func (f *frame) printAll() error {
	var b strings.Builder
	for _, l := range f.lines {
		b.WriteString(l.text + "\n")
	}
	_, err := io.WriteString(f, b.String())
	return err
}

// redraw prints a frame over the one before, as far as it fits: what comes first is the worst.
func (f *frame) redraw() error {
	const home, endOfLine, endOfScreen = "\x1b[H", "\x1b[K", "\x1b[J"
	lines := f.lines
	if fit := f.height - 1; f.height > 0 && len(lines) > fit {
		more := line{text: fmt.Sprintf("(%d more lines)", len(lines)-fit+1)}
		lines = append(slices.Clone(lines[:max(fit-1, 0)]), more)
	}

	var b strings.Builder
	b.WriteString(home)
	for _, l := range lines {
		b.WriteString(l.text + endOfLine + "\n")
	}
	b.WriteString(endOfScreen)
	_, err := io.WriteString(f, b.String())
	return err
}

// printChanged prints the lines that are not in the frame before.
func (f *frame) printChanged(before *frame) error {
	shown := map[string]bool{}
	for _, l := range before.lines {
		shown[l.key] = true
	}
	changed := frame{Screen: f.Screen}
	for _, l := range f.lines {
		if !shown[l.key] {
			changed.lines = append(changed.lines, l)
		}
	}
	return changed.printAll()
}

// Printable drops the characters that a terminal interprets, such as escapes: texts of servers are not
// trusted.
func Printable(s string) string { return strings.ReplaceAll(PrintableLines(s), "\n", " ") }

// PrintableLines does the same to a text of several lines, such as joined errors.
func PrintableLines(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case r == '\n' || unicode.IsPrint(r):
			return r
		}
		return -1
	}, s)
}
