package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fingerpost/fingerpost/e2e/internal/proc"
)

// isolatedCPU measures what changes cost that come one at a time: of one endpoint, in three clusters in turn, each
// followed by the streams of its Service. What the server takes in the same time without changes is beside it.
func isolatedCPU(ctx context.Context, b *bench) (err error) {
	const changes, streams, pace, span = 60, 10, 200 * time.Millisecond, 13 * time.Second
	clusters := []string{localCluster, "east", "west"}
	site, err := b.serveSite(ctx, clusters[1:]...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.stop()) }()

	crowds := map[string]*crowd{}
	for _, name := range clusters {
		if crowds[name], err = site.follow(ctx, name, streams); err != nil {
			return err
		}
		defer crowds[name].close()
	}
	if err := pause(ctx, span); err != nil { // until what follows the start is done
		return err
	}

	idle, err := site.cpuOf(ctx, span, func() error { return nil })
	if err != nil {
		return err
	}
	busy, err := site.cpuOf(ctx, span, func() error {
		ticks := time.NewTicker(pace)
		defer ticks.Stop()
		for i := range changes {
			<-ticks.C
			name := clusters[i%len(clusters)]
			if err := site.changeOne(ctx, name, crowds[name], streams); err != nil {
				return fmt.Errorf("change %d, of cluster %s: %w", i, name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	what := fmt.Sprintf("%d isolated changes of one endpoint, %d clusters, %d streams each", changes, len(clusters),
		streams)
	b.table.add(what, "0.11 CPU s", "%.3f CPU s in %.0f s; %.3f CPU s without changes", busy.Seconds(), span.Seconds(),
		idle.Seconds())
	return nil
}

// follow opens streams on the Service of a cluster, and waits for their first answers.
func (s *site) follow(ctx context.Context, cluster string, streams int) (*crowd, error) {
	c, err := open(ctx, s.server.Addr, options{streams: streams, path: pathOf(standsFor(cluster))})
	if err != nil {
		return nil, err
	}

	err = c.wait(ctx, "first answers", func() bool { return c.answered.Load() == int64(streams) })
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// changeOne changes one endpoint of a cluster, and waits until all who follow it have learned of that.
func (s *site) changeOne(ctx context.Context, cluster string, c *crowd, streams int) error {
	all := c.messages.Load() + int64(streams)
	if _, err := s.fleets[cluster].change(ctx, small, 1); err != nil {
		return err
	}
	return c.wait(ctx, "a change", func() bool { return c.messages.Load() >= all })
}

// cpuOf returns the CPU of the server in a span of time in which something is done that takes no longer.
func (s *site) cpuOf(ctx context.Context, span time.Duration, do func() error) (time.Duration, error) {
	before, err := proc.CPU(s.server.PID())
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return 0, err
	}

	if err := pause(ctx, span-time.Since(began)); err != nil {
		return 0, err
	}
	after, err := proc.CPU(s.server.PID())
	return after - before, err
}
