package links

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/words"
)

const linkKind = "links.multicluster.linkerd.io"

var eastLink = api.Key{Namespace: "linkerd", Name: "east"}

// shown returns the status of each condition of the Link east.
func (f *fleet) shown() map[string]string {
	all := map[string]string{}
	for _, c := range readStatus(f.home.Get(linkKind, "linkerd", "east")).conditions {
		all[c.Type] = string(c.Status)
	}
	return all
}

// meddle changes the status of the Link east, as another client does.
func (f *fleet) meddle(change func(*writtenStatus)) {
	f.t.Helper()
	o := f.home.Get(linkKind, "linkerd", "east")
	s := readStatus(o)
	change(&s)
	text, err := json.Marshal(map[string]any{
		"conditions": s.conditions, "mirrorServices": s.Mirrored, "federatedServices": s.Federated,
	})
	f.must(err)
	var fields map[string]any
	f.must(json.Unmarshal(text, &fields))
	o.Object["status"] = fields
	f.home.Apply(o)
}

func (f *fleet) patches() int { return f.home.Requests("patch", linkKind) }

// mirrored hands over that Services of the Link east are mirrored.
func (r *replica) mirrored(services *MirroredServices) {
	r.reconciler.mu.Lock()
	l := r.reconciler.seenLinks[eastLink]
	r.reconciler.mu.Unlock()
	r.reconciler.SetMirrorStatus(eastLink, l.uid, MirrorStatus{
		Condition: metav1.Condition{
			Type:    Mirrors,
			Status:  metav1.ConditionTrue,
			Reason:  "Mirroring",
			Message: "as it asks",
		},
		Services: services,
	})
}

func mirroredService(i int, mirrored bool) ServiceStatus {
	name := fmt.Sprintf("service-%04d", i)
	s := ServiceStatus{
		ControllerName: linkerd.ServiceMirrorController,
		RemoteRef:      ObjectRef{Kind: "Service", Namespace: "shop", Name: name},
		Conditions: []ServiceCondition{{Condition: metav1.Condition{
			Type:    "Mirrored",
			Status:  metav1.ConditionFalse,
			Reason:  "Error",
			Message: "the name is taken",
		}}},
	}
	if mirrored {
		s.Conditions[0].LocalRef = &ObjectRef{Kind: "Service", Namespace: "shop", Name: name + "-east"}
		s.Conditions[0].Status, s.Conditions[0].Reason = metav1.ConditionTrue, "Mirrored"
	}
	return s
}

var healthy = map[string]string{"Accepted": "True", "CredentialsValid": "True", "Connected": "True", "Synced": "True"}

func linkEast(f *fleet) { f.link("east", true) }

// with returns a map with more keys and values.
func with(of map[string]string, more ...string) map[string]string {
	all := maps.Clone(of)
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// Conditions and entries that another client writes between our read and our write are not lost.
func TestStaleWrite(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		theirs := ServiceStatus{
			ControllerName: "example.com/other", RemoteRef: ObjectRef{Kind: "Service", Namespace: "a", Name: "b"},
		}
		meddle := func() {
			f.meddle(func(s *writtenStatus) {
				s.conditions = append(s.conditions,
					metav1.Condition{
						Type:    Mirrors,
						Status:  metav1.ConditionTrue,
						Reason:  "Other",
						Message: "another writer's",
					},
					metav1.Condition{
						Type:    "Audited",
						Status:  metav1.ConditionTrue,
						Reason:  "Audited",
						Message: "theirs",
					})
				s.Mirrored = append(s.Mirrored, theirs)
			})
		}
		f.before.Store(&meddle)
		f.mirrored(&MirroredServices{Mirrored: []ServiceStatus{mirroredService(1, true)}})
		f.pass(3 * time.Second)
		if diff := cmp.Diff(with(healthy, Mirrors, "True", "Audited", "True"), f.shown()); diff != "" {
			t.Error(diff)
		}
		if got := f.condition(Mirrors)["message"]; got != "as it asks" {
			t.Errorf("Mirroring: %v", got)
		}
		list := readStatus(f.home.Get(linkKind, "linkerd", "east")).Mirrored
		if len(list) != 2 || !sameEntry(list[1], theirs) {
			t.Errorf("list %v", list)
		}
		before := f.patches()
		f.pass(time.Hour)
		if n := f.patches() - before; n != 0 {
			t.Errorf("%d patches although everything was as it should be", n)
		}
	})
}

