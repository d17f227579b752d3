package hostile

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

var full = flag.Bool("full", false, "attack for as long, and with as much, as an attacker would: minutes")

// rogue is a linked cluster that publishes and withdraws as it likes.
type rogue struct {
	*fakeapi.Cluster
	endpoints int        // of each of its Services
	addr      netip.Addr // the last one
}

const rogueServices = 150

// linkRogue links a cluster whose Link has annotations.
func (w *world) linkRogue(endpoints int, annotations map[string]string) *rogue {
	c := w.api.Cluster("rogue")
	objects := fakeapi.Link("rogue", c.Kubeconfig(fakeapi.Token))
	objects[1].SetAnnotations(annotations)
	w.local.Apply(objects...)
	return &rogue{Cluster: c, endpoints: endpoints, addr: netip.MustParseAddr("11.0.0.1")}
}

func rogueService(name string) *corev1.Service {
	return fakeapi.App{Namespace: "shop", Name: name}.Service()
}

// slice is one of n addresses that were not used before, without Pods.
func (r *rogue) slice(service string, n int) *discoveryv1.EndpointSlice {
	s := fakeapi.App{Namespace: "shop", Name: service}.Slice(0)
	s.Endpoints = nil
	for range n {
		r.addr = r.addr.Next()
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{r.addr.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)},
		})
	}
	return s
}

func (r *rogue) publish(format string) {
	for i := range rogueServices {
		name := fmt.Sprintf(format, i)
		r.Apply(rogueService(name), r.slice(name, r.endpoints))
	}
}

// churn replaces slices for some time, each by one with an endpoint less, so that each withdraws something.
func (r *rogue) churn(w *world, d time.Duration) {
	const first = 80
	ticks := time.NewTicker(10 * time.Millisecond)
	defer ticks.Stop()
	for began, n := time.Now(), 0; time.Since(began) < d && w.ctx.Err() == nil; n++ {
		left := r.endpoints - 1 - n/(rogueServices-first)%(r.endpoints/2)
		r.Apply(r.slice(fmt.Sprintf("b%d", first+n%(rogueServices-first)), left))
		<-ticks.C
	}
}

// heap returns what the server has in use after a collection, in MiB.
func (w *world) heap() int {
	w.t.Helper()
	f, err := w.server.Footprint(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return f.Heap >> 20
}

// slices waits until the server has n EndpointSlices of the rogue cluster.
func (w *world) slices(n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d EndpointSlices", n), func(ctx context.Context) error {
		c, err := w.server.Cluster(ctx, "rogue")
		if err != nil {
			return err
		}
		for _, k := range c.Kinds {
			if k.Resource == "endpointslices.discovery.k8s.io" && k.Objects != n {
				return fmt.Errorf("%d", k.Objects)
			}
		}
		return nil
	})
}

// metric waits until a metric of the rogue cluster is above zero.
func (w *world) metric(name string) {
	w.t.Helper()
	w.eventually(name+" above 0", func(ctx context.Context) error {
		page, err := w.server.Metrics(ctx)
		if err != nil {
			return err
		}
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, name+"{") && strings.Contains(line, `"rogue"`) &&
				!strings.HasSuffix(line, " 0\n") {
				return nil
			}
		}
		return fmt.Errorf("%s", name)
	})
}

// A linked cluster withdraws most of what it has, never lists a kind that is to confirm that, or another one, and
// goes on replacing what it has. What is held of it stays within its budget, also in the replica that starts with
// what the killed one has saved, and is reported.
func TestHeldWithinBudget(t *testing.T) {
	t.Parallel()
	endpoints, length, budget := 100, 5*time.Second, "-cluster-max-endpoints=20000"
	if *full {
		endpoints, length, budget = 1000, 4*time.Minute, "-cluster-max-endpoints=200000"
	}
	const may = 30 // MiB, beside what the budget allows
	for _, stuck := range []string{"services", "pods"} {
		t.Run(stuck, func(t *testing.T) {
			w := newBusy(t)
			evil := w.linkRogue(endpoints, nil)
			evil.publish("b%d")
			w.local.Apply(fakeapi.Federated("shop", "b100", "rogue"))
			w.env = []string{"GOMEMLIMIT=460MiB"} // as the chart sets it
			args := []string{budget, "-state-dir=" + t.TempDir()}
			w.serve(args...)
			w.live("rogue")
			w.slices(rogueServices)
			before := w.heap()
			// A third more fits the budget, and takes as much as what is there, at most.
			most := before + before/3 + may

			evil.Misbehave(fakeapi.On(stuck, fakeapi.Stall))
			for i := range 80 {
				evil.Apply(evil.slice(fmt.Sprintf("b%d", i), 0))
			}
			if stuck == "services" { // which publish what was withdrawn
				w.metric("fingerpost_withdrawals_unconfirmed")
			}
			w.honest.Report()
			evil.churn(w, length)
			evil.publish("b%d")
			evil.churn(w, length/2)
			if stuck == "services" {
				w.metric("fingerpost_cluster_over_budget")
			}
			after := w.heap()
			t.Logf("heap %d MiB before, %d MiB after %s: %s", before, after, length, w.honest.Report())
			if after > most {
				t.Errorf("the heap has grown from %d to %d MiB, at most %d are allowed", before, after, most)
			}

			w.honest.Stop()
			if err := syscall.Kill(w.server.PID(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-w.server.Exited()
			w.serve(args...)
			evil.churn(w, length/2)
			again := w.heap()
			t.Logf("heap %d MiB after it was started again: %s", again, w.honest.Report())
			if again > most {
				t.Errorf("the heap of the one that starts is %d MiB, at most %d are allowed", again, most)
			}
			if *full && stuck == "services" { // a checkpoint was saved meanwhile
				w.metric("fingerpost_withdrawals_unconfirmed")
			}
		})
	}
}

// A linked cluster whose Link asks for withdrawals to be held publishes and withdraws under other names each time. What
// is held of it, and what is remembered, stays within its budget.
func TestHeldRounds(t *testing.T) {
	endpoints, rounds, budget := 100, 5, "-cluster-max-endpoints=20000"
	if *full {
		endpoints, rounds, budget = 1000, 12, "-cluster-max-endpoints=200000"
	}
	w := newBusy(t)
	evil := w.linkRogue(endpoints, map[string]string{"federation.fingerpost.io/withdrawal-guard": "50%/10m"})
	evil.Apply(rogueService("first"))
	w.env = []string{"GOMEMLIMIT=460MiB"}
	w.serve(budget)
	w.live("rogue")
	third := 0
	for round := range rounds {
		evil.publish(fmt.Sprintf("r%d-%%d", round))
		w.slices(rogueServices)
		for i := range rogueServices {
			name := fmt.Sprintf("r%d-%d", round, i)
			evil.Delete(rogueService(name))
			evil.Delete(evil.slice(name, 0))
		}
		w.slices(0)
		w.answered(50) // some seconds
		heap := w.heap()
		t.Logf("round %d: heap %d MiB; %s", round, heap, w.honest.Report())
		if round == 2 {
			third = heap
		}
		if round > 2 && heap > third+10 {
			t.Errorf("round %d: the heap is %d MiB, after round 2 it was %d", round, heap, third)
		}
	}
	w.metric("fingerpost_cluster_over_budget")
}
