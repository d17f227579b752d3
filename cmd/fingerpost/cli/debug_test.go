package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/serving"
)

// rows are the lines of a table, with one blank between cells.
func rows(out string) (lines []string) {
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// The streams of all replicas are one list, the slowest first, and name their replica.
func TestStreamsOfReplicas(t *testing.T) {
	ago := func(d time.Duration) *time.Time { return new(time.Now().Add(-d)) }
	stream := func(id uint64, pod string, sending *time.Time, behind *discovery.Lag) discovery.StreamStatus {
		return discovery.StreamStatus{
			ID: id, Method: "Get", Authority: "web.shop.svc.cluster.local:80", Namespace: "s", Pod: pod,
			Peer:   "1:40",
			Opened: time.Now().Add(-90 * time.Minute), Sending: sending, Behind: behind,
		}
	}
	a := cmdtest.DebugServer(t, map[string]any{"/debug/streams": []discovery.StreamStatus{
		stream(
			1,
			"quick",
			nil,
			nil,
		), stream(2, "slow", ago(time.Minute), &discovery.Lag{Adds: 1}), stream(3, "", nil, nil),
	}})
	b := cmdtest.DebugServer(t, map[string]any{"/debug/streams": []discovery.StreamStatus{
		stream(
			1,
			"far",
			nil,
			&discovery.Lag{Adds: 2, Removes: 3},
		), stream(2, "slowest", ago(time.Hour), &discovery.Lag{Removes: 1}),
	}})
	out, err := fingerpost(t, "streams", "--debug-addr", a+","+b)
	if diff := cmp.Diff([]string{
		"REPLICA ID AGE METHOD ASKS FOR CLIENT HOLDS LAST SENT BEHIND",
		"s/slowest", "s/slow", "s/far", "s/quick", "s/1:40",
	}, pick(rows(out), "s/", "REPLICA")); err != nil || diff != "" ||
		!strings.HasSuffix(out, "5 streams, 3 behind.\n") {
		t.Errorf("%v %s\n%s", err, diff, out)
	}
	if out, err := fingerpost(t, "streams", "--slow", "--debug-addr", a+","+b); err != nil ||
		strings.Contains(out, "quick") ||
		!strings.Contains(out, "far") {
		t.Errorf("--slow: %v\n%s", err, out)
	}
	if out, err := fingerpost(t, "streams", "--debug-addr", a); err != nil || !strings.HasPrefix(out, "ID ") ||
		strings.Contains(out, a) {
		t.Errorf("one replica: %v\n%s", err, out)
	}
	for addrs, want := range map[string][]string{
		a + "," + b: {b + " 2", a + " 2", b + " 1", a + " 1", a + " 3"},
		b:           {b + " 2", b + " 1"},
	} {
		out, err := fingerpost(t, "streams", "-o", "json", "--debug-addr", addrs)
		var got []string
		for _, s := range cmdtest.DecodeJSON[[]struct {
			Replica string
			ID      uint64
			Peer    string
		}](t, out) {
			got = append(got, fmt.Sprint(s.Replica, " ", s.ID))
			if s.Peer != "1:40" {
				t.Errorf("the peer is lost: %s", out)
			}
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v %s\n%s", err, diff, out)
		}
	}
	if out, err := fingerpost(t, "streams", "-o", "json", "--debug-addr",
		cmdtest.DebugServer(t, map[string]any{"/debug/streams": nil})); err != nil ||
		out != "[]\n" {
		t.Errorf("no streams: %v\n%s", err, out)
	}
}

// pick returns of each line the words that begin so, or all of one that begins with header.
func pick(lines []string, prefix, header string) (picked []string) {
	for _, line := range lines {
		if strings.HasPrefix(line, header) {
			picked = append(picked, line)
			continue
		}
		for word := range strings.FieldsSeq(line) {
			if strings.HasPrefix(word, prefix) {
				picked = append(picked, word)
			}
		}
	}
	return picked
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// While a replica that does not answer is waited for, what the others have reported does not become older.
func TestAgesWithoutTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		answers := roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}"))}, nil
		})
		hangs := roundTripper(func(request *http.Request) (*http.Response, error) {
			<-request.Context().Done()
			return nil, request.Context().Err()
		})
		responses, err := FetchAll[debug.ClustersPage](t.Context(), []Replica{
			{Name: "a", Addr: "a:1", Transport: hangs}, {Name: "b", Addr: "b:1", Transport: answers},
		}, "/debug/clusters")
		if err == nil || len(responses) != 1 || time.Since(began) < pageTimeout {
			t.Fatalf("%+v, %v after %s", responses, err, time.Since(began))
		}
		if at := asOf(responses); !at.Equal(began) {
			t.Errorf("ages are as of %s after the response", at.Sub(began))
		}
	})
}

