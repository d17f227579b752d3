package hostile

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// A fleet of 200 small clusters, of which each federated Service is made, is served in full, and watched over.
func TestFleet(t *testing.T) {
	const clusters, services = 200, 10
	app := func(cluster, i int) fakeapi.App {
		return fakeapi.App{
			Namespace: "shop",
			Name:      fmt.Sprintf("app-%d", i),
			Pods:      1,
			First:     netip.AddrFrom4([4]byte{13, byte(cluster), 0, byte(i)}),
		}
	}
	w := newBusy(t)
	var names []string
	for n := range clusters {
		c := w.link(fmt.Sprintf("c%d", n))
		c.Run(services, func(i int) fakeapi.App { return app(n, i) })
		names = append(names, c.Name)
	}
	for i := range services {
		w.local.Apply(fakeapi.Federated("shop", fmt.Sprintf("app-%d", i), names...))
	}
	w.serve()
	w.live(names...)
	for i := range services {
		var want []netip.AddrPort
		for n := range clusters {
			want = append(want, app(n, i).Addr(0))
		}
		c := w.client(fakeapi.Authority("shop", fmt.Sprintf("app-%d-federated", i)), want...)
		w.answers(c, 5)
		if i > 1 {
			c.Stop()
		}
	}
	w.answered(20)
	w.eventually("a scrape", func(ctx context.Context) error {
		_, err := w.server.Metrics(ctx)
		return err
	})
}
