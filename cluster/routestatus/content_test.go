package routestatus

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation/rules"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 500, time.UTC)

func jsonOf(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// decoded returns JSON as an informer decodes it.
func decoded(text string) (fields map[string]any) {
	if err := utiljson.Unmarshal([]byte(text), &fields); err != nil {
		panic(err)
	}
	return fields
}

// write plans once, as the Writer does: it returns the status after the patch, and whether there is one.
func write(
	t interface{ Fatal(...any) }, of rules.Kind, before string, want *rules.WantedStatus, at time.Time,
) (string, bool) {
	shown := read(decoded(before))
	next := plan(of, shown, want, at)
	if !shown.Contradicts(next) {
		return before, false
	}
	tree, err := next.Tree(shown)
	if err != nil {
		t.Fatal(err)
	}
	after, err := jsonpatch.MergePatch([]byte(before), []byte(jsonOf(tree)))
	if err != nil {
		t.Fatal(err)
	}
	return string(after), true
}

// anyJSON draws any JSON, as another client may store it where no schema forbids it.
func anyJSON(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		switch n := rapid.IntRange(0, 7).Draw(t, "sort"); {
		case n == 0 && depth > 0:
			return rapid.SliceOfN(anyJSON(depth-1), 0, 3).Draw(t, "list")
		case n < 3 && depth > 0:
			fields := map[string]any{}
			for _, name := range rapid.SliceOfN(fieldNames, 0, 5).Draw(t, "fields") {
				fields[name] = anyJSON(depth-1).Draw(t, name)
			}
			return fields
		case n == 3:
			return rapid.Int64().Draw(t, "number")
		case n == 4:
			return rapid.Bool().Draw(t, "bool")
		case n == 5:
			return float64(rapid.IntRange(-9, 9).Draw(t, "halves")) + 0.5
		default:
			return texts.Draw(t, "text")
		}
	})
}

var (
	fieldNames = rapid.SampledFrom([]string{
		"controllerName", "parentRef", "conditions", "type", "status", "lastTransitionTime", "reason", "name", "other",
	})
	texts = rapid.SampledFrom([]string{
		linkerd.PolicyController, "example.com/other", accepted, resolvedRefs, "True", "False", "",
		"2020-01-02T03:04:05Z", "yesterday", "\x00\u2028", "web",
	})
)

var (
	someTimes = rapid.SampledFrom([]string{"2020-01-02T03:04:05Z", "2021-01-02T03:04:05+01:00", "?"})
	someKinds = rapid.SampledFrom([]rules.Kind{rules.KindServer, rules.KindService, rules.KindEgressNetwork})
)

// someCondition draws one as controllers write it.
func someCondition(kinds ...string) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		return map[string]any{
			"type":   rapid.SampledFrom(kinds).Draw(t, "type"),
			"status": rapid.SampledFrom([]string{"True", "False"}).Draw(t, "is"),
			"reason": "Accepted", "message": "", "observedGeneration": rapid.Int64Range(1, 2).Draw(t, "of"),
			"lastTransitionTime": someTimes.Draw(t, "at"),
		}
	})
}

func someParent() *rapid.Generator[rules.Parent] {
	return rapid.Custom(func(t *rapid.T) rules.Parent {
		of := someKinds.Draw(t, "kind")
		name := rapid.SampledFrom([]string{"web", "api"}).Draw(t, "name")
		return rules.Parent{
			Reference: rules.Reference{Kind: of, Namespace: "shop", Name: name},
			Port:      rapid.SampledFrom([]uint16{0, 80, 65535}).Draw(t, "port"),
		}
	})
}

func someVerdict(t *rapid.T) rules.Verdict {
	return rules.Verdict{
		Reason:  rapid.SampledFrom([]rules.Reason{rules.Accepted, rules.NoMatchingParent}).Draw(t, "reason"),
		Message: rapid.SampledFrom([]string{"", "why\nnot"}).Draw(t, "message"),
	}
}