// What each replica knows of a cluster stands together.
func TestClustersOfReplicas(t *testing.T) {
	page := func(state federation.ClusterState) debug.ClustersPage {
		page := debug.ClustersPage{
			Clusters: []debug.ClusterEntry{
				{Status: cluster.Status{Name: "east", Local: true, State: "Live", Synced: true}},
				{Status: cluster.Status{Name: "west", State: state, Synced: true, Contact: errors.New("timeout")}},
			},
			Links: []links.LinkStatus{{Namespace: "linkerd", Name: "west", Cluster: "west"}},
		}
		page.FindProblems(time.Now())
		return page
	}
	a, b := cmdtest.DebugServer(
		t,
		map[string]any{"/debug/clusters": page("Live")},
	), cmdtest.DebugServer(
		t,
		map[string]any{"/debug/clusters": page("Stale")},
	)
	for args, want := range map[string][]string{
		"--debug-addr " + a + "," + b: {
			"CLUSTER STATE REPLICAS CONTACT SERVICES ENDPOINTS WRITES EXPIRES PROBLEM",
			"west Stale 1/2 never 0 0 — — timeout", "east (local) Live 2/2 never 0 0 — —",
			"1 of 2 clusters is not Live. Details: fingerpost clusters west -o wide",
		},
		"-o wide --debug-addr " + a + "," + b: {
			"CLUSTER REPLICA STATE SINCE CONTACT SERVICES PODS ENDPOINTS WRITES CREDENTIALS EXPIRES PROBLEM",
			"east (local) " + a + " Live — never 0 0 0 — — —",
			"east (local) " + b + " Live — never 0 0 0 — — —",
			"west " + a + " Live — never 0 0 0 — — —",
			"west " + b + " Stale — never 0 0 0 — — — timeout; its last state is kept",
		},
		"-o wide west --debug-addr " + b: {
			"CLUSTER STATE SINCE CONTACT SERVICES PODS ENDPOINTS WRITES CREDENTIALS EXPIRES PROBLEM",
			"west Stale — never 0 0 0 — — — timeout; its last state is kept",
		},
		"-o name --debug-addr " + a: {"east", "west"},
	} {
		out, err := fingerpost(t, append([]string{"clusters"}, strings.Fields(args)...)...)
		if diff := cmp.Diff(want, rows(out)); err != nil || diff != "" {
			t.Errorf("%s: %v %s\n%s", args, err, diff, out)
		}
	}
	out, err := fingerpost(t, "clusters", "nosuch", "west", "--debug-addr", a)
	if ExitCode(err) != ExitNotFound || !strings.Contains(err.Error(), `no cluster "nosuch": there are east, west`) ||
		!strings.Contains(out, "west") {
		t.Errorf("no such cluster: %v\n%s", err, out)
	}
	type named struct{ Replica, Name, State string }
	for addrs, want := range map[string]struct{ Clusters, Links []named }{
		a + " east": {[]named{{a, "east", "Live"}}, []named{}},
		a:           {[]named{{a, "east", "Live"}, {a, "west", "Live"}}, []named{{a, "west", ""}}},
		a + "," + b: {
			[]named{{a, "east", "Live"}, {b, "east", "Live"}, {a, "west", "Live"}, {b, "west", "Stale"}},
			[]named{{a, "west", ""}, {b, "west", ""}},
		},
	} {
		addrs, names, _ := strings.Cut(addrs, " ")
		out, err := fingerpost(
			t,
			append([]string{"clusters", "-o", "json", "--debug-addr", addrs}, strings.Fields(names)...)...)
		if diff := cmp.Diff(want, cmdtest.DecodeJSON[struct{ Clusters, Links []named }](t, out)); err != nil ||
			diff != "" {
			t.Errorf("%v %s\n%s", err, diff, out)
		}
	}
}

