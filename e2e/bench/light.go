package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/hostile/attack"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
	"github.com/fingerpost/fingerpost/e2e/hostile/honest"
)

// light serves from API servers that this program plays, of which it makes the local one.
func (b *bench) light(ctx context.Context, env []string, fill func(*fakeapi.Server, *fakeapi.Cluster),
	args ...string,
) (_ *fingerpost.Server, stop func() error, _ error) {
	api, err := fakeapi.Start()
	if err != nil {
		return nil, nil, err
	}
	local := api.Cluster("local")
	fill(api, local)
	s, err := b.serveFrom(ctx, local.Kubeconfig(fakeapi.Token), env, append([]string{
		"-link-namespace=" + fakeapi.LinkNamespace, "-mirror-services=off", "-federated-slices=false",
		"-external-workload-slices=false",
	}, args...)...)
	if err != nil {
		return nil, nil, errors.Join(err, api.Close())
	}
	return s, func() error { return errors.Join(s.Stop(), api.Close()) }, nil
}

// withFleet fills API servers with linked clusters that run the same Services, and the local one with a federated
// Service for each of these, made of the clusters that members chooses of all.
func withFleet(
	clusters, services int, app func(cluster int) func(i int) fakeapi.App, members func(all []string, i int) []string,
) func(*fakeapi.Server, *fakeapi.Cluster) {
	return func(api *fakeapi.Server, local *fakeapi.Cluster) {
		var names []string
		for n := range clusters {
			c := api.Cluster(fmt.Sprintf("c%d", n))
			c.Run(services, app(n))
			local.Apply(fakeapi.Link(c.Name, c.Kubeconfig(fakeapi.Token))...)
			names = append(names, c.Name)
		}
		local.Serve("services", fakeapi.Series{N: services, At: func(i int) fakeapi.Object {
			return fakeapi.Federated(namespace, fmt.Sprintf("app-%d", i), members(names, i)...)
		}})
	}
}

// collection is how often a process at rest collects garbage, in which as much CPU is spent at once as in 20 s of rest.
const collection = 2 * time.Minute

// clusters measures a server beside 200 light clusters to which nothing happens, with a stream for each of
// 1,000 federated Services.
func clusters(ctx context.Context, b *bench) (err error) {
	const clusters, services = 200, 1_000
	app := func(cluster int) func(i int) fakeapi.App {
		return func(i int) fakeapi.App {
			first := netip.AddrFrom4([4]byte{10, byte(cluster), byte(i >> 8), byte(i)})
			return fakeapi.App{Namespace: namespace, Name: fmt.Sprintf("app-%d", i), Pods: 1, First: first}
		}
	}
	began := time.Now()
	all := func(names []string, _ int) []string { return names }
	s, stop, err := b.light(ctx, nil, withFleet(clusters, services, app, all), unbounded...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := live(ctx, s, clusters); err != nil {
		return err
	}
	took := time.Since(began)
	t, err := tollOf(ctx, s)
	if err != nil {
		return err
	}
	of := fmt.Sprintf("%d clusters x %d Services", clusters, services)
	b.table.add(of+": start until all are Live", "", "%.0f s, %.0f CPU s, %d MiB live, %d MiB resident",
		took.Seconds(), t.cpu.Seconds(), t.Heap>>20, t.resident>>20)

	c, err := open(ctx, s.Addr, options{streams: services, authority: func(i int) string {
		return fakeapi.Authority(namespace, fmt.Sprintf("app-%d-federated", i))
	}})
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.wait(ctx, "first answers", func() bool { return c.answered.Load() == services }); err != nil {
		return err
	}
	idle := fmt.Sprintf("  idle, with a stream for each of %d federated Services", services)
	for _, wait := range []struct {
		time.Duration
		what, aim string
	}{
		{5 * time.Second, idle, "0.1 of a core"},
		{6 * time.Minute, "  the same 6 minutes later, when absent kinds are rarely asked for", "0.03 of a core"},
	} {
		if err := pause(ctx, wait.Duration); err != nil {
			return err
		}
		core, err := coreOf(ctx, s.PID(), collection)
		if err != nil {
			return err
		}
		b.table.add(wait.what, wait.aim, "%.3f of a core", core)
	}
	var scrapes []time.Duration
	size := 0
	for range 5 {
		began := time.Now()
		if size, err = scrape(ctx, s); err != nil {
			return err
		}
		scrapes = append(scrapes, time.Since(began))
	}
	slices.Sort(scrapes)
	b.table.add("  a scrape, the median of 5", "1 s", "%.2f s, %d KiB", scrapes[2].Seconds(), size>>10)
	return nil
}

// live waits until so many clusters are Live.
func live(ctx context.Context, s *fingerpost.Server, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for {
		all, err := s.Clusters(ctx)
		count := 0
		for _, c := range all {
			if !c.Local && c.State == "Live" {
				count++
			}
		}
		if err == nil && count == n {
			return nil
		}
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("%d clusters of %d are Live: %w", count, n, err)
		}
	}
}

// pause lets time go by.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// scrape reads the metrics, however long that takes, and returns how many bytes they are.
func scrape(ctx context.Context, s *fingerpost.Server) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("a scrape: %s", response.Status)
	}
	return len(page), err
}

// ports measures how long an honest client waits for its first answer, alone and beside one that asks for one
// port of a large Service after the other.
func ports(ctx context.Context, b *bench) (err error) {
	const rate, seconds = 80, 10
	web := fakeapi.App{Namespace: namespace, Name: "web", Pods: 100, First: netip.MustParseAddr("10.0.0.1")}
	large := fakeapi.App{Namespace: namespace, Name: "large", Pods: 10_000, First: netip.MustParseAddr("10.1.0.0")}
	s, stop, err := b.light(ctx, nil, func(_ *fakeapi.Server, local *fakeapi.Cluster) {
		for _, app := range []fakeapi.App{web, large} {
			local.Run(1, func(int) fakeapi.App { return app })
		}
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	c, err := honest.Start(ctx, s.Addr, web.Authority(), web.Addrs())
	if err != nil {
		return err
	}
	defer c.Stop()
	if err := pause(ctx, seconds*time.Second); err != nil {
		return err
	}
	quiet := c.Report()
	sweep, cancel := context.WithTimeout(ctx, seconds*time.Second)
	defer cancel()
	asked, err := attack.Sweep(sweep, s.Addr, fmt.Sprintf("large.%s.svc.cluster.local", namespace), rate)
	if err != nil {
		return err
	}
	beside := c.Report()
	b.table.add(
		fmt.Sprintf("first answer beside a client that asks for %d new ports of a 10,000-endpoint Service a second",
			rate), "3x its quiet value",
		"p50 %.1f ms, at most %.0f ms, %d of %d refused; alone p50 %.1f ms, at most %.0f ms (%d ports answered in %d s)", millis(beside.P50),
		millis(beside.Max), beside.Failed, beside.Failed+beside.Lookups, millis(quiet.P50), millis(quiet.Max),
		asked, seconds)
	return nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
