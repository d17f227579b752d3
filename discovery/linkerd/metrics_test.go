package linkerd

import (
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/serving"
)

// transport returns what a Server opens its streams on, with the defaults.
func transport() *serving.Server { return serving.NewServer(logr.Discard(), serving.DefaultConfig()) }

// keeping returns one that keeps so many bytes of messages at most.
func keeping(bytes int64) *serving.Server {
	config := serving.DefaultConfig()
	config.FrameBytes = bytes
	return serving.NewServer(logr.Discard(), config)
}

// metric returns the value of a metric that has no labels.
func metric(t *testing.T, s *Server, name string) int64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s.Collectors()...)
	registry.MustRegister(s.Serving().Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return int64(f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
