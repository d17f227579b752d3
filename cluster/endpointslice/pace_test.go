package endpointslice

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A Service that waits for the turn of its source keeps its place, however often it changes meanwhile.
func TestTurnKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaces()
		turnOf := func(name string) turn { return turn{key{Namespace: "shop", Name: name}, "east"} }
		for i := range sourceBurst {
			if err := p.take(turnOf(fmt.Sprint("web-", i))); err != nil {
				t.Fatalf("Service %d: %v", i, err)
			}
		}

		first, second := turnOf("first"), turnOf("second")
		for range 3 * serviceBurst {
			if p.take(first) == nil || p.take(second) == nil {
				t.Fatal("there is no turn yet")
			}
		}
		const each = time.Second / sourceRate
		time.Sleep(each + time.Millisecond) //nolint:forbidigo // virtual time
		if p.take(second) == nil {
			t.Error("the second one comes before the first")
		}
		if err := p.take(first); err != nil {
			t.Errorf("the first one has lost its place: %v", err)
		}
		time.Sleep(each) //nolint:forbidigo // virtual time
		if err := p.take(second); err != nil {
			t.Errorf("the second one has lost its place: %v", err)
		}
	})
}

// One Service that changes all the time has its turns by itself, and takes none of its source's from others.
func TestTurnsOfOneService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, taken := newPaces(), 0
		const seconds = 20
		for range seconds * 100 {
			if p.take(turn{key{Namespace: "shop", Name: "web"}, "east"}) == nil {
				taken++
			}
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // virtual time
		}
		if most := serviceBurst + int(seconds*serviceRate); taken < most-1 || taken > most {
			t.Errorf("it had %d turns, should have %d", taken, most)
		}
	})
}
