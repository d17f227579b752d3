package problem_test

import (
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster/problem"
)

// A Problem is called, mended and documented as its Class is; the worst come first, and last since they began.
func TestProblem(t *testing.T) {
	link := problem.Object{Kind: "Link", Namespace: "mesh", Name: "it's"}
	skew := problem.OfCluster("west", problem.ClockSkew, problem.Warning, "its clock is off")
	skew.Affected = "tokens depend on it"
	all := []problem.Problem{skew, problem.New(link, problem.Conflict, problem.Urgent, "no")}
	problem.Sort(all)

	if p := all[0]; p.Title != "Link mesh/it's: Conflict" || p.Command != `kubectl -n mesh describe link 'it'\''s'` ||
		p.Runbook != "problems.md#conflict" {
		t.Errorf("%+v", p)
	}
	if p := problem.New(link, "Newer", problem.Urgent, "no"); p.Title != "Link mesh/it's: Newer" ||
		p.Runbook != "problems.md" {
		t.Errorf("of a class that is not known: %+v", p)
	}
	if got := all[1].Message(); got != "its clock is off; tokens depend on it; synchronise both (NTP)" {
		t.Error(got)
	}

	began, now := time.Unix(1, 0), time.Unix(2, 0)
	problem.KeepSince(nil, all[1:], began)
	next := []problem.Problem{skew, all[0]}
	problem.KeepSince(all[1:], next, now)
	if !next[0].Since.Equal(began) || !next[1].Since.Equal(now) {
		t.Errorf("since %s and %s", next[0].Since, next[1].Since)
	}

	all[0].Repeats = true
	if found := problem.ToLook(all); len(found) != 1 || !problem.Has(found, problem.ClockSkew) {
		t.Errorf("%+v", found)
	}
}
