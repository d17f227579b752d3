package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
	"github.com/fingerpost/fingerpost/e2e/internal/proc"
)

// apps returns the Services of a cluster by their number, each with so many Pods, on addresses of its own.
func apps(cluster, pods int) func(i int) fakeapi.App {
	return func(i int) fakeapi.App {
		first := cluster<<18 + i*pods // within 10.0.0.0/8
		return fakeapi.App{
			Namespace: namespace, Name: fmt.Sprintf("app-%d", i), Pods: pods,
			First: netip.AddrFrom4([4]byte{10, byte(first >> 16), byte(first >> 8), byte(first)}),
		}
	}
}

// toll is what a server has taken since it was started.
type toll struct {
	cpu            time.Duration
	peak, resident int // bytes
	fingerpost.Footprint
}

func tollOf(ctx context.Context, s *fingerpost.Server) (t toll, err error) {
	var errs [4]error
	t.cpu, errs[0] = proc.CPU(s.PID())
	t.peak, errs[1] = proc.Peak(s.PID())
	t.resident, errs[2] = proc.Resident(s.PID())
	t.Footprint, errs[3] = s.Footprint(ctx)
	return t, errors.Join(errs[:]...)
}

// pods measures a server that starts in a cluster of 100,000 Pods, which comes as a streamed list.
func pods(ctx context.Context, b *bench) (err error) {
	const services, each = 1_000, 100
	s, stop, err := b.light(ctx, nil, func(_ *fakeapi.Server, local *fakeapi.Cluster) {
		local.Run(services, apps(0, each))
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	t, err := tollOf(ctx, s)
	if err != nil {
		return err
	}
	b.table.add("start to ready, 100,000 Pods in 1,000 Services, streamed", "5 CPU s, 120 MiB at most",
		"%.1f CPU s, %d MiB at most", t.cpu.Seconds(), t.peak>>20)
	b.table.add("  live heap, an endpoint of the local cluster", "500 B", "%d B (%d MiB in all)",
		t.Heap/(services*each), t.Heap>>20)
	return nil
}

// linked measures what clusters cost in which nothing runs.
func linked(ctx context.Context, b *bench) error {
	const clusters = 200
	series := map[int]int{}
	tolls := map[int]toll{}
	for _, n := range []int{0, clusters} {
		err := func() (err error) {
			s, stop, err := b.light(ctx, nil, func(api *fakeapi.Server, local *fakeapi.Cluster) {
				for i := range n {
					c := api.Cluster(fmt.Sprintf("c%d", i))
					local.Apply(fakeapi.Link(c.Name, c.Kubeconfig(fakeapi.Token))...)
				}
			})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, stop()) }()
			if err := live(ctx, s, n); err != nil {
				return err
			}
			page, err := s.Metrics(ctx)
			if err != nil {
				return err
			}
			for line := range strings.Lines(page) {
				if !strings.HasPrefix(line, "#") {
					series[n]++
				}
			}
			tolls[n], err = tollOf(ctx, s)
			return err
		}()
		if err != nil {
			return err
		}
	}
	before, after := tolls[0], tolls[clusters]
	b.table.add(fmt.Sprintf("a linked cluster in which nothing runs, of %d", clusters),
		"0.3 MiB, 15 goroutines, 60 series", "%.2f MiB of live heap, %.2f MiB resident, %.1f goroutines, %.1f series",
		mebi(after.Heap-before.Heap)/clusters, mebi(after.resident-before.resident)/clusters,
		float64(after.Goroutines-before.Goroutines)/clusters, float64(series[clusters]-series[0])/clusters)
	return nil
}

func mebi(bytes int) float64 { return float64(bytes) / (1 << 20) }

