package cli

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A forwarded port ends some time after its test, on a busy machine after more than the second for which goleak
// looks. A stream that is opened while the connection is closed waits 30 s for its reply, whatever happens meanwhile.
func TestMain(m *testing.M) {
	watchPeriod = 20 * time.Millisecond
	code := m.Run()
	opening := goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Stream).WaitTimeout")
	err := goleak.Find(opening)
	for range 20 {
		if err == nil {
			break
		}
		err = goleak.Find(opening)
	}
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