// On a narrow terminal an address is whole, and what is of less use is left out.
func TestExplanationOnANarrowTerminal(t *testing.T) {
	const addr = "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:18080"
	x := discovery.Explanation{Authority: "web.shop", Claims: []discovery.Claim{
		{
			Addr: addr, Kept: true, Why: "included, its cluster is Stale", Cluster: "cluster-of-a-long-name",
			Slice: "web-vhfw5", Pod: "shop/web-7b9c6d5f4-tvqp9", Zone: "europe-west-1a",
		},
		{Addr: "10.1.0.80:8080", Why: "not ready", Cluster: "east", Pod: "shop/web-7b9c6d5f4-9n6s7"},
	}}
	for width, header := range map[int]string{
		0: "ADDRESS CLUSTER SLICE POD ZONE SENT WHY", 80: "ADDRESS CLUSTER SENT WHY",
		150: "ADDRESS CLUSTER SLICE POD ZONE SENT WHY",
	} {
		f := frame{Screen: Screen{width: width}}
		printExplanation(&f, x, noon)
		text := ""
		for _, l := range f.lines {
			text += l.text + "\n"
			if n := utf8.RuneCountInString(l.text); width > 0 && n > width {
				t.Errorf("%d columns: %q", n, l.text)
			}
		}
		if got := strings.Join(strings.Fields(f.lines[3].text), " "); got != header ||
			!strings.Contains(text, addr) || !strings.Contains(text, "10.1.0.80:8080") {
			t.Errorf("on %d columns:\n%s", width, text)
		}
	}
}

