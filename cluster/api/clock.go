package api

import (
	"time"

	"k8s.io/utils/clock"
)

// QueueClock is the clock of work queues. A queue computes two gauges of its metrics by a ticker, how long work is
// unfinished, and would twice a second: 400 wake-ups a second for 200 linked clusters, a fifth of what they cost at
// rest. They are read by scrapes, so that every 10 s is enough.
type QueueClock struct{ clock.RealClock }

const gaugeInterval = 10 * time.Second

// NewTicker returns a ticker of an interval, or of 10 s if that is longer.
func (c QueueClock) NewTicker(interval time.Duration) clock.Ticker {
	return c.RealClock.NewTicker(max(interval, gaugeInterval))
}
