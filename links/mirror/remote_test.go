package mirror

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// A listing that lacks most mirrored Services is confirmed by one that arrives long enough after the first, whatever
// listings arrive in between. Replace never blocks.
func TestConfirmation(t *testing.T) {
	const full, empty = true, false
	type listing struct {
		at      time.Duration
		full    bool
		trusted bool
	}
	for name, listings := range map[string][]listing{
		"confirmed": {{0, full, true}, {1, empty, false}, {1 + confirmAfter, empty, true}},
		"too early": {
			{0, empty, false},
			{500 * time.Millisecond, empty, false},
			{confirmAfter - 1, empty, false},
			{confirmAfter, empty, true},
		},
		"to and fro": {
			{0, empty, false}, {1, full, true}, {2, empty, false}, {3, full, true}, {4, empty, false},
		},
		"complete in between": {
			{0, empty, false},
			{9 * time.Second, full, true},
			{11 * time.Second, empty, false},
			{12 * time.Second, empty, false},
			{21 * time.Second, empty, true},
		},
		"after a confirmation": {
			{0, empty, false},
			{confirmAfter, empty, true},
			{confirmAfter + 1, full, true},
			{confirmAfter + 2, empty, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				term := newTerm(&Mirror{log: logr.Discard()}, nil, nil)
				var here, there []any
				for _, name := range []string{"a", "b", "c", "d"} {
					here, there = append(
						here, mirrored(name+"-east", "east"),
					), append(there, service(name, direct))
				}
				term.services.Replace(here)
				r := &remoteCluster{term: term, name: "east", watcher: api.NewWatcher(nil, api.Kind{}, nil)}
				defer r.stopTimer()
				r.Store = api.NewStore(newRemoteService, func(api.Key) {})
				began := time.Now()
				for _, l := range listings {
					settle(time.Until(began.Add(l.at)))
					var objects []any
					if l.full {
						objects = there
					}
					for i, o := range objects {
						objects[i] = o.(*corev1.Service).DeepCopy()
					}
					r.Replace(objects)
					if r.complete.Load() != l.trusted || r.removalHeld.Load() == l.trusted {
						t.Errorf(
							"after %s: complete %t, removal held %t", l.at, r.complete.Load(),
							r.removalHeld.Load(),
						)
					}
				}
			})
		})
	}
}
