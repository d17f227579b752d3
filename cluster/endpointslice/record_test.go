package endpointslice

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/view"
)

// filledMeta returns the metadata of an object as its user has filled it: some 200 KiB each of annotations, labels and
// managed fields.
func filledMeta(name string) metav1.ObjectMeta {
	const text = 200 << 10
	meta := metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(strings.Repeat("u", 36)), ResourceVersion: "17",
		Labels:      map[string]string{"a-label": "some-value"},
		Annotations: map[string]string{"example.com/large": strings.Repeat("x", text)},
		ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:` + strings.Repeat("x", text) + `":{}}`)},
		},
	}
	for i := range text / 40 {
		meta.Labels[fmt.Sprintf("example.com/label-%d", i)] = "some-value"
	}
	return meta
}

// Whatever users put into Services and slices, the records of them are small.
func TestRecordsAreSmall(t *testing.T) {
	external := newTestWriter(t, fake.NewClientset())
	federated := &sliceWriter{managedBy: "another"}
	selected := map[string]string{}
	for i := range 5000 {
		selected[fmt.Sprintf("example.com/selected-%d", i)] = "some-value"
	}
	for name, c := range map[string]struct {
		writer   *sliceWriter
		selector map[string]string
		optIn    string
		most     int
	}{
		"for ExternalWorkloads, that selects":   {external.sliceWriter, selected, "", 130 << 10},
		"for ExternalWorkloads":                 {external.sliceWriter, nil, "", 1 << 10},
		"for federated Services, that opts in":  {federated, selected, "enabled", 110 << 10},
		"for federated Services, or opts in as": {federated, selected, strings.Repeat("x", 200<<10), 110 << 10},
		"for federated Services":                {federated, selected, "", 1 << 10},
	} {
		kept := apitest.Kept(20, func(i int) *serviceRecord {
			svc := &corev1.Service{ObjectMeta: filledMeta(fmt.Sprint("web-", i))}
			svc.Spec.Selector = maps.Clone(c.selector)
			if c.optIn != "" {
				svc.Annotations[view.OptIn] = c.optIn
			}
			for j := range 5000 {
				port := corev1.ServicePort{Name: fmt.Sprint("port-", j), Port: int32(j + 1)}
				svc.Spec.Ports = append(svc.Spec.Ports, port)
			}
			record, _ := c.writer.reduceService(svc)
			return record
		})
		if t.Logf("of a Service %s: %d bytes", name, kept); kept > c.most {
			t.Errorf("of a Service %s %d bytes are kept, at most %d may be", name, kept, c.most)
		}
	}

	for name, c := range map[string]struct {
		endpoints, text int // bytes in each
		most            int
	}{
		"without endpoints": {0, 0, 48 << 10},
		"of 1,000":          {1000, 8 << 10, 300 << 10},
		"of long texts":     {20, 256 << 10, 48 << 10},
	} {
		kept := apitest.Kept(20, func(i int) *discoveryv1.EndpointSlice {
			es := &discoveryv1.EndpointSlice{ObjectMeta: filledMeta(fmt.Sprint("web-", i))}
			es.Labels[discoveryv1.LabelManagedBy] = externalManagedBy
			for j := range c.endpoints {
				target := &corev1.ObjectReference{Name: strings.Repeat("x", c.text)}
				es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{fmt.Sprint("10.0.0.", j)}, TargetRef: target,
				})
			}
			record, _ := external.reduceSlice(es)
			return record
		})
		if t.Logf("of a slice %s: %d bytes", name, kept); kept > c.most {
			t.Errorf("of a slice %s %d bytes are kept, at most %d may be", name, kept, c.most)
		}
	}
}

// What we write is kept as it was written. Of anything else that a slice has is kept that it is there, so that the
// slice is written anew; and which Service and source it is of.
func TestKeptSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := drawGroups(t)
		have, next := map[string]*discoveryv1.EndpointSlice{}, 0
		first := planFor(someService, groups, nil)
		first.apply(have, &next)
		for _, es := range byName(have) {
			kept := keptSlice(es)
			if !reflect.DeepEqual(kept.Endpoints, es.Endpoints) || !maps.Equal(kept.Labels, es.Labels) ||
				!maps.Equal(kept.Annotations, es.Annotations) || !reflect.DeepEqual(kept.Ports, es.Ports) ||
				!reflect.DeepEqual(kept.OwnerReferences, es.OwnerReferences) {
				t.Fatalf("of %v is kept %v", es, kept)
			}
			have[es.Name] = kept
		}
		if p := planFor(someService, groups, byName(have)); !p.empty() {
			t.Fatal("what is kept of what was written is written again")
		}
	})
}

