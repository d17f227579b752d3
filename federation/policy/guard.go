// Package policy holds decisions about what clusters publish, as pure functions: what is done is decided here, and
// when, by the caller.
package policy

import "time"

// Amount is how much a cluster has: endpoints that are ready, and Services.
type Amount struct{ Endpoints, Services int }

// Add returns the sum of both.
func (a Amount) Add(o Amount) Amount {
	return Amount{a.Endpoints + o.Endpoints, a.Services + o.Services}
}

// IsMass reports whether going from had to has is a mass withdrawal, which is to be confirmed first.
func (g WithdrawalGuard) IsMass(had, has Amount) bool {
	return g.Withdraws(had.Endpoints, has.Endpoints, FreeEndpoints) ||
		g.Withdraws(had.Services, has.Services, FreeServices)
}

// A Guard decides what becomes of what a cluster withdraws. It is a value without effects, which its user drives under
// a lock of its own: what happened goes in, and what is to be done comes out.
//
//	        gains, or little is lost                  little is lost
//	         (nothing is done)          (Remember, if holds are asked for)
//	                 |                                |
//	quiet -----------+--------------------------------+-- most of what there was within a minute is lost: Confirm
//	  ^                                                                              |
//	  |                                                                              v
//	  +------- Listed ------- everything is listed anew ------- confirming: Hold, whatever is lost
//
// Example: a cluster has 100 endpoints. It loses 20 (nothing is done), 31 more ten seconds later (Confirm: 51 of 100),
// and another 9 (Hold). A list brings 5 back: Listed returns true, because 55 of 100 are gone. Had it brought 10 back,
// nothing would have been withdrawn but 50, and it would return false.
//
// The zero Guard is that of a cluster which has nothing.
type Guard struct {
	Asked WithdrawalGuard // by the Link of the cluster

	has        Amount
	endpoints  Peak
	services   Peak
	confirming bool
	had        Amount // before what is to be confirmed
}

// A Step is what is to be done about what a cluster loses.
type Step uint8

// The Steps.
const (
	Withdraw Step = iota // it goes
	Remember             // it goes, and may turn out to be a part of a mass withdrawal
	Hold                 // it stays until everything was listed anew
	Confirm              // likewise, and that is to begin now, with what was remembered
)

// Has returns how much the cluster has.
func (g *Guard) Has() Amount { return g.has }

// Had returns how much the cluster had before what is to be confirmed.
func (g *Guard) Had() Amount { return g.had }

// Confirming reports whether a withdrawal is to be confirmed.
func (g *Guard) Confirming() bool { return g.confirming }

// Set sets how much the cluster has, as it was counted.
func (g *Guard) Set(now time.Time, has Amount) {
	g.has = has
	g.endpoints.Set(now, has.Endpoints)
	g.services.Set(now, has.Services)
}

// Change adds what the cluster gains, less than nothing for a loss, and returns what is to be done about it.
func (g *Guard) Change(now time.Time, gain Amount) Step {
	if gain == (Amount{}) {
		return Withdraw
	}
	g.Set(now, g.has.Add(gain))
	had := Amount{g.endpoints.Max(now), g.services.Max(now)}

	switch {
	case gain.Endpoints >= 0 && gain.Services >= 0:
		return Withdraw
	case g.confirming:
		return Hold
	case g.Asked.IsMass(had, g.has):
		g.confirming, g.had = true, had
		return Confirm
	case g.Asked.Hold > 0:
		return Remember
	default:
		return Withdraw
	}
}

// Begin compares what the cluster has with what it had before there was a Guard, as others have kept it, and reports
// whether that is to be confirmed.
func (g *Guard) Begin(had, has Amount) (confirm bool) {
	if !g.Asked.IsMass(had, has) {
		return false
	}
	g.confirming, g.had = true, had
	return true
}

// List begins a list of everything which compares what the cluster has with what it had, unless one is under way.
func (g *Guard) List(had Amount) {
	if !g.confirming {
		g.had = had
	}
}

// Listed ends what was to be confirmed: everything was listed. It reports whether most of what the cluster had is gone.
func (g *Guard) Listed() (mass bool) {
	mass = g.Asked.IsMass(g.had, g.has)
	g.confirming = false
	g.endpoints.Reset()
	g.services.Reset()
	return mass
}
