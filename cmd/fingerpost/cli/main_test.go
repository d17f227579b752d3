package cli

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	watchPeriod = 20 * time.Millisecond
	goleak.VerifyTestMain(m)
}
