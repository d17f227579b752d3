package check

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
)

const (
	spinnerInterval = 100 * time.Millisecond
	lineInterval    = 15 * time.Second // between two lines about the same in a pipe
	firstInterval   = time.Second      // between others, and until the first
	progressWidth   = 78               // of a line on a terminal, so that it does not wrap
)

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// progress shows what is waited for: on a terminal in a line that is replaced, elsewhere in a line now and then. nil
// shows nothing.
type progress struct {
	to       io.Writer
	terminal bool

	frame   int
	shown   bool      // a line is on the terminal
	last    time.Time // when a line was printed elsewhere; at first when it began
	subject string    // of that line
}

func newProgress(to io.Writer) *progress {
	terminal := cli.NewScreen(to).Terminal && os.Getenv("TERM") != "dumb"
	return &progress{to: to, terminal: terminal, last: time.Now()}
}

// show shows a text about what is waited for.
func (p *progress) show(subject, text string) {
	text = cli.Printable(text)
	if !p.terminal {
		passed := time.Since(p.last)
		if passed >= lineInterval || passed >= firstInterval && subject != p.subject {
			p.last, p.subject = time.Now(), subject
			fmt.Fprintln(p.to, text)
		}
		return
	}
	p.frame = (p.frame + 1) % len(spinner)
	fmt.Fprintf(p.to, "\r\x1b[K%c %s", spinner[p.frame], cli.ShortenEnd(text, progressWidth-2))
	p.shown = true
}

// clear removes the line from the terminal.
func (p *progress) clear() {
	if p != nil && p.shown {
		fmt.Fprint(p.to, "\r\x1b[K")
		p.shown = false
	}
}