// What another client makes of our part of a status is corrected at once, and what it adds stays.
func TestMeddling(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		f.mirrored(&MirroredServices{Mirrored: []ServiceStatus{mirroredService(1, true)}})
		f.pass(time.Second)
		since := f.condition(Synced)["lastTransitionTime"]
		f.pass(time.Hour)
		f.meddle(func(s *writtenStatus) {
			s.conditions = s.conditions[2:]
			for i := range s.conditions {
				s.conditions[i].Message = "wrong"
			}
			s.Mirrored[0].Conditions[0].LocalRef = nil
		})
		f.pass(time.Second)
		if diff := cmp.Diff(with(healthy, Mirrors, "True"), f.shown()); diff != "" {
			t.Error(diff)
		}
		got := f.condition(Synced)
		if strings.Contains(fmt.Sprint(got["message"]), "wrong") || got["lastTransitionTime"] != since {
			t.Errorf("condition %v, which is %v since %v", got, got["status"], since)
		}
		list := readStatus(f.home.Get(linkKind, "linkerd", "east")).Mirrored
		if len(list) != 1 || list[0].localRef() == nil {
			t.Errorf("list %v", list)
		}
		f.mirrored(&MirroredServices{})
		f.pass(time.Second)
		if list := readStatus(f.home.Get(linkKind, "linkerd", "east")).Mirrored; len(list) != 0 {
			t.Errorf("list %v", list)
		}
	})
}

// What another writer replaces again and again is corrected once a second, not as fast as the API server answers.
func TestContestedStatus(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		f.mirrored(nil)
		f.pass(time.Hour)
		before := f.patches()
		for range 1000 {
			f.meddle(func(s *writtenStatus) { s.conditions = s.conditions[:1] })
			f.pass(10 * time.Millisecond)
		}
		if n := f.patches() - before; n < 9 || n > 12 {
			t.Errorf("%d patches within 10 s", n)
		}
		f.pass(time.Second)
		if diff := cmp.Diff(with(healthy, Mirrors, "True"), f.shown()); diff != "" {
			t.Error(diff)
		}
	})
}

// A replica that is not the holder writes nothing, whatever it sees. What a dead holder left is corrected by
// the next one, also condition types that no replica writes any more; what the mirror has not handed over yet
// stays.
func TestNextHolder(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.blind = true
		linkEast(f)
	}, func(f *fleet) {
		f.blind = false
		second := f.newReplica()
		f.mirrored(&MirroredServices{Mirrored: []ServiceStatus{mirroredService(1, true)}})
		f.pass(10 * time.Minute)
		if f.shown()["Connected"] != "False" ||
			second.reconciler.Links()[0].Conditions[2].Status != metav1.ConditionTrue {
			t.Fatalf("the holder shows %v, and the other replica %+v", f.shown(), second.reconciler.Links())
		}
		before := f.patches()
		f.pass(time.Hour)
		if n := f.patches() - before; n != 0 {
			t.Errorf("%d patches while replicas disagree", n)
		}
		f.stop()
		l, _ := f.reconciler.links.Get(eastLink)
		left := writtenStatus{
			conditions: append(slices.Clone(l.status.conditions), metav1.Condition{
				Type: "Obsolete", Status: metav1.ConditionTrue, Reason: "Obsolete", Message: "of an older version",
			}),
			MirroredServices: MirroredServices{Mirrored: l.status.Mirrored},
		}
		tree, err := left.Tree(l.status)
		f.must(err)
		_, err = f.reconciler.dynamic.Resource(linkResource(l.version)).Namespace("linkerd").
			Apply(f.ctx, "east", withStatus(l, tree), metav1.ApplyOptions{FieldManager: fieldManager}, "status")
		f.must(err)
		f.pass(time.Minute)
		if f.shown()["Obsolete"] != "True" {
			t.Fatalf("conditions %v", f.shown())
		}
		second.lead()
		defer second.stop()
		f.pass(time.Minute)
		if diff := cmp.Diff(with(healthy, Mirrors, "True"), f.shown()); diff != "" {
			t.Error(diff)
		}
		if list := readStatus(f.home.Get(linkKind, "linkerd", "east")).Mirrored; len(list) != 1 {
			t.Errorf("list %v", list)
		}
		if n := f.patches() - before; n != 2 {
			t.Errorf("%d patches, not one of the test and one of the next holder", n)
		}
	})
}

