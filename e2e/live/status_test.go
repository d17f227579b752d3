package live

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/internal/browser"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// The status page in a browser: it shows the clusters, Services and streams, follows by itself when a cluster
// goes stale, fits a phone, shows as much without its script, and what a client makes up is text.
func TestStatusPage(t *testing.T) {
	b := browser.Open(t)
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
	b.Do("the page", chromedp.EmulateViewport(1200, 760), chromedp.Navigate(url),
		chromedp.WaitVisible("#cluster-west .Live"), chromedp.WaitVisible("#cluster-north .Live"))
	text := browser.Get(b, "its text", chromedp.Text("main"))
	flat := strings.Join(strings.Fields(text), " ")
	for _, want := range []string{
		"All 3 clusters are Live", "east local Live", "west Live", "status/web-federated federated", "6 of 6",
		"status/web plain", "2 of 2", evil, "<script>",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("the page does not show %s:\n%s", want, text)
		}
	}
	if strings.Contains(flat, "kube-system") {
		t.Error("the filter lets everything through")
	}
	w.do(west.Proxy.Silence())
	b.Do("it follows", chromedp.WaitVisible("#cluster-west .Stale"))
	b.Picture("status")

	b.Do("a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), chromedp.Reload(),
		chromedp.WaitVisible("#cluster-west .Stale"))
	if wide := browser.Get(b, "its width", chromedp.Evaluate[int](`document.documentElement.scrollWidth`)); wide > 390 {
		t.Errorf("a phone shows %d of 390 columns", wide)
	}
	b.Picture("status-phone")
	b.WithoutScripts()
	b.Do("without its script", chromedp.Navigate(url))
	if html := browser.Get(b, "its source", chromedp.OuterHTML("html")); !strings.Contains(html,
		`<td class="state Stale">`) || !strings.Contains(html, `http-equiv="refresh"`) {
		t.Errorf("without its script the page is\n%s", html)
	}
	for _, c := range b.Complaints() {
		t.Errorf("the browser complains: %s", c)
	}
}
