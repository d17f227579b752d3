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
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

func fingerpostCheck(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return cmdtest.Run(t, []*cobra.Command{Command("test")}, args...)
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
		err := checkClock(t.Context(), &rest.Config{Host: server.URL})
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
			err := checkHolder(c.lease, c.missing, needed, now)
			_, warned := errors.AsType[warning](err)
			if want == "" && err != nil || want != "" && !strings.Contains(fmt.Sprint(err), want) ||
				err != nil && !warned && !errors.Is(err, errSkipped) {
				t.Errorf("%s, needed %t: %v", name, needed, err)
			}
		}
	}
}

// Checks that may pass later are retried until they do or the time is up, skipped ones are not reported, and
// only failures fail the report.
func TestChecker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := &runner{
			to:       &out,
			deadline: time.Now().Add(10 * time.Second),
			timeout:  time.Second,
			pause:    2 * time.Second,
		}
		c.report.Success = true
		began, tries := time.Now(), 0
		c.beginCategory("one")
		c.runCheck(t.Context(), check{"comes right", "a", true, func(context.Context) error {
			if tries++; tries < 3 {
				return errors.New("not yet")
			}
			return nil
		}})
		if d := time.Since(began); d != 4*time.Second {
			t.Errorf("it took %s to come right", d)
		}
		c.runCheck(t.Context(), check{"skipped", "b", false, func(context.Context) error { return errSkipped }})
		c.beginCategory("tw\x1bo")
		c.runCheck(
			t.Context(),
			check{
				"warned",
				"c",
				false,
				func(context.Context) error { return warningf("a\x1b[31m %w", errors.New("b\nc")) },
			},
		)
		c.runCheck(
			t.Context(),
			check{"lasts", "c", true, func(context.Context) error { return permanentWarningf("no right") }},
		)
		if d := time.Since(began); d != 4*time.Second {
			t.Errorf("what does not come right by itself was tried until %s", d)
		}
		if !c.report.Success {
			t.Error("a warning fails")
		}
		c.runCheck(
			t.Context(),
			check{"hangs", "d", true, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
		)
		if d := time.Since(began); c.report.Success || d > 10*time.Second || d < 8*time.Second {
			t.Errorf("success %t after %s", c.report.Success, d)
		}
		want := "one\n---\n√ comes right\n\ntwo\n---\n" +
			"‼ warned\n    a[31m b; c\n    see " + hintsURL + "c for hints\n" +
			"‼ lasts\n    no right\n    see " + hintsURL + "c for hints\n" +
			"× hangs\n    context deadline exceeded\n    see " + hintsURL + "d for hints\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	})
}

// A cluster that is unlinked meanwhile is skipped.
func TestCheckOfAClusterThatGoes(t *testing.T) {
	addr := cmdtest.DebugServer(t, map[string]any{"/debug/clusters": debug.ClustersPage{}})
	c := &runner{timeout: time.Second}
	c.report.Success = true
	known := &knownReplicas{
		[]cli.Replica{{Addr: addr}},
		[]cli.Response[debug.ClustersPage]{
			{
				Page: debug.ClustersPage{
					Clusters: []debug.Cluster{
						{Status: cluster.Status{Name: "west"}},
						{Status: cluster.Status{Name: "south"}},
					},
				},
			},
		},
	}
	checkClusters(t.Context(), c, known)
	if len(c.report.Categories) != 0 || !c.report.Success {
		t.Errorf("%+v", c.report)
	}
}

// Each hint leads to a heading.
func TestHints(t *testing.T) {
	var source []byte
	for _, name := range []string{"local.go", "replicas.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	page, err := os.ReadFile("../../../docs/checks.md")
	if err != nil {
		t.Fatal(err)
	}
	anchors := regexp.MustCompile(`anchor: "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(anchors) < 15 {
		t.Fatalf("%d anchors: they are written in another way than this test reads", len(anchors))
	}
	for _, anchor := range anchors {
		heading := regexp.MustCompile(`\n## ` + strings.ReplaceAll(anchor[1], "-", "[ -]") + `\n`)
		if !heading.MatchString(strings.ToLower(string(page))) {
			t.Errorf("no heading for the hint %s", anchor[1])
		}
	}
}

func TestCheckSaysWhatItCannotDo(t *testing.T) {
	out, err := fingerpostCheck(t, "check", "--kubeconfig", "/nowhere", "--wait", "0s")
	if !errors.Is(err, ErrFailed) || !strings.Contains(out, "× the API server answers\n    which cluster?") ||
		!strings.HasSuffix(out, "results are ×\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := fingerpostCheck(t, "check", "-o", "yaml"); err == nil || errors.Is(err, ErrFailed) {
		t.Errorf("-o yaml: %v", err)
	}
}
