package debug

import (
	"testing"
	"time"
)

func TestAge(t *testing.T) {
	now := time.Unix(1e9, 0)
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 1400 * time.Millisecond: "1s",
		61 * time.Second: "1m1s", 3 * time.Hour: "3h0m", 50 * time.Hour: "2d",
	} {
		if got := Age(now.Add(-d), now); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
	if got := Ago(time.Time{}, now); got != "never" {
		t.Error(got)
	}
}
