package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// Bounds of what is read. API servers take objects of a few MiB, and of depths far below a hundred.
const (
	maxDocument  = 8 << 20 // bytes
	maxDocuments = 10_000  // of a Reader
	maxNodes     = 500_000 // of a document: keys, values, lists and maps
	maxDepth     = 200     // of lists and maps
)

var separator = []byte("---")

// A Reader reads documents one after the other. In YAML a line that begins with --- is between two, in JSON nothing. It
// is for one goroutine.
type Reader struct {
	lines  *bufio.Reader
	begin  []byte // of the next document, read already
	end    error  // why nothing can be read after begin
	queue  []*Document
	number int
}

// NewReader returns a Reader of a text.
func NewReader(from io.Reader) *Reader { return &Reader{lines: bufio.NewReader(from)} }

// A DocumentError is that one document cannot be read. The next one may be.
type DocumentError struct {
	Number int // of the document, from 1
	Err    error
}

// Error returns which document it is, and what is wrong with it.
func (e *DocumentError) Error() string { return fmt.Sprintf("document %d: %s", e.Number, e.Err) }

// Unwrap returns what is wrong.
func (e *DocumentError) Unwrap() error { return e.Err }

// Read returns the next document. An error is a [DocumentError] if others may follow, io.EOF after the last document,
// and else why nothing more can be read.
func (r *Reader) Read() (*Document, error) {
	for len(r.queue) == 0 {
		text, err := r.text()
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}

		documents, err := parse(text)
		if err != nil {
			r.number++
			return nil, &DocumentError{r.number, err}
		}
		r.queue = documents
	}

	next := r.queue[0]
	r.queue = r.queue[1:]
	r.number++
	if r.number > maxDocuments {
		return nil, fmt.Errorf("there are more than %d documents", maxDocuments)
	}
	next.Number = r.number
	return next, nil
}

// text returns what is between two separators. One with more than that in its line is the beginning of the text.
func (r *Reader) text() ([]byte, error) {
	text := r.begin
	r.begin = nil

	for r.end == nil {
		start := len(text)
		if text, r.end = r.appendLine(text); r.end != nil && !errors.Is(r.end, io.EOF) {
			return nil, r.end
		}
		line := text[start:]
		if !isSeparator(line) {
			continue
		}

		if !bytes.Equal(bytes.TrimSpace(line), separator) {
			r.begin = bytes.Clone(line)
		}
		return text[:start], nil
	}

	if len(text) == 0 {
		return nil, r.end
	}
	return text, nil
}

// appendLine appends a line as it is.
func (r *Reader) appendLine(text []byte) ([]byte, error) {
	for {
		part, err := r.lines.ReadSlice('\n')
		text = append(text, part...)
		if len(text) > maxDocument {
			return nil, fmt.Errorf("document %d is longer than %d MiB", r.number+1, maxDocument>>20)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, err
		}
	}
}

func isSeparator(line []byte) bool {
	rest, is := bytes.CutPrefix(line, separator)
	return is && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n"))
}

// parse reads a text between two separators: one document of YAML, or any number of JSON.
func parse(text []byte) ([]*Document, error) {
	var failed error
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		documents, err := parseJSON(text)
		if err == nil {
			return documents, nil
		}
		failed = err // it may be YAML whose first value is a map in braces
	}

	document, err := parseYAML(text)
	switch {
	case err != nil && failed != nil:
		return nil, failed
	case err != nil:
		return nil, err
	}
	return []*Document{document}, nil
}

// parseYAML reads one document.
func parseYAML(text []byte) (*Document, error) {
	var read, more yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	switch err := decoder.Decode(&read); {
	case errors.Is(err, io.EOF): // comments, and nothing else
		return &Document{text: text}, nil
	case err != nil:
		return nil, err
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after its end")
	}

	document := &Document{text: text, layout: layoutOf(&read)}
	root, err := (&copier{}).copy(&read, 0)
	if err != nil {
		return nil, err
	}
	document.root = root
	return document, nil
}
