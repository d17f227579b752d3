package manifests

import (
	"bytes"
	"encoding/json"
	"errors"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

// A Document is one of a manifest: an object, a list of them, or anything else.
type Document struct {
	Number int // among those of its Reader, from 1

	text   []byte     // as it was read; nil of JSON
	root   *yaml.Node // nil: there is nothing but comments
	layout layout

	changed bool
}

// A layout is how a document was indented.
type layout struct {
	indent  int  // columns
	compact bool // lists of a map begin two columns before what else is in it
}

// usualLayout is that of kubectl.
var usualLayout = layout{indent: 2, compact: true}

// layoutOf returns the layout of the first map in a map, and of the first list in one.
func layoutOf(root *yaml.Node) layout {
	of, list := usualLayout, -1
	hasIndent := false
	var look func(node *yaml.Node, depth int)

	look = func(node *yaml.Node, depth int) {
		if node.Style&yaml.FlowStyle != 0 || depth > maxDepth || hasIndent && list >= 0 {
			return
		}
		for i, child := range node.Content {
			columns := child.Column - node.Column
			isValue := node.Kind == yaml.MappingNode && i%2 == 1 && child.Style&yaml.FlowStyle == 0
			switch {
			case isValue && child.Kind == yaml.SequenceNode && list < 0:
				list = columns
			case isValue && child.Kind == yaml.MappingNode && !hasIndent && columns > 1:
				hasIndent, of.indent = true, columns
			}
			look(child, depth+1)
		}
	}

	look(root, 0)
	of.compact = list < of.indent // the library has two columns between the forms
	return of
}

// YAML returns the document as YAML, with the text as it was read if it has not changed.
func (d *Document) YAML() ([]byte, error) {
	if d.text != nil && !d.changed {
		return d.text, nil
	}
	written, err := d.layout.encode(d.root)
	if err != nil {
		return nil, err
	}

	want, err := toJSON(d.root)
	if err != nil {
		return nil, err
	}
	if got, err := sigsyaml.YAMLToJSON(written); err == nil && bytes.Equal(got, want) {
		return written, nil
	}
	return d.layout.encode(restyled(d.root, 0))
}

func (l layout) encode(root *yaml.Node) ([]byte, error) {
	if l == (layout{}) {
		l = usualLayout
	}
	var to bytes.Buffer
	encoder := yaml.NewEncoder(&to)
	encoder.SetIndent(l.indent)
	if l.compact {
		encoder.CompactSeqIndent()
	}
	err := errors.Join(encoder.Encode(root), encoder.Close())
	return to.Bytes(), err
}

// JSON returns the document as JSON, indented; nothing if there are only comments.
func (d *Document) JSON() ([]byte, error) {
	if d.root == nil {
		return nil, nil
	}
	object, err := toJSON(d.root)
	if err != nil {
		return nil, err
	}

	var to bytes.Buffer
	if err := json.Indent(&to, object, "", "  "); err != nil {
		return nil, err
	}
	to.WriteByte('\n')
	return to.Bytes(), nil
}

// top returns the node of the whole document.
func (d *Document) top() *yaml.Node {
	if d.root != nil && d.root.Kind == yaml.DocumentNode && len(d.root.Content) == 1 {
		return d.root.Content[0]
	}
	return d.root
}
