package links

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// queued returns how many keys the queue of Specs has got so far.
func (f *fleet) queued() (n float64) {
	families, err := f.registry.QueueMetrics().Gather()
	f.must(err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if family.GetName() == "workqueue_adds_total" && l.GetName() == "name" && l.GetValue() == "links" {
					n = m.GetCounter().GetValue()
				}
			}
		}
	}
	if n == 0 {
		f.t.Fatal("the queue has no metric")
	}
	return n
}

// change has another client change an object of the local cluster whose name is east.
func (f *fleet) change(kind string, change func(*unstructured.Unstructured)) {
	o := f.home.Get(kind, "linkerd", "east").DeepCopy()
	change(o)
	f.home.Apply(o)
}

func (f *fleet) annotate(value string) {
	f.change(linkKind, func(o *unstructured.Unstructured) {
		o.SetAnnotations(map[string]string{policy.DrainKey: value})
	})
}

func (f *fleet) write(state cluster.WritingState) {
	f.registry.Report("east", cluster.Writing{State: state, Problem: "grant create on leases"})
}

// A change of a Link, or of a Secret, has the Spec of each cluster that it names computed once; a change of a Status
// has none. Either is reported.
func TestQueueOfSpecs(t *testing.T) {
	const soon = time.Hour
	begin := func(f *fleet) {
		f.link("east", true)
		f.change("secrets", func(o *unstructured.Unstructured) {
			east := f.network.Server("east")
			kubeconfig := east.Kubeconfig(east.TokenUntil(time.Now().Add(soon)))
			o.Object["data"] = map[string]any{
				KubeconfigKey: base64.StdEncoding.EncodeToString([]byte(kubeconfig)),
			}
		})
	}

	for name, c := range map[string]struct {
		do        func(*fleet)
		keys      float64
		condition string // its type, status, reason and a part of its message
	}{
		"an annotation": {func(f *fleet) { f.annotate("true") }, 1, "Drained=True/Drained"},
		"a Secret, which the Link names and which has a label": {func(f *fleet) {
			f.change("secrets", func(o *unstructured.Unstructured) {
				f.must(unstructured.SetNestedField(o.Object, "other", "metadata", "annotations", TrustDomainAnnotation))
			})
		}, 1, "Accepted=True/Accepted: linked as east, trust domain other"},
		"another cluster": {func(f *fleet) {
			f.change(linkKind, func(o *unstructured.Unstructured) {
				f.must(unstructured.SetNestedField(o.Object, "west", "spec", "targetClusterName"))
			})
		}, 2, "Accepted=True/Accepted: linked as west"},
		"a condition of ours, which others add": {func(f *fleet) {
			f.meddle(func(s *writtenStatus) {
				wrong := metav1.Condition{Type: WithinBudget, Status: "False", Reason: "Wrong"}
				s.conditions = append(s.conditions, wrong)
			})
		}, 0, "WithinBudget=True/WithinBudget"},
		"a permission": {
			func(f *fleet) { f.write(cluster.ReadOnly) }, 0, "Writable=False/ReadOnly: grant create on leases",
		},
		"a cluster that does not answer": {func(f *fleet) {
			f.network.Server("east").Cut(apitest.Refuse)
			f.pass(15 * time.Second)
		}, 0, "Connected=False/Suspect"},
		"the end of the credentials, which the API server goes on taking": {func(f *fleet) {
			f.pass(soon)
		}, 0, "CredentialsValid=False/Expired"},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, begin, func(f *fleet) {
				f.pass(time.Minute)
				before := f.queued()
				c.do(f)
				f.pass(2 * time.Second)
				if n := f.queued() - before; n != c.keys {
					t.Errorf("%v keys, want %v", n, c.keys)
				}
				kind, _, _ := strings.Cut(c.condition, "=")
				got := f.condition(kind)
				text := fmt.Sprintf("%v=%v/%v: %v", got["type"], got["status"], got["reason"], got["message"])
				generation := f.home.Get(linkKind, "linkerd", "east").GetGeneration()
				if !strings.HasPrefix(text, c.condition) || got["observedGeneration"] != generation {
					t.Errorf("%v, want %s, of generation %d", got, c.condition, generation)
				}
			})
		})
	}
}

// Where a Link and the Status of its cluster change at once, the conditions are those of both in the end.
func TestBothStreets(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		states, values := []cluster.WritingState{cluster.ReadOnly, cluster.Standby}, []string{"true", "soon"}
		for i := range 20 {
			done := make(chan struct{})
			go func() {
				defer close(done)
				for j := range 10 {
					f.write(states[(i+j)%2])
				}
			}()
			for j := range 10 {
				f.annotate(values[(i+j)%2])
			}
			<-done
			f.pass(10 * time.Second)
			want := []string{"True False", "False True"}[i%2] // of the last ones
			got := fmt.Sprintf("%v %v", f.condition(Writable)["status"], f.condition(AnnotationsValid)["status"])
			if got != want {
				t.Errorf("Writable and AnnotationsValid are %s, want %s", got, want)
			}
		}
	})
}

// Of the Links that were resolved, those are reported that exist and link the cluster, with the status that they show.
func TestResolvedLinks(t *testing.T) {
	resolved := link("a", 0, nil)
	for name, c := range map[string]struct {
		now  *Link
		want string
	}{
		"the same": {resolved, "1 "},
		"another status": {
			link("a", 0, func(l *Link) { l.status.Mirrored = make([]ServiceStatus, 1) }), "1 with a Service",
		},
		"another spec":        {link("a", 0, func(l *Link) { l.generation = 1 }), "1 "},
		"deleted":             {nil, "0 "},
		"created anew":        {link("a", 0, func(l *Link) { l.uid = "anew" }), "0 "},
		"links another":       {link("a", 0, func(l *Link) { l.clusterName = "west" }), "0 "},
		"another is in place": {link("b", 0, nil), "0 "},
	} {
		r := &Reconciler{
			outcomes: map[string]outcome{"east": {links: []*Link{resolved}}}, seenLinks: map[api.Key]*Link{},
		}
		if c.now != nil {
			r.seenLinks[c.now.key] = c.now
		}
		_, links := r.resolved("east")
		got := fmt.Sprintf("%d ", len(links))
		if len(links) > 0 && len(links[0].status.Mirrored) > 0 {
			got += "with a Service"
		}
		if got != c.want || len(links) > 0 && links[0].generation != resolved.generation {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Nothing is kept of a Link that was deleted.
func TestDeletedLink(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		f.home.Delete("Link", "linkerd", "east")
		f.home.Delete("Secret", "linkerd", "east")
		f.pass(time.Minute)
		f.reconciler.mu.Lock()
		defer f.reconciler.mu.Unlock()
		if n, m := len(f.reconciler.outcomes), len(f.reconciler.reports); n+m > 0 {
			t.Errorf("%d outcomes and %d reports are kept", n, m)
		}
	})
}
