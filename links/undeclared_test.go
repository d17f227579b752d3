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
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// entries returns a list of the status of the Link east, as its readers see it: the Service, what it is here, a status.
func (f *fleet) entries(list string) (all []string) {
	items, _, _ := unstructured.NestedSlice(f.home.Get(linkKind, "linkerd", "east").Object, "status", list)
	for _, item := range items {
		entry := item.(map[string]any)
		text := fmt.Sprint(entry["remoteRef"].(map[string]any)["name"])
		conditions, _, _ := unstructured.NestedSlice(entry, "conditions")
		for _, c := range conditions {
			here, _, _ := unstructured.NestedString(c.(map[string]any), "localRef", "name")
			text += fmt.Sprintf(" -> %s %s", here, c.(map[string]any)["status"])
		}
		all = append(all, text)
	}
	return all
}

// A field that the schema of Links lacks is left out alone, named once in the log, and written once the schema has it.
// What cannot be written at all is reported with what to do about it, and no right is reported as missing that is
// there.
func TestUndeclaredFields(t *testing.T) {
	const mirrored, failed = "service-0001 -> service-0001-east True", "service-0002 ->  False"
	whole := []string{mirrored, failed}
	for name, c := range map[string]struct {
		cause      func(*fleet)
		undeclared []string
		conditions bool
		mirrored   []string
		federated  []string
		refused    string
		patches    int // of the first 30 s, at most
	}{
		"Linkerd's": {
			cause:      func(f *fleet) { f.home.Undeclare("conditions") },
			undeclared: []string{"conditions"}, mirrored: whole, federated: whole, patches: 4,
		},
		"Linkerd's v1alpha2": {
			cause: func(f *fleet) {
				f.home.Undeclare("conditions")
				f.home.Serve(linkKind, "v1alpha2", "v1alpha1")
			},
			undeclared: []string{"conditions"}, mirrored: whole, federated: whole, patches: 4,
		},
		"ours, before localRef was a part of conditions": {
			cause: func(f *fleet) {
				f.home.Undeclare("mirrorServices.conditions.localRef", "federatedServices.conditions.localRef")
			},
			undeclared: []string{"federatedServices.conditions.localRef", "mirrorServices.conditions.localRef"},
			conditions: true, patches: 5,
			mirrored:  []string{"service-0001 ->  True", failed},
			federated: []string{"service-0001 ->  True", failed},
		},
		"one without federated Services": {
			cause:      func(f *fleet) { f.home.Undeclare("federatedServices") },
			undeclared: []string{"federatedServices"}, conditions: true, mirrored: whole, patches: 5,
		},
		"one without a field of conditions": {
			cause: func(f *fleet) {
				f.home.Undeclare("conditions.observedGeneration", "mirrorServices.conditions.message")
			},
			undeclared: []string{"conditions.observedGeneration", "mirrorServices.conditions.message"},
			conditions: true, mirrored: whole, federated: whole, patches: 5,
		},
		"one without the kind of what is mirrored": {
			cause:      func(f *fleet) { f.home.Undeclare("mirrorServices.remoteRef.kind", "conditions") },
			undeclared: []string{"conditions", "mirrorServices.remoteRef.kind"},
			mirrored:   whole, federated: whole, patches: 5,
		},
		"one without the conditions of Services": {
			cause:      func(f *fleet) { f.home.Undeclare("mirrorServices.conditions") },
			undeclared: []string{"mirrorServices.conditions"}, conditions: true, patches: 5,
			mirrored: []string{"service-0001", "service-0002"}, federated: whole,
		},
		"one without a status": {
			cause:   func(f *fleet) { f.home.Undeclare("status") },
			refused: "the Link CRD has no status in v1alpha3", patches: 1,
		},
		"v1alpha1 alone": {
			cause: func(f *fleet) {
				f.home.Serve(linkKind, "v1alpha1")
				f.home.Undeclare("status")
			},
			refused: "the Link CRD has no status in v1alpha1", patches: 1,
		},
		"it is forbidden": {
			cause:   func(f *fleet) { f.home.Deny("patch", linkKind, true) },
			refused: "grant patch on links/status", patches: 2,
		},
		"a policy refuses it": {
			cause:   func(f *fleet) { f.home.Reject("patch", linkKind, "linkerd", "exceeded quota") },
			refused: "although patch on links/status is granted: exceeded quota", patches: 2,
		},
		"a webhook drops them": {
			cause: func(f *fleet) {
				f.home.Mutate(linkKind, func(o *unstructured.Unstructured) {
					unstructured.RemoveNestedField(o.Object, "status", "conditions")
				})
			},
			undeclared: []string{"conditions"}, mirrored: whole, federated: whole, patches: 4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(f *fleet) {
				linkEast(f)
				c.cause(f)
			}, func(f *fleet) {
				services := []ServiceStatus{mirroredService(1, true), mirroredService(2, false)}
				f.mirrored(&MirroredServices{Mirrored: services, Federated: services})
				f.pass(30 * time.Second)
				if n := f.patches(); n < 1 || n > c.patches {
					t.Errorf("%d patches in the beginning", n)
				}
				before := f.patches()
				f.pass(9 * time.Minute)
				most := 0
				if strings.Contains(c.refused, "grant") {
					most = 9 * 2 // what may be written again is written within a minute
				}
				if n := f.patches() - before; n > most {
					t.Errorf("%d patches in 9 minutes in which nothing has happened", n)
				}
				f.shows(c.conditions, c.mirrored, c.federated)
				l := f.reconciler.Links()[0]
				if diff := cmp.Diff(c.undeclared, l.UndeclaredFields); diff != "" {
					t.Error(diff)
				}
				if !strings.Contains(l.StatusRefused, c.refused) || c.refused == "" && l.StatusRefused != "" ||
					l.ConditionsUnsupported == c.conditions || len(l.Conditions) == 0 {
					t.Errorf("%+v", l)
				}
				logged := strings.Join(c.undeclared, ", ")
				if n := f.log.count("lacks fields of their status"); c.undeclared != nil && n == 0 ||
					n > len(c.undeclared) || n == 1 && f.log.count(logged) != 1 {
					t.Errorf("the log has %d lines about fields, not one with %s", n, logged)
				}
				if n := f.log.count("The status of a Link cannot be written: "); n != min(len(c.refused), 1) {
					t.Errorf("the log has %d lines that nothing can be written", n)
				}
				if rights := f.log.count("grant patch on links/status"); rights != 0 && name != "it is forbidden" {
					t.Error("the log names a right that is there")
				}

				f.home.Deny("patch", linkKind, false)
				f.home.Reject("patch", linkKind, "linkerd", "")
				f.home.Mutate(linkKind, func(*unstructured.Unstructured) {})
				f.home.Serve(linkKind, linkerd.LinkVersions...)
				f.home.Undeclare()
				f.pass(12 * time.Minute)
				f.shows(true, whole, whole)
				if l := f.reconciler.Links()[0]; l.ConditionsUnsupported || l.StatusRefused != "" ||
					len(l.UndeclaredFields) > 0 {
					t.Errorf("once the schema has all: %q, %q", l.UndeclaredFields, l.StatusRefused)
				}
			})
		})
	}
}

