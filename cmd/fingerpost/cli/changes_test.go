package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

// The table is that of the replica that knows the most, and JSON has all.
func TestChanges(t *testing.T) {
	start := time.Now().Add(-time.Hour)
	page := func(since time.Time, texts ...string) any {
		page := debug.ChangesPage{Since: since, Changes: []changes.Change{}}
		for _, text := range texts {
			page.Changes = append(page.Changes, changes.Change{
				At: start.Add(30 * time.Minute), What: changes.Left, Cluster: "west", Service: "shop/web", Text: text,
			})
		}
		return page
	}
	young := cmdtest.DebugServer(t, map[string]any{"/debug/changes": page(start.Add(time.Minute), "new")})
	old := cmdtest.DebugServer(t, map[string]any{"/debug/changes": page(start, "new", "old\x1b[31m")})
	out, err := fingerpost(t, "changes", "--debug-addr", young+","+old)
	if err != nil {
		t.Fatal(err)
	}

	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	clock := func(at time.Time) string { return at.Format(time.TimeOnly) }
	at := clock(start.Add(30 * time.Minute))
	want := []string{
		"2 changes since " + clock(start) + ", as " + old + " has seen it",
		"TIME AGO WHAT CLUSTER SERVICE CHANGE",
		at + " 30m0s Left west shop/web new", at + " 30m0s Left west shop/web old[31m",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}

	out, err = fingerpost(t, "changes", "-o", "json", "--debug-addr", young+","+old)
	all := cmdtest.DecodeJSON[[]replicaChanges](t, out)
	if err != nil || len(all) != 2 || all[0].Replica != old || len(all[1].Changes) != 1 {
		t.Errorf("%v: %+v", err, all)
	}
	if _, err := fingerpost(t, "changes", "a", "b", "--debug-addr", old); err == nil {
		t.Error("two names are accepted")
	}
}

// What an argument names is asked of the replica: a Service in any of its short forms, and otherwise a cluster.
func TestChangesAbout(t *testing.T) {
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.RequestURI()
		_, _ = w.Write([]byte(`{"since": "2026-01-01T00:00:00Z", "changes": []}`))
	}))
	t.Cleanup(server.Close)
	for name, want := range map[string]string{
		"":           "/debug/changes",
		"west":       "/debug/changes?cluster=west",
		"web.shop":   "/debug/changes?cluster=web.shop&service=shop%2Fweb",
		"shop/web":   "/debug/changes?cluster=shop%2Fweb&service=shop%2Fweb",
		"we st&x=y#": "/debug/changes?cluster=we+st%26x%3Dy%23",
	} {
		args := []string{"changes", "--debug-addr", server.URL}
		if name != "" {
			args = append(args, name)
		}
		out, err := fingerpost(t, args...)
		if err != nil || !strings.HasPrefix(out, "0 changes since ") {
			t.Errorf("%q: %v\n%s", name, err, out)
		}
		if asked != want {
			t.Errorf("%q asks for %s, want %s", name, asked, want)
		}
	}
}
