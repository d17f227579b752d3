package federation

import (
	"testing"
	"time"
)

// A first answer waits for a cluster that is being listed for the whole grace, briefly for one that does not
// answer, and not at all for one that was synced.
func TestWaitUntil(t *testing.T) {
	const grace = 10 * time.Second
	linked, started := time.Unix(100, 0), time.Unix(1000, 0)
	s := NewStore()
	s.AddCluster("local", Expectation{})
	writer := s.NewWriter("local")
	member := Ref{"east", plain}
	writer.Set(fed, &View{Composition: &Composition{Union: true, Members: []MemberRef{{Ref: member}}}})
	writer.MarkSynced()
	w := s.Watch(Ref{"local", fed})
	defer w.Close()
	wants := func(when string, grace time.Duration, want time.Time) {
		t.Helper()
		snapshot, _ := w.Load()
		if got := snapshot.WaitUntil(grace, started); !got.Equal(want) {
			t.Errorf("%s: until %v, want %v", when, got, want)
		}
	}
	wants("before clusters are listed", grace, started.Add(contactGrace))
	s.AddCluster("east", Expectation{Since: linked})
	wants("no answer", grace, linked.Add(contactGrace))
	wants("no answer, with a brief grace", time.Second, linked.Add(time.Second))
	s.SetListing("east", true)
	wants("while it is listed", grace, linked.Add(grace))
	s.SetListing("east", false)
	wants("after that has failed", grace, linked.Add(contactGrace))
	s.SetListing("east", true)
	s.NewWriter("east").MarkSynced()
	wants("synced", grace, time.Time{})
	before, _ := w.Load()
	s.SetListing("east", true)
	if after, _ := w.Load(); after != before {
		t.Error("a cluster that was synced is listed again: there is a new Snapshot")
	}
}