// A condition of ours that another client has created, and that we have corrected, vanishes when it is not
// wanted any more.
func TestConditionOfAnotherManager(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		meddler := f.reconciler.dynamic.Resource(linkResource("v1alpha3")).Namespace("linkerd")
		l, _ := f.reconciler.links.Get(eastLink)
		theirs := writtenStatus{conditions: append(slices.Clone(l.status.conditions),
			metav1.Condition{Type: SlicesComplete, Status: metav1.ConditionFalse, Reason: "Wrong", Message: "wrong"},
			metav1.Condition{Type: "Audited", Status: metav1.ConditionTrue, Reason: "Audited", Message: "theirs"})}
		tree, err := theirs.Tree(l.status)
		f.must(err)
		text, err := withStatus(l, tree).MarshalJSON()
		f.must(err)
		_, err = meddler.Patch(f.ctx, "east", types.MergePatchType, text,
			metav1.PatchOptions{FieldManager: "kubectl"}, "status")
		f.must(err)
		f.registry.Report("east", cluster.Writing{})
		f.registry.ReportLeftOut("east", cluster.LeftOut{Known: true})
		f.pass(time.Second)
		if diff := cmp.Diff(with(healthy, SlicesComplete, "True", "Audited", "True"), f.shown()); diff != "" {
			t.Fatal(diff)
		}
		o := f.home.Get(linkKind, "linkerd", "east")
		f.must(unstructured.SetNestedField(o.Object, "no name!", "spec", "targetClusterName"))
		f.home.Apply(o)
		f.pass(5 * time.Second)
		want := with(map[string]string{"Accepted": "False"}, CredentialsValid, "Unknown", Connected, "Unknown",
			Synced, "Unknown", "Audited", "True")
		if diff := cmp.Diff(want, f.shown()); diff != "" {
			t.Error(diff)
		}
		before := f.patches()
		f.pass(time.Hour)
		if n := f.patches() - before; n != 0 {
			t.Errorf("%d patches although everything was as it should be", n)
		}
	})
}

// count returns how many Events contain a text, of those since the last call.
func (r *replica) count(text string) (n int) {
	for {
		select {
		case e := <-r.events.Events:
			if strings.Contains(e, text) {
				n++
			}
		default:
			return n
		}
	}
}

// withStatus returns a Link with nothing but a status, to be applied to the version that was read.
func withStatus(l *Link, fields map[string]any) *unstructured.Unstructured {
	object := l.reference()
	object.SetUID("")
	object.Object["status"] = fields
	object.SetResourceVersion(l.resourceVersion)
	return object
}

// Of two replicas that see the same, one records an Event, and the next holder does not record it again.
func TestOneEvent(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		second := f.newReplica()
		f.pass(time.Minute)
		f.count("")
		f.network.Server("east").Cut(apitest.Refuse)
		f.pass(time.Minute)
		if a, b := f.count("Connected is False"), second.count(""); a != 1 || b != 0 {
			t.Errorf("the holder has recorded %d Events, and the other replica %d", a, b)
		}
		f.stop()
		second.lead()
		defer second.stop()
		f.pass(time.Second)
		if a, b := f.count(""), second.count(""); a != 0 || b != 0 {
			t.Errorf("%d and %d Events about what the Link shows already", a, b)
		}
		f.network.Server("east").Cut(apitest.None)
		f.pass(time.Minute)
		if a, b := f.count(""), second.count("Connected is True"); a != 0 || b != 1 {
			t.Errorf("%d and %d Events", a, b)
		}
	})
}