// shows compares the status of the Link east with what it should show.
func (f *fleet) shows(conditions bool, mirrored, federated []string) {
	f.t.Helper()
	want := map[string]string{}
	if conditions {
		want = with(healthy, Mirrors, "True")
	}
	got := f.shown()
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Error(diff)
	}
	if diff := cmp.Diff(mirrored, f.entries("mirrorServices")); diff != "" {
		f.t.Error(diff)
	}
	if diff := cmp.Diff(federated, f.entries("federatedServices")); diff != "" {
		f.t.Error(diff)
	}
}

// What one Link has found out about the schema holds for all others: they are not written to find it out again.
func TestUndeclaredFieldsOfManyLinks(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.home.Undeclare("conditions")
		for i := range 30 {
			f.link(fmt.Sprintf("east-%d", i), true)
		}
	}, func(f *fleet) {
		f.pass(time.Minute)
		if n := f.log.count("lacks fields of their status"); n != 1 {
			t.Errorf("%d lines in the log", n)
		}
		before := f.patches()
		f.pass(time.Hour)
		if n := f.patches() - before; n > 6*4 {
			t.Errorf("%d patches within an hour", n)
		}
	})
}

// What others write into the lists stays as it is, with fields of which we know nothing.
func TestEntriesOfOthers(t *testing.T) {
	const theirs = `{"controllerName":"example.com/other","remoteRef":{"kind":"Service","namespace":"a","name":"b","group":"core"},` +
		`"conditions":[{"type":"Ready","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z",` +
		`"localRef":{"kind":"Service","namespace":"a","name":"c","group":"core"},"severity":3}],"weight":{"of":[1,2]}}`
	var entry map[string]any
	if err := utiljson.Unmarshal([]byte(theirs), &entry); err != nil {
		t.Fatal(err)
	}
	before := readFields(map[string]any{"mirrorServices": []any{entry}})
	l := &Link{status: before}
	m := &MirrorStatus{Services: &MirroredServices{Mirrored: []ServiceStatus{mirroredService(1, true)}}}
	tree, err := wantedStatus(l, nil, m, true, metav1.Now()).Tree(l.status)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(any(entry), tree["mirrorServices"].([]any)[1]); diff != "" {
		t.Error(diff)
	}
}

