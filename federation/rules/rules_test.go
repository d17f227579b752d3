package rules

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		id, group, name string
		want            Kind
	}{
		{"PR21", "", "Service", KindService},
		{"PR21", "core", "Service", KindService},
		{"PR21", "Core", "service", KindService},
		{"PN66", "Policy.Linkerd.IO", "server", KindServer},
		{"both groups", PolicyGroup, "HTTPRoute", KindPolicyHTTPRoute},
		{"both groups", GatewayGroup, "HTTPRoute", KindHTTPRoute},
		{"rate limit", PolicyGroup, "HTTPLocalRateLimitPolicy", KindRateLimit},
		{"another group", "apps", "Service", KindOther},
		{"another kind", "", "Secret", KindOther},
		{"empty", "", "", KindOther},
		{"Gateway", GatewayGroup, "Gateway", KindOther},
		{"what no reference names", "", "Pod", KindOther},
		{"a letter that folds to s", PolicyGroup, "\u017ferver", KindOther},
	} {
		if got := KindOf(c.group, c.name); got != c.want {
			t.Errorf("%s: KindOf(%q, %q) = %v, want %v", c.id, c.group, c.name, got, c.want)
		}
	}

	for kind := KindService; kind <= KindTCPRoute; kind++ {
		if got := KindOf(kind.Group(), kind.String()); got != kind {
			t.Errorf("%v is read as %v", kind, got)
		}
		name := kind.String()
		if kind.IsRoute() != strings.HasSuffix(name, "Route") || kind.IsHTTP() != (name == "HTTPRoute") {
			t.Errorf("%v is a route: %t, and of HTTP: %t", kind, kind.IsRoute(), kind.IsHTTP())
		}
	}
}

// Equal objects have one order, whatever it is that differs between others.
func TestOrders(t *testing.T) {
	early, late := time.Unix(1, 0).UTC(), time.Unix(2, 0).UTC()
	meta := func(created time.Time, kind Kind, namespace, name string) *Meta {
		return &Meta{Reference: Reference{kind, namespace, name}, Created: created}
	}
	for name, c := range map[string]struct {
		compare func(a, b *Meta) int
		order   []*Meta
	}{
		"PN38, PN39, PN81, PR12, PR13, PR14": {CompareAge, []*Meta{
			meta(early, KindHTTPRoute, "z", "z"),
			meta(late, KindHTTPRoute, "a", "a"),
			meta(late, KindHTTPRoute, "n1", "b"),
			meta(late, KindPolicyHTTPRoute, "n1", "b"),
			meta(late, KindGRPCRoute, "n2", "b"),
			meta(late, KindHTTPRoute, "n2", "b"),
			meta(time.Time{}, KindGRPCRoute, "a", "a"),
		}},
		"PN67": {CompareNames, []*Meta{
			meta(late, KindAuthorizationPolicy, "shop", "a"),
			meta(early, KindAuthorizationPolicy, "shop", "z"),
			meta(late, KindServerAuthorization, "shop", "a"),
			meta(early, KindServerAuthorization, "shop", "z"),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(39, 2))
			for range 50 {
				got := slices.Clone(c.order)
				random.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
				slices.SortFunc(got, c.compare)
				if diff := cmp.Diff(c.order, got); diff != "" {
					t.Fatalf("-want +got:\n%s", diff)
				}
			}
		})
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		id, text string
		parse    func(string) Pattern
		want     Pattern
		labels   []string
	}{
		{"PN54", "*", ParseIdentity, Pattern{Suffix: true}, nil},
		{"PN54", "*.x.y", ParseIdentity, Pattern{"x.y", true}, []string{"x", "y"}},
		{"PN54", "a.b", ParseIdentity, Pattern{"a.b", false}, []string{"a", "b"}},
		{"PN54", "spiffe://t/a", ParseIdentity, Pattern{"spiffe://t/a", false}, []string{"spiffe://t/a"}},
		{"PN54", "a.*.b", ParseIdentity, Pattern{"a.*.b", false}, []string{"a", "*", "b"}},
		{"PR31", "a.b", ParseHostname, Pattern{"a.b", false}, []string{"a", "b"}},
		{"PR31", "*.c.d", ParseHostname, Pattern{"c.d", true}, []string{"c", "d"}},
	} {
		got := c.parse(c.text)
		if got != c.want || got.String() != c.text || !slices.Equal(got.Labels(), c.labels) {
			t.Errorf("%s: %q is %+v with %q, want %+v with %q", c.id, c.text, got, got.Labels(), c.want, c.labels)
		}
	}
}

