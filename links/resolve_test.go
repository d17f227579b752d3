package links

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/apply/status"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
)

var epoch = time.Unix(1e9, 0)

func link(name string, age time.Duration, f func(*Link)) *Link {
	l := &Link{
		key: api.Key{Namespace: "mc", Name: name}, uid: name, version: "v1alpha3", created: epoch.Add(-age),
		clusterName: "east", clusterDomain: "east.local", secret: "creds",
	}
	if f != nil {
		f(l)
	}
	return l
}

func credentials(namespace, token string, f func(*secret)) *secret {
	s := &secret{
		key:        api.Key{Namespace: namespace, Name: "creds"},
		kubeconfig: kubeconfig(server, "token: "+token),
	}
	if f != nil {
		f(s)
	}
	return s
}

func labelled(f func(*secret)) *secret {
	return credentials("linkerd", "abc", func(s *secret) {
		s.clusterName, s.trustDomain, s.clusterDomain = "east", "east.trust", "east.dns"
		if f != nil {
			f(s)
		}
	})
}

// Of a Secret is kept what a kubeconfig may have. One with more is reported by its size, as if it was kept.
func TestLargeSecrets(t *testing.T) {
	newOne := func(size int) *corev1.Secret {
		const long = 100 << 10
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "mc", Name: "creds"}, Type: SecretType}
		s.Annotations = map[string]string{
			TrustDomainAnnotation: strings.Repeat("t", long), ClusterDomainAnnotation: strings.Repeat("d", long),
		}
		s.Data = map[string][]byte{KubeconfigKey: bytes.Repeat([]byte("x"), size), "other": make([]byte, long)}
		return s
	}
	for size, most := range map[int]int{
		1 << 20: 2 << 10, maxKubeconfig + 1: 2 << 10, maxKubeconfig: maxKubeconfig + 10<<10,
	} {
		kept := apitest.Kept(20, func(int) *secret {
			record, _ := newSecret(newOne(size))
			return record
		})
		if t.Logf("of a Secret of %d bytes %d are kept", size, kept); kept > most {
			t.Errorf("of a Secret of %d bytes %d are kept, at most %d may be", size, kept, most)
		}
		record, _ := newSecret(newOne(size))
		_, err := newAccess(record, Hosts{})
		_, whole := Credentials(bytes.Repeat([]byte("x"), size), Hosts{})
		if err == nil || err.Error() != "Secret mc/creds: "+whole.Error() {
			t.Errorf("of a Secret of %d bytes is reported %v, want %v", size, err, whole)
		}
		if l := len(record.trustDomain); l > 256 || l != len(record.clusterDomain) {
			t.Errorf("domains of %d and %d bytes are kept", l, len(record.clusterDomain))
		}
	}
}

// resolved renders the outcome of inputs.
func resolved(in inputs) string {
	out := resolve(in)
	text := fmt.Sprintf("wanted=%t", out.spec != nil)
	if out.winner != nil {
		text += " winner=" + out.winner.key.Name
	}
	if s := out.spec; s != nil {
		text += " trust=" + s.TrustDomain + " dns=" + s.ClusterDomain
		for _, a := range s.Access {
			text += " " + a.Source + ":" + a.Config.BearerToken
		}
	}
	if out.rejection != nil {
		text += " refused"
	}
	return text
}

func TestResolve(t *testing.T) {
	exec := func(s *secret) { s.kubeconfig = kubeconfig(server, "exec: {command: id}") }
	for name, tc := range map[string]struct {
		links    []*Link
		labelled []*secret
		secret   *secret // that the Links name
		want     string
	}{
		"nothing": {nil, nil, nil, "wanted=false"},
		"labelled Secret": {
			nil,
			[]*secret{labelled(nil)},
			nil,
			"wanted=true trust=east.trust dns=east.dns Secret linkerd/creds:abc",
		},
		"Link": {
			[]*Link{link("a", 0, nil)},
			nil, credentials("mc", "abc", nil),
			"wanted=true winner=a trust=ours dns=east.local Secret mc/creds:abc",
		},
		"Link whose Secret has a trust domain": {
			[]*Link{link("a", 0, nil)},
			nil, credentials("mc", "abc", func(s *secret) { s.trustDomain = "mc.trust" }),
			"wanted=true winner=a trust=mc.trust dns=east.local Secret mc/creds:abc",
		},
		"both, and the labelled one has a trust domain": {
			[]*Link{link("a", 0, nil)},
			[]*secret{labelled(nil)},
			credentials("mc", "abc", func(s *secret) { s.trustDomain = "mc.trust" }),
			"wanted=true winner=a trust=east.trust dns=east.dns Secret linkerd/creds:abc",
		},
		"both, and only the Link's has a trust domain": {
			[]*Link{link("a", 0, nil)},
			[]*secret{labelled(func(s *secret) { s.trustDomain = "" })},
			credentials("mc", "abc", func(s *secret) { s.trustDomain = "mc.trust" }),
			"wanted=true winner=a trust=mc.trust dns=east.dns Secret linkerd/creds:abc",
		},
		"both, the same": {
			[]*Link{link("a", 0, nil)},
			[]*secret{labelled(nil)},
			credentials("mc", "abc", nil),
			"wanted=true winner=a trust=east.trust dns=east.dns Secret linkerd/creds:abc",
		},
		"both, different": {
			[]*Link{link("a", 0, nil)},
			[]*secret{labelled(nil)},
			credentials("mc", "def", nil),
			"wanted=true winner=a trust=east.trust dns=east.dns Secret linkerd/creds:abc Secret mc/creds:def",
		},
		"first refused": {
			[]*Link{link("a", 0, nil)},
			[]*secret{labelled(exec)},
			credentials("mc", "def", nil),
			"wanted=true winner=a trust=east.trust dns=east.dns Secret mc/creds:def refused",
		},
		"all refused": {
			[]*Link{link("a", 0, nil)},
			nil, credentials("mc", "abc", exec),
			"wanted=true winner=a trust=ours dns=east.local refused",
		},
		"no Secret": {[]*Link{link("a", 0, nil)}, nil, nil, "wanted=true winner=a trust=ours dns=east.local refused"},
		"no trust domain": {
			nil,
			[]*secret{labelled(func(s *secret) { s.trustDomain = "" })},
			nil,
			"wanted=true trust= dns=east.dns refused",
		},
		"Link has domain": {
			[]*Link{link("a", 0, nil)},
			[]*secret{labelled(func(s *secret) { s.trustDomain, s.clusterDomain = "", "" })},
			credentials("mc", "abc", nil),
			"wanted=true winner=a trust=ours dns=east.local Secret linkerd/creds:abc",
		},
		"two Links, the older one refused": {
			[]*Link{link("young", 0, nil), link("old", time.Hour, func(l *Link) { l.refusal = problem.Invalid })},
			nil, credentials("mc", "abc", nil),
			"wanted=true winner=young trust=ours dns=east.local Secret mc/creds:abc",
		},
		"two Links": {
			[]*Link{link("young", 0, nil), link("old", time.Hour, nil)},
			nil, credentials("mc", "abc", nil),
			"wanted=true winner=old trust=ours dns=east.local Secret mc/creds:abc",
		},
		"Link and Secret refused": {
			[]*Link{link("a", 0, nil)},
			[]*secret{labelled(func(s *secret) { s.kubeconfig = nil })},
			credentials("mc", "abc", exec),
			"wanted=true winner=a trust=east.trust dns=east.dns refused",
		},
		"no kubeconfig": {
			nil,
			[]*secret{labelled(func(s *secret) { s.kubeconfig = nil })},
			nil,
			"wanted=true trust=east.trust dns=east.dns refused",
		},
		"both too large": {
			[]*Link{link("a", 0, nil)},
			[]*secret{labelled(func(s *secret) { s.kubeconfig, s.leftOut = nil, 1<<20 })},
			credentials("mc", "abc", func(s *secret) { s.kubeconfig, s.leftOut = nil, 1<<20 }),
			"wanted=true winner=a trust=east.trust dns=east.dns refused",
		},
		"Secret elsewhere": {
			[]*Link{link("a", 0, func(l *Link) { l.secret = "" })},
			[]*secret{labelled(nil)},
			nil,
			"wanted=true winner=a trust=east.trust dns=east.dns Secret linkerd/creds:abc",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := inputs{
				name: "east", local: "local", trustDomain: "ours", links: tc.links,
				labelled: tc.labelled, secret: func(k api.Key) (*secret, string) {
					if tc.secret == nil || tc.secret.key != k {
						return nil, "there is no Secret " + k.String()
					}
					return tc.secret, ""
				},
			}
			if diff := cmp.Diff(tc.want, resolved(in)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	alone := inputs{name: "east", controllers: "mesh", links: []*Link{link("a", 0, func(l *Link) { l.secret = "" })}}
	const want = "no Secret of type mirror.linkerd.io/remote-kubeconfig in namespace mesh (-controller-namespace) " +
		"has the label multicluster.linkerd.io/cluster-name=east: name a Secret in namespace mc"
	if got := resolve(alone).rejection; got == nil || !strings.Contains(got.Error(), want) {
		t.Errorf("a Link that names no Secret: %v, want %s", got, want)
	}
	ours := inputs{name: "local", local: "local", links: []*Link{link("a", 0, nil)}}
	if got := resolved(ours); got != "wanted=false refused" {
		t.Errorf("a Link of our own name: %s", got)
	}
	if got := resolved(inputs{name: "local", local: "local"}); got != "wanted=false" {
		t.Errorf("our own name: %s", got)
	}
}

func TestConditionsFor(t *testing.T) {
	live := cluster.Status{State: federation.Live, Synced: true, Source: "Secret mc/creds"}
	good := outcome{domains: "trust domain ours (that of the local cluster), cluster domain east.local (spec.targetClusterDomain)"}
	why := func(r api.Reason) error { return &api.ProbeError{Reason: r, Err: fmt.Errorf("it is %s", r)} }
	for name, tc := range map[string]struct {
		out    outcome
		status cluster.Status
		want   string
	}{
		"live": {
			good, live,
			"Accepted=True/Accepted CredentialsValid=True/Valid Connected=True/Live Synced=True/Synced",
		},
		"not tried yet": {
			good,
			cluster.Status{State: federation.Connecting},
			"Accepted=True/Accepted CredentialsValid=Unknown/Untried Connected=False/Connecting Synced=False/Waiting",
		},
		"stale": {
			good,
			cluster.Status{State: federation.Stale, Synced: true, Source: "x", Contact: why(api.Unreachable)},
			"Accepted=True/Accepted CredentialsValid=True/Valid Connected=False/Stale Synced=True/Synced",
		},
		"revoked": {
			good,
			cluster.Status{State: federation.Suspect, Synced: true, Source: "x", Contact: why(api.Unauthorized)},
			"Accepted=True/Accepted CredentialsValid=False/Unauthorized Connected=False/Suspect Synced=True/Synced",
		},
		"new ones fail": {
			good,
			cluster.Status{
				State: federation.Live, Synced: true, Source: "x", Credentials: why(api.Unauthorized),
			},
			"Accepted=True/Accepted CredentialsValid=False/Unauthorized Connected=True/Live Synced=True/Synced",
		},
		"far too large": {
			good,
			cluster.Status{
				State: federation.Connecting, Credentials: why(api.OverBudget),
				Contact: why(api.OverBudget), OverBudget: "too many Pods",
			},
			"Accepted=True/Accepted CredentialsValid=Unknown/OverBudget Connected=False/Connecting Synced=False/Waiting WithinBudget=False/OverBudget",
		},
		"unreachable": {
			good,
			cluster.Status{State: federation.Live, Synced: true, Source: "x", Credentials: why(api.Unreachable)},
			"Accepted=True/Accepted CredentialsValid=Unknown/Unreachable Connected=True/Live Synced=True/Synced",
		},
		"refused": {
			outcome{rejection: fmt.Errorf("user.exec is refused")},
			live,
			"Accepted=True/Accepted CredentialsValid=False/Refused Connected=True/Live Synced=True/Synced",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := link("a", 0, nil)
			tc.out.winner = l
			if diff := cmp.Diff(tc.want, short(conditionsAt(l, tc.out, tc.status, true, time.Time{}))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	const none = " CredentialsValid=Unknown/NotAccepted Connected=Unknown/NotAccepted Synced=Unknown/NotAccepted"
	younger := outcome{winner: link("a", time.Hour, nil)}
	got := short(conditionsAt(link("b", 0, nil), younger, live, true, time.Time{}))
	if got != "Accepted=False/Conflict"+none {
		t.Errorf("the younger of two: %s", got)
	}
	refused := link("b", 0, func(l *Link) { l.refusal, l.refused = problem.Invalid, "no name" })
	if got := short(conditionsAt(refused, outcome{}, live, false, time.Time{})); got != "Accepted=False/Invalid"+none {
		t.Errorf("one that is refused: %s", got)
	}
}

// The condition SlicesComplete appears with the first endpoint that is in no slice, and stays. Only a replica
// that writes slices reports it.
func TestSlicesComplete(t *testing.T) {
	l := link("b", 0, nil)
	before := &Link{
		key: l.key, clusterName: "b",
		status: writtenStatus{conditions: []metav1.Condition{{Type: SlicesComplete, Status: metav1.ConditionFalse}}},
	}
	for _, c := range []struct {
		link *Link
		out  cluster.LeftOut
		want string
	}{
		{l, cluster.LeftOut{}, ""},
		{l, cluster.LeftOut{Known: true}, ""},
		{l, cluster.LeftOut{Known: true, Excess: 2}, "SlicesComplete=False/TooManySlices"},
		{before, cluster.LeftOut{}, ""},
		{before, cluster.LeftOut{Known: true}, "SlicesComplete=True/Complete"},
	} {
		all := conditionsAt(
			c.link, outcome{winner: c.link}, cluster.Status{
				State: federation.Live, Reports: cluster.Reports{LeftOut: c.out},
			}, true, time.Time{},
		)
		all = slices.DeleteFunc(all, func(o metav1.Condition) bool { return o.Type != SlicesComplete })
		if got := short(all); got != c.want {
			t.Errorf("%+v: %q, want %q", c.out, got, c.want)
		}
	}
}

// The condition Consistent appears with the first mismatch, whose worst reason it has, and stays.
func TestConsistent(t *testing.T) {
	l := link("b", 0, nil)
	before := &Link{
		key: l.key, clusterName: "b",
		status: writtenStatus{conditions: []metav1.Condition{{Type: Consistent, Status: metav1.ConditionFalse}}},
	}
	trust := cluster.Status{TrustDomain: "a", ClockSkew: "1m0s ahead"}
	trust.Identity = cluster.Identity{TrustDomain: "b"}
	ending := cluster.Status{}
	ending.Identity.Anchors = []linkerd.Anchor{{NotAfter: time.Time{}.Add(time.Hour)}}
	issuerEnding := cluster.Status{}
	issuerEnding.Identity.Issuer = linkerd.Issuer{Under: []string{"a"}, Anchor: linkerd.Anchor{NotAfter: time.Time{}}}
	for _, c := range []struct {
		link   *Link
		status cluster.Status
		want   string
	}{
		{l, cluster.Status{}, ""},
		{l, cluster.Status{TrustDomain: "a"}, ""},
		{l, trust, "Consistent=False/OtherTrustDomain"},
		{before, cluster.Status{
			Reports: cluster.Reports{SameAs: "c"}, ClockSkew: "1m0s ahead",
		}, "Consistent=False/SameCluster"},
		{l, cluster.Status{Reports: cluster.Reports{OtherAnchors: "ours"}}, "Consistent=False/OtherTrustAnchors"},
		{l, ending, "Consistent=False/TrustAnchorsExpire"},
		{l, cluster.Status{Reports: cluster.Reports{Untrusted: "theirs"}}, "Consistent=False/OtherTrustAnchors"},
		{l, issuerEnding, "Consistent=False/IssuerExpires"},
		{before, cluster.Status{}, "Consistent=True/Consistent"},
	} {
		c.status.State = federation.Live
		all := conditionsAt(c.link, outcome{winner: c.link}, c.status, true, time.Time{})
		all = slices.DeleteFunc(all, func(o metav1.Condition) bool { return o.Type != Consistent })
		if got := short(all); got != c.want {
			t.Errorf("%+v: %q, want %q", c.status, got, c.want)
		}
	}
	all := conditionsAt(l, outcome{winner: l}, trust, true, time.Time{})
	message := all[len(all)-1].Message
	if !strings.Contains(message, "identities there end in b") ||
		!strings.Contains(message, "its clock is 1m0s ahead") {
		t.Errorf("a message without both mismatches: %s", message)
	}
}

// What is more than is held of a cluster is a condition from then on.
func TestWithinBudget(t *testing.T) {
	within := func(l *Link, over string) string {
		now := cluster.Status{State: federation.Live, OverBudget: over}
		all := conditionsAt(l, outcome{winner: l}, now, true, time.Time{})
		return short(slices.DeleteFunc(all, func(o metav1.Condition) bool { return o.Type != WithinBudget }))
	}
	l := link("b", 0, nil)
	before := &Link{
		key: l.key, clusterName: "b",
		status: writtenStatus{conditions: []metav1.Condition{{Type: WithinBudget, Status: metav1.ConditionFalse}}},
	}
	for _, c := range []struct {
		link       *Link
		over, want string
	}{
		{l, "", ""},
		{l, "too many Pods", "WithinBudget=False/OverBudget"},
		{before, "too many Pods", "WithinBudget=False/OverBudget"},
		{before, "", "WithinBudget=True/WithinBudget"},
	} {
		if got := within(c.link, c.over); got != c.want {
			t.Errorf("over budget %q: %q, want %q", c.over, got, c.want)
		}
	}
}

// conditionsAt returns the conditions of a Link at a time.
func conditionsAt(l *Link, out outcome, status cluster.Status, applied bool, now time.Time) []metav1.Condition {
	return conditionsFor(l, out, status, problemsFor(l, out, status, applied, now))
}

// short renders conditions, and fails where one has no message.
func short(conditions []metav1.Condition) string {
	var all []string
	for _, c := range conditions {
		if c.Message == "" {
			return c.Type + " has no message"
		}
		all = append(all, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	return strings.Join(all, " ")
}

// Messages are cut to what an API server and an Event accept, and never within a character.
func TestMessagesAreBounded(t *testing.T) {
	for _, text := range []string{
		"short", strings.Repeat("x", status.MessageLimit), strings.Repeat("é", status.MessageLimit),
		"x" + strings.Repeat("é", status.MessageLimit), strings.Repeat("\x80", 2*status.MessageLimit),
	} {
		refused := &Link{refusal: problem.Invalid, refused: text}
		got := conditionsAt(refused, outcome{}, cluster.Status{}, false, time.Time{})[0].Message
		if len(got) > status.MessageLimit || !utf8.ValidString(got) ||
			(len(text) > status.MessageLimit) != strings.HasSuffix(got, "…") ||
			!strings.HasPrefix(text, strings.TrimSuffix(got, "…")) {
			t.Errorf("%d bytes become %q", len(text), got)
		}
	}
}

// Credentials are not valid from the moment at which they expire, whether or not the API server refuses them yet.
func TestExpired(t *testing.T) {
	end := time.Unix(1e9, 0)
	l, now := link("b", 0, nil), cluster.Status{State: federation.Live, Source: "Secret ns/b", Expires: end}
	for at, want := range map[time.Duration]string{
		-time.Second: "CredentialsValid=True/Valid", 0: "CredentialsValid=False/Expired",
	} {
		all := conditionsAt(l, outcome{winner: l}, now, true, end.Add(at))
		c := all[slices.IndexFunc(all, func(c metav1.Condition) bool { return c.Type == CredentialsValid })]
		if got := short([]metav1.Condition{c}); got != want || !strings.Contains(c.Message, "2001-09-09T01:46:40Z") {
			t.Errorf("%s after it: %s, want %s: %s", at, got, want, c.Message)
		}
	}
}
