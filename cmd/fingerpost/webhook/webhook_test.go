package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/admission"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// toJSON returns a ServiceProfile as JSON: its name, and its spec in YAML.
func toJSON(tb testing.TB, name, spec string) []byte {
	tb.Helper()
	b, err := yaml.YAMLToJSON(
		[]byte("apiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\nmetadata: {namespace: shop, name: " +
			name + "}\nspec: " + spec))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// newServer returns a server of the review of ServiceProfiles.
func newServer() *admission.Server {
	return admission.NewServer(logr.Discard(), 1, map[string][]admission.Review{"/": {ServiceProfiles()}})
}

// post sends a body to a webhook.
func post(hook http.Handler, body []byte) *httptest.ResponseRecorder {
	to := httptest.NewRecorder()
	hook.ServeHTTP(to, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)))
	return to
}

func review(uid string, object []byte) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",`+
		`"request":{"uid":%q,"operation":"CREATE","object":%s}}`, uid, object)
}

// TestCases are the contract cases of sections S, PW and IJ: what the webhooks answer.
func TestCases(t *testing.T) {
	testPolicyCases(t)
	testInjectionCases(t)
	const plain = "{routes: [{name: a, condition: {pathRegex: /a}}]}"
	route := func(rest string) string { return "{routes: [{name: a, condition: {pathRegex: /a}, " + rest + "}]}" }
	status := func(r string) string { return route("responseClasses: [{condition: {status: " + r + "}}]") }
	type object struct{ name, spec, denied string }
	for _, c := range []struct {
		id      string
		objects []object
	}{
		{"S01", []object{
			{"web.shop.svc.cluster.local", plain, ""},
			{"web.shop.svc.cluster.local", `
  routes:
  - name: read or list
    condition:
      any:
      - all: [{method: GET}, {not: {pathRegex: '/private/.*'}}]
      - {method: HEAD, pathRegex: /items}
    isRetryable: true
    timeout: 300ms
    responseClasses:
    - isFailure: true
      condition: {any: [{status: {min: 500, max: 599}}, {status: {min: 429, max: 429}}]}
    - condition: {all: [{status: {min: 400}}, {not: {status: {max: 404}}}]}
  retryBudget: {retryRatio: 0.3, minRetriesPerSecond: 20, ttl: 15s}
  dstOverrides:
  - {authority: a.shop.svc.cluster.local, weight: 900m}
  - {authority: 'b.shop.svc.cluster.local:81', weight: 1}
`, ""},
			{"web.shop.svc.cluster.local", route("timeout: 1ns"), ""},
		}},
		{"S02", []object{{"'^.^'", plain, "RFC 1123"}}},
		{"S04", []object{
			{"web", "{routes: [{name: a}]}", "spec.routes[0].condition is missing"},
			{"web", "{routes: [{name: a, condition: null}]}", "spec.routes[0].condition is missing"},
		}},
		{"S05", []object{{"web", "{routes: [{condition: {method: GET}}]}", "needs a name"}}},
		{"S06", []object{{
			"web", "{routes: [{name: a, condition: {method: ''}}]}", "spec.routes[0].condition needs one of",
		}}},
		{"S07", []object{{
			"web", route("responseClasses: [{condition: null}]"),
			"spec.routes[0].responseClasses[0].condition is missing",
		}}},
		{"S09", []object{
			{"web", status("{max: 600}"), "status.max: 600"},
			{"web", status("{min: 1}"), "status.min: 1"},
			{
				"web",
				route("responseClasses: [{condition: {any: " +
					"[{status: {min: 200}}, {not: {status: {min: 300, max: 299}}}]}}]"),
				"condition.any[1].not.status: max 299 is below min 300",
			},
		}},
		{"S10", []object{{"web", status("{min: false}"), "cannot unmarshal bool"}}},
		{"S11", []object{
			{
				"web", "{routes: [], retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 5}}",
				"spec.retryBudget.ttl is missing",
			},
			{
				"web", "{routes: [], retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 5, ttl: foo}}",
				`spec.retryBudget.ttl: "foo" is not a duration`,
			},
			{
				"web", "{routes: [], retryBudget: {retryRatio: -0.2, minRetriesPerSecond: 5, ttl: 10s}}",
				"spec.retryBudget.retryRatio: -0.2 is negative",
			},
			{
				"web", "{routes: [], retryBudget: {retryRatio: 0.2, minRetriesPerSecond: -5, ttl: 10s}}",
				"minRetriesPerSecond",
			},
		}},
		{"S12", []object{
			{"web", "{routes: [null]}", "spec.routes[0] is null"},
			{"web", route("responseClasses: [null]"), "spec.routes[0].responseClasses[0] is null"},
		}},
		{"S14", []object{{
			"web", route("timeout: one-second"), `spec.routes[0].timeout: "one-second" is not a duration`,
		}}},
	} {
		t.Run(c.id, func(t *testing.T) {
			for i, o := range c.objects {
				to := post(newServer(), review("u1", toJSON(t, o.name, o.spec)))
				var answer admissionv1.AdmissionReview
				if err := json.Unmarshal(to.Body.Bytes(), &answer); err != nil || to.Code != http.StatusOK {
					t.Fatalf("object %d: %d %s: %v", i, to.Code, to.Body, err)
				}
				r := answer.Response
				if answer.Kind != "AdmissionReview" || answer.APIVersion != "admission.k8s.io/v1" || r == nil ||
					r.UID != "u1" {
					t.Fatalf("object %d: no API server reads %s", i, to.Body)
				}
				if r.Allowed != (o.denied == "") {
					t.Errorf("object %d: allowed=%t: %v", i, r.Allowed, r.Result)
				}
				if !r.Allowed && (r.Result.Code != http.StatusBadRequest ||
					!strings.Contains(r.Result.Message, o.denied)) {
					t.Errorf("object %d: denied with %d %q, want 400 and %q", i, r.Result.Code,
						r.Result.Message, o.denied)
				}
			}
		})
	}

	largest := append(review("u1", toJSON(t, "web", plain)), bytes.Repeat([]byte(" "), admission.MaxBody)...)
	for _, c := range []struct {
		id     string
		bodies [][]byte
		code   int
	}{
		{"S15", [][]byte{nil}, http.StatusOK},
		{"S16", [][]byte{
			review("", toJSON(t, "web", plain)), []byte("{}"), []byte("{"), []byte("[]"), []byte("nothing"),
			[]byte("{}{}"), review(strings.Repeat("1", 4<<10+1), toJSON(t, "web", plain)),
		}, http.StatusBadRequest},
		{"S17", [][]byte{largest, largest[:admission.MaxBody+1]}, http.StatusInternalServerError},
	} {
		t.Run(c.id, func(t *testing.T) {
			for i, body := range c.bodies {
				to := post(newServer(), body)
				if to.Code != c.code || (to.Body.Len() == 0) != (c.code == http.StatusOK) {
					t.Errorf("body %d: %d %s", i, to.Code, to.Body)
				}
			}
		})
	}
	if to := post(newServer(), largest[:admission.MaxBody]); to.Code != http.StatusOK {
		t.Errorf("a body of 10 MiB: %d %s", to.Code, to.Body)
	}
}

