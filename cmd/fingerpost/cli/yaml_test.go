package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

// YAML does nothing to a terminal, and to a machine it is what it was.
func TestYAMLIsPrintable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		odd := rapid.SampledFrom([]string{
			"\x1b[2J", "\u009b31m", "\u202e", "\x7f", "\u2028", "\u00ad", "\U000e0001", "\r", "\x00", "\ufeff",
			"é", "朱", "\"\\\n\t", "unprintable0.", "unprintable-1.", "true", "1e3", "", " a ", "- b: c", "<<",
		})
		text := rapid.OneOf(rapid.String(), odd, rapid.Map(rapid.SliceOf(odd), func(parts []string) string {
			return strings.Join(parts, "")
		}))
		page := map[string]any{
			"names": rapid.MapOf(text, text).Draw(t, "names"), "list": rapid.SliceOf(text).Draw(t, "list"), "n": 1e9,
		}
		var to bytes.Buffer
		if err := printPage(&to, page, yamlOutput); err != nil {
			t.Fatalf("%q: %v", page, err)
		}
		if strings.ContainsFunc(to.String(), isUnprintable) {
			t.Fatalf("it prints %q", to.String())
		}
		var got, want any
		if err := yaml.Unmarshal(to.Bytes(), &got); err != nil {
			t.Fatalf("%v in\n%s", err, to.String())
		}
		asJSON, err := json.Marshal(page)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(asJSON, &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-JSON +YAML) %s\n%s", diff, to.String())
		}
	})
}
