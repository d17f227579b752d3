package discovery

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of all streams. No client chooses a label.
type metrics struct {
	messages    *prometheus.CounterVec
	addresses   *prometheus.CounterVec
	bytes       prometheus.Counter
	refused     *prometheus.CounterVec
	connections prometheus.GaugeFunc
	open        prometheus.GaugeFunc
	halfOpen    prometheus.GaugeFunc
	firstAnswer prometheus.Histogram
	streams     prometheus.GaugeFunc
	frames      prometheus.GaugeFunc
	queries     prometheus.GaugeFunc
	leftOut     prometheus.CounterFunc
	services    *serviceMetrics

	// Of the vectors above, looked up once and not for every message.
	sentOf         map[Kind]prometheus.Counter
	added, removed prometheus.Counter
	refusedOf      map[string]prometheus.Counter
	noConnection   prometheus.Counter
	halfOpenEnded  prometheus.Counter
	stalled        prometheus.Counter
	inFlight       prometheus.GaugeFunc
}

func newMetrics(e *Engine) *metrics {
	m := &metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_messages_total",
			Help: "Messages sent on streams, by type: add, remove, no_endpoints, heartbeat or profile.",
		}, []string{"type"}),
		addresses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_addresses_total", Help: "Addresses sent on Get streams, by operation: add or remove.",
		}, []string{"operation"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fingerpost_sent_bytes_total", Help: "Bytes of messages sent on streams.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_admission_refused_total",
			Help: "Streams refused with RESOURCE_EXHAUSTED, by reason: too many new ones a second, " +
				"on one connection (connection-rate) or in all (rate); too many open, on one connection " +
				"(connection-streams), without a request (half-open), or in all (streams); " +
				"too many header fields (header); no turn in time (turn).",
		}, []string{"reason"}),
		connections: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fingerpost_connections",
			Help: "Open connections to the gRPC server, whether HTTP/2 is spoken on them yet or not.",
		}, func() float64 { return float64(e.admission.connections.Load()) }),
		noConnection: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fingerpost_connections_refused_total",
			Help: "Connections closed at once because as many were open as may be.",
		}),
		open: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fingerpost_streams_open",
			Help: "Open gRPC streams of all kinds, from their header on: health, reflection, and those " +
				"without a request included.",
		}, func() float64 { return float64(e.admission.streams.Load()) }),
		halfOpen: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fingerpost_streams_half_open", Help: "Open gRPC streams whose request has not arrived yet.",
		}, func() float64 { return float64(e.admission.halfOpen.Load()) }),
		halfOpenEnded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fingerpost_streams_half_open_ended_total",
			Help: "Streams ended because their request did not arrive in time.",
		}),
		stalled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fingerpost_connections_stalled_total",
			Help: "Connections closed because they made no progress at all while messages waited on them.",
		}),
		inFlight: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fingerpost_in_flight_bytes",
			Help: "Bytes of messages on their way to clients that have not taken them yet. What streams " +
				"share counts once.",
		}, func() float64 { return float64(e.admission.bytes.Load()) }),
		firstAnswer: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fingerpost_first_answer_seconds",
			Help:    "Time from the opening of a Get stream to its first answer.",
			Buckets: []float64{.001, .005, .025, .1, .5, 1, 2, 3, 5, 10, 30},
		}),
		streams: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fingerpost_streams", Help: "Open streams, those of Get and of GetProfile together.",
		}, func() float64 { return float64(e.streams.len()) }),
		frames: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fingerpost_frame_cache_bytes",
			Help: "Bytes of encoded messages that are kept to be shared by streams.",
		}, func() float64 { return float64(e.cache.size()) }),
		leftOut: prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "fingerpost_left_out_total",
			Help: "Addresses and profiles left out of messages: a text in them is no UTF-8, or they are " +
				"larger than a message may be.",
		}, func() float64 { return float64(e.cache.leftOut.Load()) }),
		queries: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fingerpost_queries", Help: "Services, ports and hostnames that streams ask for.",
		}, func() float64 { return float64(e.selections.len()) }),
		services: &serviceMetrics{engine: e},
	}
	m.sentOf = map[Kind]prometheus.Counter{}
	for _, k := range kinds {
		m.sentOf[k] = m.messages.WithLabelValues(string(k))
	}
	m.refusedOf = map[string]prometheus.Counter{}
	for reason := range e.admission.refusals {
		m.refusedOf[reason] = m.refused.WithLabelValues(reason)
	}
	m.added, m.removed = m.addresses.WithLabelValues(string(Add)), m.addresses.WithLabelValues(string(Remove))
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.messages, m.addresses, m.bytes, m.refused, m.connections, m.noConnection, m.open, m.halfOpen,
		m.halfOpenEnded, m.stalled, m.inFlight, m.firstAnswer, m.streams, m.frames, m.queries, m.leftOut, m.services,
	}
}

func (m *metrics) countSent(f *Frame) {
	m.sentOf[f.kind].Inc()
	m.bytes.Add(float64(f.bytes.Len()))
	if f.adds > 0 {
		m.added.Add(float64(f.adds))
	}
	if f.removes > 0 {
		m.removed.Add(float64(f.removes))
	}
}