// someWanted draws a status, and what a status has of it by what was wanted at another time.
func someWanted(of rules.Kind) *rapid.Generator[*rules.WantedStatus] {
	return rapid.Custom(func(t *rapid.T) *rules.WantedStatus {
		want := &rules.WantedStatus{Generation: rapid.Int64Range(1, 3).Draw(t, "generation")}
		if !of.IsRoute() {
			want.Verdict = someVerdict(t)
			want.Target = rules.Reference{Kind: rules.KindServer, Namespace: "shop", Name: "web"}
			return want
		}
		parents := rapid.SliceOfNDistinct(someParent(), 0, 4, rapid.ID).Draw(t, "parents")
		for _, p := range parents {
			status := rules.ParentStatus{Parent: p, Verdict: someVerdict(t)}
			if p.Kind != rules.KindServer {
				status.Backends = &rules.Resolution{Reason: rapid.SampledFrom([]rules.Reason{
					rules.ResolvedRefs, rules.BackendNotFound,
				}).Draw(t, "backends")}
			}
			want.Parents = append(want.Parents, status)
		}
		want.Partial = rapid.SampledFrom([]string{"", "rule 1: filter: no"}).Draw(t, "partial")
		return want
	})
}

// someStatus draws what is there: of others, of ours as it was before, and what a hostile client puts there.
func someStatus(of rules.Kind) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		fields := map[string]any{}
		var parents, conditions []any
		for range rapid.IntRange(0, 3).Draw(t, "others") {
			parents = append(parents, map[string]any{
				"controllerName": "example.com/other", "parentRef": anyJSON(2).Draw(t, "ref"),
				"conditions": rapid.SliceOfN(someCondition(accepted, resolvedRefs), 0, 2).Draw(t, "conditions"),
			})
			conditions = append(conditions, someCondition("Ready", "Programmed").Draw(t, "condition"))
		}

		text := "{}"
		if rapid.Bool().Draw(t, "ours") {
			at := now.Add(-time.Duration(rapid.IntRange(1, 3).Draw(t, "hours")) * time.Hour)
			text, _ = write(t, of, text, someWanted(of).Draw(t, "before"), at)
		}
		if ours := decoded(text); of.IsRoute() {
			own, _ := ours["parents"].([]any)
			fields["parents"] = rapid.Permutation(append(parents, own...)).Draw(t, "order")
		} else {
			fields = ours
			own, _ := ours["conditions"].([]any)
			fields["conditions"] = rapid.Permutation(append(conditions, own...)).Draw(t, "order")
		}

		if rapid.IntRange(0, 3).Draw(t, "hostile") == 0 {
			name := rapid.SampledFrom([]string{"parents", "conditions", "targetRef", "other"}).Draw(t, "where")
			what := anyJSON(3).Draw(t, "what")
			if list, is := fields[name].([]any); is && rapid.Bool().Draw(t, "beside") {
				fields[name] = append(list, what)
			} else {
				fields[name] = what
			}
		}
		return jsonOf(fields)
	})
}

// What plan keeps true of any status, for the three shapes: see the package. That of others is compared byte by byte.
func TestPlan(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kindText(kind.Kind), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				before, want := someStatus(kind.Kind).Draw(t, "status"), someWanted(kind.Kind).Draw(t, "wanted")
				after, changed := write(t, kind.Kind, before, want, now)
				if again, more := write(t, kind.Kind, after, want, now.Add(time.Hour)); more {
					t.Fatalf("written again:\n%s\n%s\n%s", before, after, again)
				}

				was, is := decoded(before), decoded(after)
				shown, got := read(was), read(is)
				if b, a := jsonOf(shown.parents.others), jsonOf(got.parents.others); b != a {
					t.Fatalf("entries of others: %s, were %s", a, b)
				}
				if b, a := jsonOf(shown.conditions.others), jsonOf(got.conditions.others); b != a {
					t.Fatalf("conditions of others: %s, were %s", a, b)
				}
				if b, a := jsonOf(was["other"]), jsonOf(is["other"]); b != a {
					t.Fatalf("another field: %s, was %s", a, b)
				}

				if changed && shown.Same(got) {
					t.Fatal("a patch without a change")
				}
				checkOwn(t, kind.Kind, shown, got, want, changed)
			})
		})
	}
}

