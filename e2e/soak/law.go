package main

import (
	"net/netip"
	"sync"
	"time"
)

// law is what must hold at every message of every stream, however far the server has come with the changes of
// the round:
//
//   - No stream loses an address that it held, or that everyone held at the last comparison, unless a deed since then
//     bears on that address: it was deleted, or not ready, or its cluster was unlinked. No partition, slow answer,
//     rotation, or restart of a replica is such a deed.
//   - The first message of a stream has all of these addresses.
//   - A stream for a Service that has had a ready endpoint in a reachable, linked cluster since the last comparison
//     holds something, even if all its endpoints were replaced.
//
// A deed is exempted from the law before it is performed, and the law begins anew after a comparison only, so that it
// never depends on how fast anything is. One exception is by design: a replica that is killed has saved its state 10 s
// before, or less. What is younger than that it may lack until it has read the clusters again.
type law struct {
	mu    sync.RWMutex
	firm  []map[netip.AddrPort]time.Time // by app; since when it is known
	apps  map[netip.AddrPort]int
	lives []bool // by app
}

// unsaved is how old an address may be that a killed replica had not saved, with some time for a busy machine.
const unsaved = 20 * time.Second

func (l *law) may(a netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if app, is := l.apps[a]; is {
		delete(l.firm[app], a)
	}
}

func (l *law) alive(apps []bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lives = apps
}

func (l *law) compared(expected []map[netip.AddrPort]bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.firm
	l.firm, l.apps = make([]map[netip.AddrPort]time.Time, len(expected)), map[netip.AddrPort]int{}
	for app, all := range expected {
		l.firm[app] = map[netip.AddrPort]time.Time{}
		for a := range all {
			since := now
			if t, is := old[app][a]; is {
				since = t
			}
			l.firm[app][a], l.apps[a] = since, app
		}
	}
}

// broken returns what a stream for a Service must hold and does not, and whether it is empty and must not be. Only
// what is older than young counts, if that is set.
func (l *law) broken(app int, held map[netip.AddrPort]bool, young time.Time) (lacks []netip.AddrPort, empty bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for a, since := range l.firm[app] {
		if !held[a] && (young.IsZero() || since.Before(young)) {
			lacks = append(lacks, a)
		}
	}
	return lacks, len(held) == 0 && l.lives[app] && young.IsZero()
}