func TestIdentityDomain(t *testing.T) {
	for _, c := range []struct {
		id      string
		domain  IdentityDomain
		account Reference
		want    string
	}{
		{
			"PN55",
			IdentityDomain{"linkerd", "cluster.local"},
			Reference{KindServiceAccount, "shop", "sa"},
			"sa.shop.serviceaccount.identity.linkerd.cluster.local",
		},
		{
			"PN71",
			IdentityDomain{"l5d", "td.example"},
			Reference{KindServiceAccount, "shop", "sa"},
			"sa.shop.serviceaccount.identity.l5d.td.example",
		},
		{
			"namespace",
			IdentityDomain{"linkerd", "cluster.local"},
			Reference{KindNamespace, "", "n2"},
			"*.n2.serviceaccount.identity.linkerd.cluster.local",
		},
		{"another kind", IdentityDomain{"linkerd", "cluster.local"}, Reference{KindServer, "shop", "v"}, ""},
	} {
		got, ok := c.domain.Of(c.account)
		if got.String() != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q %t, want %q", c.id, got, ok, c.want)
		}
	}
}

func TestPortList(t *testing.T) {
	declared := []NamedPort{{"http", 8080}, {"admin", 9990}, {"http", 8081}}
	for _, c := range []struct {
		id, list string
		in, out  []uint16
		dropped  int
		err      error
	}{
		{"PN21", "8080", []uint16{8080}, []uint16{8081, 9990}, 0, nil},
		{"PN21", "8000-8100", []uint16{8000, 8080, 8100}, []uint16{7999, 8101}, 0, nil},
		{"PN21", "8080, 9090", []uint16{8080, 9090}, []uint16{9990}, 0, nil},
		{"PN22", "http", []uint16{8080, 8081}, []uint16{9990, 80}, 0, nil},
		{"PO36", "", nil, []uint16{0, 3306, 8080}, 0, nil},
		{"blank", " ", nil, []uint16{8080}, 0, nil},
		{"one bad item", "0,8080,65536,a_b,9-8,,-,http-", []uint16{8080}, []uint16{8081, 9, 8}, 7, errPort},
		{"whole range", "1-65535", []uint16{1, 65535}, []uint16{0}, 0, nil},
		{"from 0", "0-80", nil, []uint16{0, 80}, 1, errPort},
		{"name of another port", "grpc", nil, []uint16{8080}, 0, nil},
		{"too many", strings.Repeat("80,", maxPortItems) + "81,82", []uint16{80}, []uint16{81, 82}, 2, errItems},
	} {
		l, dropped, err := ParsePortList(c.list)
		if dropped != c.dropped || !errors.Is(err, c.err) {
			t.Errorf("%s: %d items are dropped: %v; want %d: %v", c.id, dropped, err, c.dropped, c.err)
		}
		for _, port := range c.in {
			if !l.Contains(port, declared) {
				t.Errorf("%s: %.40q does not contain %d", c.id, c.list, port)
			}
		}
		for _, port := range c.out {
			if l.Contains(port, declared) {
				t.Errorf("%s: %.40q contains %d", c.id, c.list, port)
			}
		}
	}

	if (*PortList)(nil).Contains(80, declared) {
		t.Error("an absent list contains a port")
	}
}