// What the replicas explain that have a stream of the client is shown, else what the first does; and who
// differs.
func TestExplanationsOfReplicas(t *testing.T) {
	explanation := func(replica, node string, stream uint64, kept ...string) replicaExplanation {
		x := replicaExplanation{
			replica,
			discovery.Explanation{Authority: "web.shop", Client: discovery.Asker{Client: serving.Client{Node: node}}},
		}
		if stream > 0 {
			x.Streams = []discovery.StreamStatus{{ID: stream}}
		}
		for _, addr := range kept {
			x.Claims = append(x.Claims, discovery.Claim{Addr: addr, Kept: true, Why: "included"})
		}
		x.Claims = append(x.Claims, discovery.Claim{Addr: "10.9.9.9:80", Why: replica})
		return x
	}
	refused := explanation("b", "", 0, "10.0.0.1:80")
	refused.Refused = "NotFound: gone"
	over := explanation("a", "", 0, "10.0.0.1:80")
	over.Notes = []string{"over budget: west"}
	differs := func(pair string) string {
		return "warning: replicas " + strings.Replace(pair, " ", " and ", 1) + " differ, see 'fingerpost check'"
	}
	for name, c := range map[string]struct {
		all  []replicaExplanation
		want []string // headings, streams and who differs
	}{
		"one replica": {[]replicaExplanation{explanation("a", "", 0)}, nil},
		"no stream, they agree": {[]replicaExplanation{
			explanation("a", "", 0, "10.0.0.1:80"),
			explanation("b", "", 0, "10.0.0.1:80"),
		}, []string{"replica a"}},
		"no stream, they do not": {
			[]replicaExplanation{
				explanation("a", "", 0, "10.0.0.1:80"),
				explanation("b", "", 0, "10.0.0.1:80", "10.0.0.2:80"), explanation("c", "", 0),
			},
			[]string{"replica a", differs("a b"), differs("a c")},
		},
		"a cluster is over its budget": {[]replicaExplanation{over}, []string{"note: over budget: west"}},
		"one refuses": {
			[]replicaExplanation{explanation("a", "", 0, "10.0.0.1:80"), refused},
			[]string{"replica a", differs("a b")},
		},
		"a stream of the second": {
			[]replicaExplanation{explanation("a", "", 0, "10.0.0.1:80"), explanation("b", "n", 7, "10.0.0.2:80")},
			[]string{"replica b", "stream 7"}, // a does not know the node, and cannot be compared
		},
		"streams of both": {
			[]replicaExplanation{
				explanation("a", "n", 1, "10.0.0.1:80"), explanation("b", "n", 1),
				explanation("c", "n", 0, "10.0.0.1:80"),
			},
			[]string{"replica a", "stream 1", "replica b", "stream 1", differs("a b")},
		},
		"escapes": {[]replicaExplanation{
			explanation("a\x1b[31m", "", 0),
			explanation("b\x1b[31m", "", 0, "10.0.0.1:80"),
		}, []string{"replica a[31m", differs("a[31m b[31m")}},
	} {
		var out frame
		printExplanations(&out, c.all, len(c.all) > 1, time.Now())
		var got []string
		for _, l := range out.lines {
			line, _, _ := strings.Cut(strings.TrimSpace(l.text), ", open for")
			for _, prefix := range []string{"replica ", "stream ", "note: ", "warning: "} {
				if strings.HasPrefix(line, prefix) {
					got = append(got, line)
				}
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s\n%v", name, diff, out.lines)
		}
	}

	a := cmdtest.DebugServer(t, map[string]any{"/debug/explain": explanation("", "", 0).Explanation})
	b := cmdtest.DebugServer(t, map[string]any{"/debug/explain": explanation("", "", 1).Explanation})
	for addrs, want := range map[string][]string{a: {a + " 0"}, a + "," + b: {a + " 0", b + " 1"}} {
		out, err := fingerpost(t, "explain", "web.shop", "-o", "json", "--debug-addr", addrs)
		var got []string
		for _, x := range cmdtest.DecodeJSON[[]struct {
			Replica, Authority string
			Streams            []struct{}
		}](t, out) {
			got = append(got, fmt.Sprint(x.Replica, " ", len(x.Streams)))
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v %s\n%s", err, diff, out)
		}
	}
}

// A replica that does not respond, or with nonsense, is named at the end, and the others are shown; the same
// error of all of them is shown once.
func TestReplicasThatFail(t *testing.T) {
	pages := map[string]any{
		"/debug/clusters": debug.ClustersPage{Clusters: []debug.ClusterEntry{{Status: cluster.Status{Name: "clusters"}}}},
		"/debug/streams": []discovery.StreamStatus{
			{Pod: "streams"},
		}, "/debug/explain": discovery.Explanation{Authority: "explain"},
	}
	good, closed, strange := cmdtest.DebugServer(
		t,
		pages,
	), "127.0.0.1:1", cmdtest.DebugServer(
		t,
		map[string]any{"/debug/clusters": 1, "/debug/streams": 1, "/debug/explain": 1},
	)
	for _, args := range [][]string{{"clusters"}, {"streams"}, {"explain", "web.shop"}} {
		for _, output := range []string{"table", "json", "yaml"} {
			args := append(args, "-o", output, "--debug-addr", strings.Join([]string{closed, good, strange}, ","))
			out, err := fingerpost(t, args...)
			if !strings.Contains(out, args[0]) ||
				output == "json" && !strings.Contains(out, fmt.Sprintf(`"replica": %q`, good)) ||
				output == "yaml" && !strings.Contains(out, "replica: "+good) {
				t.Errorf("%s: the page of one is not shown:\n%s", args, out)
			}
			for _, want := range []string{closed + ": no response from", strange + ": the server's response: json"} {
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), good+":") {
					t.Errorf("%s: %v, want %s", args, err, want)
				}
			}
		}
	}
	if out, err := fingerpost(t, "streams", "--debug-addr", closed+","+strange); err == nil || out != "" {
		t.Errorf("no replica responds: %v\n%s", err, out)
	}
	refusal := map[string]any{"/debug/explain": fmt.Errorf("Invalid authority: foo")}
	if _, err := fingerpost(t, "explain", "foo", "--debug-addr",
		cmdtest.DebugServer(t, refusal)+","+cmdtest.DebugServer(t, refusal)); err == nil ||
		err.Error() != "Invalid authority: foo" {
		t.Errorf("refused by both: %v", err)
	}
}

