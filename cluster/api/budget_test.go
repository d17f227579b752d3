package api

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func object(name, text int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: strconv.Itoa(name)},
		Spec:       corev1.PodSpec{NodeName: strings.Repeat("x", text)},
	}
}

// Whatever comes in whatever order: no more is held than the limits and a quarter; an object that was
// accepted stays until it is deleted; what is charged is what is held; and an unlimited store would hold
// the same, if nothing is refused. A store that is whole holds everything, also when its informer has ended.
func TestBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most, bytes = 8, 4000
		b := NewBudget(Limits{Endpoints: most, Bytes: bytes})
		pods := Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{})
		keep := func(o any) (string, bool) { return o.(*corev1.Pod).Spec.NodeName, true }
		stores, whole := make([]*Store[string], 2), make([]map[Key]bool, 2)
		for i := range stores {
			stores[i], whole[i] = NewStore(keep, func(Key) {}), map[Key]bool{}
			stores[i].UseBudget(b, pods)
		}
		text := rapid.SampledFrom([]int{0, 10, 300, 2000})
		t.Repeat(map[string]func(*rapid.T){
			"update": func(t *rapid.T) {
				i, o := rapid.IntRange(0, 1).Draw(t, "store"),
					object(rapid.IntRange(0, 20).Draw(t, "name"), text.Draw(t, "text"))
				k := keyOf(o)
				whole[i][k] = true
				_, had := stores[i].Get(k)
				stores[i].Update(o)
				if _, has := stores[i].Get(k); had && !has {
					t.Fatal("an object that was accepted is gone")
				}
			},
			"delete": func(t *rapid.T) {
				i, o := rapid.IntRange(0, 1).Draw(t, "store"), object(rapid.IntRange(0, 20).Draw(t, "name"), 0)
				k := keyOf(o)
				delete(whole[i], k)
				stores[i].Delete(o)
			},
			"list": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "store")
				l, listed := stores[i].NewListing(), map[Key]bool{}
				before := stores[i].Keys()
				for range rapid.IntRange(0, 15).Draw(t, "objects") {
					o := object(rapid.IntRange(0, 20).Draw(t, "name"), text.Draw(t, "text"))
					k := keyOf(o)
					listed[k] = true
					l.Update(o)
				}
				if rapid.Bool().Draw(t, "breaks off") {
					return
				}
				stores[i].Replace(l.Objects())
				whole[i] = listed
				for _, k := range before {
					if _, has := stores[i].Get(k); listed[k] && !has {
						t.Fatal("an object that was accepted is gone")
					}
				}
			},
			"": func(t *rapid.T) {
				var all int64
				for i, s := range stores {
					if s.Len() > most {
						t.Fatalf("%d objects", s.Len())
					}
					for _, k := range s.Keys() {
						if !whole[i][k] {
							t.Fatal("an object that was deleted is held")
						}
					}
					if s.IsWhole() && s.Len() < len(whole[i]) {
						t.Fatalf("it is whole with %d objects of %d", s.Len(), len(whole[i]))
					}
					s.share.giveUpListing()
					counted := 0
					for _, x := range s.byKey.All() {
						all += int64(x.size.bytes)
						counted++
					}
					if counted != s.Len() || s.share.used.units != int64(s.Len()) {
						t.Fatalf("%d records and %d units for %d objects", counted, s.share.used.units, s.Len())
					}
				}
				if all != b.bytes || all > bytes*5/4 {
					t.Fatalf("%d bytes are held and %d charged", all, b.bytes)
				}
				if missing := len(whole[0])+len(whole[1]) > stores[0].Len()+stores[1].Len(); missing &&
					b.Problem() == "" {
					t.Fatal("what is refused is not reported")
				}
			},
		})
		for i, s := range stores {
			s.UseBudget(nil, Kind{})
			if s.IsWhole() && s.Len() < len(whole[i]) {
				t.Fatalf("without limits it is whole with %d objects of %d", s.Len(), len(whole[i]))
			}
		}
		if b.bytes != 0 || b.Problem() != "" {
			t.Fatalf("%d bytes are charged to no store: %s", b.bytes, b.Problem())
		}
	})
}

// Of new objects those are taken that come first by name, in whichever order they are listed: replicas agree.
func TestBudgetByName(t *testing.T) {
	pods := Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{})
	keep := func(o any) (string, bool) { return o.(*corev1.Pod).Spec.NodeName, true }
	rapid.Check(t, func(t *rapid.T) {
		var objects []any
		for i := range rapid.IntRange(0, 15).Draw(t, "objects") {
			objects = append(objects, object(i, rapid.SampledFrom([]int{0, 100, 900}).Draw(t, "text")))
		}
		limits := Limits{Endpoints: rapid.IntRange(1, 16).Draw(t, "most"), Bytes: 3000}
		var first []Key
		for range 2 {
			s := NewStore(keep, func(Key) {})
			s.UseBudget(NewBudget(limits), pods)
			l := s.NewListing()
			for _, o := range rapid.Permutation(objects).Draw(t, "order") {
				l.Update(o)
			}
			s.Replace(l.Objects())
			keys := slices.SortedFunc(slices.Values(s.Keys()), Key.Compare)
			if first == nil {
				first = keys
			}
			if !slices.Equal(keys, first) {
				t.Fatalf("%v in one order, and %v in another", first, keys)
			}
			for _, o := range objects {
				k := keyOf(o)
				if len(keys) > 0 && k.Compare(keys[len(keys)-1]) < 0 && !slices.Contains(keys, k) {
					t.Fatalf("%v is refused, and %v is not", k, keys[len(keys)-1])
				}
			}
		}
	})
}

