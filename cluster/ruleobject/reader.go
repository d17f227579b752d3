package ruleobject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	kubejson "sigs.k8s.io/json"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// Bounds on objects. Where the schema of a kind has one, these are above it.
const (
	maxLabel = validation.DNS1123LabelMaxLength     // bytes of namespaces, names of ports, values of labels
	maxName  = validation.DNS1123SubdomainMaxLength // of other names
	maxText  = 4096                                 // of values of headers, paths and regular expressions

	maxLabels       = 100    // of an object
	maxRequirements = 100    // of a selector
	maxValues       = 1000   // in all of them
	maxIdentity     = 2048   // bytes: a SPIFFE ID
	maxIdentities   = 1000   // of an object
	maxNetworks     = 1000   // of an object
	maxExceptions   = 10_000 // of all its networks
	maxOverrides    = 100    // of a rate limit

	maxParents    = 64 // of a route, as the next two
	maxHostnames  = 64
	maxRules      = 128
	maxMatches    = 128 // of a rule, as the next two
	maxFilters    = 32
	maxBackends   = 64
	maxHeaders    = 64  // of a match or a filter
	maxHeaderName = 256 // bytes, as of names of parameters
	maxMethod     = 64  // bytes
)

var errNull = errors.New("it is null")

// A reader reads one object, and collects what of it has not the effect that its author may expect.
type reader struct {
	kind   rules.Kind
	object metav1.ObjectMeta // read: its name, namespace, age, generation, labels and annotations
	spec   json.RawMessage

	findings []rules.Finding
	more     int // that are not in findings
	rule     int // which one is read; 0: none

	hasServer bool // whether a Server is among the parents of a route

	referents []rules.Reference // of an AuthorizationPolicy or a rate limit: three at most

	denied string // the first reason for which a new object is denied; empty if there is none

	misread string // the first part whose type is wrong, or that lacks what it has to have

	regexBytes int // of all regular expressions
}

// stored reads an object that an API server has sent. Its name is checked here.
func stored[V any](kind rules.Kind, from *unstructured.Unstructured, read func(*reader) (*V, error)) (*V, error) {
	name, namespace := from.GetName(), from.GetNamespace()
	if !isPlain(name, maxName) || !isPlain(namespace, maxLabel) {
		return nil, fmt.Errorf("no object has the name %.64q in namespace %.64q", name, namespace)
	}
	spec, err := json.Marshal(from.Object["spec"])
	if err != nil {
		return nil, bounded(err)
	}

	value, err := read(&reader{kind: kind, spec: spec, object: metav1.ObjectMeta{
		Name: name, Namespace: namespace,
		CreationTimestamp: from.GetCreationTimestamp(), Generation: from.GetGeneration(),
		Labels: from.GetLabels(), Annotations: from.GetAnnotations(),
	}})
	return value, bounded(err)
}

// bounded returns an error of one line with at most rules.MaxReason bytes. Nil stays nil.
func bounded(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(federation.PrintableWithin(err.Error(), rules.MaxReason))
}

// meta returns what every object has. It is called when all of the object is read.
func (r *reader) meta() rules.Meta {
	return rules.Meta{
		Reference:  rules.Reference{Kind: r.kind, Namespace: r.object.Namespace, Name: r.object.Name},
		Created:    r.object.CreationTimestamp.UTC().Truncate(time.Second),
		Generation: r.object.Generation,
		Findings:   r.findings, MoreFindings: r.more,
	}
}

// leaveOut records a part that does not convert, and returns the reason.
func (r *reader) leaveOut(part, format string, args ...any) (reason string) {
	return r.find(rules.Finding{Unconverted: true, Part: part, Reason: fmt.Sprintf(format, args...)})
}

// note records a part that is not used, or has no effect.
func (r *reader) note(part, format string, args ...any) (reason string) {
	return r.find(rules.Finding{Part: part, Reason: fmt.Sprintf(format, args...)})
}

// A denial is why a part does not convert, and why a new object is denied.
type denial struct{ error }

// A misreading is why a part cannot be read: its type is wrong, or it lacks what it has to have. The object then does
// not decode.
type misreading struct{ error }

// leaveOutFor records a part that does not convert for an error, which may be a denial or a misreading.
func (r *reader) leaveOutFor(part string, err error) (reason string) {
	reason = r.leaveOut(part, "%v", err)
	if _, is := errors.AsType[denial](err); is {
		r.deny(reason)
	}
	if _, is := errors.AsType[misreading](err); is && r.misread == "" {
		r.misread = part + ": " + reason
	}
	return reason
}

// deny has a new object denied for a reason, unless it is denied for another.
func (r *reader) deny(reason string) {
	if r.denied == "" {
		r.denied = reason
	}
}

func (r *reader) find(f rules.Finding) (reason string) {
	f.Rule, f.Reason = r.rule, federation.PrintableWithin(f.Reason, rules.MaxReason)
	switch {
	case slices.Contains(r.findings, f):
	case len(r.findings) == rules.MaxFindings:
		r.more++
	default:
		r.findings = append(r.findings, f)
	}
	return f.Reason
}

// decode reads JSON into a value. Names of fields are compared with case, and unknown fields are left out. An error is
// a misreading.
func decode(raw json.RawMessage, into any) error {
	if isNull(raw) {
		return misreading{errNull}
	}
	if err := kubejson.UnmarshalCaseSensitivePreserveInts(raw, into); err != nil {
		return misreading{err}
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// elements returns the first of a list, and whether there are more. An absent one has none. What follows the first is
// not decoded: each element takes ten times its bytes.
func elements(list json.RawMessage, limit int) (first []json.RawMessage, more bool, err error) {
	if isNull(list) {
		return nil, false, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(list))
	if start, err := decoder.Token(); err != nil || start != json.Delim('[') {
		return nil, false, misreading{errors.New("it is no list")}
	}

	for decoder.More() {
		if len(first) == limit {
			return first, true, nil
		}
		var element json.RawMessage
		if err := decoder.Decode(&element); err != nil {
			return nil, false, misreading{err}
		}
		first = append(first, element)
	}
	return first, false, nil
}

// elements returns the first of a list, and records the others.
func (r *reader) elements(part string, list json.RawMessage, limit int) ([]json.RawMessage, error) {
	first, more, err := elements(list, limit)
	if more {
		r.leaveOut(part, "those after the first %d are left out", limit)
	}
	return first, err
}

// firstOf returns the first elements of a list, and records the others.
func firstOf[T any](r *reader, part string, all []T, limit int) []T {
	if len(all) > limit {
		r.leaveOut(part, "there are %d: those after the first %d are left out", len(all), limit)
		return all[:limit]
	}
	return all
}

// isPlain reports whether a text may be a name. An empty one may not.
func isPlain(text string, limit int) bool {
	return text != "" && len(text) <= limit && federation.IsPlain(text)
}