// checkOwn checks that ours is what is wanted, and its times.
func checkOwn(t *rapid.T, of rules.Kind, shown, got content, want *rules.WantedStatus, changed bool) {
	if !of.IsRoute() {
		if len(got.conditions.own) != 1 {
			t.Fatalf("%d conditions Accepted", len(got.conditions.own))
		}
		checkTimes(t, shown.conditions.own, got.conditions.own, changed)
		return
	}

	if len(got.parents.own) != len(want.Parents) {
		t.Fatalf("%d entries of %d parents", len(got.parents.own), len(want.Parents))
	}
	for i, e := range got.parents.own {
		ref := e.(map[string]any)["parentRef"].(map[string]any)
		parent := want.Parents[i]
		isOther := ref["name"] != parent.Name || ref["kind"] != parent.Kind.String()
		if isOther || (ref["port"] == nil) != (parent.Port == 0) {
			t.Fatalf("entry %d is of %v, want %+v", i, ref, parent.Parent)
		}

		var before []any
		for _, s := range shown.parents.own {
			fields, _ := s.(map[string]any)
			if before == nil && reflect.DeepEqual(fields["parentRef"], any(ref)) {
				before, _ = fields["conditions"].([]any)
			}
		}
		checkTimes(t, before, e.(map[string]any)["conditions"].([]any), changed)
	}
}

// checkTimes checks that the time of a condition has moved if, and only if, its status has.
func checkTimes(t *rapid.T, before, after []any, changed bool) {
	for _, c := range after {
		is := c.(map[string]any)
		kept := ""
		for _, b := range before {
			was, _ := b.(map[string]any)
			at, _ := was["lastTransitionTime"].(string)
			_, err := time.Parse(time.RFC3339, at)
			if kept == "" && err == nil && was["type"] == is["type"] && was["status"] == is["status"] {
				kept = at
			}
		}
		want := "2026-05-01T12:00:00Z"
		if kept != "" {
			want = kept
		}
		if changed && is["lastTransitionTime"] != want {
			t.Fatalf("%v has moved at %v, want %s", is["type"], is["lastTransitionTime"], want)
		}
	}
}

