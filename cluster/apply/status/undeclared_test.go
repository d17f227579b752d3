package status

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A rejection by an API server names fields, whatever the keys of the lists that they are in.
func TestRejectedFields(t *testing.T) {
	for text, want := range map[string][]string{
		`failed to create typed patch object (mc/east; g/v1, Kind=Link): .status.conditions: field not declared in schema`: {
			"conditions",
		},
		"failed to create typed patch object: errors:\n  .status.mirrorServices[0].conditions[0].localRef: field not declared in schema\n" +
			"  .status.mirrorServices[1].conditions[0].localRef: field not declared in schema\n" +
			`  .status.conditions[type="Accepted"].observedGeneration: field not declared in schema`: {
			"mirrorServices.conditions.localRef", "conditions.observedGeneration",
		},
		`.status: field not declared in schema`:                                      {""},
		`.status.conditions[type="a].b: field not declared in schema"].c: duplicate`: nil,
		`.spec.selector: field not declared in schema`:                               nil,
		`links.multicluster.linkerd.io "east" is forbidden`:                          nil,
	} {
		if diff := cmp.Diff(want, rejectedFields(errors.New(text))); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-zA-Z0-9_-]{1,8}`)
		path, want := ".status", []string{}
		for range rapid.IntRange(1, 6).Draw(t, "depth") {
			n := name.Draw(t, "name")
			path, want = path+"."+n, append(want, n)
			switch rapid.IntRange(0, 3).Draw(t, "list") {
			case 0:
				path += fmt.Sprintf("[%d]", rapid.IntRange(0, 5000).Draw(t, "index"))
			case 1:
				path += fmt.Sprintf("[%s=%q]", name.Draw(t, "key"), rapid.String().Draw(t, "value"))
			}
		}
		got := rejectedFields(errors.New("x: errors:\n  " + path + ": field not declared in schema\n  .spec: y"))
		if diff := cmp.Diff([]string{strings.Join(want, ".")}, got); diff != "" {
			t.Fatalf("%s: %s", path, diff)
		}
	})
}
