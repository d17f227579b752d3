package gobuild

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Show writes the percentage of what is under way, and how long it takes so far, until stop is called: on a
// terminal into one line, into other files a line each 30 s, and to other writers a line each second.
func Show(out io.Writer, what string, percent func() int) (stop func()) {
	every, format, end := time.Second, "%s, %d %%, %v so far\n", ""
	if file, is := out.(*os.File); is {
		every = 30 * time.Second
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			// Return to the start of the line and write over it; at the end clear it.
			every, format, end = time.Second, "\r%s, %d %%, %v so far", "\r\033[K"
		}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		begin := time.Now()
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				fmt.Fprint(out, end)
				return
			case <-ticker.C:
				fmt.Fprintf(out, format, what, percent(), time.Since(begin).Round(time.Second))
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}
