package mirror

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// What the first listing of a cluster lacks of its mirrors is confirmed before it counts, once; what it has counts at
// once. Replace never blocks.
func TestLossIsConfirmed(t *testing.T) {
	for name, c := range map[string]struct{ missing, asked int }{"all are there": {0, 0}, "some are not": {3, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				term := newTerm(&Mirror{log: logr.Discard()}, nil, nil, nil)
				var here, there []any
				for i, name := range []string{"a", "b", "c", "d"} {
					here = append(here, mirrored(name+"-east", "east"))
					if i >= c.missing {
						there = append(there, service(name, direct))
					}
				}
				term.services.Replace(here)
				r := &remoteCluster{term: term, name: "east", lost: make(chan loss, 1)}
				r.Store = api.NewStore(newRemoteService, func(api.Key) {})
				list := func() {
					for i, o := range there {
						there[i] = o.(*corev1.Service).DeepCopy()
					}
					r.Replace(there)
				}

				asked, confirmed := 0, make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				go r.confirmLoss(ctx, func(_ context.Context, cluster string, had, has policy.Amount) error {
					asked++
					if had.Services != 4 || has.Services != 4-c.missing || cluster != "east" {
						t.Errorf("%s had %+v and has %+v", cluster, had, has)
					}
					<-confirmed
					return nil
				})
				list()
				list()
				synctest.Wait()
				if held := r.removalHeld.Load(); held != (c.missing > 0) || r.complete.Load() == held {
					t.Errorf("held: %t, complete: %t", held, r.complete.Load())
				}
				_, found := r.service(api.Key{Namespace: "shop", Name: "a"})
				if wanted := map[bool]existence{true: unknown, false: present}[c.missing > 0]; found != wanted {
					t.Errorf("existence %d, want %d", found, wanted)
				}
				close(confirmed)
				list()
				synctest.Wait()
				if r.removalHeld.Load() || !r.complete.Load() || asked != c.asked {
					t.Errorf("held: %t, complete: %t, asked %d times", r.removalHeld.Load(), r.complete.Load(), asked)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}