// Limits of one cluster replace those of all, for Services and endpoints alone, and may change.
func TestBudgetOfOneCluster(t *testing.T) {
	all := Limits{Services: 5, Endpoints: 7}
	few, none := 2, 0
	pods := Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{})
	services := Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})
	sliced := Typed(discoveryv1.SchemeGroupVersion, "endpointslices", "EndpointSlice", &discoveryv1.EndpointSlice{})
	for _, c := range []struct {
		limits                     Limits
		services, endpoints, other int64
	}{
		{all, 5, 7, 7},
		{all.With(nil, &few), 5, 2, 7},
		{all.With(&few, nil), 2, 7, 7},
		{all.With(&none, &none), 0, 0, 7},
		{Limits{}.With(nil, &few), 0, 2, math.MaxInt32},
	} {
		for k, want := range map[*Kind]int64{&services: c.services, &sliced: c.endpoints, &pods: c.other} {
			if got := c.limits.units(*k); got != want {
				t.Errorf("%+v: %d of %s, want %d", c.limits, got, k.Name, want)
			}
		}
	}

	for limits, want := range map[Limits]string{
		{Services: 5, Endpoints: 7, Objects: 9, Bytes: 1 << 20}: "5 Services, 7 endpoints or 1 MiB",
		{Services: 5, Bytes: 1 << 20}:                           "5 Services or 1 MiB",
		{Endpoints: 7}:                                          "7 endpoints",
	} {
		b := NewBudget(limits)
		b.refused[&share{kind: pods}] = true
		if got := b.Problem(); !strings.Contains(got, " more than "+want+": ") {
			t.Errorf("want %s: %s", want, got)
		}
	}

	b := NewBudget(Limits{Endpoints: 1})
	s := NewStore(func(any) (string, bool) { return "", true }, func(Key) {})
	s.UseBudget(b, pods)
	for i := range 2 {
		s.Update(object(i, 0))
	}
	if s.Len() != 1 || s.share.mayFit() || len(b.Refused()) != 1 {
		t.Fatalf("%d objects, may fit %t, refused %v", s.Len(), s.share.mayFit(), b.Refused())
	}
	if b.SetLimits(Limits{Endpoints: 2}); !s.share.mayFit() {
		t.Error("there is room, and nothing may fit")
	}
}

// A record that was taken is taken once, until its object changes, and goes on to count: what was made of it is held.
func TestTake(t *testing.T) {
	pods := Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{})
	b := NewBudget(Limits{Endpoints: 1, Bytes: 1000})
	s := NewStore(func(any) (*string, bool) { return new("record"), true }, func(Key) {})
	s.UseBudget(b, pods)
	for range 2 {
		s.Update(object(0, 0))
		used := b.bytes
		for _, taken := range []bool{false, true} {
			if r, found := s.Take(s.Keys()[0]); !found || (r == nil) != taken {
				t.Fatalf("taken before: %t; found: %t, record: %v", taken, found, r)
			}
		}
		s.UseBudget(nil, Kind{})
		s.UseBudget(b, pods)
		if b.bytes != used || s.Len() != 1 {
			t.Errorf("%d bytes and %d objects are held, want %d bytes and one", b.bytes, s.Len(), used)
		}
	}
	if _, found := s.Take(Key{Name: "another"}); found {
		t.Error("what is not there is found")
	}
}

// The size of a record counts what it points to.
func TestSize(t *testing.T) {
	type record struct {
		name string
		list []string
		next *record
		m    map[string]string
	}
	long := strings.Repeat("x", 1000)
	for _, r := range []any{
		long,
		record{name: long},
		record{list: []string{long}},
		record{next: &record{name: long}},
		record{m: map[string]string{"a": long}},
		&record{m: map[string]string{long: ""}},
	} {
		if n := usageOf(Kind{}, Key{}, nil, r).bytes; n < 1000 || n > 1400 {
			t.Errorf("%T: %d bytes", r, n)
		}
	}
	if n := usageOf(Kind{}, Key{Name: long}, nil, 1).bytes; n < 1000 || n > 1400 {
		t.Errorf("a long name: %d bytes", n)
	}
	for levels, least := range map[int]int32{100: 1000, maxLevels: math.MaxInt32} {
		var object any = long
		for range levels {
			object = map[string]any{"a": object}
		}
		if n := usageOf(Kind{}, Key{}, nil, object).bytes; n < least || levels == 100 && n > 10_000 {
			t.Errorf("%d levels of JSON: %d bytes", levels, n)
		}
	}
}
