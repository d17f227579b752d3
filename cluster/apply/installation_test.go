package apply

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Each source has one owner at most, wherever it is computed: the oldest that lists it and lives. It does not lose the
// source to one that comes later, and when it is gone the next one has it.
func TestOwnersOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000, 0)
		sources := []string{"east", "west"}
		owners := func(all []claim) map[string]string { return ownersOf(heldClaims(slices.Values(all), now)) }
		var writer []claim
		for i := range rapid.IntRange(0, 6).Draw(t, "installations") {
			writer = append(writer, claim{
				installation: fmt.Sprint(i),
				created:      time.Unix(int64(rapid.IntRange(0, 3).Draw(t, "created")), 0),
				until:        now.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "until")) * time.Second),
				sources:      sources[:rapid.IntRange(0, 2).Draw(t, "sources")],
			})
		}
		for _, source := range sources {
			owner := owners(writer)[source]
			if got := owners(rapid.Permutation(writer).Draw(t, "order"))[source]; got != owner {
				t.Fatalf("%s has the owners %s and %s", source, owner, got)
			}
			eligible := slices.DeleteFunc(slices.Clone(writer), func(c claim) bool {
				return !c.until.After(now) || !slices.Contains(c.sources, source)
			})
			if len(eligible) == 0 {
				if owner != "" {
					t.Fatalf("%s is owned by %s, which lists it not, or is gone", source, owner)
				}
				continue
			}
			i := slices.IndexFunc(eligible, func(c claim) bool { return c.installation == owner })
			if i < 0 {
				t.Fatalf("%s is owned by %q", source, owner)
			}
			for _, c := range eligible {
				if c.created.Before(eligible[i].created) {
					t.Fatalf("%s is owned by %s, and %s is older", source, owner, c.installation)
				}
			}
			later := claim{installation: "0 later", created: now, until: now.Add(time.Hour), sources: sources}
			if got := owners(append(writer, later))[source]; got != owner {
				t.Fatalf("%s takes %s from %s", got, source, owner)
			}
			rest := slices.Delete(slices.Clone(eligible), i, i+1)
			if got := owners(rest)[source]; (got == "") != (len(rest) == 0) {
				t.Fatalf("%d installations are left for %s, and %q owns it", len(rest), source, got)
			}
		}
	})
}

// A source has the next owner when the Lease of the one before is not renewed in time. A renewal is no change.
// What was loaded stays as it was.
func TestOwnersExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var owners Owners
		defer owners.forgetLeases()
		version := 0
		renew := func(id string, seconds int) {
			version++
			owners.recordLease(api.Key{Name: LeaseName(id)}, &lease.Record{
				Version: fmt.Sprint(version), Holder: "replica", Duration: time.Duration(seconds) * time.Second,
				Marks: map[string]string{InstallationLabel: id, sourcesAnnotation: "east,west"},
			})
		}
		expect := func(when, want string) {
			t.Helper()
			now, _ := owners.Load()
			if got := now["east"]; got != want {
				t.Errorf("%s: %q owns the source, want %q", when, got, want)
			}
		}
		renew("a", 6)
		renew("b", 6)
		expect("at first", "a")
		changed := owners.Changed()
		first, held := owners.Load()
		for range 10 {
			pass(2 * time.Second)
			renew("a", 6)
			renew("b", 6)
		}
		expect("while both are renewed", "a")
		if watch.IsClosed(changed) {
			t.Error("a renewal is a change")
		}
		renew("b", 60)
		pass(6*time.Second - time.Millisecond)
		expect("a moment before a expires", "a")
		pass(time.Millisecond)
		expect("when a expires", "b")
		if !watch.IsClosed(changed) {
			t.Error("nothing has changed when a has expired")
		}
		renew("b", 3)
		pass(3 * time.Second)
		expect("when b expires, after a shorter time than before", "")
		renew("a", 6)
		expect("when a is held again", "a")
		renew("b", 6)
		pass(10 * time.Second)
		renew("b", 2_000_000_000)
		pass(time.Minute - time.Millisecond)
		expect("for a minute, whatever duration b names", "b")
		pass(time.Millisecond)
		expect("once b was not renewed for a minute", "")
		if first["east"] != "a" || held["a"] == "" || held["b"] == "" {
			t.Errorf("what was loaded at first is now %v, and held by %v", first, held)
		}
	})
}

// Of what makes no claim nothing counts: neither a Lease of another name than its installation has, nor one whose
// label is none, nor one without a holder. Of one that makes a claim a bounded part counts, and of many the oldest.
func TestClaims(t *testing.T) {
	id := map[string]string{InstallationLabel: "x"}
	long, many := strings.Repeat("x", 1_400_000), "6s"+strings.Repeat(" a", 1000)
	for name, c := range map[string]struct {
		key  string
		of   coordinationv1.Lease
		want string
	}{
		"a claim":       {"fingerpost-x", leaseOf(id, "east", "r", 60), "1m0s east"},
		"another name":  {"fingerpost-y", leaseOf(id, "east", "r", 60), ""},
		"no label":      {"fingerpost-", leaseOf(nil, "east", "r", 60), ""},
		"no holder":     {"fingerpost-x", leaseOf(id, "east", "", 60), "0s east"},
		"for ever":      {"fingerpost-x", leaseOf(id, "east", "r", 2_000_000_000), "1m0s east"},
		"negative":      {"fingerpost-x", leaseOf(id, "east", "r", -5), "0s east"},
		"a huge holder": {"fingerpost-x", leaseOf(id, "east", long, 6), "6s east"},
		"a huge list":   {"fingerpost-x", leaseOf(id, long, "r", 6), "6s"},
		"many sources":  {"fingerpost-x", leaseOf(id, strings.Repeat("a,", 1000)+"last", "r", 6), many},
		"a label of 1 M": {
			"fingerpost-" + long, leaseOf(map[string]string{InstallationLabel: long}, "east", "r", 6), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				record := lease.NewRecord(&c.of, claimMarks...)
				if n := len(record.Holder); n > 300 {
					t.Errorf("%d bytes of the holder are kept", n)
				}
				got := ""
				if now, is := newClaim(api.Key{Namespace: "linkerd", Name: c.key}, record); is {
					d := time.Duration(0)
					if !now.until.IsZero() {
						d = time.Until(now.until)
					}
					got = strings.TrimSpace(d.String() + " " + strings.Join(now.sources, " "))
				}
				if got != c.want {
					t.Errorf("%.100q, want %.100q", got, c.want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		var owners Owners
		defer owners.forgetLeases()
		for i := range 3 * maxClaims {
			id := fmt.Sprint(i)
			owners.recordLease(api.Key{Name: LeaseName(id)}, &lease.Record{
				Version: "1", Holder: "r", Duration: time.Minute, Created: time.Unix(int64(-i), 0),
				Marks: map[string]string{InstallationLabel: id, sourcesAnnotation: "source-" + id},
			})
		}
		sources, held := owners.Load()
		if len(held) != maxClaims || sources["source-299"] != "299" || sources["source-199"] != "" ||
			owners.ignored != 200 {
			t.Errorf("%d claims count, and %d do not; of 299 and 199 those of %q and %q", len(held), owners.ignored,
				sources["source-299"], sources["source-199"])
		}
	})
}

func leaseOf(labels map[string]string, sources, holder string, seconds int32) (l coordinationv1.Lease) {
	l.Labels, l.Annotations = labels, map[string]string{sourcesAnnotation: sources}
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = &holder, &seconds
	return l
}
