package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"sigs.k8s.io/yaml"
)

// mergeKey is a key that YAML 1.1 takes for more than its text unless it is quoted.
const mergeKey = "<<"

// marshalYAML returns a page as YAML that does nothing to a terminal, and is the same to a machine. The library writes
// characters that change the direction of text as they are, and fails for control characters beyond ASCII; names and
// messages of other clusters may have both. So a text with any of them is replaced by a mark that occurs nowhere else,
// and the mark in the YAML by the text in double quotes, with the escapes of Go, which YAML shares.
func marshalYAML(page any) ([]byte, error) {
	document, err := json.Marshal(page)
	if err != nil {
		return nil, err
	}
	mark := "unprintable"
	for bytes.Contains(document, []byte(mark)) {
		mark += "-"
	}
	markOf := func(i int) string { return fmt.Sprintf("%s%d.", mark, i) }

	var texts []string
	document = jsonString.ReplaceAllFunc(document, func(literal []byte) []byte {
		var text string
		if json.Unmarshal(literal, &text) != nil || !strings.ContainsFunc(text, isUnprintable) && text != mergeKey {
			return literal
		}
		texts = append(texts, text)
		return []byte(strconv.Quote(markOf(len(texts) - 1)))
	})

	written, err := yaml.JSONToYAML(document)
	if err != nil {
		return nil, err
	}

	for i, text := range texts {
		written = bytes.ReplaceAll(written, []byte(markOf(i)), []byte(strconv.Quote(text)))
	}
	return written, nil
}

var jsonString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

func isUnprintable(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }
