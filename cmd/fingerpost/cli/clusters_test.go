package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// fleet is a healthy installation as its chart makes it: two replicas, one of which holds the Lease of the
// local cluster, and linked clusters that are read only.
func fleet(linked int) (all []Response[debug.ClustersPage]) {
	for _, replica := range []string{"fingerpost-7d9c4b8f5-tvqp9", "fingerpost-7d9c4b8f5-x2x4z"} {
		local := debug.ClusterEntry{Status: cluster.Status{
			Name: "east", Local: true, State: federation.Live, LastContact: noon.Add(-time.Second), Synced: true,
			Expires: noon.Add(-time.Hour), // of the token that the process started with
			Reports: cluster.Reports{Writing: cluster.Writing{State: cluster.Standby}},
		}, Endpoints: 4, Kinds: []cluster.KindStatus{{Kind: "services", Objects: 5}}}
		if len(all) == 0 {
			local.Writing.State = cluster.Holding
		}
		page := debug.ClustersPage{Clusters: []debug.ClusterEntry{local}}
		for i := range linked {
			name := fmt.Sprintf("cluster-%02d", i)
			page.Clusters = append(page.Clusters, debug.ClusterEntry{Status: cluster.Status{
				Name: name, State: federation.Live, LastContact: noon.Add(-2 * time.Second), Synced: true,
				Since: noon.Add(-time.Hour), Expires: noon.Add(29*24*time.Hour + time.Minute),
				Reports: cluster.Reports{Writing: cluster.Writing{
					State: cluster.ReadOnly, Problem: "no permission to create endpointslices",
				}},
			}, Kinds: []cluster.KindStatus{refusedKind("servers", metav1.StatusReasonNotFound)}})
			page.Links = append(page.Links, links.LinkStatus{Name: name, Cluster: name, Conditions: []metav1.Condition{
				{Type: links.Accepted, Status: metav1.ConditionTrue, Message: "linked"},
				{Type: links.Writable, Status: metav1.ConditionFalse, Message: "discovery goes on"},
			}})
		}
		all = append(all, Response[debug.ClustersPage]{Replica: replica, Page: page})
	}
	return all
}

func refusedKind(kind string, reason metav1.StatusReason) cluster.KindStatus {
	return cluster.KindStatus{Kind: kind, Health: api.Health{Refused: reason}}
}

// merged returns what replicas report, with the problems that they find.
func merged(responses []Response[debug.ClustersPage], names []string) replicaClusters {
	for i := range responses {
		responses[i].Page.FindProblems(noon)
	}
	return mergeClusters(responses, names)
}

// shownClusters are the lines of the table.
func shownClusters(s Screen, responses []Response[debug.ClustersPage]) (lines []string) {
	f := frame{Screen: s}
	printClusters(&f, merged(responses, nil), noon)
	for _, l := range f.lines {
		lines = append(lines, l.text)
	}
	return lines
}

// 60 clusters fit into 62 lines, and nothing in a healthy installation is red or yellow.
func TestHealthyClusters(t *testing.T) {
	for _, width := range []int{0, 80, 200} {
		lines := shownClusters(Screen{width: width, Colours: true}, fleet(59))
		if len(lines) != 62 {
			t.Errorf("%d lines for 60 clusters on %d columns", len(lines), width)
		}
		text := strings.Join(lines, "\n")
		for name, colour := range map[string]Colour{"red": Red, "yellow": Yellow} {
			if strings.Contains(text, fmt.Sprintf("\x1b[%dm", colour)) {
				t.Errorf("something is %s on %d columns:\n%s", name, width, text)
			}
		}
		if strings.Count(text, fmt.Sprintf("\x1b[%dm", Green)) != 61 {
			t.Errorf("states are not green on %d columns:\n%s", width, text)
		}
	}
	if diff := cmp.Diff([]string{
		"CLUSTER       STATE  REPLICAS  CONTACT  SERVICES  ENDPOINTS  WRITES     EXPIRES  PROBLEM",
		"east (local)  Live   2/2       1s       5         4          tvqp9      —",
		"cluster-00    Live   2/2       2s       0         0          read-only  29d",
		"All 2 clusters are Live.",
	}, shownClusters(Screen{}, fleet(1))); diff != "" {
		t.Error(diff)
	}
}

// A cluster whose state was restored has the Services of then, and no Pods that were read. What its account need not be
// granted is no problem, and is named where there is room.
func TestRestoredCluster(t *testing.T) {
	all := fleet(1)
	for _, r := range all {
		c := &r.Page.Clusters[1]
		c.State, c.Checkpoint, c.Services, c.Endpoints = federation.Stale, noon.Add(-time.Hour), 7, 19
		c.Kinds = []cluster.KindStatus{
			refusedKind("services", ""), refusedKind("pods", ""),
			refusedKind(linkerd.ExternalWorkloads.String(), metav1.StatusReasonForbidden),
		}
	}
	text := strings.Join(shownClusters(Screen{}, all), "\n")
	if want := "2s       7         19 "; !strings.Contains(text, want) || strings.Contains(text, "externalworkloads") {
		t.Errorf("want %q in\n%s", want, text)
	}
	f := frame{}
	f.addTable(merged(all, nil).wideTable(false, noon))
	wide := ""
	for _, l := range f.lines {
		wide += l.text + "\n"
	}
	for _, want := range []string{
		"7         —     19 ", "the account has no right to them: externalworkloads.workload.linkerd.io",
	} {
		if !strings.Contains(wide, want) {
			t.Errorf("want %q in\n%s", want, wide)
		}
	}
	for _, r := range all {
		r.Page.Clusters[1].State = federation.Live
	}
	if text := strings.Join(shownClusters(Screen{}, all), "\n"); !strings.Contains(text, "All 2 clusters are Live.") {
		t.Errorf("a right that need not be granted is a problem:\n%s", text)
	}
}

// The verdict is about what is shown, and states if that is not all.
func TestVerdict(t *testing.T) {
	const details = ". Details: fingerpost clusters cluster-00 -o wide"
	for want, c := range map[string]struct {
		linked          int
		names           []string
		suspect, flawed bool
	}{
		"The only cluster is Live.":             {},
		"All 3 clusters are Live.":              {linked: 2},
		"cluster-01 is Live.":                   {linked: 2, names: []string{"cluster-01"}},
		"These 2 clusters are Live.":            {linked: 2, names: []string{"east", "cluster-01"}},
		"":                                      {linked: 2, names: []string{"nosuch"}},
		"cluster-00 is not Live" + details:      {2, []string{"cluster-00"}, true, false},
		"1 of 2 clusters is not Live" + details: {1, nil, true, false},
		"1 of 2 clusters is not Live, and 1 Live with a problem" + details: {1, nil, true, true},
		"cluster-00 is Live, with a problem" + details:                     {2, []string{"cluster-00"}, false, true},
		"All 2 clusters are Live, 1 with a problem" + details:              {1, nil, false, true},
	} {
		all := fleet(c.linked)
		for _, r := range all {
			if c.suspect {
				r.Page.Clusters[1].State = federation.Suspect
			}
			if c.flawed && c.suspect {
				r.Page.Clusters[0].OverBudget = "too much"
			} else if c.flawed {
				r.Page.Clusters[1].OverBudget = "too much"
			}
		}
		f := frame{}
		printClusters(&f, merged(all, c.names), noon)
		got := ""
		if len(f.lines) > 0 {
			got = f.lines[len(f.lines)-1].text
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// With --wait the table is printed once all clusters are Live in all replicas.
func TestWaitForClusters(t *testing.T) {
	var asked atomic.Int32
	page := func(states ...federation.ClusterState) (page debug.ClustersPage) {
		for i, state := range states {
			page.Clusters = append(page.Clusters, debug.ClusterEntry{
				Status: cluster.Status{Name: fmt.Sprintf("cluster-%d", i), State: state},
			})
		}
		return page
	}
	comes := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		pages := []debug.ClustersPage{page("Live"), page("Live", "Connecting"), page("Live", "Live")}
		_ = json.NewEncoder(w).Encode(pages[min(int(asked.Add(1)), len(pages))-1])
	}))
	defer comes.Close()
	stays := cmdtest.DebugServer(t, map[string]any{"/debug/clusters": page("Live", "Stale", "Suspect")})
	out, err := fingerpost(t, "clusters", "cluster-1", "--wait", "1m", "--debug-addr", comes.Listener.Addr().String())
	if err != nil || !strings.HasSuffix(out, "\ncluster-1 is Live.\n") || asked.Load() < 3 {
		t.Errorf("%v after %d requests\n%s", err, asked.Load(), out)
	}
	for args, want := range map[string]string{
		"":          "cluster-1 is Stale, and 1 more is not Live",
		"cluster-2": "cluster-2 is Suspect",
		"--debug-addr " + comes.Listener.Addr().String(): "cluster-1 is Stale in 1 of 2 replicas, " +
			"and 1 more is not Live",
	} {
		args := append([]string{"clusters", "--wait", "30ms", "--debug-addr", stays}, strings.Fields(args)...)
		if out, err := fingerpost(t, args...); ExitCode(err) != ExitNo || err.Error() != want ||
			!strings.Contains(out, "not Live. Details") {
			t.Errorf("%s: %v, want %s\n%s", args, err, want, out)
		}
	}
	if _, err := fingerpost(t, "clusters", "cluster-0", "--wait", "1m", "--debug-addr", stays); err != nil {
		t.Error(err)
	}
	nowhere := []string{"clusters", "--wait", "30ms", "--debug-addr", "127.0.0.1:1"}
	if _, err := fingerpost(t, nowhere...); ExitCode(err) != ExitFailed {
		t.Errorf("no replica: %v", err)
	}
}

// The holder of a Lease is shown although it does not respond itself.
func TestHolderThatDoesNotRespond(t *testing.T) {
	all := fleet(0)[1:]
	writing := &all[0].Page.Clusters[0].Writing
	if lines := shownClusters(Screen{}, all); !strings.Contains(lines[1], " standby ") {
		t.Errorf("no holder is known: %q", lines)
	}
	writing.Wanted = []string{"fingerpost-1"}
	writing.Holders = map[string]string{"fingerpost-1": "fingerpost-7d9c4b8f5-tvqp9_abcdefgh"}
	if lines := shownClusters(Screen{}, all); !strings.Contains(lines[1], " tvqp9 ") {
		t.Errorf("a holder is known: %q", lines)
	}
}

// The worst cluster comes first, with the first clause of its problem and since when; a terminal cuts the
// problem, a pipe nothing.
func TestWorstClusterFirst(t *testing.T) {
	all := fleet(5)
	for _, r := range all {
		c := r.Page.Clusters
		c[1].State, c[1].LastContact = federation.Stale, noon.Add(-190*time.Second)
		c[1].Status.Contact = errors.New("no answer within 3s; the last state is kept")
		c[2].SameAs = "cluster-03"
		c[4].Expires = noon.Add(-time.Minute)
		c[4].Kinds = []cluster.KindStatus{refusedKind("replicasets", metav1.StatusReasonForbidden)}
	}
	suspect := &all[1].Page.Clusters[5]
	suspect.State, suspect.Status.Contact = federation.Suspect, errors.New("the API server is not ready (500)")
	suspect.LastContact = noon.Add(-25 * time.Hour)
	all[0].Page.Links = append(all[0].Page.Links, links.LinkStatus{Name: "typo", Own: []problem.Problem{{
		Severity: problem.Urgent, Cluster: "typo", Text: "spec.targetClusterName is empty",
		Since: noon.Add(-time.Minute),
	}}})
	want := []string{
		"CLUSTER STATE REPLICAS CONTACT SERVICES ENDPOINTS WRITES EXPIRES PROBLEM",
		"typo NotLinked 0/1 never 0 0 — — spec.targetClusterName is empty (since 11:59:00)",
		"cluster-00 Stale 0/2 3m10s 0 0 read-only 29d no answer within 3s (since 11:56:50)",
		"cluster-04 Suspect 1/2 25h0m 0 0 read-only 29d the API server is not ready (500) (since 2026-07-31)",
		"cluster-01 Live 2/2 2s 0 0 read-only 29d " +
			"it is the same cluster as cluster-03: their namespaces kube-system have one UID",
		"cluster-03 Live 2/2 2s 0 0 read-only ended 1m0s ago " +
			"the token or certificate has expired at " + noon.Add(-time.Minute).Format(time.RFC3339) +
			" (since 11:59:00)",
		"east (local) Live 2/2 1s 5 4 tvqp9 —",
		"cluster-02 Live 2/2 2s 0 0 read-only 29d",
		"3 of 7 clusters are not Live, and 2 Live with a problem. Details: fingerpost clusters typo -o wide",
	}
	lines := shownClusters(Screen{}, all)
	if diff := cmp.Diff(want, rows(strings.Join(lines, "\n"))); diff != "" {
		t.Error(diff)
	}
	coloured := shownClusters(Screen{width: 100, Colours: true}, all)
	for line, start := range map[int]string{
		1: "\x1b[31mNotLinked", 2: "\x1b[31mStale", 3: "\x1b[33mSuspect", 4: "\x1b[32mLive", 8: "\x1b[31m3 of 7",
	} {
		if !strings.Contains(coloured[line], start) {
			t.Errorf("no %q in %q", start, coloured[line])
		}
	}
	for _, line := range shownClusters(Screen{width: 100}, all)[:8] {
		if n := len([]rune(line)); n > 100 {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
	wide := strings.Join(render(merged(all, []string{"cluster-00"}).wideTable(true, noon), 0), "\n")
	const problems = "no answer within 3s; the last state is kept; its last state is kept (since 11:56:50); " +
		"no permission to create endpointslices; discovery is not affected"
	if n := strings.Count(wide, problems); n != 2 {
		t.Errorf("wide has not all problems of both replicas:\n%s", wide)
	}
}

// A watch in a pipe prints the rows that changed, and no ages.
func TestWatchPrintsChangedRows(t *testing.T) {
	frameOf := func(now time.Time, responses []Response[debug.ClustersPage]) *frame {
		f := &frame{Screen: Screen{Writer: new(strings.Builder)}}
		printClusters(f, merged(responses, nil), now)
		return f
	}
	printed := func(f, before *frame) []string {
		if err := f.printAfter(before, tableOutput); err != nil {
			t.Fatal(err)
		}
		return rows(f.Writer.(*strings.Builder).String())
	}
	before := frameOf(noon, fleet(2))
	if got := printed(frameOf(noon.Add(time.Minute), fleet(2)), before); got != nil {
		t.Errorf("only time has passed: %q", got)
	}
	changed := fleet(2)
	changed[0].Page.Clusters[2].State = federation.Stale
	changed[0].Page.Clusters[2].Status.Contact = errors.New("no answer within 3s")
	if diff := cmp.Diff([]string{
		"cluster-01 Stale 1/2 2s 0 0 read-only 29d no answer within 3s (since 11:59:58)",
		"1 of 3 clusters is not Live. Details: fingerpost clusters cluster-01 -o wide",
	}, printed(frameOf(noon, changed), before)); diff != "" {
		t.Error(diff)
	}
}

// That a cluster is drained stands beside its state.
func TestClustersDrained(t *testing.T) {
	page := debug.ClustersPage{}
	for i, percent := range []int{0, 40, 100} {
		status := cluster.Status{Name: string(rune('a' + i)), State: federation.Live, LastContact: time.Now()}
		status.Traffic.Drain.Percent = percent
		page.Clusters = append(page.Clusters, debug.ClusterEntry{Status: status})
	}
	server := cmdtest.DebugServer(t, map[string]any{"/debug/clusters": page})
	for _, output := range []string{"table", "wide"} {
		out, err := fingerpost(t, "clusters", "-o", output, "--debug-addr", server)
		if err != nil {
			t.Fatal(err)
		}
		flat := strings.Join(strings.Fields(out), " ")
		if n := strings.Count(flat, "drained"); n != 2 {
			t.Errorf("-o %s has %d drained clusters, want 2:\n%s", output, n, out)
		}
		for _, want := range []string{"b Live, drained 40% ", "c Live, drained "} {
			if !strings.Contains(flat, want) {
				t.Errorf("-o %s lacks %q:\n%s", output, want, out)
			}
		}
	}
}
