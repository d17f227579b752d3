package main

import (
	"bytes"
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// What a terminal understands.
const (
	enter  = "\x1b[?1049h\x1b[?25l" // another screen, without a cursor
	leave  = "\x1b[?25h\x1b[?1049l"
	home   = "\x1b[H"
	toEnd  = "\x1b[K"
	below  = "\x1b[J"
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

// A terminal sends keys as they are pressed. Ctrl-C is a key, so that neither make nor go run is interrupted,
// and exits with an error, while the demo clears up.
type terminal struct {
	keys  chan byte // those that are no command
	state *term.State
}

// openTerminal returns nil where there is no terminal. stop is called by Ctrl-C, Ctrl-D and q.
func openTerminal(stop func()) *terminal {
	in := int(os.Stdin.Fd())
	if !term.IsTerminal(in) || !term.IsTerminal(int(os.Stdout.Fd())) {
		return nil
	}
	state, err := term.MakeRaw(in)
	if err != nil {
		return nil
	}
	t := &terminal{keys: make(chan byte), state: state}
	go func() { // until the process ends: a read of a terminal cannot be cancelled
		var b [1]byte
		for {
			if n, err := os.Stdin.Read(b[:]); n == 0 || err != nil {
				return
			}
			switch b[0] {
			case 3, 4, 'q':
				stop()
			default:
				select {
				case t.keys <- b[0]:
				default: // no pause waits for a key
				}
			}
		}
	}()
	return t
}

func (t *terminal) close() { _ = term.Restore(int(os.Stdin.Fd()), t.state) }

// Write begins each line at the left, which the terminal does not do by itself while it sends keys.
func (t *terminal) Write(b []byte) (int, error) {
	_, err := os.Stdout.Write(bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n")))
	return len(b), err
}

// pause gives time to read. Enter and space end it, and p keeps it until another key is pressed.
func (t *terminal) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	end := timer.C
	for {
		select {
		case <-end:
			return nil
		case key := <-t.keys:
			if key != 'p' || end == nil {
				return nil
			}
			end = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A lastLine is a writer that keeps the last line.
type lastLine struct {
	mu   sync.Mutex
	text []byte
}

func (l *lastLine) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := bytes.Split(bytes.TrimRight(b, "\n"), []byte("\n"))
	l.text = lines[len(lines)-1]
	return len(b), nil
}

func (l *lastLine) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
