package app_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var (
	simSeed      = flag.Uint64("seed", 0, "of the first random history that TestSim plays; the next ones follow; 0 for others each time")
	simHistories = flag.Int("histories", 60, "how many random histories TestSim plays")
	simShorten   = flag.Bool("shorten", true, "make a history that breaks a law as short as it breaks it")
	simMinutes   = flag.Int("minutes", 10, "how long each of them is, in simulated minutes")
)

// Random histories of the whole system, on virtual time: two replicas between API servers in memory, twenty
// proxies, and deeds and faults that a seed decides. A history is a script, as those of the scenarios: verbs at
// random times, and compare after each time in which nothing is done. One that fails is made as short as it
// fails, and printed as a scenario.
func TestSim(t *testing.T) {
	n, first := *simHistories, *simSeed
	if first == 0 {
		first = rand.Uint64N(1e9) + 1
	}
	if testing.Short() {
		n, first = 2, 1 // the same ones each time
	}
	for i := range n {
		seed := first + uint64(i)
		h := newHistory(seed, time.Duration(*simMinutes)*time.Minute)
		began := time.Now()
		fmt.Fprintf(os.Stderr, "history of seed %d\n", seed) // also if the process does not survive it
		violations := h.play(t, h.deeds)
		t.Logf("seed %d: %d deeds, %s", seed, len(h.deeds), time.Since(began).Round(time.Millisecond))
		if len(violations) == 0 {
			continue
		}
		fmt.Fprintf(os.Stderr, "seed %d breaks a law: %s\n", seed, violations[0])
		deeds := h.deeds
		if *simShorten {
			deeds, violations = h.shorten(t, violations)
		}
		t.Fatalf("%s\n\nto replay it: make sim ARGS='-seed %d -histories 1 -minutes %d'\n\n%d of %d deeds are enough:\n%s",
			strings.Join(violations, "\n"), seed, *simMinutes, len(deeds), len(h.deeds), h.script(deeds))
	}
}

// play plays some of the deeds, and returns the laws that were broken.
func (h *history) play(t *testing.T, deeds []deed) (violations []string) {
	t.Helper()
	var w *watch
	ok := t.Run("history", func(t *testing.T) {
		defer func() {
			if left := recover(); left != nil { // goroutines that outlast the replicas
				stacks := make([]byte, 1<<20)
				t.Errorf("%v\n%s", left, stacks[:runtime.Stack(stacks, true)])
			}
		}()
		synctest.Test(t, func(t *testing.T) {
			s := newScenario(t, &txtar.Archive{Comment: []byte(h.script(deeds))})
			w = newWatch()
			s.watch = w
			for _, name := range h.clusters {
				server := s.network.Server(name)
				server.Audit(w.audit(name))
				server.Follow(leaseResource, func(o *unstructured.Unstructured, deleted bool) {
					w.leaseWritten(name, o, deleted)
				})
				server.Follow(sliceResource, func(o *unstructured.Unstructured, deleted bool) {
					w.follow(name, o, deleted)
				})
			}
			s.network.Server(home).Follow("endpoints", w.followEndpoints)
			if transcript := s.play(); testing.Verbose() {
				t.Log("the transcript:\n" + transcript)
			}
		})
	})
	violations = w.violations
	if !ok && len(violations) == 0 {
		violations = []string{"failed: see above"}
	}
	return violations
}

// shorten leaves out deeds for as long as the same law is broken.
func (h *history) shorten(t *testing.T, violations []string) (deeds []deed, all []string) {
	t.Helper()
	law := func(v []string) string {
		kind, _, _ := strings.Cut(strings.Join(v, "\n"), ":")
		return kind
	}
	deeds, all = h.deeds, violations
	for size := len(deeds) / 2; size > 0; size /= 2 {
		for from := 0; from < len(deeds); {
			fewer := slices.Delete(slices.Clone(deeds), from, min(from+size, len(deeds)))
			if v := h.play(t, fewer); len(v) > 0 && law(v) == law(violations) {
				deeds, all = fewer, v
			} else {
				from += size
			}
		}
	}
	return deeds, all
}
