package controlplane

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressWritesLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := startProgress(&out, "walking")
		<-time.NewTimer(65 * time.Second).C
		p.stop()
		if got, want := out.String(), "walking, 30s so far\nwalking, 1m0s so far\n"; got != want {
			t.Errorf("after 65 s: %q, want %q", got, want)
		}
	})
}
