package endpointslice

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fingerpost/fingerpost/cluster/lease"
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "100", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.NewTimer(d).C }

var testTiming = lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond}
