package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/inject"
)

// drawText draws what YAML may take for something else than a text.
func drawText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "yes", "n", "~", "null", "1e3", "0o7", "0x1f", "1_000", "4190,4191", "1:30", "2001-01-01", "<<", "=",
			".5", " a ", "a: b", "- a", "# a", "a #b", "&a", "*a", "!a", "|", "a\nb\n", "\n\n", "a\tb", "\u0085",
			"\u2028", "\ufeff", "{}", "[", "'", `"`, "---", "%a", "@", "`", "é朱",
		}),
		rapid.StringOfN(rapid.RuneFrom([]rune("ab:#-'\"\n {}[],&*!|>%@\\\u00a0")), 0, 12, -1),
	)
}

// drawContainers draws containers of an application, some with fields that no type has.
func drawContainers(t *rapid.T, least int, name string) []any {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any {
		c := map[string]any{
			"name": rapid.SampledFrom([]string{"app", "db", "linkerd"}).Draw(t, "name"), "image": "app:1",
			"args": rapid.SliceOfN(rapid.Map(drawText(), func(s string) any { return s }), 1, 3).Draw(t, "args"),
		}
		if rapid.Bool().Draw(t, "ports") {
			c["ports"] = []any{map[string]any{
				"containerPort": rapid.SampledFrom([]int{80, 3306, 8080}).Draw(t, "port"), "protocol": "TCP",
			}}
		}
		if rapid.Bool().Draw(t, "future") {
			key := rapid.SampledFrom([]string{"yes", "1e3", "a: b", "~", "x/y~", "é", "# a", "", "?"}).Draw(t, "key")
			c["future"] = map[string]any{key: []any{drawText().Draw(t, "value"), true, nil, 1.5}}
		}
		return c
	}), least, 3).Draw(t, name)
}

// drawTemplate draws a template without anything of Linkerd's.
func drawTemplate(t *rapid.T) map[string]any {
	spec := map[string]any{"containers": drawContainers(t, 1, "containers")}
	if inits := drawContainers(t, 0, "init containers"); len(inits) > 0 {
		spec["initContainers"] = inits
	}
	if rapid.Bool().Draw(t, "volumes") {
		spec["volumes"] = []any{map[string]any{"name": "v", "emptyDir": map[string]any{"medium": "Memory"}}}
	}
	template := map[string]any{"spec": spec}

	metadata := map[string]any{}
	for _, field := range []string{"annotations", "labels"} {
		keys := rapid.SampledFrom([]string{"app", "linkerd.iox/y", "config.linkerd.io/proxy-log-level"})
		if texts := rapid.MapOfN(keys, drawText(), 0, 3).Draw(t, field); len(texts) > 0 {
			metadata[field] = texts
		}
	}
	if len(metadata) > 0 {
		template["metadata"] = metadata
	}
	return template
}

// checkLaws: an injection is undone by an uninjection, and two are as good as one, byte for byte.
func checkLaws(t *rapid.T) {
	template, err := json.Marshal(drawTemplate(t))
	if err != nil {
		t.Fatal(err)
	}
	object := rapid.SampledFrom(makers).Draw(t, "kind").object(t, string(template))
	if rapid.Bool().Draw(t, "as JSON") {
		b, err := yaml.YAMLToJSON([]byte(object))
		if err != nil {
			t.Fatal(err)
		}
		object = string(b)
	}
	values := fmt.Sprintf("{cniEnabled: %v, proxy: {nativeSidecar: %v, await: %v}}", rapid.Bool().Draw(t, "cni"),
		rapid.Bool().Draw(t, "native"), rapid.Bool().Draw(t, "await"))

	manual := rapid.IntRange(0, 3).Draw(t, "manual") > 0
	injection := newInjection(t, manual, values, map[string]string{"config.linkerd.io/proxy-uid": "7"})
	once, _ := change(t, object, injection.Inject)
	twice, _ := change(t, once, injection.Inject)
	if diff := cmp.Diff(once, twice); diff != "" {
		t.Fatalf("injected twice (-once +twice) %s", diff)
	}
	if !strings.Contains(once, "linkerd.io/inject: enabled") {
		t.Fatalf("not injected:\n%s", once)
	}

	back, _ := change(t, once, Uninject)
	for _, setting := range []string{inject.OpaqueAnnotation, "config.linkerd.io/proxy-uid"} { // they stay
		back = withoutAnnotation(t, back, setting)
	}
	wantEqual(t, "uninjected", object, back)
}

