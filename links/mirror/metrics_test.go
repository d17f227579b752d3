package mirror

import (
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Every write is counted from 0 on, for each reason that it often fails for: increase() finds the first failure.
func TestWritesAreCountedFromZero(t *testing.T) {
	source, err := os.ReadFile("apply.go")
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics()
	all := testutil.CollectAndCount(m.writes)
	found := regexp.MustCompile(`writePermission\{"(\w+)", "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(found) < 7 {
		t.Fatalf("%d writes: they are written in another way than this test reads", len(found))
	}
	for _, write := range found {
		if write[1] == "get" {
			continue
		}
		for _, reason := range countedReasons {
			m.writes.WithLabelValues(write[2], write[1], reason)
		}
	}
	if n := testutil.CollectAndCount(m.writes); n != all {
		t.Errorf("%d series of writes at first, and %d of all that are made", all, n)
	}
}
