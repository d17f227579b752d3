package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/federation"
)

func fingerpostCheck(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := cmdtest.Root([]*cobra.Command{Command("test")}, args...)
	cli.Prepare(root, "fingerpost")
	return cmdtest.Execute(t, root)
}

// A clock that differs is reported, in either direction, and one that differs by rounding is not.
func TestClockSkew(t *testing.T) {
	for skew, want := range map[time.Duration]string{
		0: "", -time.Second: "", 8 * time.Second: "", -8 * time.Second: "", 5 * time.Minute: "5m0s away",
		-5 * time.Minute: "-5m0s away",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
		}))
		err := (&environment{config: &rest.Config{Host: server.URL}}).checkClock(t.Context())
		server.Close()
		_, warned := errors.AsType[warning](err)
		// The Date has whole seconds, so that the difference may be a second less.
		got := regexp.MustCompile(`-?4m5[0-9]s`).
			ReplaceAllStringFunc(fmt.Sprint(err),
				func(s string) string { return strings.Replace(s, s[len(s)-5:], "5m0s", 1) })
		if want == "" && err != nil || want != "" && (!warned || !strings.Contains(got, want)) {
			t.Errorf("%s: %v", skew, err)
		}
	}
}

// A Lease without a holder is reported if it is needed; one whose holder is gone, always.
func TestHeld(t *testing.T) {
	now := time.Unix(1e9, 0)
	lease := func(holder string, renewed time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity:       &holder,
				LeaseDurationSeconds: new(int32(30)),
				RenewTime:            &metav1.MicroTime{Time: now.Add(renewed)},
			},
		}
	}
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	none, forbidden := apierrors.NewNotFound(leases, "x"), apierrors.NewForbidden(leases, "x", nil)
	for name, c := range map[string]struct {
		lease             *coordinationv1.Lease
		missing           error
		needed, notNeeded string
	}{
		"held": {lease("a", -10*time.Second), nil, "", ""},
		"expired": {
			lease("a", -10*time.Minute), nil, "a held it until 9m30s ago",
			"a held it until 9m30s ago",
		},
		"given up":       {lease("", -time.Second), nil, "it has no holder", "skipped"},
		"not there":      {nil, none, "there is no such Lease", "skipped"},
		"not to be read": {nil, forbidden, "it cannot be read", "skipped"},
		"held without an end": {
			&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a")}}, nil,
			"without an end", "without an end",
		},
	} {
		for needed, want := range map[bool]string{true: c.needed, false: c.notNeeded} {
			err := checkHolder(c.lease, c.missing, leaseUse{wanted: needed, held: true}, now)
			_, warned := errors.AsType[warning](err)
			if holder, is := errors.AsType[detail](err); is && holder == "a" {
				err = nil
			}
			if want == "" && err != nil || want != "" && !strings.Contains(fmt.Sprint(err), want) ||
				err != nil && !warned && !errors.Is(err, errSkipped) {
				t.Errorf("%s, needed %t: %v", name, needed, err)
			}
		}
	}
}

// Results are printed at once and in order, but for checks that may pass later: those are waited for together until
// they pass or the time is up. Skipped ones are not reported, and only failures fail the report.
func TestRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, shown bytes.Buffer
		r := newRunner(10*time.Second, time.Second)
		r.to, r.progress = &out, cli.NewProgress(&shown)
		began, tries := time.Now(), 0
		returns := func(err error) func(context.Context) error {
			return func(context.Context) error { return err }
		}
		late := func(context.Context) error {
			if tries++; tries < 3 {
				return errors.New("not yet")
			}
			return detail("at last")
		}
		r.run(t.Context(),
			check{"one", "comes right", "a", true, 0, late},
			check{"one", "skipped", "b", false, 0, returns(errSkipped)},
			check{"tw\x1bo", "warned", "c", false, 0, returns(warningf("a\x1b[31m %w", errors.New("b\nc")))},
			check{"tw\x1bo", "lasts", "c", true, 0, returns(permanentWarningf("no right"))},
			check{"three", "hangs", "d", true, 0, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		if d := time.Since(began); d != time.Second {
			t.Errorf("what is decided was printed after %s", d)
		}
		if !r.report.Success {
			t.Error("a warning fails, or what is waited for")
		}
		want := "two\n---\n‼ warned\n    a[31m b\n    c\n    see " + hintsURL + "c for hints\n" +
			"‼ lasts\n    no right\n    see " + hintsURL + "c for hints\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
		out.Reset()
		r.wait(t.Context(), func(context.Context) {})
		if d := time.Since(began); r.report.Success || d > 10*time.Second || d < 8*time.Second {
			t.Errorf("success %t after %s", r.report.Success, d)
		}
		want = "\none\n---\n√ comes right: at last\n" +
			"\nthree\n-----\n× hangs\n    context deadline exceeded\n    see " + hintsURL + "d for hints\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
		if text := shown.String(); !strings.Contains(text, "(--wait) for: comes right and 1 more: not yet\n") ||
			strings.Count(text, "\n") != 3 {
			t.Errorf("in a pipe: %q", text)
		}
	})
}

