package policy

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However a loss is divided, it is confirmed from the change on that makes it most of what there was within the last
// minute, and from there on everything is held until it was listed.
func TestGuard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var guard Guard
		if rapid.Bool().Draw(t, "holds") {
			guard.Asked = WithdrawalGuard{Percent: 50, Hold: time.Hour}
		}
		now, confirming := time.Unix(0, 0), false
		type past struct {
			at  time.Time
			has Amount
		}
		history := []past{{now, Amount{}}}
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			now = now.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "seconds")) * time.Second)
			if confirming && rapid.Bool().Draw(t, "listed") {
				had := guard.Had()
				if got, want := guard.Listed(), guard.Asked.IsMass(had, guard.Has()); got != want {
					t.Fatalf("from %+v to %+v is a mass withdrawal: %t", had, guard.Has(), got)
				}
				confirming, history = false, []past{{now, guard.Has()}}
				continue
			}

			gain := Amount{rapid.IntRange(-40, 40).Draw(t, "endpoints"), rapid.IntRange(-5, 5).Draw(t, "services")}
			has := guard.Has()
			gain.Endpoints, gain.Services = max(gain.Endpoints, -has.Endpoints), max(gain.Services, -has.Services)
			step, next := guard.Change(now, gain), has.Add(gain)
			var had Amount
			for i, p := range history {
				if last := i == len(history)-1; last || now.Sub(history[i+1].at) <= Window {
					had = Amount{max(had.Endpoints, p.has.Endpoints), max(had.Services, p.has.Services)}
				}
			}
			history = append(history, past{now, next})

			want := Withdraw
			switch loses := gain.Endpoints < 0 || gain.Services < 0; {
			case !loses:
			case confirming:
				want = Hold
			case guard.Asked.IsMass(had, next):
				want, confirming = Confirm, true
			case guard.Asked.Hold > 0:
				want = Remember
			}
			if step != want || guard.Has() != next || guard.Confirming() != confirming {
				t.Fatalf("from %+v, of %+v, to %+v: step %d, want %d", has, had, next, step, want)
			}
		}
	})
}
