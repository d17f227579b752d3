package manifests

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/fingerpost/fingerpost/inject"
)

// unescapePointer makes a key of a part of a JSON pointer (RFC 6901).
var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

// apply changes an object as operations have it, and reports whether that changed anything. A list or map that becomes
// empty by a removal is removed as well, but for a spec, without which there would be no Pod.
func apply(object *yaml.Node, operations []inject.Operation) (changed bool, err error) {
	for i := range operations {
		operation := &operations[i]
		parts := strings.Split(operation.Path, "/")[1:]
		for i := range parts {
			parts[i] = unescapePointer.Replace(parts[i])
		}

		does := false
		if operation.Op == inject.OpRemove {
			does = remove(object, parts)
		} else {
			does, err = add(object, parts, operation.Value)
		}
		if err != nil {
			return changed, fmt.Errorf("%s: %w", operation.Path, err)
		}
		changed = changed || does
	}
	return changed, nil
}

// remove removes what a pointer is to, and what is empty then.
func remove(in *yaml.Node, pointer []string) (changed bool) {
	at, width := position(in, pointer[0])
	if at < 0 {
		return false
	}

	if len(pointer) > 1 {
		below := in.Content[at+width-1]
		changed = remove(below, pointer[1:])
		if !changed || len(below.Content) > 0 || pointer[0] == "spec" {
			return changed
		}
	}
	in.Content = slices.Delete(in.Content, at, at+width)
	return true
}

// position returns where a part of a pointer is among the nodes of a map or list, and how many nodes it takes there;
// a negative one if it is nowhere.
func position(in *yaml.Node, part string) (at, width int) {
	if in.Kind == yaml.MappingNode {
		_, at = lookup(in, part)
		return at, 2
	}
	index, err := strconv.Atoi(part)
	if in.Kind != yaml.SequenceNode || err != nil || index < 0 || index >= len(in.Content) {
		return -1, 1
	}
	return index, 1
}

// add adds a value. In a map it takes the place of another one, unless that is the same text.
func add(in *yaml.Node, pointer []string, value any) (changed bool, err error) {
	for ; len(pointer) > 1; pointer = pointer[1:] {
		at, width := position(in, pointer[0])
		if at < 0 {
			return false, fmt.Errorf("there is no %q", pointer[0])
		}
		in = in.Content[at+width-1]
	}

	made, err := newNode(value)
	switch last := pointer[0]; {
	case err != nil:
		return false, err
	case in.Kind == yaml.MappingNode:
		return set(in, last, made)
	case in.Kind == yaml.SequenceNode:
		return true, insert(in, last, made)
	default:
		return false, fmt.Errorf("%q is neither in a map nor in a list", last)
	}
}

// insert inserts an element into a list; - is its end.
func insert(in *yaml.Node, place string, made *yaml.Node) (err error) {
	index := len(in.Content)
	if place != "-" {
		index, err = strconv.Atoi(place)
	}
	if err != nil || index < 0 || index > len(in.Content) {
		return fmt.Errorf("%q is no place in a list", place)
	}
	in.Content = slices.Insert(in.Content, index, made)
	return nil
}

// set sets a key of a map.
func set(in *yaml.Node, key string, to *yaml.Node) (changed bool, err error) {
	was, at := lookup(in, key)
	if was == nil {
		name, err := newNode(key)
		in.Content = append(in.Content, name, to)
		return true, err
	}

	if was.Kind == yaml.ScalarNode && to.Kind == yaml.ScalarNode && was.Value == to.Value && isText(was) {
		return false, nil
	}
	to.HeadComment, to.LineComment, to.FootComment = was.HeadComment, was.LineComment, was.FootComment
	in.Content[at+1] = to
	return true, nil
}

// isText reports whether a scalar is a text to kubectl as well, whose booleans are more than those of the library.
func isText(scalar *yaml.Node) bool {
	var same yaml.Node
	return scalar.ShortTag() == "!!str" && same.Encode(scalar.Value) == nil &&
		(scalar.Style != 0 || same.Style == 0)
}
