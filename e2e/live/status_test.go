package live

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of the status page; empty for none")

// A browser is one tab of Chromium that remembers what it complains about.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// openBrowser starts Debian's Chromium, or skips the test.
func openBrowser(t *testing.T) *browser {
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
	b := &browser{t: t}
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

func (b *browser) complain(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, what)
}

// do takes steps, within a minute: a browser that starts on a busy machine takes its time.
func (b *browser) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	get(b, what, chromedp.Steps(steps...))
}

// get is do for a value.
func get[T any](b *browser, what string, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	return value
}

// picture takes one of what is seen.
func (b *browser) picture(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	png := get(b, "picture", chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// The status page in a browser: it shows the clusters, Services and streams, follows by itself when a cluster
// goes stale, fits a phone, says as much without its script, and what a client makes up is text.
func TestStatusPage(t *testing.T) {
	b := openBrowser(t)
	w := newWorld(t, "status", 3)
	west, north := w.Remotes[0], w.Remotes[1]
	w.serve()
	w.link(west, north)
	w.holds(w.watch(mesh.Federated), 3*time.Second, "the union", map[*mesh.Site]int{w.Local: 2, west: 2, north: 2})
	conn, err := grpc.NewClient(w.Server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.do(err)
	defer conn.Close()
	const evil = `<img src=x onerror=console.error(1)>`
	client := proxy.Open(t.Context(), conn,
		proxy.Request{
			Authority: w.Authority(mesh.Service),
			Token:     `{"ns":"` + evil + `","pod":"<script>console.error(2)</script>"}`,
		}, nil)
	defer client.Close()
	w.within(2*time.Second, "the stream is open", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(context.Context) error {
			if n := client.Len(); n != 2 {
				return fmt.Errorf("it holds %d addresses", n)
			}
			return nil
		})
	})

	url := "http://" + w.Server.Debug + "/?q=status"
	b.do("the page", chromedp.EmulateViewport(1200, 760), chromedp.Navigate(url),
		chromedp.WaitVisible("#cluster-west .Live"), chromedp.WaitVisible("#cluster-north .Live"))
	text := get(b, "its text", chromedp.Text("main"))
	flat := strings.Join(strings.Fields(text), " ")
	for _, want := range []string{
		"east (local) Live", "Secret status/cluster-credentials-west",
		"status/web-federated federated 6 of 6 east, north, west", "status/web plain 2 of 2", evil, "<script>",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("the page does not show %s:\n%s", want, text)
		}
	}
	if strings.Contains(flat, "kube-system") {
		t.Error("the filter lets everything through")
	}
	w.do(west.Proxy.Silence())
	b.do("it follows", chromedp.WaitVisible("#cluster-west .Stale"))
	b.picture("status")

	b.do("a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), chromedp.Reload(),
		chromedp.WaitVisible("#cluster-west .Stale"))
	if wide := get(b, "its width", chromedp.Evaluate[int](`document.documentElement.scrollWidth`)); wide > 390 {
		t.Errorf("a phone shows %d of 390 columns", wide)
	}
	b.picture("status-phone")
	b.do("without its script", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetScriptExecutionDisabled,
			emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}), chromedp.Navigate(url))
	if html := get(b, "its source", chromedp.OuterHTML("html")); !strings.Contains(html,
		`<span class="state Stale">`) || !strings.Contains(html, `http-equiv="refresh"`) {
		t.Errorf("without its script the page is\n%s", html)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		t.Errorf("the browser complains: %s", c)
	}
}