// What is written of each shape.
func TestShapes(t *testing.T) {
	service, server := rules.Parent{Reference: service, Port: 80}, rules.Parent{Reference: server}
	route := &rules.WantedStatus{
		Generation: 3, Partial: "rule 1: filter: no",
		Parents: []rules.ParentStatus{
			{
				Parent: service, Verdict: rules.Verdict{Reason: rules.Accepted},
				Backends: &rules.Resolution{Reason: rules.BackendNotFound},
			},
			{Parent: server, Verdict: rules.Verdict{Reason: rules.NoMatchingParent, Message: "why"}},
		},
	}
	verdict := &rules.WantedStatus{
		Generation: 2, Target: server.Reference, Verdict: rules.Verdict{Reason: rules.AlreadyExists},
	}

	condition := func(kind, is, reason, message string, generation int) string {
		return fmt.Sprintf(`{"lastTransitionTime":"2026-05-01T12:00:00Z","message":%q,"observedGeneration":%d,`+
			`"reason":%q,"status":%q,"type":%q}`, message, generation, reason, is, kind)
	}
	partial := condition(partiallyInvalid, "True", "UnsupportedValue", "rule 1: filter: no", 3)
	overlaps := condition(accepted, "False", "RateLimitReasonAlreadyExists", "", 2)
	for _, c := range []struct {
		of           rules.Kind
		before, want string
		wanted       *rules.WantedStatus
	}{
		{rules.KindHTTPRoute, `{}`, `{"parents":[` +
			`{"conditions":[` + condition(accepted, "True", "Accepted", "", 3) + `,` +
			condition(resolvedRefs, "False", "BackendNotFound", "", 3) + `,` + partial + `],` +
			`"controllerName":"linkerd.io/policy-controller",` +
			`"parentRef":{"group":"core","kind":"Service","name":"web","namespace":"shop","port":80}},` +
			`{"conditions":[` + condition(accepted, "False", "NoMatchingParent", "why", 3) + `,` + partial + `],` +
			`"controllerName":"linkerd.io/policy-controller",` +
			`"parentRef":{"group":"policy.linkerd.io","kind":"Server","name":"web","namespace":"shop"}}]}`, route},
		{
			rules.KindGRPCRoute, `{"parents":[{"controllerName":"linkerd.io/policy-controller"},{"controllerName":"x"}]}`,
			`{"parents":[{"controllerName":"x"}]}`, &rules.WantedStatus{},
		},
		{rules.KindGRPCRoute, `{"parents":[{"controllerName":"x"}]}`, `{"parents":[{"controllerName":"x"}]}`, &rules.WantedStatus{}},
		{
			rules.KindEgressNetwork, `{"conditions":[{"type":"Accepted","status":"True"},{"type":"Ready"}]}`,
			`{"conditions":[{"type":"Ready"},` + overlaps + `]}`, verdict,
		},
		{
			rules.KindRateLimit, `{"targetRef":{"namespace":"shop","name":"api"}}`,
			`{"conditions":[` + overlaps + `],"targetRef":{"group":"policy.linkerd.io","kind":"Server","name":"web"}}`, verdict,
		},
	} {
		got, _ := write(t, c.of, c.before, c.wanted, now)
		if diff := cmp.Diff(jsonOf(decoded(c.want)), jsonOf(decoded(got))); diff != "" {
			t.Errorf("%s: %s", kindText(c.of), diff)
		}
	}
}

// A field that the schema seems to lack is left out of what is ours alone.
func TestOthersKeepFields(t *testing.T) {
	shown := read(decoded(`{"parents":[{"controllerName":"x","parentRef":{"port":80}}]}`))
	lacking := read(decoded(`{"parents":[{"controllerName":"x","parentRef":{}},` +
		`{"controllerName":"linkerd.io/policy-controller"}]}`))
	tree, err := lacking.Tree(shown)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"parents":[{"controllerName":"x","parentRef":{"port":80}},` +
		`{"controllerName":"linkerd.io/policy-controller"}]}`
	if diff := cmp.Diff(want, jsonOf(tree)); diff != "" {
		t.Error(diff)
	}
}

// The list of parents has room for 32: those of others stay. What is larger than may be kept is not written, unless
// nothing of ours is wanted there.
func TestBounds(t *testing.T) {
	others := strings.Repeat(`,{"controllerName":"x"}`, maxEntries-1)[1:]
	var want rules.WantedStatus
	for _, name := range []string{"a", "b", "c"} {
		parent := rules.Parent{Reference: rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: name}}
		verdict := rules.Verdict{Reason: rules.Accepted}
		want.Parents = append(want.Parents, rules.ParentStatus{Parent: parent, Verdict: verdict})
	}
	after, _ := write(t, rules.KindHTTPRoute, `{"parents":[`+others+`]}`, &want, now)
	got := read(decoded(after))
	if len(got.parents.others) != maxEntries-1 || len(got.parents.own) != 1 {
		t.Errorf("%d entries of others, %d of ours", len(got.parents.others), len(got.parents.own))
	}

	large := readBounded(decoded(`{"parents":[{"controllerName":"x","message":"` + strings.Repeat("x", maxSize) + `"}]}`))
	next := plan(rules.KindHTTPRoute, large, &want, now)
	if _, err := next.Tree(large); !large.Contradicts(next) || err == nil {
		t.Error("a status of which nothing is kept is written")
	}
	if next := plan(rules.KindHTTPRoute, large, &rules.WantedStatus{}, now); large.Contradicts(next) {
		t.Error("a route that is none of ours is written")
	}
}
