package discovery

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/serving"
)

// feedMetrics are those of the messages of all Feeds.
type feedMetrics struct {
	added, removed prometheus.Counter
	firstAnswer    prometheus.Histogram
}

// newFeedMetrics returns the metrics of Feeds, and what is to be registered.
func newFeedMetrics() (feedMetrics, []prometheus.Collector) {
	addresses := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fingerpost_addresses_total", Help: "Addresses sent on Get streams, by operation: add or remove.",
	}, []string{"operation"})

	m := feedMetrics{
		added:   addresses.WithLabelValues(string(Add)),
		removed: addresses.WithLabelValues(string(Remove)),
		firstAnswer: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fingerpost_first_answer_seconds",
			Help:    "Time from the opening of a Get stream to its first answer.",
			Buckets: []float64{.001, .005, .025, .1, .5, 1, 2, 3, 5, 10, 30},
		}),
	}
	return m, []prometheus.Collector{addresses, m.firstAnswer}
}

func (m *feedMetrics) countSent(frames []*serving.Frame) {
	for _, f := range frames {
		adds, removes := f.Addresses()
		if adds > 0 {
			m.added.Add(float64(adds))
		}
		if removes > 0 {
			m.removed.Add(float64(removes))
		}
	}
}

// ownMetrics returns what the Engine has at the time of a scrape.
func (e *Engine) ownMetrics() []prometheus.Collector {
	queries := prometheus.GaugeOpts{
		Name: "fingerpost_queries", Help: "Services, ports and hostnames that streams ask for.",
	}

	leftOut := prometheus.CounterOpts{
		Name: "fingerpost_left_out_total",
		Help: "Addresses and profiles left out of messages: a text in them is no UTF-8, or they are " +
			"larger than a message may be.",
	}
	return []prometheus.Collector{
		e.services,
		prometheus.NewGaugeFunc(queries, func() float64 { return float64(e.selections.len()) }),
		prometheus.NewCounterFunc(leftOut, func() float64 { return float64(e.leftOut.Load()) }),
	}
}