// withoutAnnotation removes an annotation wherever it is, and what is empty then.
func withoutAnnotation(tb rapid.TB, text, key string) string {
	tb.Helper()
	var prune func(value any) bool
	prune = func(value any) (isEmpty bool) {
		of, is := value.(map[string]any)
		if !is {
			return false
		}
		_, had := of[key]
		delete(of, key)
		for k, below := range of {
			if prune(below) {
				delete(of, k)
				had = true
			}
		}
		return had && len(of) == 0
	}

	value := valueOf(tb, text)
	prune(value)
	written, err := yaml.Marshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return string(written)
}

// FuzzReader: whatever a text is, what is read of it is written with the same meaning, changed or not, and what is
// injected stays as it is when it is injected again.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		"", "---\n---", "--- {a: b}\n...\n", "a: &a [1]\nb: *a\n<<: {c: d}\n", `{"a":"\u0085"} {"b":[1e3]}`, "{a: b}", "\xef\xbb\xbfa: 1",
		"kind: List\nitems:\n- kind: Pod\n  apiVersion: v1\n  metadata:\n  spec: {containers: [{}]}\n",
		"kind: Deployment\napiVersion: apps/v1\nspec:\n  template: # a\n    metadata: ~\n    spec: {}\n",
		"kind: Namespace\napiVersion: v1\n# a\nmetadata: {labels: !!map {}, name: on}\n# b\n", "a: |+\n  b\n\n--- # c\n- ? x\n",
		"? [a]\n: b\n", "a: !!binary aGk=\nb: !!str 1\nc: !x y\n",
	} {
		f.Add(seed)
	}
	injection := newInjection(f, false, "", nil)
	manual := newInjection(f, true, "", nil)

	f.Fuzz(func(t *testing.T, text string) {
		for _, by := range []func(*Document) ([]Report, error){injection.Inject, manual.Inject, Uninject} {
			once, is := fold(t, text, by)
			if !is {
				return
			}
			twice, is := fold(t, once, by)
			if !is {
				t.Fatalf("what is written cannot be read:\n%s", once)
			}
			var want, got any
			if yaml.Unmarshal([]byte(once), &want) == nil && yaml.Unmarshal([]byte(twice), &got) == nil {
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("changed twice (-once +twice) %s", diff)
				}
			}
		}
	})
}

// fold changes the first document of a text that can be changed.
func fold(t *testing.T, text string, by func(*Document) ([]Report, error)) (written string, is bool) {
	t.Helper()
	for reader := NewReader(strings.NewReader(text)); ; {
		document, err := reader.Read()
		switch _, one := errors.AsType[*DocumentError](err); {
		case errors.Is(err, io.EOF):
			return "", false
		case one:
			continue
		case err != nil:
			return "", false
		}

		if document.root != nil {
			checkMeaning(t, document)
		}
		if _, err := by(document); err != nil || document.root == nil {
			continue
		}
		b, err := document.YAML()
		if err != nil {
			continue // a tag that means nothing to kubectl
		}
		return string(b), true
	}
}

// checkMeaning compares what kubectl takes a text for with what it takes its tree for.
func checkMeaning(t *testing.T, document *Document) {
	t.Helper()
	want, err := yaml.YAMLToJSON(document.text)
	if err != nil || document.text == nil || bytes.Contains(document.text, []byte("!")) { // a tag `!` is in no node
		return
	}
	got, err := toJSON(document.root)
	if err != nil || !bytes.Equal(want, got) {
		t.Fatalf("%v: %s is read as %s:\n%s", err, want, got, document.text)
	}
}
