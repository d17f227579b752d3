package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// SpinnerInterval is how often a line on a terminal is to be shown again.
const SpinnerInterval = 100 * time.Millisecond

const (
	lineInterval  = 15 * time.Second // between two lines about the same in a pipe
	firstInterval = time.Second      // between others, and until the first
	progressWidth = 78               // of a line on a terminal, so that it does not wrap
)

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// Progress shows what is waited for: on a terminal in a line that is replaced, elsewhere in a line now and then. nil
// shows nothing.
type Progress struct {
	to       io.Writer
	Terminal bool

	frame   int
	shown   bool      // a line is on the terminal
	last    time.Time // when a line was printed elsewhere; at first when it began
	subject string    // of that line
}

// NewProgress returns one that begins now.
func NewProgress(to io.Writer) *Progress {
	terminal := NewScreen(to).Terminal && os.Getenv("TERM") != "dumb"
	return &Progress{to: to, Terminal: terminal, last: time.Now()}
}

// Show shows a text about what is waited for.
func (p *Progress) Show(subject, text string) {
	text = Printable(text)
	if !p.Terminal {
		passed := time.Since(p.last)
		if passed >= lineInterval || passed >= firstInterval && subject != p.subject {
			p.last, p.subject = time.Now(), subject
			fmt.Fprintln(p.to, text)
		}
		return
	}
	p.frame = (p.frame + 1) % len(spinner)
	fmt.Fprintf(p.to, "\r\x1b[K%c %s", spinner[p.frame], ShortenEnd(text, progressWidth-2))
	p.shown = true
}

// Pause waits, and shows what for. It returns false if ctx ends.
func (p *Progress) Pause(ctx context.Context, pause time.Duration, subject string, text func() string) bool {
	end, tick := time.NewTimer(pause), time.NewTicker(SpinnerInterval)
	defer end.Stop()
	defer tick.Stop()

	for {
		if p != nil {
			p.Show(subject, text())
		}
		select {
		case <-end.C:
			return true
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// Clear removes the line from the terminal.
func (p *Progress) Clear() {
	if p != nil && p.shown {
		fmt.Fprint(p.to, "\r\x1b[K")
		p.shown = false
	}
}