func TestDurations(t *testing.T) {
	for _, c := range []struct {
		id    string
		parse func(string) (time.Duration, error)
		text  string
		want  time.Duration
		err   error
	}{
		{"PR70", ParseGoDuration, "4s", 4 * time.Second, nil},
		{"PR70", ParseGoDuration, "1m30s", 90 * time.Second, nil},
		{"PR70", ParseGoDuration, "0.5s", time.Second / 2, nil},
		{"PW20", ParseGoDuration, "-1s", 0, ErrNegative},
		{"go", ParseGoDuration, "0", 0, nil},
		{"go", ParseGoDuration, "1us2ns", 1002, nil},
		{"go", ParseGoDuration, "1", 0, ErrDuration},
		{"go", ParseGoDuration, "99999999999h", 0, ErrDuration},
		{"PR71", ParseGatewayDuration, "1m30s", 90 * time.Second, nil},
		{"PR71", ParseGatewayDuration, "500ms", time.Second / 2, nil},
		{"PR71", ParseGatewayDuration, "2h", 2 * time.Hour, nil},
		{"gateway", ParseGatewayDuration, "0s", 0, nil},
		{"gateway", ParseGatewayDuration, "3d", 72 * time.Hour, nil},
		{"gateway", ParseGatewayDuration, "123456ms", 123456 * time.Millisecond, nil},
		{"gateway", ParseGatewayDuration, "1h123456ms", 0, ErrDuration},
		{"gateway", ParseGatewayDuration, "0.5s", 0, ErrDuration},
		{"gateway", ParseGatewayDuration, "1h1h1h1h1h", 0, ErrDuration},
		{"PR78", ParseAnnotationDuration, "abc", 0, ErrDuration},
		{"PR72", ParseAnnotationDuration, "0", 0, nil},
		{"annotation", ParseAnnotationDuration, "00", 0, nil},
		{"annotation", ParseAnnotationDuration, "0s", 0, nil},
		{"annotation", ParseAnnotationDuration, "5", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "s", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "0x", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "0hh", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "+1s", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "-1s", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "1.5s", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "1 s", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "1m30s", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "106751d", 106751 * 24 * time.Hour, nil},
		{"annotation", ParseAnnotationDuration, "106752d", 0, ErrDuration},
		{"annotation", ParseAnnotationDuration, "99999999999999999999s", 0, ErrDuration},
	} {
		if got, err := c.parse(c.text); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q is %v (%v), want %v (%v)", c.id, c.text, got, err, c.want, c.err)
		}
	}
}

