package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/internal/proc"
)

// start measures a server that starts beside 20,000 Pods.
func start(ctx context.Context, b *bench) (err error) {
	began := time.Now()
	s, err := b.serve(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	took := time.Since(began)
	used, err := proc.CPU(s.PID())
	if err != nil {
		return err
	}
	most, err := proc.Peak(s.PID())
	if err != nil {
		return err
	}
	kept, err := s.Footprint(ctx)
	if err != nil {
		return err
	}
	b.table.add("start to ready, 20,000 Pods", "", "%.2f s, %.2f CPU s", took.Seconds(), used.Seconds())
	b.table.add("peak resident memory of that start", "", "%d MiB", most>>20)
	b.table.add("live heap after it, an endpoint", "", "%d B (%d MiB in all)", kept.Heap/totalPods, kept.Heap>>20)
	return nil
}

// idle measures what streams cost that have been answered and to which nothing happens.
func idle(ctx context.Context, b *bench) (err error) {
	const streams = 10_000
	s, err := b.serve(ctx, nil, unbounded...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	inUse := func() (heap, stacks float64, err error) {
		if _, err := s.Footprint(ctx); err != nil {
			return 0, 0, err
		}
		heap, err = s.Metric(ctx, "go_memstats_heap_alloc_bytes")
		if err != nil {
			return 0, 0, err
		}
		stacks, err = s.Metric(ctx, "go_memstats_stack_inuse_bytes")
		return heap, stacks, err
	}
	heap, stacks, err := inUse()
	if err != nil {
		return err
	}
	c, err := open(ctx, s.Addr, options{streams: streams, path: pathOf(small)})
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.wait(ctx, "first answers", func() bool { return c.answered.Load() == streams }); err != nil {
		return err
	}
	heapThen, stacksThen, err := inUse()
	if err != nil {
		return err
	}
	heap, stacks = (heapThen-heap)/streams, (stacksThen-stacks)/streams
	b.table.add(fmt.Sprintf("memory of an idle stream, %d on %d connections", streams, streams/perConnection), "16 KiB",
		"%.1f KiB (heap %.1f, stacks %.1f)", (heap+stacks)/1024, heap/1024, stacks/1024)
	return nil
}

// messages measures the server's CPU for one message to one stream, and that of servers which only write.
func messages(ctx context.Context, b *bench) error {
	for _, streams := range []int{1_000, 10_000} {
		rounds := 50_000 / streams
		for _, endpoints := range []int{1, 10, 100} {
			ours, message, err := b.perMessage(ctx, streams, rounds, endpoints)
			if err != nil {
				return err
			}
			others := map[string]time.Duration{}
			for _, kind := range []string{bare, marshalled} {
				if others[kind], err = repeated(ctx, kind, streams, rounds, message); err != nil {
					return err
				}
			}
			aim := fmt.Sprintf("%.1f us", 1.5*micros(others[bare]))
			if endpoints == 100 {
				aim = fmt.Sprintf("10 us, and %s", aim)
			}
			b.table.add(fmt.Sprintf("CPU a message, %d streams, %d endpoints (%d B)", streams, endpoints,
				len(message)), aim,
				"%.1f us; a bare grpc-go server %.1f us; encoded for each stream %.1f us", micros(ours),
				micros(others[bare]), micros(others[marshalled]))
		}
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// perMessage returns the CPU that Fingerpost takes for a message, all of its work for it included, and the message.
func (b *bench) perMessage(ctx context.Context, streams, rounds, endpoints int) (each time.Duration,
	message []byte, err error,
) {
	s, err := b.serve(ctx, nil, unbounded...)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	var mu sync.Mutex
	c, err := open(ctx, s.Addr, options{
		streams: streams, path: pathOf(small),
		received: func(stream, n int, bytes []byte) {
			if stream == 0 && n > 0 {
				mu.Lock()
				message = bytes
				mu.Unlock()
			}
		},
	})
	if err != nil {
		return 0, nil, err
	}
	defer c.close()
	each, err = rounded(ctx, c, s.PID(), streams, rounds, func() error {
		_, err := b.fleet.change(ctx, small, endpoints)
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	return each, message, err
}

// repeated returns the CPU that another server takes for the same message.
func repeated(ctx context.Context, kind string, streams, rounds int, message []byte) (time.Duration, error) {
	v, err := startVariant(kind)
	if err != nil {
		return 0, err
	}
	defer v.stop()
	if err := v.send(message); err != nil {
		return 0, err
	}
	c, err := open(ctx, v.addr, options{streams: streams, path: pathOf(small)})
	if err != nil {
		return 0, err
	}
	defer c.close()
	return rounded(ctx, c, v.command.Process.Pid, streams, rounds, func() error { return v.send(message) })
}

// rounded waits for the first answers and returns the CPU for a message of those that follow: one round is a
// change that reaches every stream.
func rounded(ctx context.Context, c *crowd, pid, streams, rounds int, change func() error) (time.Duration, error) {
	if err := c.wait(ctx, "first answers", func() bool { return c.messages.Load() >= int64(streams) }); err != nil {
		return 0, err
	}
	before, err := proc.CPU(pid)
	if err != nil {
		return 0, err
	}
	first := c.messages.Load()
	for round := range rounds {
		if err := change(); err != nil {
			return 0, err
		}
		want := first + int64((round+1)*streams)
		if err := c.wait(ctx, "a change", func() bool { return c.messages.Load() >= want }); err != nil {
			return 0, err
		}
	}
	after, err := proc.CPU(pid)
	return (after - before) / time.Duration(rounds*streams), err
}

// firstAnswers measures 1,000 streams that ask for the same 1,000 endpoints.
func firstAnswers(ctx context.Context, b *bench) (err error) {
	const streams = 1_000
	s, err := b.serve(ctx, nil, unbounded...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	var mu sync.Mutex
	var message []byte
	ours, err := crowdOf(ctx, s.Addr, s.PID(),
		options{streams: streams, path: pathOf(medium), received: func(stream, _ int, bytes []byte) {
			if stream == 0 {
				mu.Lock()
				message = bytes
				mu.Unlock()
			}
		}})
	if err != nil {
		return err
	}
	v, err := startVariant(bare)
	if err != nil {
		return err
	}
	defer v.stop()
	if err := v.send(message); err != nil {
		return err
	}
	theirs, err := crowdOf(ctx, v.addr, v.command.Process.Pid, options{streams: streams, path: pathOf(medium)})
	b.table.add(fmt.Sprintf("first answers, %d streams on 1,000 endpoints (%d kB each)", streams, len(message)/1000),
		"0.5 CPU s",
		"%.2f CPU s in %.2f s; a bare grpc-go server %.2f CPU s", ours.cpu.Seconds(), ours.took.Seconds(),
		theirs.cpu.Seconds())
	return err
}

// cost is what a crowd took until all its streams were answered.
type cost struct {
	cpu, took time.Duration
	refused   int64
	silent    int64
}

func crowdOf(ctx context.Context, addr string, pid int, o options) (cost, error) {
	before, err := proc.CPU(pid)
	if err != nil {
		return cost{}, err
	}
	began := time.Now()
	c, err := open(ctx, addr, o)
	if err != nil {
		return cost{}, err
	}
	defer c.close()
	if err := c.wait(ctx, "first answers", func() bool { return c.answered.Load() == int64(o.streams) }); err != nil {
		return cost{}, err
	}
	took := time.Since(began)
	after, err := proc.CPU(pid)
	silent := c.silent.Load()
	if err == nil && silent > 0 && !o.patient {
		err = fmt.Errorf("%d streams received nothing for 3 s", silent)
	}
	return cost{after - before, took, c.refused.Load(), silent}, err
}

// reconnect measures proxies that lost their connections and come back all at once.
func reconnect(ctx context.Context, b *bench) (err error) {
	const streams = 2_000
	s, err := b.serve(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	o := options{streams: streams, path: pathOf(medium)}
	if _, err := crowdOf(ctx, s.Addr, s.PID(), o); err != nil {
		return err
	}
	again, err := crowdOf(ctx, s.Addr, s.PID(), o)
	b.table.add(fmt.Sprintf("%d streams on 1,000 endpoints reconnect at once", streams), "",
		"all answered in %.2f s, %.2f CPU s, %d refused and retried", again.took.Seconds(), again.cpu.Seconds(),
		again.refused)
	return err
}

// churn measures how far streams are behind under 20 changes a second, some of them read slowly.
func churn(ctx context.Context, b *bench) (err error) {
	const streams, slow, rate, seconds = 2_000, 20, 20, 10
	s, err := b.serve(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	var mu sync.Mutex
	written := map[int]time.Time{} // when the API server acknowledged a change
	last := make([]int, streams)   // the newest change that a stream received
	count := make([]int, streams)  // its messages
	// Of the streams that read at once: how old the oldest change was that they learned of.
	var behind []time.Duration
	c, err := open(ctx, s.Addr, options{
		streams: streams, path: pathOf(small), window: 64 << 10, // so that a slow one blocks after 20 messages
		slow: func(stream int) time.Duration {
			if stream < slow {
				return 500 * time.Millisecond
			}
			return 0
		},
		received: func(stream, n int, bytes []byte) {
			now, version := time.Now(), newest(bytes)
			mu.Lock()
			defer mu.Unlock()
			if stream >= slow && n > 0 && version > last[stream] {
				// Of a change that is received before the API server has answered that it is written.
				age := time.Duration(0)
				if at, acknowledged := written[last[stream]+1]; acknowledged {
					age = now.Sub(at)
				}
				behind = append(behind, age)
			}
			last[stream] = max(last[stream], version)
			count[stream]++
		},
	})
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.wait(ctx, "first answers", func() bool { return c.answered.Load() == streams }); err != nil {
		return err
	}
	before, err := proc.CPU(s.PID())
	if err != nil {
		return err
	}
	ticks := time.NewTicker(time.Second / rate)
	defer ticks.Stop()
	newestVersion := 0
	for range rate * seconds {
		<-ticks.C
		if newestVersion, err = b.fleet.change(ctx, small, 10); err != nil {
			return err
		}
		mu.Lock()
		written[newestVersion] = time.Now()
		mu.Unlock()
	}
	err = c.wait(ctx, "the last change", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return !slices.ContainsFunc(last, func(v int) bool { return v != newestVersion })
	})
	if err != nil {
		return err
	}
	after, err := proc.CPU(s.PID())
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(behind)
	b.table.add(fmt.Sprintf("%d streams under %d changes a second of 10 endpoints: how far behind the API server",
		streams, rate), "200 ms at most",
		"p50 %d ms, p99 %d ms, at most %d ms", behind[len(behind)/2].Milliseconds(),
		behind[len(behind)*99/100].Milliseconds(), behind[len(behind)-1].Milliseconds())
	b.table.add("  the server's CPU meanwhile", "", "%.2f of a core", (after-before).Seconds()/seconds)
	b.table.add(fmt.Sprintf("  %d of them read a message each 500 ms", slow), "end with the same set",
		"the others had %d messages, they had %d to %d, and all end with the newest", slices.Max(count[slow:]),
		slices.Min(count[:slow]), slices.Max(count[:slow]))
	return nil
}

// changes measures the CPU for one endpoint that changes in Services of several sizes, for clients on any
// node, on one and on 200.
func changes(ctx context.Context, b *bench) (err error) {
	const rounds = 200
	s, err := b.serve(ctx, nil, unbounded...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	for _, place := range []struct {
		what    string
		policy  corev1.ServiceInternalTrafficPolicy
		streams int
	}{
		{"1 stream", corev1.ServiceInternalTrafficPolicyCluster, 1},
		{"1 node, Local policy", corev1.ServiceInternalTrafficPolicyLocal, 1},
		{"200 nodes, Local policy", corev1.ServiceInternalTrafficPolicyLocal, nodes},
	} {
		var each []time.Duration
		for _, svc := range []service{medium, large} {
			took, err := b.perChange(ctx, s, svc, place.policy, place.streams, rounds)
			if err != nil {
				return err
			}
			each = append(each, took)
		}
		b.table.add("CPU a change of 1 endpoint, 1,000 and 10,000 in the Service, "+place.what, "2x apart",
			"%.0f us and %.0f us: %.1fx", micros(each[0]), micros(each[1]), float64(each[1])/float64(each[0]))
	}
	return nil
}

func (b *bench) perChange(ctx context.Context, s *fingerpost.Server, svc service,
	policy corev1.ServiceInternalTrafficPolicy, streams, rounds int,
) (time.Duration, error) {
	if err := b.fleet.setPolicy(ctx, svc, policy); err != nil {
		return 0, err
	}
	var mu sync.Mutex
	seen := 0 // the newest change that the stream on the first node received
	c, err := open(ctx, s.Addr, options{
		streams: streams, path: pathOf(svc), node: nodeOf,
		received: func(stream, _ int, bytes []byte) {
			if stream == 0 {
				mu.Lock()
				seen = max(seen, newest(bytes))
				mu.Unlock()
			}
		},
	})
	if err != nil {
		return 0, err
	}
	defer c.close()
	if err := c.wait(ctx, "first answers", func() bool { return c.answered.Load() == int64(streams) }); err != nil {
		return 0, err
	}
	var before time.Duration
	for round := range rounds + 1 {
		if round == 1 { // the first one settles what setPolicy has changed
			if before, err = proc.CPU(s.PID()); err != nil {
				return 0, err
			}
		}
		version, err := b.fleet.change(ctx, svc, 1)
		if err != nil {
			return 0, err
		}
		err = c.wait(ctx, "a change", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return seen >= version
		})
		if err != nil {
			return 0, err
		}
	}
	after, err := proc.CPU(s.PID())
	return (after - before) / time.Duration(rounds), err
}

// admission lets 10,000 streams come at once to a server that has one CPU.
func admission(ctx context.Context, b *bench) (err error) {
	const streams = 10_000
	s, err := b.serve(ctx, []string{"GOMAXPROCS=1"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	before, err := s.Footprint(ctx)
	if err != nil {
		return err
	}
	all, err := crowdOf(ctx, s.Addr, s.PID(), options{streams: streams, path: pathOf(small)})
	if err != nil {
		return err
	}
	quiet, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	after := before
	for {
		if after, err = s.Footprint(quiet); err != nil {
			return fmt.Errorf("the server does not calm down: %w", err)
		}
		if after.Goroutines <= before.Goroutines+5 {
			break
		}
	}
	b.table.add(fmt.Sprintf("%d streams come at once, the server has one CPU", streams),
		"all answered or refused in 3 s",
		"all answered in %.1f s, %.2f CPU s, %d refused and retried, none left waiting", all.took.Seconds(),
		all.cpu.Seconds(), all.refused)
	b.table.add("  goroutines before and after", "", "%d and %d", before.Goroutines, after.Goroutines)
	return nil
}
