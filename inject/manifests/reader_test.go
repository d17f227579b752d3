package manifests

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A bomb is bounded by what it would be, not by what it is written with.
func TestBounds(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 9 {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), i)
	}
	nested := strings.Repeat("[", maxDepth+2) + strings.Repeat("]", maxDepth+2)

	for text, want := range map[string]string{
		bomb.String():                                            errNodes.Error(),
		"a: &a [*a, *a]\n":                                       errDepth.Error(),
		"a: &a\n  b: &b\n    <<: [*a]\n":                         errDepth.Error(),
		"a: " + nested:                                           errDepth.Error(),
		`{"a": ` + nested + "}":                                  errDepth.Error(),
		"a: [" + strings.Repeat("x,", maxNodes) + "]":            errNodes.Error(),
		`{"a": [` + strings.Repeat("1,", maxNodes) + "1]}":       errNodes.Error(),
		"# a\n---\n" + strings.Repeat("# long\n", maxDocument/6): "document 2 is longer than 8 MiB",
		strings.Repeat("a", maxDocument+1):                       "document 1 is longer than 8 MiB",
		strings.Repeat("---\na\n", maxDocuments+1):               "there are more than 10000 documents",
		"a: 1\na: 2\n":                                           "line 2: the key \"a\" is there twice",
		`{"a": 1, "a": 2}`:                                       "the key \"a\" is there twice",
		"? [a]\n: b\n":                                           "line 1: a key is a list or a map",
		"a: 1\n...\nb: 1\n":                                      "there is more after its end",
	} {
		if err := errorOf(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %s", text, err, want)
		}
	}
}

// errorOf returns why a text cannot be read to its end; nil if it can.
func errorOf(text string) error {
	for reader := NewReader(strings.NewReader(text)); ; {
		if _, err := reader.Read(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// Documents are those between separators, with a number each; one that cannot be read leaves the others.
func TestReader(t *testing.T) {
	const text = "# a\n---\n\n---\n---   # b\nb: 1\n---{c: 1}\n---\t\n[\n" +
		"---\r\n{\"d\":1}{\"d\":2}\n{\"d\":3}---\n--- {e: 1}"
	var got []string
	for reader := NewReader(strings.NewReader(text)); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			got = append(got, fmt.Sprintf("%.11s", err))
			continue
		}
		written, err := document.YAML()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %s", document.Number, written))
	}
	want := []string{"1 # a\n", "2 ---   # b\nb: 1\n---{c: 1}\n", "document 3:", "document 4:", "5 --- {e: 1}"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got) %s", diff)
	}
}

// A merged map counts as kubectl has it: it replaces what stands before it, and the first of several counts.
func TestMerge(t *testing.T) {
	const text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz:\n  a: 0\n  <<: [*x, *y]\n  c: 3\n"
	written, _ := change(t, text, func(d *Document) ([]Report, error) {
		d.changed = true
		return nil, nil
	})
	wantEqual(t, "merged", "{x: {a: 1, b: 1}, y: {b: 2, c: 2}, z: {a: 1, b: 1, c: 3}}", written)
	wantEqual(t, "as others have it", text, written)
}

// Lists and maps are written in the columns in which they were.
func TestLayout(t *testing.T) {
	for _, text := range []string{
		"metadata:\n  name: p\nspec:\n  containers:\n  - name: a\nkind: Pod\napiVersion: v1\n",
		"metadata:\n    name: p\nspec:\n    containers:\n      - name: a\nkind: Pod\napiVersion: v1\n",
		"metadata:\n  name: p\nspec:\n  containers:\n    - name: a\nkind: Pod\napiVersion: v1\n",
	} {
		want := strings.Replace(text, "name: p\n", "name: p\n@annotations:\n@@linkerd.io/inject: enabled\n", 1)
		indent := text[len("metadata:\n"):strings.Index(text, "name")]
		got, _ := change(t, text, newInjection(t, false, "", nil).Inject)
		if diff := cmp.Diff(strings.ReplaceAll(want, "@", indent), got); diff != "" {
			t.Errorf("(-want +got) %s", diff)
		}
	}
}

// Kinds of the same name in other groups are no Services and no Deployments.
func TestOtherGroups(t *testing.T) {
	for _, text := range []string{
		"apiVersion: serving.knative.dev/v1\nkind: Service\nspec: {template: {spec: {hostNetwork: true}}}\n",
		"apiVersion: example.org/v1\nkind: Deployment\nspec: 7\n", "kind: Pod\n", "[kind, Pod]\n", "7\n", "kind: {}\n",
	} {
		got, reports := change(t, text, newInjection(t, true, "", nil).Inject)
		if got != text || len(reports) != 1 || reports[0].Result != Unchanged {
			t.Errorf("%v\n%s", reports, got)
		}
	}
}

// What comments a document has, what is written means what was read.
func TestWrittenInQuotes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(drawText(), 1, 4).Draw(t, "texts")
		var text strings.Builder
		text.WriteString("kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec:\n  containers:\n")
		for _, one := range texts {
			fmt.Fprintf(&text, "  # one\n  - args: # args\n    - %q # arg\n    # end\n    name: a\n", one)
		}
		got, _ := change(t, text.String(), newInjection(t, false, "", nil).Inject)
		back, _ := change(t, got, Uninject)
		wantEqual(t, "uninjected", text.String(), back)
	})
}
