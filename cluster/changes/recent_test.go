package changes

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/fingerpost/fingerpost/federation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A cluster that changes without end takes what room there is, and no more: what is known of others stays.
func TestRecentIsBounded(t *testing.T) {
	recent, now := NewRecent(), time.Now()
	recent.Add(Change{At: now, Cluster: "quiet", What: Linked, Text: "first"})
	for i := range 40_000 {
		text := fmt.Sprint(i, strings.Repeat("x", i%2000))
		recent.Add(Change{At: now, Cluster: "noisy", Service: "shop/web", What: Emptied, Text: text})
		if recent.bytes > MaxBytes {
			t.Fatalf("after %d changes they take %d bytes, want %d at most", i, recent.bytes, MaxBytes)
		}
	}

	all := recent.Last(now)
	if newest := all[0]; !strings.HasPrefix(newest.Text, "39999") {
		t.Errorf("the newest is %.40s, want the one that was added last", newest.Text)
	}
	if oldest := all[len(all)-1]; oldest.Cluster != "quiet" {
		t.Errorf("the oldest is of cluster %s, want quiet", oldest.Cluster)
	}
	if len(all) < 2000 {
		t.Errorf("%d are kept, want as many as there is room for", len(all))
	}
	size := 0
	for _, c := range all {
		size += c.size()
		if len(c.Text) > maxText {
			t.Fatalf("a text has %d bytes, want %d at most", len(c.Text), maxText)
		}
	}
	if size != recent.bytes {
		t.Errorf("%d bytes are counted, and %d are kept", recent.bytes, size)
	}
}

// What is older than two hours is forgotten, also where nothing is added, and what cannot be printed is not kept.
func TestRecentAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		recent := NewRecent()
		recent.Add(Change{At: time.Now(), Cluster: "east", Text: "first\x1b[31m\n"})
		time.Sleep(MaxAge - time.Minute) //nolint:forbidigo // virtual time
		recent.Add(Change{At: time.Now(), Cluster: "west", Text: "second"})

		texts := func() (all []string) {
			for _, c := range recent.Last(time.Now()) {
				all = append(all, c.Text)
			}
			return all
		}
		if diff := cmp.Diff([]string{"second", "first?[31m "}, texts()); diff != "" {
			t.Error(diff)
		}
		if since := recent.Since(time.Now()); !since.Equal(start) {
			t.Errorf("known since %s, want %s", since, start)
		}

		time.Sleep(2 * time.Minute) //nolint:forbidigo // virtual time
		if diff := cmp.Diff([]string{"second"}, texts()); diff != "" {
			t.Error(diff)
		}
		if since := recent.Since(time.Now()); !since.Equal(start.Add(time.Minute)) {
			t.Errorf("known since %s, want two hours ago", since)
		}
		time.Sleep(MaxAge) //nolint:forbidigo // virtual time
		if all := texts(); len(all) > 0 || recent.bytes != 0 || len(recent.clusters) > 0 {
			t.Errorf("%q are left, and %d bytes", all, recent.bytes)
		}
	})
}

// What is asked of a Service has what happened to its members: those that it has, and those that have left.
func TestSubject(t *testing.T) {
	all := []Change{
		{Home: "east", Cluster: "east", Service: "shop/web", What: Deleted},
		{Home: "local", Cluster: "west", Service: "shop/web-federated", Member: "shop/web", What: Left},
		{Home: "west", Cluster: "west", Service: "shop/web", What: Deleted},
		{Home: "north", Cluster: "north", Service: "shop/web", What: Deleted},
		{Home: "local", Cluster: "west", Service: "shop/other", What: Left},
		{Cluster: "west", What: Drain},
	}
	for name, c := range map[string]struct {
		subject Subject
		want    []int
	}{
		"cluster": {Subject{Cluster: "west"}, []int{1, 2, 4, 5}},
		"service": {
			Subject{Home: "local", Service: "shop/web-federated", Members: []federation.Ref{
				{Cluster: "east", Service: federation.Service{Namespace: "shop", Name: "web"}},
			}},
			[]int{0, 1, 2},
		},
		"name of both": {Subject{Cluster: "north", Home: "local", Service: "shop/other"}, []int{3, 4}},
		"unknown":      {Subject{Cluster: "none", Home: "local", Service: "a/b"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var want []Change
			for _, i := range c.want {
				want = append(want, all[i])
			}
			if diff := cmp.Diff(want, append([]Change(nil), c.subject.Of(all)...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