// What was not asked when the command is interrupted is not checked, and is no failure; what has failed before stays
// one.
func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		for _, failed := range []bool{false, true} {
			var out bytes.Buffer
			r := newRunner(time.Minute, 10*time.Second)
			r.to = &out
			if failed {
				r.run(ctx, check{"one", "fails", "a", true, 0, func(context.Context) error { return errors.New("no") }})
			}
			go func() {
				<-time.NewTimer(time.Second).C
				interrupt()
			}()
			hangs := check{"one", "hangs", "a", true, 0, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}}
			if r.must(ctx, hangs) {
				t.Error("it has succeeded")
			}
			r.run(ctx, check{"one", "later", "a", true, 0, func(context.Context) error { return errors.New("asked") }})
			r.wait(ctx, nil)
			want, wantErr := "one\n---\n– hangs: not checked\n– later: not checked\n\nStatus check results are ‼\n", errInterrupted
			if failed {
				want, wantErr = "one\n---\n× fails\n    no\n    see "+hintsURL+"a for hints\n– hangs: not checked\n"+
					"– later: not checked\n\nStatus check results are ×\n", ErrFailed
			}
			if err := r.finish(&out); !errors.Is(err, wantErr) {
				t.Errorf("%v, want %v", err, wantErr)
			}
			if diff := cmp.Diff(want, out.String()); diff != "" && !failed {
				t.Error(diff)
			}
			ctx, interrupt = context.WithCancel(t.Context())
		}
		interrupt()
	})
}

// A cluster that is unlinked meanwhile is skipped.
func TestCheckOfAClusterThatGoes(t *testing.T) {
	r := newRunner(0, time.Second)
	known := &knownReplicas{pages: []cli.Response[debug.ClustersPage]{{Page: debug.ClustersPage{
		Clusters: []debug.ClusterEntry{{Status: cluster.Status{Name: "west"}}, {Status: cluster.Status{Name: "south"}}},
	}}}}
	checks := append(known.clusterChecks(), known.writerChecks()...)
	known.pages = nil
	r.run(t.Context(), checks...)
	if len(r.report.Categories) != 0 || !r.report.Success || len(checks) != 12 {
		t.Errorf("%d checks: %+v", len(checks), r.report)
	}
}

// A cluster that is drained is no problem, and its check has that it is.
func TestCheckOfADrainedCluster(t *testing.T) {
	page := debug.ClustersPage{}
	for i, percent := range []int{0, 40, 100} {
		status := cluster.Status{Name: fmt.Sprint("c", i), State: federation.Live}
		status.Traffic.Drain.Percent = percent
		page.Clusters = append(page.Clusters, debug.ClusterEntry{Status: status})
	}
	known := &knownReplicas{pages: []cli.Response[debug.ClustersPage]{{Page: page}}}
	var titles []string
	for _, check := range known.clusterChecks() {
		if strings.Contains(check.description, "is in contact") {
			titles = append(titles, check.description)
		}
	}
	want := []string{"c0 is in contact", "c1 is in contact, and drained 40%", "c2 is in contact, and drained"}
	if diff := cmp.Diff(want, titles); diff != "" {
		t.Error(diff)
	}
}

// Each hint leads to a heading: one of its subject, or one of the Problem that fails it.
func TestHints(t *testing.T) {
	page, err := os.ReadFile("../../../docs/checks.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Subjects() {
		heading := regexp.MustCompile(`(?im)^##+ ` + strings.ReplaceAll(s.Anchor, "-", "[ -]") + `$`)
		if !heading.Match(page) {
			t.Errorf("docs/checks.md has no heading for %q", s.Title)
		}
	}

	skewed := problem.OfCluster("west", problem.ClockSkew, problem.Warning, "its clock is off")
	known := &knownReplicas{pages: []cli.Response[debug.ClustersPage]{{Page: debug.ClustersPage{
		Clusters: []debug.ClusterEntry{{Status: cluster.Status{Name: "west"}}}, Problems: []problem.Problem{skewed},
	}}}}
	r := newRunner(0, time.Second)
	r.run(t.Context(), known.clusterChecks()...)
	checks := r.report.Categories[0].Checks
	if last := checks[len(checks)-1]; last.Result != resultWarning || last.Hint != docsURL+"problems.md#clockskew" {
		t.Errorf("%+v", last)
	}
}

func TestCheckSaysWhatItCannotDo(t *testing.T) {
	out, err := fingerpostCheck(t, "check", "--kubeconfig", "/nowhere", "--wait", "0s")
	if !errors.Is(err, ErrFailed) || !strings.Contains(out, "× the API server answers\n    which cluster?") ||
		!strings.HasSuffix(out, "results are ×\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if alias, err := fingerpostCheck(t, "status", "--kubeconfig", "/nowhere", "--wait", "0s"); alias != out ||
		!errors.Is(err, ErrFailed) {
		t.Errorf("status is another command: %v\n%s", err, alias)
	}
	if _, err := fingerpostCheck(t, "check", "-o", "yaml"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("-o yaml: %v", err)
	}
}