func TestReviewsAreCounted(t *testing.T) {
	profiles := ServiceProfiles()
	hook := admission.NewServer(logr.Discard(), 1, map[string][]admission.Review{"/": {profiles}})
	for _, body := range [][]byte{
		review("1", toJSON(t, "web", "{}")), review("2", toJSON(t, "web", "{routes: [null]}")),
		review("3", []byte("null")), []byte("?"), nil,
	} {
		post(hook, body)
	}

	const help = "Reviews of ServiceProfiles by verdict: allowed, denied, failed if there was no answer, or unreadable " +
		"if the request was none."
	if err := testutil.CollectAndCompare(profiles.Verdicts, strings.NewReader(`
# HELP fingerpost_profile_reviews_total `+help+`
# TYPE fingerpost_profile_reviews_total counter
fingerpost_profile_reviews_total{verdict="allowed"} 1
fingerpost_profile_reviews_total{verdict="denied"} 2
fingerpost_profile_reviews_total{verdict="failed"} 0
fingerpost_profile_reviews_total{verdict="unreadable"} 1
`)); err != nil {
		t.Error(err)
	}
}

// What a request can have the webhook hold: all that it allocates is less than the chart's limit.
func TestWebhookMemory(t *testing.T) {
	fill := func(start, repeated, end string, size int) []byte {
		n := (size - len(start) - len(end)) / len(repeated)
		return []byte(start + strings.Repeat(repeated, n) + end)
	}
	const (
		start  = `{"metadata":{"name":"web"},"spec":{"routes":[`
		object = 3 << 19
	)
	nested := strings.Repeat(`{"not":`, 19)
	for name, body := range map[string][]byte{
		"empty routes": review("1", fill(start, "{},", "{}]}}", object)),
		"routes": review("1", []byte(start+
			strings.Repeat(`{"name":"a","condition":{}},`, 24_000)+`{}]}}`)),
		"labels": review("1", fill(`{"metadata":{"name":"web","labels":{`, `"a":"",`, `"b":""}}}`, object)),
		"spaces": review("1", fill(start, " ", "]}}", 9<<20)),
		"nested": review("1", fill(start+`{"name":"a","condition":`+nested+`{"method":"`, "a",
			`"}`+strings.Repeat("}", 19)+`}]}}`, object)),
		"groups":  fill(`{"request":{"uid":"1","userInfo":{"groups":[`, `"",`, `""]}}}`, admission.MaxBody),
		"nothing": fill("[", "[],", "[]]", admission.MaxBody),
	} {
		t.Run(name, func(t *testing.T) {
			checkMemory(t, newServer(), body)
		})
	}
}

