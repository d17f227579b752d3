package view

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fingerpost/fingerpost/federation"
)

// TestOversized: of a Service with too many endpoints as many are published as it may have, those that come first by
// name of their slices, and it is reported as long as it is so.
func TestOversized(t *testing.T) {
	const limit = 250
	store := federation.NewStore()
	r, w := begun(t, store, Options{MaxEndpoints: limit}, 0, 1, 400)
	defer r.queue.ShutDown()
	svc := key{Namespace: "team-0", Name: "service-0"}
	name := federation.Service(svc)

	set := func(from, n int) {
		t.Helper()
		s := someSlice(0, 0, from, n, nil)
		k, kind := key{Namespace: s.Namespace, Name: s.Name}, w.kinds["EndpointSlice"]
		if n > 0 {
			update(t, kind, s)
		} else {
			kind.Store.Delete(s)
		}
		r.reconcileSlice(k)
		r.publishService(svc)
	}
	sizes := func() string {
		var all []string
		for _, s := range r.writer.View(name).Slices {
			all = append(all, fmt.Sprint(len(s.Endpoints)))
		}
		return strings.Join(all, " ")
	}

	for _, step := range []struct {
		from, n        int
		want, reported string
	}{
		{200, 100, "100 100 50", "team-0/service-0 has 400"},
		{200, 50, "100 100 50", "has 350"},
		{300, 0, "100 100 50", ""},         // exactly as many
		{200, 51, "100 100 50", "has 251"}, // the last one is cut
		{200, 30, "100 100 30", ""},        // there is room
		{300, 100, "100 100 30 20", "has 330"},
		{0, 0, "100 30 100", ""}, // what is translated was not cut
		{0, 100, "100 100 30 20", "has 330"},
		{300, 0, "100 100 30", ""}, // what was cut goes
		{300, 100, "100 100 30 20", "has 330"},
		{200, 40, "100 100 40 10", "has 330"}, // nearly as many: the problem stays
		{200, 70, "100 100 50", "has 370"},
	} {
		set(step.from, step.n)
		if got := sizes(); got != step.want {
			t.Errorf("%+v: %s are published", step, got)
		}
		problem := r.Oversized()
		if step.reported == "" && problem != "" || !strings.Contains(problem, step.reported) {
			t.Errorf("%+v: the problem is %q", step, problem)
		}
	}

	w.kinds["Service"].Store.Delete(someService(0))
	r.publishService(svc)
	if problem := r.Oversized(); problem != "" {
		t.Errorf("the Service is gone, and the problem is %q", problem)
	}
}

// TestOversizedNames: the largest Services are named, and how many there are besides.
func TestOversizedNames(t *testing.T) {
	var o oversized
	for i := range 9 {
		o.set(key{Namespace: "ns", Name: fmt.Sprint("web-", i)}, 1000+i)
	}
	const want = "ns/web-8 has 1008, ns/web-7 has 1007, ns/web-6 has 1006, 6 more Services: "
	if got := o.problem(10); !strings.Contains(got, want) {
		t.Errorf("%q has not %q", got, want)
	}
}