// million measures a server that starts beside 20 clusters of 50,000 endpoints, bounded as a container is.
func million(ctx context.Context, b *bench) (err error) {
	const clusters, services, each, streams = 20, 500, 100, 1_000
	const endpoints = clusters * services * each
	began := time.Now()
	app := func(cluster int) func(i int) fakeapi.App { return apps(cluster, each) }
	one := func(names []string, i int) []string { return names[i%clusters : i%clusters+1] }
	s, stop, err := b.light(ctx, []string{"GOMEMLIMIT=1GiB"}, withFleet(clusters, services, app, one), unbounded...)
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
	b.table.add(fmt.Sprintf("1,000,000 endpoints in %d clusters, GOMEMLIMIT=1GiB: start until all are Live", clusters),
		"", "%.0f s, %.0f CPU s", took.Seconds(), t.cpu.Seconds())
	b.table.add("  memory", "512 MiB live, 1024 MiB resident",
		"%d MiB live (%d B an endpoint), %d MiB resident, %d MiB at most", t.Heap>>20, t.Heap/endpoints,
		t.resident>>20, t.peak>>20)
	first, err := crowdOf(ctx, s.Addr, s.PID(), options{streams: streams, authority: func(i int) string {
		return fakeapi.Authority(namespace, fmt.Sprintf("app-%d-federated", i%services))
	}})
	if err != nil {
		return err
	}
	what := fmt.Sprintf("  first answers of %d streams on %d Services of %d endpoints", streams, services, each)
	b.table.add(what, "", "%.2f CPU s in %.2f s", first.cpu.Seconds(), first.took.Seconds())
	return nil
}

// proxies measures clients as they are: one stream for a Service, few or many of them on a connection of
// its own.
func proxies(ctx context.Context, b *bench) (err error) {
	const services, each, rounds = 200, 100, 50
	app := apps(0, each)
	var local *fakeapi.Cluster
	s, stop, err := b.light(ctx, nil, func(_ *fakeapi.Server, c *fakeapi.Cluster) {
		local = c
		for i := range services {
			local.Apply(app(i).Service(), app(i).ReplicaSet())
			for j := range each {
				local.Apply(app(i).Pod(j))
			}
			local.Apply(app(i).Slice(0))
		}
	}, unbounded...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	version := 0
	for _, crowd := range []struct{ proxies, streams int }{{500, 20}, {1_000, 1}} {
		// Neighbouring proxies have other Services; those with one stream share one.
		o := options{
			streams: crowd.proxies * crowd.streams, perConnection: crowd.streams,
			authority: func(int) string { return app(0).Authority() },
		}
		readers := crowd.proxies // of app-0
		if crowd.streams > 1 {
			o.authority = func(i int) string {
				return app((i/crowd.streams*7 + i%crowd.streams) % services).Authority()
			}
			readers = crowd.proxies * crowd.streams / services
		}
		if err := b.proxiesOf(ctx, s, o, readers, rounds, func() {
			version++
			slice := app(0).Slice(0)
			slice.Endpoints[0].Zone = new(fmt.Sprintf("%s%d", zonePrefix, version))
			local.Apply(slice)
		}); err != nil {
			return err
		}
	}
	const all = 10_000
	o := options{
		streams: all, perConnection: 1, patient: true,
		authority: func(i int) string { return app(i % services).Authority() },
	}
	again, err := crowdOf(ctx, s.Addr, s.PID(), o)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d connections come at once, each with one stream, %d Services of %d endpoints", all,
		services, each)
	b.table.add(what, "all answered in 10 s", "all answered in %.1f s, %.2f CPU s; %d received nothing for 3 s",
		again.took.Seconds(), again.cpu.Seconds(), again.silent)
	return nil
}

// proxiesOf measures a crowd of proxies, and messages to those that follow the Service that change changes.
func (b *bench) proxiesOf(
	ctx context.Context, s *fingerpost.Server, o options, readers, rounds int, change func(),
) error {
	before, err := inUse(ctx, s)
	if err != nil {
		return err
	}
	c, err := open(ctx, s.Addr, o)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.wait(ctx, "first answers", func() bool { return c.answered.Load() == int64(o.streams) }); err != nil {
		return err
	}
	after, err := inUse(ctx, s)
	if err != nil {
		return err
	}
	message, err := rounded(ctx, c, s.PID(), readers, rounds, func() error { change(); return nil })
	if err != nil {
		return err
	}
	n := o.streams / o.perConnection
	what := fmt.Sprintf("%d proxies, one connection each, streams on %d Services", n, o.perConnection)
	b.table.add(what+": memory of a proxy", "", "%.1f KiB", (after-before)/float64(n)/1024)
	b.table.add(fmt.Sprintf("  CPU a message, one change that reaches %d of them", readers), "", "%.1f us",
		micros(message))
	return nil
}
