package cli

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A forwarded port ends some time after its test, on a busy machine after more than the second for which goleak
// looks.
func TestMain(m *testing.M) {
	watchPeriod = 20 * time.Millisecond
	code := m.Run()
	err := goleak.Find()
	for range 20 {
		if err == nil {
			break
		}
		err = goleak.Find()
	}
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