func TestSlicesOfOthers(t *testing.T) {
	port := int32(80)
	tcp := discoveryv1.EndpointPort{Name: new("http"), Port: &port, Protocol: new(corev1.ProtocolTCP)}
	one := func(change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		es := &discoveryv1.EndpointSlice{
			ObjectMeta:  someService.meta("test", true),
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{tcp},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
		}
		es.Name, es.UID = "web-1", "1"
		es.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "fingerpost"}}
		change(es)
		return es
	}
	long := strings.Repeat("x", 200<<10)
	wanted := grouping{}
	g := wanted.groupFor(traits{family: "IPv4"}, []discoveryv1.EndpointPort{tcp})
	g.meta, g.endpoints = someService.meta("test", true), []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	for name, c := range map[string]struct {
		change func(*discoveryv1.EndpointSlice)
		writes int
	}{
		"nothing":       {func(*discoveryv1.EndpointSlice) {}, 0},
		"a label":       {func(es *discoveryv1.EndpointSlice) { es.Labels["team"] = "other" }, 1},
		"an annotation": {func(es *discoveryv1.EndpointSlice) { es.Annotations = map[string]string{"a": ""} }, 1},
		"a long identity": {func(es *discoveryv1.EndpointSlice) {
			es.Annotations = map[string]string{linkerd.RemoteGatewayIdentityAnnotation: long}
		}, 1},
		"many labels": {func(es *discoveryv1.EndpointSlice) {
			for i := range 5000 {
				es.Labels[fmt.Sprint("a", i)] = "some-value"
			}
		}, 1},
		"many endpoints": {func(es *discoveryv1.EndpointSlice) {
			for i := range maxEndpoints {
				es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.0.1.", i)}})
			}
		}, 1},
		"a long name": {func(es *discoveryv1.EndpointSlice) {
			es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{"10.0.0.2"}, TargetRef: &corev1.ObjectReference{Name: long},
			})
		}, 1},
		"owners": {func(es *discoveryv1.EndpointSlice) {
			es.OwnerReferences = append(es.OwnerReferences, metav1.OwnerReference{Kind: "Other", Name: long})
		}, 0},
	} {
		kept := keptSlice(one(c.change))
		p := planFor(someService, wanted.sorted(), []*discoveryv1.EndpointSlice{kept})
		if len(p.update) != c.writes || len(p.extend)+len(p.create)+len(p.remove) > 0 {
			t.Errorf("%s: %d are updated, %d created and %d deleted, want %d updated", name, len(p.update),
				len(p.create), len(p.remove), c.writes)
		}
		for _, es := range p.update {
			if len(es.Annotations) > 0 || len(es.Endpoints) != 1 || !maps.Equal(es.Labels, g.meta.Labels) {
				t.Errorf("%s: %v is written", name, es)
			}
		}
		if serviceKeyOf(kept) != someService.key || len(kept.ManagedFields) > 0 || !someService.owns(kept) {
			t.Errorf("%s: it is kept as one of Service %s, with %d managed fields", name, serviceKeyOf(kept),
				len(kept.ManagedFields))
		}
	}
}

// A Service with more requirements than are kept selects nothing, and not more than it asks for.
func TestSelectorWithTooMuch(t *testing.T) {
	set := map[string]string{}
	for i := range maxRequirements + 1 {
		s, _ := newServiceRecord(&corev1.Service{Spec: corev1.ServiceSpec{Selector: maps.Clone(set)}})
		if !s.selectsWorkload(set) {
			t.Fatalf("with %d requirements it does not select", i)
		}
		set[fmt.Sprint("label-", i)] = "x"
	}
	s, _ := newServiceRecord(&corev1.Service{Spec: corev1.ServiceSpec{Selector: set}})
	if s.selector == nil || s.selectsWorkload(set) || s.selectsWorkload(nil) {
		t.Error("one with too many requirements selects something, or counts as one without a selector")
	}
}

// Of labels that are too many those that count are kept, and others in their order, always the same.
func TestFirstLabels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := map[string]string{}
		for range rapid.IntRange(0, 50).Draw(t, "labels") {
			all[rapid.StringMatching("[a-z]{1,9}").Draw(t, "key")] = rapid.StringMatching("[a-z]{0,9}").Draw(t, "value")
		}
		all["zzz"] = "1"
		limit := rapid.IntRange(70, 2500).Draw(t, "limit")
		kept := firstLabels(all, limit, "zzz", "yyy")
		size := 0
		for k, v := range kept {
			if size += len(k) + len(v) + 64; all[k] != v {
				t.Fatalf("%q is %q, and was %q", k, v, all[k])
			}
		}
		if size > limit || kept["zzz"] != "1" {
			t.Fatalf("%d bytes are kept of at most %d: %v", size, limit, kept)
		}
		if !maps.Equal(kept, firstLabels(maps.Clone(all), limit, "zzz", "yyy")) {
			t.Fatal("others are kept the second time")
		}
		delete(kept, "zzz")
		delete(all, "zzz")
		names := slices.Sorted(maps.Keys(all))[:len(kept)]
		if !slices.Equal(names, slices.Sorted(maps.Keys(kept))) {
			t.Fatalf("%v are kept, the first are %v", kept, names)
		}
	})
}