// What an object of policy can have the webhook hold.
func TestPolicyMemory(t *testing.T) {
	list := func(start, repeated string) string {
		const object = 3<<19 - 200
		return start + strings.Repeat(repeated, (object-len(start))/len(repeated)) + repeated[:len(repeated)-1] + "]}}"
	}
	objects := func(start string) string { return start + strings.Repeat("{},", 49_000) + "{}]}}" }
	for name, c := range map[string]struct{ group, kind, object string }{
		"empty lists": {"gateway.networking.k8s.io", "HTTPRoute", list(`{"spec":{"rules":[`, "[],")},
		"required":    {"policy.linkerd.io", "AuthorizationPolicy", objects(`{"spec":{"targetRef":{},"requiredAuthenticationRefs":[`)},
		"identities":  {"policy.linkerd.io", "MeshTLSAuthentication", list(`{"spec":{"identities":[`, `"",`)},
		"overrides":   {"policy.linkerd.io", "HTTPLocalRateLimitPolicy", objects(`{"spec":{"targetRef":{},"overrides":[`)},
	} {
		t.Run(name, func(t *testing.T) {
			hook := admission.NewServer(logr.Discard(), 1, map[string][]admission.Review{"/": {Policy(nil)}})
			body := fmt.Appendf(nil, `{"request":{"uid":"u1","kind":{"group":%q,"kind":%q},"object":%s}}`, c.group, c.kind, c.object)
			checkMemory(t, hook, body)
		})
	}
}

// checkMemory has a webhook answer a request, and reports if that allocates more than the chart's limit.
func checkMemory(t *testing.T, hook http.Handler, body []byte) {
	t.Helper()
	const limit = 64 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	to := post(hook, body)
	runtime.ReadMemStats(&after)

	allocated := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d bytes: %d MiB allocated, %d %.100s", len(body), allocated>>20, to.Code, to.Body)
	if allocated > limit {
		t.Errorf("%d bytes allocated for %d", allocated, len(body))
	}
}
