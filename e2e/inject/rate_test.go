package inject

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// 200 Pods a second are made through the webhook, without one that is refused. How long they take is logged, the API
// server's part included, beside what the same Pods take without the webhook: 99 of 100 are to take 50 ms at most.
func TestManyPods(t *testing.T) {
	const rate, seconds, claimed = 200, 5, 50 * time.Millisecond
	w := newWorld(t)
	defer w.serve()()
	w.register("Fail")
	w.eventually("a Pod is taken", func() error {
		pod, err := w.create(newPod("shop", "first"), metav1.DryRunAll)
		if err == nil && len(pod.Spec.InitContainers) == 0 {
			err = errors.New("it has no proxy yet")
		}
		return err
	})

	for _, namespace := range []string{"apart", "shop"} {
		all := w.createAt(namespace, rate, rate*seconds)
		slices.Sort(all)
		p50, p99 := all[len(all)/2], all[len(all)*99/100]
		t.Logf("%d Pods a second in %s: p50 %s, p99 %s (claimed: %s)", rate, namespace, p50, p99, claimed)
	}
}

// createAt creates so many Pods, as a dry run, at a rate per second, and returns how long each took.
func (w *world) createAt(namespace string, rate, count int) (took []time.Duration) {
	w.Helper()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var mu sync.Mutex
	var all sync.WaitGroup
	for n := range count {
		<-tick.C
		all.Go(func() {
			began := time.Now()
			if _, err := w.create(newPod(namespace, fmt.Sprintf("p-%d", n)), metav1.DryRunAll); err != nil {
				w.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began).Round(100*time.Microsecond))
		})
	}
	all.Wait()
	return took
}
