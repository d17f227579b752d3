package changes

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// fleet is a Follower of a local cluster that this replica writes into, whose reports are kept.
type fleet struct {
	store    *federation.Store
	writer   *federation.ClusterWriter
	statuses watch.Value[map[string]cluster.Status]
	recent   *Recent
	reports  []string
}

// follow runs the Follower of a fleet in a bubble while use does something.
func follow(t *testing.T, use func(*fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{store: federation.NewStore(), recent: NewRecent()}
		f.store.AddCluster("local", federation.Expectation{Local: true})
		f.writer = f.store.NewWriter("local")
		f.writer.MarkSynced()
		f.setWriting(cluster.Holding)

		follower := NewFollower(f.recent, Sources{
			Replica: "replica-1", Local: "local", Statuses: f.statuses.Load, Store: f.store,
			Kinds: func(string) []cluster.KindStatus { return nil }, Links: func() []problem.Problem { return nil },
			Complete: func() bool { return true },
			Report: func(_ context.Context, service string, what What, text string) {
				f.reports = append(f.reports, fmt.Sprintf("%s %s: %s", service, what, text))
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- follower.Run(ctx) }()
		synctest.Wait()
		use(f)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (f *fleet) setWriting(state cluster.WritingState) {
	status := cluster.Status{Name: "local", Local: true, State: federation.Live, Synced: true}
	status.Source, status.Writing.State = "this process's own", state
	f.statuses.Store(map[string]cluster.Status{"local": status})
}

// compose gives a Service of the local cluster a member in each of some clusters.
func (f *fleet) compose(name string, clusters ...federation.Cluster) {
	composition := &federation.Composition{Union: true}
	for _, c := range clusters {
		ref := federation.Ref{Cluster: c, Service: federation.Service{Namespace: "shop", Name: "web"}}
		composition.Members = append(composition.Members, federation.MemberRef{Ref: ref})
	}
	f.writer.Set(federation.Service{Namespace: "shop", Name: name}, &federation.View{Composition: composition})
	synctest.Wait()
}

// Members that come and go at once are one report, by the replica that writes.
func TestReport(t *testing.T) {
	follow(t, func(f *fleet) {
		f.compose("web", "a")
		f.compose("web", "a", "b", "c", "d", "e", "f")
		f.setWriting(cluster.Standby)
		f.compose("web", "a")
		f.setWriting(cluster.Holding)
		f.compose("web")

		want := []string{
			"shop/web Joined: member shop/web of cluster b has joined; member shop/web of cluster c has joined; " +
				"member shop/web of cluster d has joined; and 2 more",
			"shop/web Left: member shop/web of cluster a has left: the cluster is not linked",
		}
		if got := strings.Join(f.reports, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("the reports are\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	})
}

// A user who may annotate Services changes their members without end. What is reported of one Service is paced, and of
// all of them together, while each change is known; afterwards it is reported again, and nothing is kept of it.
func TestReportsArePaced(t *testing.T) {
	follow(t, func(f *fleet) {
		begun := time.Now()
		for i := range 4 * maxReports {
			name := fmt.Sprint("web-", i%(2*maxReports))
			f.compose(name, "a")
			f.compose(name, "b")
		}
		if time.Since(begun) >= reportEvery {
			t.Fatal("it took so long that reports are due again")
		}
		if n := len(f.reports); n != maxReports {
			t.Errorf("there are %d reports, want %d", n, maxReports)
		}
		seen := map[string]bool{}
		for _, report := range f.reports {
			key, _, _ := strings.Cut(report, ":")
			if seen[key] {
				t.Errorf("%s is reported twice", key)
			}
			seen[key] = true
		}

		time.Sleep(reportEvery + lookAgain) //nolint:forbidigo // virtual time
		synctest.Wait()
		f.reports = nil
		f.compose("web-0", "c")
		if len(f.reports) != 2 {
			t.Errorf("after %s the reports are %q, want two", reportEvery, f.reports)
		}
	})
}