// A status that an API server stores otherwise, refuses, or has no fields for is not sent again and again.
func TestNoWriteLoop(t *testing.T) {
	for name, c := range map[string]struct {
		cause   func(*fleet)
		log     string
		mend    func(*fleet)
		patches int // in the beginning, at most
	}{
		"a webhook changes it": {func(f *fleet) {
			f.home.Mutate(linkKind, func(o *unstructured.Unstructured) {
				list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
				for _, c := range list {
					c.(map[string]any)["message"] = "redacted"
				}
				f.must(unstructured.SetNestedSlice(o.Object, list, "status", "conditions"))
			})
		}, "", func(f *fleet) { f.home.Mutate(linkKind, func(*unstructured.Unstructured) {}) }, 6},
		"it is forbidden": {
			func(f *fleet) { f.home.Deny("patch", linkKind, true) },
			"grant patch on links/status", func(f *fleet) {
				f.home.Deny("patch", linkKind, false)
			}, 2,
		},
		"the schema has no conditions": {
			func(f *fleet) { f.home.Undeclare("conditions") }, "lacks fields of their status", nil, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(f *fleet) {
				linkEast(f)
				c.cause(f)
			}, func(f *fleet) {
				f.mirrored(&MirroredServices{Mirrored: []ServiceStatus{mirroredService(1, true)}})
				f.pass(30 * time.Second)
				if n := f.patches(); n < 1 || n > c.patches {
					t.Errorf("%d patches in the beginning", n)
				}
				before := f.patches()
				f.pass(9 * time.Minute)
				most := 0
				if strings.HasPrefix(c.log, "grant ") {
					most = 9 * 2 // what may be written again is written within a minute
				}
				if n := f.patches() - before; n > most {
					t.Errorf("%d patches in 9 minutes in which nothing has happened", n)
				}
				if c.log != "" && f.log.count(c.log) != 1 {
					t.Errorf("the log has %d lines with %q", f.log.count(c.log), c.log)
				}
				if c.mend != nil {
					c.mend(f)
					f.pass(12 * time.Minute)
					if diff := cmp.Diff(with(healthy, Mirrors, "True"), f.shown()); diff != "" {
						t.Error(diff)
					}
					if got := f.condition(Mirrors)["message"]; got != "as it asks" {
						t.Errorf("Mirroring: %v", got)
					}
					return
				}
				list := readStatus(f.home.Get(linkKind, "linkerd", "east")).Mirrored
				if len(list) != 1 || !f.reconciler.Links()[0].ConditionsUnsupported {
					t.Errorf("list %v, %+v", list, f.reconciler.Links())
				}
				for _, s := range f.reconciler.Links() {
					if len(s.Conditions) == 0 {
						t.Error("metrics and debug pages have no conditions")
					}
				}
			})
		})
	}
}

// A status has bounds: failures are listed first, and the condition counts what is left out.
func TestListsAreBounded(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		services := &MirroredServices{}
		for i := range 5000 {
			services.Mirrored = append(services.Mirrored, mirroredService(i, i%500 != 7))
			services.Federated = append(services.Federated, mirroredService(i, true))
			services.Federated[i].Conditions[0].Message = strings.Repeat("long ", 180)
		}
		f.mirrored(services)
		f.pass(3 * time.Second)
		o := f.home.Get(linkKind, "linkerd", "east")
		text, err := json.Marshal(o)
		f.must(err)
		if len(text) > 800_000 {
			t.Errorf("the Link has %d bytes", len(text))
		}
		s, failures := readStatus(o), 0
		for _, e := range s.Mirrored {
			if e.localRef() == nil {
				failures++
			}
		}
		if len(s.Mirrored) != maxListedServices || failures != 10 {
			t.Errorf("%d entries, %d of them failures", len(s.Mirrored), failures)
		}
		if !slices.IsSortedFunc(s.Mirrored, func(a, b ServiceStatus) int {
			return strings.Compare(a.RemoteRef.Name, b.RemoteRef.Name)
		}) {
			t.Error("the list is not sorted by name")
		}
		want := fmt.Sprintf(
			"as it asks; status.mirrorServices leaves out 4,000 Services; status.federatedServices leaves out %s",
			words.Count(5000-len(s.Federated), "Service"),
		)
		if got := f.condition(Mirrors)["message"]; got != want {
			t.Errorf("message %q, want %q", got, want)
		}
		before := f.patches()
		f.mirrored(nil) // the lists are not known now
		f.mirrored(services)
		f.pass(time.Hour)
		if n := f.patches() - before; n != 0 {
			t.Errorf("%d patches for the same", n)
		}
	})
}

