package serviceprofile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubejson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/federation/profile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// toJSON returns a ServiceProfile as JSON, given its spec as YAML.
func toJSON(tb testing.TB, spec string) []byte {
	tb.Helper()
	b, err := yaml.YAMLToJSON([]byte("apiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\nmetadata: {namespace: shop, name: web}\nspec: " + spec))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// stored returns a ServiceProfile as a watch decodes it, or nil if no API server could store it.
func stored(raw []byte) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if kubejson.UnmarshalCaseSensitivePreserveInts(raw, &u.Object) != nil {
		return nil
	}
	return u
}

// Unknown fields are rejected at every depth, and so are fields of another type.
func TestValidateIsStrict(t *testing.T) {
	for spec, want := range map[string]string{
		"{routes: [], more: 1}": `unknown field "spec.more"`,
		"{routes: [{name: a, condition: {method: GET, more: 1}}]}":                                                                       `unknown field "spec.routes[0].condition.more"`,
		"{routes: [{name: a, condition: {method: GET}, more: 1}]}":                                                                       `unknown field "spec.routes[0].more"`,
		"{routes: [{name: a, condition: {all: [{not: {Method: GET}}]}}]}":                                                                `spec.routes[0].condition.all[0].not: unknown field "Method"`,
		"{routes: [], retryBudget: {ttl: 1s, more: 1}}":                                                                                  `unknown field "spec.retryBudget.more"`,
		"{routes: [], dstOverrides: [{authority: a, weight: 1, more: 1}]}":                                                               `unknown field "spec.dstOverrides[0].more"`,
		"{routes: [], dstOverrides: [{authority: a, weight: lots}]}":                                                                     `weight "lots" is not a quantity`,
		"{routes: [], dstOverrides: [{authority: a, weight: {}}]}":                                                                       "is not a quantity",
		"{routes: [], dstOverrides: [{authority: a, weight: '1e-9999999'}]}":                                                             "is not a quantity", // seconds, if it is tried
		"{routes: [], dstOverrides: {}}":                                                                                                 "cannot unmarshal object",
		"{routes: {}}":                                                                                                                   "cannot unmarshal object",
		"{routes: [{name: 1, condition: {method: GET}}]}":                                                                                "cannot unmarshal number",
		"{routes: [{name: a, condition: {method: GET}, isRetryable: 'true'}]}":                                                           "cannot unmarshal string",
		"{routes: [{name: a, condition: {not: [{method: GET}, {}]}}]}":                                                                   "condition.not[1] needs one of",
		"{routes: [{name: a, condition: {not: []}}]}":                                                                                    "condition needs one of",
		"{routes: [{name: a, condition: {not: 1}}]}":                                                                                     "condition.not: json: cannot unmarshal number",
		"{routes: [], opaquePorts: {http: true}}":                                                                                        "cannot unmarshal number http",
		"{routes: [{name: a, condition: {all: [null]}}]}":                                                                                `route "a": spec.routes[0].condition.all[0] is missing`,
		"{routes: [{name: a, condition: {any: [{method: GET}, null]}}]}":                                                                 `route "a": spec.routes[0].condition.any[1] is missing`,
		"{routes: [{name: a, condition: {any: [{}]}}]}":                                                                                  "spec.routes[0].condition.any[0] needs one of",
		"{routes: [{name: a, condition: {method: GET}, responseClasses: [{}]}]}":                                                         "responseClasses[0].condition is missing",
		"{routes: [{name: a, condition: {method: GET}, responseClasses: [{condition: {}}]}]}":                                            "responseClasses[0].condition needs one of",
		"{routes: [{name: a, condition: {method: GET}, responseClasses: [{condition: {all: [null]}}]}]}":                                 "condition.all[0] is missing",
		"{routes: [{name: a, condition: {method: GET}, responseClasses: [{condition: {not: {}}}]}]}":                                     "condition.not needs one of",
		"{routes: [{name: a, condition: " + strings.Repeat("{not: ", maxDepth) + "{method: GET}" + strings.Repeat("}", maxDepth) + "}]}": "nest deeper than 20",
	} {
		if err := Validate(toJSON(t, spec)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
	for raw, want := range map[string]string{
		"":                                     "unexpected end",
		"null":                                 "metadata.name",
		"[]":                                   "cannot unmarshal array",
		"{}":                                   "metadata.name",
		"{} more":                              "invalid character",
		`{"metadata":{"name":"web","more":1}}`: `unknown field "metadata.more"`,
		`{"metadata":{"name":"web"},"spec":{},"status":{}}`:            `unknown field "status"`,
		`{"metadata":{"name":"web"},"spec":{"routes":[],"routes":[]}}`: `duplicate field "spec.routes"`,
	} {
		if err := Validate([]byte(raw)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", raw, err, want)
		}
	}
}

// What is not checked, or only looks wrong, is allowed.
func TestValidateAllows(t *testing.T) {
	for _, spec := range []string{
		"{}",
		"{routes: []}",
		"{routes: [], dstOverrides: [null, {}, {authority: 'no authority at all', weight: -1}], opaquePorts: {'80': true}}",
		"{routes: [{name: a, condition: {pathRegex: '('}}]}",
		"{routes: [{name: a, condition: {all: []}}]}",
		"{routes: [{name: a, condition: {method: GET, not: null}, timeout: -1s}], retryBudget: {ttl: -1s}}",
		"{routes: [{name: a, condition: {method: GET}, responseClasses: [{condition: {status: {}}}]}]}",
		"{routes: [{name: a, condition: " + strings.Repeat("{not: ", maxDepth-1) + "{method: GET}" + strings.Repeat("}", maxDepth-1) + "}]}",
	} {
		if err := Validate(toJSON(t, spec)); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
	managed := `{"metadata":{"name":"web","uid":"u","creationTimestamp":null,"labels":{"a":"b"},"managedFields":[{"manager":"kubectl","fieldsV1":{"f:spec":{}}}]}}`
	if err := Validate([]byte(managed)); err != nil {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	got, warnings, err := Parse(stored(toJSON(t, `
  unknown: ignored
  routes:
  - name: one
    condition: {all: [{method: get}, {not: {pathRegex: '/private/.*'}}], any: [], method: FOO, pathRegex: /x}
    isRetryable: true
    timeout: 200ms
    responseClasses:
    - isFailure: true
      condition: {status: {min: 500, max: 599}, not: {status: {min: 503}}, any: [{status: {}}], all: []}
  - name: two
    condition: {not: [{method: GET}]}
    timeout: 0s
    responseClasses:
    - condition: {not: [{status: {min: 500}}, {status: {max: 200}}]}
  retryBudget: {retryRatio: 0.5, minRetriesPerSecond: 5, ttl: 30s}
  dstOverrides:
  - {authority: a.shop.svc.cluster.local, weight: 1}
  - {authority: 'b.shop.svc.cluster.local:81', weight: 500m}
  - {authority: c, weight: '0.0001'}
  - {authority: d}
`)))
	if err != nil || warnings != nil {
		t.Fatal(err, warnings)
	}
	want := &profile.Profile{
		Routes: []profile.Route{{
			Name: "one", Retryable: true, Timeout: 200 * time.Millisecond,
			Condition: &profile.Request{
				All: []*profile.Request{{Method: "GET"}, {Not: &profile.Request{Path: "/private/.*"}}},
				Any: []*profile.Request{}, Method: "FOO", Path: "/x",
			},
			Responses: []profile.ResponseClass{{Failure: true, Condition: &profile.Response{
				All: []*profile.Response{}, Any: []*profile.Response{{Status: &profile.StatusRange{}}},
				Status: &profile.StatusRange{Min: 500, Max: 599},
				Not:    &profile.Response{Status: &profile.StatusRange{Min: 503}},
			}}},
		}, {
			Name: "two", Condition: &profile.Request{Not: &profile.Request{Method: "GET"}},
			Responses: []profile.ResponseClass{{Condition: &profile.Response{
				Not: &profile.Response{Any: []*profile.Response{
					{Status: &profile.StatusRange{Min: 500}}, {Status: &profile.StatusRange{Max: 200}},
				}},
			}}},
		}},
		RetryBudget: &profile.RetryBudget{Ratio: 0.5, MinRetriesPerSecond: 5, TTL: 30 * time.Second},
		Overrides: []profile.Override{
			{Authority: "a.shop.svc.cluster.local", Weight: 10000},
			{Authority: "b.shop.svc.cluster.local:81", Weight: 5000},
			{Authority: "c", Weight: 10}, // a Quantity rounds up to a thousandth
			{Authority: "d"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A stored profile may be wrong where proxies can do without: that is left out, with a warning.
func TestParseLeavesOut(t *testing.T) {
	get := &profile.Request{Method: "GET"}
	for spec, want := range map[string]struct {
		profile profile.Profile
		warning string
	}{
		"{routes: [{name: a, condition: {method: GET}, timeout: abc}]}": {
			profile.Profile{Routes: []profile.Route{{Name: "a", Condition: get}}},
			`route "a": spec.routes[0].timeout: "abc" is not a duration`,
		},
		"{routes: [{name: a, condition: {method: GET}, timeout: -5s}]}": {
			profile.Profile{Routes: []profile.Route{{Name: "a", Condition: get}}},
			`route "a": spec.routes[0].timeout: -5s is negative`,
		},
		"{routes: [{condition: {method: GET}}]}": {
			profile.Profile{Routes: []profile.Route{{Condition: get}}}, "spec.routes[0]: a route needs a name",
		},
		`{routes: [{name: 'a"} 1', condition: {method: GET}}]}`: {
			profile.Profile{Routes: []profile.Route{{Condition: get}}}, "its name has a character that ends a label",
		},
		`{routes: [{name: "a\\nb 1", condition: {method: GET}}]}`: {
			profile.Profile{Routes: []profile.Route{{Condition: get}}}, "its name has a character that ends a label",
		},
		"{retryBudget: {ttl: -1s}}": {
			profile.Profile{RetryBudget: &profile.RetryBudget{}}, "spec.retryBudget.ttl: -1s is negative",
		},
		"{retryBudget: {ttl: 1s, retryRatio: -0.5}}": {
			profile.Profile{RetryBudget: &profile.RetryBudget{Ratio: -0.5, TTL: time.Second}},
			"retryRatio: -0.5",
		},
		"{dstOverrides: [null]}": {profile.Profile{}, "spec.dstOverrides[0] is null"},
		"{dstOverrides: [{weight: -1}]}": {
			profile.Profile{Overrides: []profile.Override{{}}}, `spec.dstOverrides[0]: weight "-1" is negative`,
		},
		"{dstOverrides: [{weight: 1e10}]}": {profile.Profile{
			Overrides: []profile.Override{{Weight: 4294967290}},
		}, "counts as 429496729m"},
	} {
		got, warnings, err := Parse(stored(toJSON(t, spec)))
		if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], want.warning) {
			t.Errorf("%s: %v, warnings %q, want %q", spec, err, warnings, want.warning)
		}
		if diff := cmp.Diff(&want.profile, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", spec, diff)
		}
	}
}

func TestParseRejects(t *testing.T) {
	for spec, want := range map[string]string{
		"{retryBudget: {ttl: bad}}": `spec.retryBudget.ttl: "bad"`,
		"{retryBudget: {}}":         "spec.retryBudget.ttl is missing",
		"{routes: [null]}":          "spec.routes[0] is null",
		"{routes: [{name: a}]}":     `route "a": spec.routes[0].condition is missing`,
		"{routes: [{name: b, condition: {method: GET}, responseClasses: [{condition: {status: {min: 201, max: 200}}}]}]}": `route "b": spec.routes[0].responseClasses[0].condition.status: max 200`,
		"{routes: [{name: b, condition: {method: GET}, responseClasses: [{condition: {}}]}]}":                             `route "b": spec.routes[0].responseClasses[0].condition needs`,
		"{routes: 1}": "cannot unmarshal number",
		"[]":          "cannot unmarshal array",
	} {
		if p, _, err := Parse(stored(toJSON(t, spec))); err == nil || !strings.Contains(err.Error(), want) || p != nil {
			t.Errorf("%s: %v %v, want %s", spec, p, err, want)
		}
	}
	for _, u := range []*unstructured.Unstructured{{}, {Object: map[string]any{"spec": nil}}} {
		if p, warnings, err := Parse(u); err != nil || warnings != nil || !cmp.Equal(p, &profile.Profile{}) {
			t.Errorf("no spec: %v %v %v", p, warnings, err)
		}
	}
}

// No input overflows the stack, or a log line.
func TestBounds(t *testing.T) {
	for _, depth := range []int{1000, 9000, 100_000, 1_000_000} {
		raw := []byte(`{"metadata":{"name":"web"},"spec":{"routes":[{"name":"a","condition":` +
			strings.Repeat(`{"not":`, depth) + `{"method":"GET"}` + strings.Repeat("}", depth) + `}]}}`)
		if err := Validate(raw); err == nil || !strings.Contains(err.Error(), "nest deeper") &&
			!strings.Contains(err.Error(), "max depth") && !strings.Contains(err.Error(), "is too large") {
			t.Errorf("depth %d: %v", depth, err)
		}
		if u := stored(raw); u != nil {
			if _, _, err := Parse(u); err == nil {
				t.Errorf("depth %d is parsed", depth)
			}
		}
	}
	long := strings.Repeat("ä", 5000)
	for _, spec := range []string{
		"{routes: [{name: " + long + "}]}",
		"{routes: [], " + long[:1000] + ": 1, " + long[:998] + ": 1}",
		"{routes: [], retryBudget: {ttl: " + long + "}}",
		"{routes: [{name: a, condition: {method: GET}, timeout: " + long + "}]}",
		"{routes: [], dstOverrides: [{weight: " + long + "}]}",
		"{routes: [], opaquePorts: {1" + strings.Repeat("0", 900) + ": true}}",
	} {
		if err := Validate(toJSON(t, spec)); err == nil || len(err.Error()) > maxMessage+10 {
			t.Errorf("%.40s: %d bytes of error", spec, len(fmt.Sprint(err)))
		}
	}
	many := "{routes: [" + strings.Repeat("{condition: {method: GET}, timeout: "+long+"},", 20) + "]}"
	_, warnings, err := Parse(stored(toJSON(t, many)))
	if err != nil || len(warnings) != maxWarnings || len(warnings[1]) > maxMessage {
		t.Errorf("%d warnings: %v", len(warnings), err)
	}
}

// Whatever the input is: what is allowed can be served, and what can be served is in bounds.
func FuzzProfile(f *testing.F) {
	for _, spec := range []string{
		"{}", "null", "[]", "{routes: [null]}", "{routes: [{name: a, condition: {all: [{method: GET}, {not: {pathRegex: /}}], any: []}, timeout: 1s}]}",
		"{routes: [{name: a, condition: {method: GET}, responseClasses: [{isFailure: true, condition: {any: [{status: {min: 500, max: 599}}]}}]}]}",
		"{retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}, dstOverrides: [{authority: a, weight: 500m}, null], opaquePorts: {'1': true}}",
		"{dstOverrides: [{weight: 1e99}, {weight: -1}, {weight: 1Ki}, {weight: 1e-99}]}",
	} {
		b, err := yaml.YAMLToJSON([]byte(spec))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, spec []byte) {
		raw := fmt.Appendf(nil, `{"metadata":{"name":"web"},"spec":%s}`, spec)
		rejected := Validate(raw)
		u := stored(raw)
		if u == nil {
			if rejected == nil {
				t.Errorf("%s is allowed", raw)
			}
			return
		}
		p, warnings, err := Parse(u)
		if (p == nil) != (err != nil) || rejected == nil && err != nil {
			t.Fatalf("%s is validated with %v, parsed as %v with %v", raw, rejected, p, err)
		}
		if len(warnings) > maxWarnings {
			t.Errorf("%s: %d warnings", raw, len(warnings))
		}
		if p == nil {
			return
		}
		for _, r := range p.Routes {
			if r.Timeout < 0 || rejected == nil && r.Name == "" {
				t.Errorf("%s: %+v", raw, r)
			}
			checkRequest(t, r.Condition, maxDepth)
			for _, c := range r.Responses {
				checkResponse(t, c.Condition, maxDepth)
			}
		}
		if b := p.RetryBudget; b != nil && (b.TTL < 0 || b.Ratio != b.Ratio || rejected == nil && b.Ratio < 0) {
			t.Errorf("%s: %+v", raw, b)
		}
	})
}

func checkRequest(t *testing.T, r *profile.Request, depth int) {
	t.Helper()
	if r == nil || depth == 0 || r.All == nil && r.Any == nil && r.Not == nil && r.Method == "" && r.Path == "" {
		t.Fatalf("%+v, %d above the bound", r, depth)
	}
	for _, c := range append(r.All, r.Any...) {
		checkRequest(t, c, depth-1)
	}
	if r.Not != nil {
		checkRequest(t, r.Not, depth-1)
	}
}

func checkResponse(t *testing.T, r *profile.Response, depth int) {
	t.Helper()
	if r == nil || depth == 0 || r.All == nil && r.Any == nil && r.Not == nil && r.Status == nil {
		t.Fatalf("%+v, %d above the bound", r, depth)
	}
	if s := r.Status; s != nil && (s.Min != 0 && (s.Min < 100 || s.Min > 599) || s.Max != 0 && (s.Max < max(100, s.Min) || s.Max > 599)) {
		t.Fatalf("%+v", s)
	}
	for _, c := range append(r.All, r.Any...) {
		checkResponse(t, c, depth-1)
	}
	if r.Not != nil {
		checkResponse(t, r.Not, depth-1)
	}
}
