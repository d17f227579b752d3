package cluster

import (
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/federation"
)

// A hold that is restored without the time when it began, or from a clock that is ahead, begins now.
func TestRestoredUnconfirmedHold(t *testing.T) {
	now, svc := time.Unix(1000, 0), federation.Service{Namespace: "ns", Name: "web"}
	for since, want := range map[time.Time]time.Time{
		{}:                  now,
		now.Add(time.Hour):  now,
		now.Add(-time.Hour): now.Add(-time.Hour),
	} {
		holds := map[federation.Service]federation.PublishedHold{svc: {Since: since}}
		boundHolds(holds, now)
		if got := holds[svc]; !got.Since.Equal(want) || !got.Until.IsZero() {
			t.Errorf("since %s: %+v", since, got)
		}
	}
}
