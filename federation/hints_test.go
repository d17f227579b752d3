package federation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Zone hints count member by member: where one has no endpoint for the client's zone, all of its addresses
// count, whatever the others have.
func TestHintsCountByMember(t *testing.T) {
	store := NewStore()
	store.AddCluster("local", Expectation{})
	writer := store.NewWriter("local")
	hinted := func(first, second string) *View {
		return &View{
			Ports: []ServicePort{{Number: 80, Name: "", Target: 80}},
			Slices: []*Slice{{Name: "s", Ports: []Port{{Number: 80}}, Endpoints: []*Endpoint{
				{Addr: addr(first), Ready: true, Detail: &Detail{Hints: []string{"z1"}}},
				{Addr: addr(second), Ready: true, Detail: &Detail{Hints: []string{"z2"}}},
			}}},
		}
	}
	writer.Set(plain, hinted("10.0.0.1", "10.0.0.2"))
	elsewhere := hinted("10.0.1.1", "10.0.1.2")
	elsewhere.Slices[0].Endpoints[0].Detail.Hints = []string{"z3"}
	writer.Set(other, elsewhere)
	writer.Set(fed, &View{Composition: &Composition{
		Union:   true,
		Members: []MemberRef{{Ref{"local", plain}, true}, {Ref{"local", other}, true}},
	}})
	writer.MarkSynced()
	watch := store.Watch(Ref{"local", fed})
	defer watch.Close()
	snapshot, _ := watch.Load()
	x := Select(snapshot, Query{Port: 80}, nil)
	for zone, want := range map[string][]string{
		"z1": {"10.0.0.1", "10.0.1.1", "10.0.1.2"},
		"z2": {"10.0.0.2", "10.0.1.2"},
		"z3": {"10.0.0.1", "10.0.0.2", "10.0.1.1"},
		"":   {"10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2"},
	} {
		var got []string
		for e := range x.At(Place{Zone: zone}, nil).All() {
			got = append(got, e.Addr.Addr().String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("a client in zone %q (-want +got):\n%s", zone, diff)
		}
	}
}
