// Package browser looks at pages with Debian's Chromium, in tests.
package browser

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of pages; empty for none")

// A Browser is one tab of Chromium that remembers what it complains about.
type Browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// Open starts Debian's Chromium, or skips the test.
func Open(t *testing.T) *Browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("there is no browser to look at the page with: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.UserDataDir(t.TempDir()))
	allocator, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	b := &Browser{t: t}
	var cancel context.CancelFunc
	b.ctx, cancel = chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	err := chromedp.Listen(b.ctx, func(event any) {
		switch e := event.(type) {
		case *cdpruntime.EventExceptionThrown:
			b.complain(e.ExceptionDetails.Text)
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == cdplog.EntryLevelError || e.Entry.Level == cdplog.EntryLevelWarning {
				b.complain(e.Entry.Text + " " + e.Entry.URL)
			}
		case *cdpruntime.EventConsoleAPICalled:
			if e.Type == cdpruntime.ConsoleAPICalledTypeError {
				b.complain("console.error")
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *Browser) complain(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, what)
}

// Do takes steps, within a minute: a browser that starts on a busy machine takes its time.
func (b *Browser) Do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	Get(b, what, chromedp.Steps(steps...))
}

// Get is Do for a value.
func Get[T any](b *Browser, what string, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	return value
}

// Picture takes one of what is seen, if the flag -screenshots asks for them.
func (b *Browser) Picture(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	png := Get(b, "picture", chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// Complaints returns what the browser has complained about, such as a script that its policy forbids.
func (b *Browser) Complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.complaints
}

// WithoutScripts disables the scripts of pages that are loaded from now on.
func (b *Browser) WithoutScripts() {
	b.t.Helper()
	b.Do("without scripts", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetScriptExecutionDisabled,
			emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}))
}

// Dark prefers dark colours.
func (b *Browser) Dark() {
	b.t.Helper()
	b.Do("dark", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
		})
		return err
	}))
}