// Tables are within their width with names that are as long as they can be.
func TestReplicasWithLongNames(t *testing.T) {
	now := time.Now()
	long := func(s string) string { return strings.Repeat("long-", 10) + s }
	var streams []Response[[]discovery.StreamStatus]
	var clusters []Response[debug.ClustersPage]
	for _, replica := range []string{long("7d9c4b8f5-x2x4z"), long("7d9c4b8f5-tvqp9")} {
		streams = append(streams, Response[[]discovery.StreamStatus]{Replica: replica, Page: []discovery.StreamStatus{{
			ID: 1e6, Method: "GetProfile", Authority: "web-federated.shop.svc.cluster.local:8080",
			Namespace: long("shop"), Pod: long("cart"),
			Addresses: 1e5, Opened: now.Add(-47 * time.Hour), Last: &discovery.LastSent{At: now.Add(-time.Hour)},
			Sending: new(now.Add(-time.Hour)),
			Behind:  &discovery.Lag{Adds: 1e5, Removes: 1e5},
		}}})
		clusters = append(
			clusters,
			Response[debug.ClustersPage]{Replica: replica, Page: debug.ClustersPage{Clusters: []debug.ClusterEntry{{
				Status: cluster.Status{
					Name: long(
						"west",
					), State: federation.Connecting, LastContact: now.Add(-time.Hour),
					Source: "linkerd/" + long("credentials"), Contact: errors.New(long("err or")),
				},
				Kinds: []cluster.KindStatus{{Kind: "pods", Objects: 1e6}, {Kind: "services", Objects: 1e5}},
			}}}},
		)
	}
	out := frame{Screen: Screen{width: 130}}
	printStreams(&out, mergeStreams(streams), false, true, now)
	out.addTable(merged(clusters, nil).wideTable(true, now))
	text := ""
	for _, l := range out.lines {
		if n := utf8.RuneCountInString(l.text); n > out.width {
			t.Errorf("a line of %d columns: %q", n, l.text)
		}
		text += l.text + "\n"
	}
	for _, end := range []string{"x4z ", "qp9 "} {
		if strings.Count(text, end) != 2 {
			t.Errorf("replicas cannot be distinguished:\n%s", text)
		}
	}
}

// Texts of servers do not control the terminal, whatever is printed; lines stay lines.
func TestEscapesOfServers(t *testing.T) {
	if got := PrintableLines("a\x1b[31m: b\r\nc\td\n"); got != "a[31m: b\nc d\n" {
		t.Errorf("%q", got)
	}
	server := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a\x1b[31m 1\nb 2\n") }),
	)
	defer server.Close()
	out, err := fingerpost(t, "metrics", "--metrics-addr", server.Listener.Addr().String())
	if err != nil || !strings.HasSuffix(out, "\na[31m 1\nb 2\n") {
		t.Errorf("%v %q", err, out)
	}
	refuses := cmdtest.DebugServer(t, map[string]any{"/debug/clusters": errors.New("no\x1b[31m")})
	w := watch(
		t,
		"clusters",
		"--watch",
		"--debug-addr",
		refuses+","+cmdtest.DebugServer(t, map[string]any{"/debug/clusters": debug.ClustersPage{}}),
	)
	w.until(refuses + ": no[31m")
}
