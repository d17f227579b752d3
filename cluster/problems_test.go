package cluster_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
)

// Each thing that can be wrong with a cluster is one Problem to look at, or none where it is meant to be so.
func TestProblems(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	type change = func(*cluster.Status)
	state := func(s federation.ClusterState) change { return func(c *cluster.Status) { c.State = s } }
	expires := func(d time.Duration) change { return func(c *cluster.Status) { c.Expires = noon.Add(d) } }
	writing := func(local bool, s cluster.WritingState, why string) change {
		return func(c *cluster.Status) { c.Local, c.Writing = local, cluster.Writing{State: s, Problem: why} }
	}
	fails := func(reason api.Reason) error { return &api.ProbeError{Reason: reason, Err: errors.New("no")} }
	refused := func(kind string, reason metav1.StatusReason) []cluster.KindStatus {
		return []cluster.KindStatus{{Kind: kind, Health: api.Health{Refused: reason}}}
	}
	const month, year = 30 * 24 * time.Hour, 365 * 24 * time.Hour
	anchors := func(left ...time.Duration) (all []linkerd.Anchor) {
		for i, d := range left {
			all = append(all, linkerd.Anchor{Fingerprint: fmt.Sprint(i), NotAfter: noon.Add(d)})
		}
		return all
	}
	ends := func(left ...time.Duration) change {
		return func(c *cluster.Status) { c.Identity.Anchors = anchors(left...) }
	}
	const day = 24 * time.Hour
	issuer := func(left, life time.Duration, under ...string) change {
		return func(c *cluster.Status) {
			end := noon.Add(left)
			c.Identity.Issuer = linkerd.Issuer{
				Anchor: linkerd.Anchor{Fingerprint: "i", NotAfter: end}, NotBefore: end.Add(-life), Under: under,
			}
		}
	}
	const externals = "externalworkloads.workload.linkerd.io"
	both := func(changes ...change) change {
		return func(c *cluster.Status) {
			for _, f := range changes {
				f(c)
			}
		}
	}

	for name, c := range map[string]struct {
		change change
		kinds  []cluster.KindStatus
		want   string // "!" before an urgent one, "(" before one that is not for lists for people
	}{
		"healthy":   {},
		"read-only": {change: writing(false, cluster.ReadOnly, "grant it"), want: "(ReadOnly"},
		"read-only, and slices are asked for": {
			change: both(writing(false, cluster.ReadOnly, "grant it"), func(c *cluster.Status) { c.Slices = true }),
			want:   "ReadOnly",
		},
		"objects of policy": {
			change: func(c *cluster.Status) { c.Unusable = cluster.Unusable{Count: 1, Examples: "Server a/b (no)"} },
			want:   "PolicyUnusable",
		},
		"endpoints outside": {
			change: func(c *cluster.Status) { c.Outside = "192.0.2.1" }, want: "OutsideClusterNetworks",
		},
		"local and read-only": {change: writing(true, cluster.ReadOnly, ""), want: "!ReadOnly"},
		"a task waits":        {change: writing(false, cluster.Holding, "no"), want: "WritesIncomplete"},
		"a task waits out of contact": {
			change: both(writing(false, cluster.Holding, "no"), state(federation.Stale)),
			want:   "!Stale (WritesIncomplete",
		},

		"never synced": {
			change: both(state(federation.Connecting), func(c *cluster.Status) { c.Synced = false }),
			want:   "!Connecting (Waiting",
		},
		"just linked": {
			change: both(state(federation.Connecting), func(c *cluster.Status) { c.Since = noon }), want: "Connecting",
		},
		"out of contact":      {change: state(federation.Suspect), want: "Suspect"},
		"out of contact long": {change: state(federation.Stale), want: "!Stale"},
		"restored, not tried yet": {
			change: func(c *cluster.Status) { c.State, c.Checkpoint, c.Synced = federation.Stale, noon, false },
			want:   "Stale (Restored",
		},
		"restored, out of contact": {
			change: func(c *cluster.Status) {
				c.State, c.Checkpoint, c.Synced, c.Contact = federation.Stale, noon, false, fails(api.Unreachable)
			},
			want: "!Stale (Restored",
		},

		"without a CRD": {kinds: refused("pods", metav1.StatusReasonNotFound)},
		"forbidden":     {kinds: refused("pods", metav1.StatusReasonForbidden), want: "!Forbidden"},
		"not granted by Linkerd's chart": {
			kinds: refused(externals, metav1.StatusReasonForbidden), want: "(NotGranted",
		},
		"not granted here": {
			change: func(c *cluster.Status) { c.Local = true },
			kinds:  refused(externals, metav1.StatusReasonForbidden), want: "Forbidden",
		},
		"optional, and granted by Linkerd's chart": {
			kinds: refused("servers.policy.linkerd.io", metav1.StatusReasonForbidden), want: "Forbidden",
		},
		"not granted, and failing": {
			kinds: refused(externals, metav1.StatusReasonInternalError), want: "Forbidden",
		},

		"a rotated token": {
			change: both(expires(-time.Hour), func(c *cluster.Status) { c.Local = true }),
		},
		"a token of 30 days": {change: expires(29 * 24 * time.Hour)},
		"expires soon":       {change: expires(time.Minute), want: "ExpiresSoon"},
		"expired":            {change: expires(0), want: "!Expired"},
		"untried": {
			change: func(c *cluster.Status) { c.Source = "" }, want: "(Untried",
		},
		"bad new credentials": {
			change: func(c *cluster.Status) { c.Credentials = fails(api.Unauthorized) },
			want:   "!CredentialsFail/Unauthorized",
		},
		"new credentials lead nowhere": {
			change: func(c *cluster.Status) { c.Credentials = fails(api.Unreachable) },
			want:   "!CredentialsFail/Unreachable",
		},
		"the first credentials lead nowhere": {
			change: func(c *cluster.Status) {
				c.State, c.Source, c.Credentials = federation.Connecting, "", fails(api.Unreachable)
			},
			want: "!Connecting (CredentialsFail/Unreachable",
		},
		"the first credentials are refused": {
			change: func(c *cluster.Status) {
				c.State, c.Source, c.Credentials = federation.Connecting, "", fails(api.Unauthorized)
			},
			want: "!Connecting (!CredentialsFail/Unauthorized",
		},
		"credentials are refused": {
			change: func(c *cluster.Status) { c.State, c.Contact = federation.Stale, fails(api.Unauthorized) },
			want:   "!Stale (!CredentialsFail/Unauthorized",
		},

		"clock":            {change: func(c *cluster.Status) { c.ClockSkew = "5m ahead" }, want: "ClockSkew"},
		"the same cluster": {change: func(c *cluster.Status) { c.SameAs = "south" }, want: "!SameCluster"},
		"another mesh, and its clock": {
			change: func(c *cluster.Status) {
				c.ClockSkew, c.TrustDomain, c.Identity.TrustDomain = "5m ahead", "a", "b"
			},
			want: "!OtherTrustDomain ClockSkew",
		},
		"anchors without any in common": {
			change: func(c *cluster.Status) { c.OtherAnchors, c.Identity.Anchors = "ours", anchors(year) },
			want:   "!OtherTrustAnchors",
		},
		"another mesh in all": {
			change: func(c *cluster.Status) {
				c.OtherAnchors, c.Identity.Anchors = "ours", anchors(year)
				c.TrustDomain, c.Identity.TrustDomain = "a", "b"
			},
			want: "!OtherTrustDomain (!OtherTrustAnchors",
		},
		"an issuer that the other one does not trust": {
			change: func(c *cluster.Status) { c.Untrusted = "proxies there" }, want: "!OtherTrustAnchors",
		},
		"an issuer that lasts":           {change: issuer(31*day, year, "a")},
		"an issuer that ends":            {change: issuer(5*day, year, "a"), want: "IssuerExpires"},
		"an issuer that has ended":       {change: issuer(0, year, "a"), want: "!IssuerExpires"},
		"an issuer that is not in use":   {change: issuer(0, year)},
		"an issuer of a week that lasts": {change: issuer(3*day, 7*day, "a")},
		"an issuer of a week that ends":  {change: issuer(2*day, 7*day, "a"), want: "IssuerExpires"},
		"an issuer here, which others watch": {
			change: both(issuer(0, year, "a"), func(c *cluster.Status) { c.Local = true }),
		},
		"anchors that last": {change: ends(year, time.Hour)},
		"anchors that last, and one of before": {
			change: ends(-time.Hour, year), want: "TrustAnchorsExpire",
		},
		"anchors that end":   {change: ends(time.Hour, month), want: "TrustAnchorsExpire"},
		"anchors that ended": {change: ends(-time.Hour, 0), want: "!TrustAnchorsExpire"},
		"budget":             {change: func(c *cluster.Status) { c.OverBudget = "too many" }, want: "!OverBudget"},
		"let go":             {change: func(c *cluster.Status) { c.Traffic.LetGo.Endpoints = 1 }, want: "!OverBudget"},
		"slices":             {change: func(c *cluster.Status) { c.LeftOut.Excess = 3 }, want: "TooManySlices"},
		"left to": {
			change: func(c *cluster.Status) { c.LeftTo, c.LeftOut.Excess = "x", 3 }, want: "LeftToInstallation",
		},

		"drained": {change: func(c *cluster.Status) { c.Traffic.Drain = cluster.Drain{By: "it", Percent: 100} }},
		"drained in part": {
			change: func(c *cluster.Status) { c.Traffic.Drain = cluster.Drain{By: "it", Percent: 10} },
			want:   "(Draining",
		},
		"drained and needed": {
			change: func(c *cluster.Status) { c.Traffic.Drain = cluster.Drain{By: "it", Percent: 100, Needed: 1} },
			want:   "StillNeeded",
		},
		"held": {
			change: func(c *cluster.Status) {
				c.Traffic.Withdrawn, c.Traffic.Unconfirmed.Endpoints = &cluster.Withdrawn{Endpoints: 1}, 1
			},
			want: "!WithdrawalUnconfirmed !WithdrawalHeld",
		},
	} {
		status := cluster.Status{
			Name: "west", State: federation.Live, Since: noon.Add(-time.Hour), Synced: true, Source: "Secret west",
		}
		if c.change != nil {
			c.change(&status)
		}

		var got []string
		for _, p := range status.Problems(c.kinds, noon) {
			text := p.Reason
			if string(p.Class) != p.Reason {
				text = fmt.Sprintf("%s/%s", p.Class, p.Reason)
			}
			if p.IsUrgent() {
				text = "!" + text
			}
			if len(problem.ToLook([]problem.Problem{p})) == 0 {
				text = "(" + text
			}
			got = append(got, text)
			if p.Runbook == "" || p.Text == "" ||
				!strings.Contains(p.Title, "west") || !strings.Contains(p.Command, "west") {
				t.Errorf("%s: no title, sentence or first step in %+v", name, p)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
