package controlplane

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// progress tells a person that something still goes on: on a terminal one
// line that counts the seconds, elsewhere a line every 30 s.
type progress struct {
	done chan struct{}
	wg   sync.WaitGroup
}

func startProgress(out io.Writer, what string) *progress {
	p := &progress{done: make(chan struct{})}
	p.wg.Go(func() { p.run(out, what) })
	return p
}

func (p *progress) run(out io.Writer, what string) {
	every, format, end := 30*time.Second, "%s, %v so far\n", ""
	if isTerminal(out) {
		// Return to the start of the line and write over it; at the end clear it.
		every, format, end = 2*time.Second, "\r%s, %v so far", "\r\033[K"
	}
	begin := time.Now()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-p.done:
			fmt.Fprint(out, end)
			return
		case <-ticker.C:
			fmt.Fprintf(out, format, what, time.Since(begin).Round(time.Second))
		}
	}
}

// stop returns when nothing more will be written.
func (p *progress) stop() {
	close(p.done)
	p.wg.Wait()
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
