package serving

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// metricList is metrics that are to be registered. No client chooses a label.
type metricList []prometheus.Collector

func (l *metricList) add(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	*l = append(*l, c)
	return c
}

// addVec adds a counter with a label, and returns that of each value: looked up once, and not for every message.
func addVec[K ~string](l *metricList, name, help, label string, values []K) map[K]prometheus.Counter {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	*l = append(*l, vec)
	of := map[K]prometheus.Counter{}
	for _, v := range values {
		of[v] = vec.WithLabelValues(string(v))
	}
	return of
}

func addGauge[N int | int64](l *metricList, name, help string, value func() N) {
	*l = append(*l, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
		func() float64 { return float64(value()) }))
}

// streamMetrics are those of all streams.
type streamMetrics struct {
	messages *prometheus.CounterVec
	byType   map[MessageType]prometheus.Counter // looked up once, and not for every message
	bytes    prometheus.Counter
}

func newStreamMetrics(list *metricList, s *Server) streamMetrics {
	addGauge(list, "fingerpost_streams", "Open streams, of all protocols together.", s.streams.len)
	addGauge(list, "fingerpost_frame_cache_bytes", "Bytes of encoded messages that are kept to be shared by streams.",
		s.cache.Bytes)
	m := streamMetrics{
		messages: prometheus.NewCounterVec(
			prometheus.CounterOpts{Name: "fingerpost_messages_total", Help: "Messages sent on streams, by type."},
			[]string{"type"}),
		byType: map[MessageType]prometheus.Counter{},
		bytes:  list.add("fingerpost_sent_bytes_total", "Bytes of messages sent on streams."),
	}
	*list = append(*list, m.messages)
	return m
}

// AddTypes registers the types of messages that a protocol sends. It does so before it opens a stream.
func (s *Server) AddTypes(types ...MessageType) {
	for _, t := range types {
		s.metrics.byType[t] = s.metrics.messages.WithLabelValues(string(t))
	}
}

func (m *streamMetrics) countSent(f *Frame) {
	m.byType[f.messageType].Inc()
	m.bytes.Add(float64(f.Len()))
}

// admissionMetrics count what an admission does.
type admissionMetrics struct {
	refused           map[string]prometheus.Counter // by reason
	connectionRefused prometheus.Counter
	halfOpenEnded     prometheus.Counter
	stalled           prometheus.Counter
}

func newAdmissionMetrics(list *metricList, admission *admission) admissionMetrics {
	addGauge(list, "fingerpost_connections",
		"Open connections to the gRPC server, whether HTTP/2 is spoken on them yet or not.", admission.connections.Load)
	addGauge(list, "fingerpost_streams_open",
		"Open gRPC streams of all kinds, from their header on: health, reflection, and those "+
			"without a request included.",
		admission.streams.Load)
	addGauge(list, "fingerpost_streams_half_open",
		"Open gRPC streams whose request has not arrived yet.", admission.halfOpen.Load)
	addGauge(list, "fingerpost_in_flight_bytes",
		"Bytes of messages on their way to clients that have not taken them yet. What streams share counts once.",
		admission.bytes.Load)

	return admissionMetrics{
		refused: addVec(list, "fingerpost_admission_refused_total",
			"Streams refused with RESOURCE_EXHAUSTED, by reason: too many new ones a second, "+
				"on one connection (connection-rate) or in all (rate); too many open, on one connection "+
				"(connection-streams), without a request (half-open), or in all (streams); "+
				"too many header fields (header); no turn in time (turn).",
			"reason", slices.Collect(maps.Keys(admission.refusals))),
		connectionRefused: list.add("fingerpost_connections_refused_total",
			"Connections closed at once because as many were open as may be."),
		halfOpenEnded: list.add("fingerpost_streams_half_open_ended_total",
			"Streams ended because their request did not arrive in time."),
		stalled: list.add("fingerpost_connections_stalled_total",
			"Connections closed because they made no progress at all while messages waited on them."),
	}
}