// A replica that cannot hold the local cluster's Lease logs once why it writes no status.
func TestNoLease(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(f.home.Kubeconfig(f.home.Token())))
		f.must(err)
		f.must(f.registry.Apply(cluster.Spec{
			Name:   "home",
			Local:  true,
			Access: []cluster.Access{{Source: "test", Config: config}},
		}))
		const line = "cannot write the status of Links"
		f.registry.Report("home", cluster.Writing{
			State: cluster.Standby, Wanted: []string{"fingerpost-uid", linkerd.ExternalWorkloadsLease},
			Problem: "the other Lease's",
		})
		f.pass(time.Second)
		if n := f.log.count(line); n != 0 {
			t.Errorf("%d lines while the Lease is campaigned for", n)
		}
		for range 3 {
			f.registry.Report("home", cluster.Writing{State: cluster.ReadOnly, Problem: "grant create on leases"})
			f.pass(time.Minute)
		}
		if n, why := f.log.count(line), f.log.count("grant create on leases"); n != 1 || why != 1 {
			t.Errorf("%d lines, %d with the reason", n, why)
		}
	})
}

// However fast a cluster changes, its Link is written once a second, and Events are as few; what is wanted in the
// end is shown some seconds later, and after a quiet time at once.
func TestPaceOfWrites(t *testing.T) {
	inFleet(t, linkEast, func(f *fleet) {
		f.pass(time.Minute)
		before := f.patches()
		f.count("")
		states := []cluster.WritingState{cluster.ReadOnly, cluster.Standby}
		for i := range 1000 {
			f.registry.Report("east", cluster.Writing{State: states[i%2], Problem: "grant create on leases"})
			f.pass(20 * time.Millisecond)
		}
		if n, recorded := f.patches()-before, f.count(""); n < 15 || n > 20 || recorded > n {
			t.Errorf("%d patches and %d Events within 20 s", n, recorded)
		}
		f.pass(10 * time.Second)
		if diff := cmp.Diff(with(healthy, Writable, "True"), f.shown()); diff != "" {
			t.Error(diff)
		}
		f.pass(time.Minute)
		f.registry.Report("east", cluster.Writing{State: cluster.ReadOnly, Problem: "grant create on leases"})
		f.pass(100 * time.Millisecond)
		if diff := cmp.Diff(with(healthy, Writable, "False"), f.shown()); diff != "" {
			t.Error(diff)
		}
	})
}

// A status that we write, and what others make of it, causes no work but that its conditions are compared; what a Link
// asks for does.
func TestOwnWritesCauseNoWork(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(*fleet)
		patches int // at least
		works   bool
	}{
		"our write": {
			do: func(f *fleet) {
				f.mirrored(&MirroredServices{Mirrored: []ServiceStatus{mirroredService(1, true)}})
			},
			patches: 1,
		},
		"a message that others change": {
			do:      func(f *fleet) { f.meddle(func(s *writtenStatus) { s.conditions[0].Message = "wrong" }) },
			patches: 1,
		},
		"conditions that others delete": {
			do:      func(f *fleet) { f.meddle(func(s *writtenStatus) { s.conditions = nil }) },
			patches: 1,
		},
		"a condition of others": {
			do: func(f *fleet) {
				f.meddle(func(s *writtenStatus) {
					s.conditions = append(s.conditions, metav1.Condition{Type: "Audited"})
				})
			},
		},
		"a condition of ours, by others": {
			do: func(f *fleet) {
				f.meddle(func(s *writtenStatus) {
					s.conditions = append(s.conditions, metav1.Condition{
						Type: SlicesComplete, Status: "False", Reason: "Wrong",
					})
				})
			},
			patches: 1,
		},
		"an annotation": {
			do: func(f *fleet) {
				f.change(linkKind, func(o *unstructured.Unstructured) {
					o.SetAnnotations(map[string]string{policy.DrainKey: "50"})
				})
			},
			works: true, patches: 1,
		},
		"a selector": {
			do: func(f *fleet) {
				f.change(linkKind, func(o *unstructured.Unstructured) {
					f.must(unstructured.SetNestedField(o.Object, "b", "spec", "selector", "matchLabels", "a"))
				})
			},
			works: true, patches: 1, // of observedGeneration
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, linkEast, func(f *fleet) {
				f.mirrored(nil)
				f.pass(time.Minute)
				before := f.patches()
				_, changed := f.reconciler.Mirrorings()
				c.do(f)
				f.pass(2 * time.Second)
				if n := f.patches() - before; n < c.patches || n > c.patches+1 {
					t.Errorf("%d patches", n)
				}
				if works := watch.IsClosed(changed); works != c.works {
					t.Errorf("it causes work: %t", works)
				}
			})
		})
	}
}
