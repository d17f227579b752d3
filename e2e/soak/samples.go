package main

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

// A sample is what one process takes up at a quiet time.
type sample struct {
	at     time.Time
	values [len(measures)]float64
}

// A measure must not rise: a line through its samples, extended over all of them, may gain no more than the slack and
// that part of the median.
type measure struct {
	name  string
	slack float64
	part  float64
	unit  float64
}

// The bounds are wide enough for what has a bound itself and fills up for longer than a warm-up: the probes of the last
// 15 minutes of each cluster, the Events that client-go remembers for 6 minutes, and series of errors, one for each
// cluster, kind and reason, which has been seen. They filled 0.9 MiB and 72 series within the 3 minutes after the
// warm-up of a process, with 1,000 proxies, and goroutines varied by 70. What rises for good exceeds any bound in a run
// that is long enough; what a run of 10 minutes cannot show, one of an hour does.
var measures = [...]measure{
	{name: "heap, MiB", slack: 2 << 20, part: 0.05, unit: 1 << 20},
	{name: "goroutines", slack: 10, part: 0.03, unit: 1},
	{name: "file descriptors", slack: 10, part: 0.03, unit: 1},
	{name: "series", slack: 100, part: 0.05, unit: 1},
}

const (
	// What is sampled of a process in its first minutes is left out: caches fill, connections come to have all ages
	// up to -max-connection-age, and each cluster shows each error for the first time, which is a series.
	warmUp = 2 * time.Minute
	// A line through fewer samples means nothing.
	enough = 5
)

// take samples a replica: the least of some looks, because what has just ended may still be on its way out.
func take(ctx context.Context, s *fingerpost.Server) (sample, error) {
	least := sample{at: time.Now()}
	for i := range least.values {
		least.values[i] = math.Inf(1)
	}
	ticks := time.NewTicker(200 * time.Millisecond)
	defer ticks.Stop()
	for range 8 {
		foot, err := s.Footprint(ctx)
		if err != nil {
			return sample{}, err
		}
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.PID()))
		if err != nil {
			return sample{}, err
		}
		page, err := s.Metrics(ctx)
		if err != nil {
			return sample{}, err
		}
		for i, v := range []int{foot.Heap, foot.Goroutines, len(files), series(page)} {
			least.values[i] = min(least.values[i], float64(v))
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return sample{}, ctx.Err()
		}
	}
	return least, nil
}

// series counts those of a page of metrics.
func series(page string) (n int) {
	for lines := bufio.NewScanner(strings.NewReader(page)); lines.Scan(); {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

// rise returns how much a measure has risen from the first sample to the last: along a line with the median of the
// slopes between any two samples, which a few samples that are far off do not move (Theil and Sen).
func rise(samples []sample, measure int) float64 {
	var slopes []float64
	for i, a := range samples {
		for _, b := range samples[i+1:] {
			slopes = append(slopes, (b.values[measure]-a.values[measure])/b.at.Sub(a.at).Seconds())
		}
	}
	return median(slopes) * samples[len(samples)-1].at.Sub(samples[0].at).Seconds()
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	if len(of) == 0 {
		return 0
	}
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
}

// A line is the samples of one process.
type line struct {
	name    string
	began   time.Time
	samples []sample
}

// report returns a row for each measure of each line, what has risen, and of how many lines that can be known.
func report(lines []line) (rows, risen []string, measured int) {
	for _, l := range lines {
		warm := l.began.Add(warmUp)
		samples := slices.DeleteFunc(slices.Clone(l.samples), func(s sample) bool { return s.at.Before(warm) })
		if len(samples) < enough {
			rows = append(rows, fmt.Sprintf("%s: %d samples, %d after its first %s: too few", l.name, len(l.samples),
				len(samples), warmUp))
			continue
		}
		measured++
		for i, m := range measures {
			var values []float64
			for _, s := range samples {
				values = append(values, s.values[i])
			}
			bound := m.slack + m.part*median(values)
			up := rise(samples, i)
			row := fmt.Sprintf("%s: %d samples in %.0f s: %-17s %8.2f at first, %8.2f at last, %8.2f at most; "+
				"rise %+.2f, bound %.2f", l.name, len(samples), samples[len(samples)-1].at.Sub(samples[0].at).Seconds(),
				m.name, values[0]/m.unit, values[len(values)-1]/m.unit, slices.Max(values)/m.unit, up/m.unit,
				bound/m.unit)
			rows = append(rows, row)
			if up > bound {
				risen = append(risen, row)
			}
		}
	}
	return rows, risen, measured
}