// A status that an older version has written, with localRef as a field of an entry, is written anew in the shape of
// Linkerd's API, and keeps the times of its conditions.
func TestStatusOfOlderVersion(t *testing.T) {
	since := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Local())
	old := func(i int, mirrored bool) any {
		s := mirroredService(i, mirrored)
		s.Conditions[0].LastTransitionTime, s.Conditions[0].LocalRef = since, nil
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var entry map[string]any
		if err := json.Unmarshal(text, &entry); err != nil {
			t.Fatal(err)
		}
		if mirrored {
			entry["localRef"] = map[string]any{"kind": "Service", "namespace": "shop", "name": "old"}
		}
		return entry
	}
	l := &Link{status: readFields(map[string]any{"mirrorServices": []any{old(1, true), old(2, false)}})}
	services := []ServiceStatus{mirroredService(1, true), mirroredService(2, false)}
	m := &MirrorStatus{Services: &MirroredServices{Mirrored: services}}
	want := wantedStatus(l, nil, m, true, metav1.Now())
	if !l.status.Contradicts(want) {
		t.Error("the old shape is not written anew")
	}
	tree, err := want.Tree(l.status)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range tree["mirrorServices"].([]any) {
		if e.(map[string]any)["localRef"] != nil {
			t.Errorf("the old shape: %v", e)
		}
	}
	for _, s := range want.Mirrored {
		if !s.Conditions[0].LastTransitionTime.Equal(&since) {
			t.Errorf("a transition at %v, not %v", s.Conditions[0].LastTransitionTime, since)
		}
	}
	if readFields(tree).Contradicts(want) {
		t.Error("what was written is written again")
	}
}

// The definition that we install has every field of the status that Linkerd's has, in the same place and of the same
// type, and conditions of the Link besides. It is what apitest serves.
func TestDefinition(t *testing.T) {
	ours, theirs := statusFields(t, CRD), statusFields(t, apitest.LinkerdLinks)
	for version, fields := range theirs {
		for field, kind := range fields {
			if got := ours[version][field]; got != kind {
				t.Errorf("%s: status.%s is %q, not %q as in Linkerd's", version, field, got, kind)
			}
		}
		for field := range ours[version] {
			isOwn := strings.HasPrefix(field, "conditions") ||
				strings.HasSuffix(field, ".conditions.observedGeneration")
			if fields[field] == "" && !isOwn {
				t.Errorf("%s: Linkerd has no status.%s", version, field)
			}
		}
	}
	versions := slices.Sorted(slices.Values(linkerd.LinkVersions))
	if diff := cmp.Diff(versions, slices.Sorted(maps.Keys(theirs))); diff != "" {
		t.Error(diff)
	}
}

// statusFields returns the fields of the status that a definition declares, by version: their types, and defaults.
func statusFields(t *testing.T, definition []byte) map[string]map[string]string {
	t.Helper()
	var crd unstructured.Unstructured
	if err := yaml.Unmarshal(definition, &crd.Object); err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]string{}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		fields := map[string]string{}
		status, _, _ := unstructured.NestedMap(v.(map[string]any), "schema", "openAPIV3Schema", "properties", "status")
		addFields(fields, "", status)
		all[v.(map[string]any)["name"].(string)] = fields
	}
	return all
}

func addFields(to map[string]string, prefix string, schema map[string]any) {
	if items, is := schema["items"].(map[string]any); is {
		addFields(to, prefix, items)
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, p := range properties {
		p := p.(map[string]any)
		to[prefix+name] = fmt.Sprint(p["type"], p["format"], p["default"])
		addFields(to, prefix+name+".", p)
	}
}
