package links

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// annotated returns a Link with annotations, by what follows their prefix.
func annotated(t *testing.T, annotations map[string]string) *Link {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "multicluster.linkerd.io/v1alpha3", "kind": "Link",
		"spec": map[string]any{"targetClusterName": "west"},
	}}
	all := map[string]string{}
	for name, value := range annotations {
		all[policy.Prefix+name] = value
	}
	u.SetAnnotations(all)
	l, ok := newLink(u, "local")
	if !ok {
		t.Fatal("no Link")
	}
	return l
}

// What can be read is asked for, and what cannot stays as it was and is reported with its value and what would be
// right.
func TestTrafficAnnotations(t *testing.T) {
	l := annotated(t, map[string]string{
		"drain": "true", "withdrawal-guard": "50%/10m", "max-endpoints": "100", "when-stale": "last", "region": "eu",
		"released-at": "2026-01-01T00:00:00Z",
	})
	before, released := l.trafficAfter(policy.Link{}, "")
	drained, _ := before.Drain.At(time.Unix(1, 0))
	if l.misread != "" || drained != 100 || before.WithdrawalGuard.Hold != 10*time.Minute ||
		before.MaxEndpoints.N != 100 || before.WhenStale != policy.Last || before.Region != "eu" ||
		released != "2026-01-01T00:00:00Z" {
		t.Errorf("%+v, released %q; misread: %s", before, released, l.misread)
	}
	wrong := map[string]string{
		"drain": "soon", "withdrawal-guard": "many", "max-endpoints": "-1", "max-services": "x", "when-stale": "maybe",
		"region": "?", "released-at": "now",
	}
	l = annotated(t, wrong)
	for name, value := range wrong {
		if !strings.Contains(l.misread, policy.Prefix+name+" has the value \""+value+"\"") {
			t.Errorf("%s=%s is not reported: %s", name, value, l.misread)
		}
	}
	if after, again := l.trafficAfter(before, released); after != before || again != released {
		t.Errorf("what cannot be read makes %+v of %+v", after, before)
	}
	if after, again := l.trafficAfter(policy.Link{}, ""); after != (policy.Link{}) || again != "" {
		t.Errorf("what cannot be read takes effect: %+v, %q", after, again)
	}
	l = annotated(t, map[string]string{"drian": "true"})
	if !strings.Contains(l.misread, policy.DrainKey) || strings.Contains(l.misread, "released-at") {
		t.Errorf("misread: %s", l.misread)
	}
}

// The conditions of a cluster that is drained, or guarded, are there for so long only.
func TestTrafficConditions(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		traffic cluster.Traffic
		kind    string
		want    string // status, reason, and a part of the message; empty for no condition
		warns   bool
	}{
		{cluster.Traffic{}, Drained, "", false},
		{cluster.Traffic{}, Guarded, "", false},
		{cluster.Traffic{Drain: cluster.Drain{By: "it"}}, Drained, "", false}, // and is given back
		{cluster.Traffic{Drain: cluster.Drain{By: "it", Next: at}}, Drained, "False Draining 0 %", false},
		{
			cluster.Traffic{Drain: cluster.Drain{By: "it", Percent: 40, Next: at}},
			Drained,
			"False Draining 40 % of the cluster's traffic is taken away by it, and the next step is at 2026-01-01T12:00:00Z",
			false,
		},
		{cluster.Traffic{Drain: cluster.Drain{By: "it", Percent: 100}}, Drained, "True Drained no Service", false},
		{
			cluster.Traffic{Drain: cluster.Drain{
				By: "it", Percent: 100, Needed: 5, NeededBy: []string{"a/a", "b/b", "c/c"},
			}},
			Drained, "False StillNeeded no other cluster has ready endpoints of 5 Services, so that those of this one are used: " +
				"a/a, b/b, c/c and 2 more", true,
		},
		{
			cluster.Traffic{Withdrawn: &cluster.Withdrawn{
				Endpoints: 80, Services: []string{"a/a"}, More: 1, Until: at,
			}},
			Guarded, "True WithdrawalHeld the cluster has withdrawn most of what it had at once: 80 of its endpoints are " +
				"held until 2026-01-01T12:00:00Z, for Services that have nothing else: a/a and 1 more; " +
				"'fingerpost release west' lets them go", true,
		},
	} {
		l := annotated(t, nil)
		status := cluster.Status{Name: "west", Reports: cluster.Reports{Traffic: c.traffic}}
		all := conditionsAt(l, outcome{winner: l}, status, true, at)
		got, warns := "", false
		if found := meta.FindStatusCondition(all, c.kind); found != nil {
			got, warns = string(found.Status)+" "+found.Reason+" "+found.Message, isWarning(*found)
		}
		if (c.want == "") != (got == "") || !strings.HasPrefix(got, c.want) || warns != c.warns {
			t.Errorf("%+v: %s, want %s; warns %t", c.traffic, got, c.want, warns)
		}
	}
}

// Annotations of a Link take effect without usable credentials, and the conditions are written and vanish.
func TestTrafficIsApplied(t *testing.T) {
	inFleet(t, func(f *fleet) { f.link("east", true) }, func(f *fleet) {
		annotate := func(value string) {
			u := f.home.Get("links.multicluster.linkerd.io", "linkerd", "east").DeepCopy()
			if u.SetAnnotations(map[string]string{policy.DrainKey: value}); value == "" {
				u.SetAnnotations(nil)
			}
			f.home.Apply(u)
			f.pass(time.Second)
		}
		drained := func() uint8 {
			statuses, _ := f.registry.Statuses()
			return statuses["east"].Traffic.Policy.Drained
		}
		annotate("true")
		if c := f.condition(Drained); c["status"] != "True" || drained() != 100 {
			t.Errorf("%d %% and condition %v", drained(), c)
		}
		annotate("soon")
		if c := f.condition(AnnotationsValid); c["status"] != "False" || drained() != 100 {
			t.Errorf("%d %% and condition %v", drained(), c)
		}
		for _, s := range f.home.List("secrets") {
			f.home.Delete("Secret", s.GetNamespace(), s.GetName())
		}
		f.pass(time.Second)
		annotate("")
		if c := f.condition(Drained); c != nil || drained() != 0 {
			t.Errorf("%d %% and condition %v", drained(), c)
		}
		if c := f.condition(AnnotationsValid); c["status"] != "True" {
			t.Errorf("condition %v", c)
		}
	})
}