// PN40.
func TestLabelSelector(t *testing.T) {
	labels := map[string]string{"app": "web", "tier": ""}
	in := func(key string, operator LabelOperator, values ...string) *LabelSelector {
		return &LabelSelector{[]LabelRequirement{{key, operator, values}}}
	}
	both := func(a, b *LabelSelector) *LabelSelector {
		return &LabelSelector{slices.Concat(a.Requirements, b.Requirements)}
	}
	for name, c := range map[string]struct {
		selector *LabelSelector
		want     bool
	}{
		"none":                  {nil, false},
		"empty":                 {&LabelSelector{}, true},
		"in":                    {in("app", LabelIn, "api", "web"), true},
		"not among":             {in("app", LabelIn, "api"), false},
		"in, without the key":   {in("zone", LabelIn, ""), false},
		"in, empty value":       {in("tier", LabelIn, ""), true},
		"notIn":                 {in("app", LabelNotIn, "api"), true},
		"notIn, among":          {in("app", LabelNotIn, "web"), false},
		"notIn, without key":    {in("zone", LabelNotIn, "a"), true},
		"exists":                {in("tier", LabelExists), true},
		"exists, without":       {in("zone", LabelExists), false},
		"doesNotExist":          {in("zone", LabelDoesNotExist), true},
		"doesNotExist, with":    {in("app", LabelDoesNotExist), false},
		"all but one hold":      {both(in("app", LabelExists), in("zone", LabelExists)), false},
		"all of several hold":   {both(in("app", LabelExists), in("tier", LabelExists)), true},
		"values of an Exists":   {in("app", LabelExists, "x"), true},
		"two values, none has":  {in("zone", LabelIn, "a", "b"), false},
		"case of a value":       {in("app", LabelIn, "Web"), false},
		"case of a key":         {in("App", LabelExists), false},
		"doesNotExist, by case": {in("App", LabelDoesNotExist), true},
	} {
		if got := c.selector.Matches(labels); got != c.want {
			t.Errorf("%s: selected: %t, want %t", name, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	for policy := Deny; policy <= Audit; policy++ {
		if got, ok := ParseDefaultPolicy(policy.String()); got != policy || !ok {
			t.Errorf("%v is read as %v", policy, got)
		}
	}
	if got, ok := ParseDefaultPolicy("foo"); got != Deny || ok {
		t.Errorf("foo is %v", got)
	}

	// PN32
	for i, text := range []string{"unknown", "HTTP/1", "HTTP/2", "gRPC", "opaque", "TLS"} {
		if got, ok := ParseServerProtocol(text); got != ServerProtocol(i) || !ok {
			t.Errorf("%s is %v", text, got)
		}
	}
	if got, ok := ParseServerProtocol(""); got != ProtocolDetect || !ok {
		t.Errorf("no protocol is %v", got)
	}
	if _, ok := ParseServerProtocol("http/1"); ok {
		t.Error("http/1 is a protocol")
	}
}

func TestFinding(t *testing.T) {
	for want, f := range map[string]Finding{
		"rule 2: filter: URLRewrite":   {Rule: 2, Part: PartFilter, Reason: "URLRewrite"},
		`hostname: "-" is no hostname`: {Part: PartHostname, Reason: `"-" is no hostname`},
	} {
		if got := f.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A rule is sent unless nothing of the route is, or its matches do not convert.
func TestSent(t *testing.T) {
	r := &Route{Rules: []Rule{{Matches: []Match{{Method: "GET"}}}, {Unmatched: true}, {}}}
	var got []*Rule
	for rule := range r.Sent() {
		got = append(got, rule)
	}
	if !slices.Equal(got, []*Rule{&r.Rules[0], &r.Rules[2]}) {
		t.Errorf("%d rules are sent", len(got))
	}

	for range r.Sent() {
		break
	}
	silent := &Route{Rules: r.Rules, Silent: true}
	for rule := range silent.Sent() {
		t.Errorf("%+v is sent", rule)
	}
}

func TestRule(t *testing.T) {
	weights := func(all ...uint32) (r Rule) {
		for _, w := range all {
			r.Backends = append(r.Backends, Backend{Weight: w})
		}
		return r
	}
	for _, c := range []struct {
		rule       Rule
		weightless bool
	}{
		{weights(), false},
		{weights(0), true},
		{weights(0, 0), true},
		{weights(1, 0), false}, // PR51
	} {
		if got := c.rule.Weightless(); got != c.weightless {
			t.Errorf("%+v: %t", c.rule.Backends, got)
		}
	}

	r := Rule{Filters: []Filter{{Redirect: &Redirect{}}, {Unsupported: "first"}, {Unsupported: "second"}}}
	if r.Unsupported() != "first" || (&Rule{Filters: r.Filters[:1]}).Unsupported() != "" {
		t.Errorf("unsupported: %q", r.Unsupported())
	}
}

func FuzzParsePortList(f *testing.F) {
	for _, list := range []string{"", "80", "80-90,http", "0-0", " 1 - 2 ,x", ",,", "65535-65536"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, dropped, err := ParsePortList(text)
		if (dropped > 0) != (err != nil) || err != nil && len(err.Error()) > 1024 {
			t.Errorf("%d items are dropped: %v", dropped, err)
		}
		if l.Contains(0, []NamedPort{{"http", 80}}) {
			t.Errorf("%q contains 0", text)
		}
	})
}

func FuzzDurations(f *testing.F) {
	for _, text := range []string{"", "0", "1m30s", "0.5s", "-1s", "500ms", "2d", "9223372036854775807h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string) (time.Duration, error){
			ParseGoDuration, ParseGatewayDuration, ParseAnnotationDuration,
		} {
			if d, err := parse(text); d < 0 || err != nil && (d != 0 || len(err.Error()) > 1024) {
				t.Errorf("%q is %v: %v", text, d, err)
			}
		}
	})
}
