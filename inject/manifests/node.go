package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

var (
	errDepth = fmt.Errorf("it is deeper than %d lists and maps", maxDepth)
	errNodes = fmt.Errorf("it has more than %d keys and values", maxNodes)
)

// A copier makes trees in which every node stands for itself: no aliases, anchors and merged maps are left. It bounds
// what it makes.
type copier struct{ nodes int }

func (c *copier) count(depth int) error {
	c.nodes++
	switch {
	case depth > maxDepth:
		return errDepth
	case c.nodes > maxNodes:
		return errNodes
	}
	return nil
}

func (c *copier) copy(from *yaml.Node, depth int) (*yaml.Node, error) {
	if err := c.count(depth); err != nil {
		return nil, err
	}
	if from.Kind == yaml.AliasNode {
		return c.copy(from.Alias, depth+1)
	}

	to := *from
	to.Anchor, to.Alias, to.Content = "", nil, nil
	if from.Kind == yaml.MappingNode {
		return &to, c.copyMap(&to, from, depth)
	}

	for _, child := range from.Content {
		copied, err := c.copy(child, depth+1)
		if err != nil {
			return nil, err
		}
		to.Content = append(to.Content, copied)
	}
	return &to, nil
}

// copyMap fills a map with the entries of another one. Maps that are merged into it replace what stands before them,
// and are replaced by what stands after them, as kubectl has it.
func (c *copier) copyMap(to, from *yaml.Node, depth int) error {
	entries := &entries{of: to, at: map[string]int{}}
	explicit := map[string]bool{}

	for i := 0; i+1 < len(from.Content); i += 2 {
		key, err := c.copy(from.Content[i], depth+1)
		if err != nil {
			return err
		}
		value, err := c.copy(from.Content[i+1], depth+1)
		if err != nil {
			return err
		}

		switch {
		case key.Kind != yaml.ScalarNode:
			err = fmt.Errorf("line %d: a key is a list or a map", key.Line)
		case key.ShortTag() == "!!merge":
			err = entries.merge(value)
		case explicit[key.Value]:
			err = fmt.Errorf("line %d: the key %.100q is there twice", key.Line, key.Value)
		default:
			explicit[key.Value] = true
			entries.set(key, value)
		}

		if err != nil {
			return err
		}
	}
	return nil
}

// entries are those of a map that is made.
type entries struct {
	of *yaml.Node
	at map[string]int // of values, by their keys
}

func (e *entries) set(key, value *yaml.Node) {
	if at, is := e.at[key.Value]; is {
		e.of.Content[at] = value
		return
	}
	e.of.Content = append(e.of.Content, key, value)
	e.at[key.Value] = len(e.of.Content) - 1
}

// merge sets the entries of another map, or of several, of which the first one counts.
func (e *entries) merge(other *yaml.Node) error {
	switch other.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(other.Content); i += 2 {
			e.set(other.Content[i], other.Content[i+1])
		}
	case yaml.SequenceNode:
		for _, one := range slices.Backward(other.Content) {
			if err := e.merge(one); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("line %d: what is merged is no map", other.Line)
	}
	return nil
}

// parseJSON reads documents of JSON that follow each other.
func parseJSON(text []byte) (all []*Document, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	counted := &copier{}

	for {
		root, err := counted.decode(decoder, 0)
		switch {
		case errors.Is(err, io.EOF) && len(all) > 0:
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, &Document{root: root})
	}
}

// decode reads a value of JSON, in its order.
func (c *copier) decode(from *json.Decoder, depth int) (*yaml.Node, error) {
	if err := c.count(depth); err != nil {
		return nil, err
	}
	token, err := from.Token()
	if err != nil {
		return nil, err
	}

	switch value := token.(type) {
	case json.Delim:
		to := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		if value == '[' {
			to.Kind, to.Tag = yaml.SequenceNode, "!!seq"
		}
		return to, c.decodeContent(to, from, depth)
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: value.String()}, nil
	default: // a text that YAML would take for something else is quoted
		to := &yaml.Node{}
		return to, to.Encode(value)
	}
}

// decodeContent reads the content of a list or map, and its end.
func (c *copier) decodeContent(to *yaml.Node, from *json.Decoder, depth int) error {
	keys := map[string]bool{}

	for from.More() {
		child, err := c.decode(from, depth+1)
		if err != nil {
			return noEOF(err)
		}
		if to.Kind == yaml.MappingNode && len(to.Content)%2 == 0 {
			if keys[child.Value] {
				return fmt.Errorf("the key %.100q is there twice", child.Value)
			}
			keys[child.Value] = true
		}
		to.Content = append(to.Content, child)
	}

	_, err := from.Token()
	return noEOF(err)
}

// noEOF is that a text ends too early, which is no end of documents.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// newNode returns the node of a value for encoding/json.
func newNode(value any) (*yaml.Node, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return (&copier{}).decode(decoder, 0)
}

// toJSON returns what a node means to kubectl.
func toJSON(node *yaml.Node) ([]byte, error) {
	text, err := yaml.Marshal(restyled(node, yaml.FlowStyle))
	if err != nil {
		return nil, err
	}
	return sigsyaml.YAMLToJSON(text)
}

// restyled returns a copy without what the library does not always write so that it can be read again: comments, and
// texts of several lines but in quotes. Lists and maps have a style.
func restyled(node *yaml.Node, style yaml.Style) *yaml.Node {
	to := *node
	to.HeadComment, to.LineComment, to.FootComment = "", "", ""
	if node.Kind == yaml.ScalarNode {
		if node.Style&^yaml.TaggedStyle != 0 || strings.Contains(node.Value, "\n") {
			to.Style = node.Style&yaml.TaggedStyle | yaml.DoubleQuotedStyle
		}
		if node.Value == "" && node.ShortTag() == "!!null" {
			to.Value = "null" // nothing at all would be an empty text in a flow map
		}
		return &to
	}

	to.Style = node.Style&yaml.TaggedStyle | style
	to.Content = slices.Clone(node.Content)
	for i, child := range to.Content {
		to.Content[i] = restyled(child, style)
	}
	return &to
}

// lookup returns the value of a key in a map, and where it stands; nil if there is none.
func lookup(in *yaml.Node, key string) (value *yaml.Node, at int) {
	if in.Kind != yaml.MappingNode {
		return nil, -1
	}
	for i := 0; i+1 < len(in.Content); i += 2 {
		if in.Content[i].Value == key {
			return in.Content[i+1], i
		}
	}
	return nil, -1
}
