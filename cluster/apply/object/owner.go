package object

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// An Owner is a field manager, and how objects show what it has applied to them.
type Owner struct {
	Manager    string
	Annotation string   // its value is the hash of what was applied last
	Unsigned   []string // annotations that alone are no reason to write
	Mark       string   // a label: who has updated it has written the object as we do, and is taken over
}

// fieldSet is fields as an entry of metadata.managedFields lists them.
type fieldSet map[string]fieldSet

func (s fieldSet) contains(path ...string) bool {
	for _, field := range path {
		next, found := s[field]
		if !found {
			return false
		}
		s = next
	}
	return true
}

// Entries returns what the other methods read of the entries of managedFields: our own, and that others have updated
// the object as we do. size is that of the text that it follows from, in bytes, but for others' entries that were read.
func (o *Owner) Entries(of metav1.Object) (kept []metav1.ManagedFieldsEntry, size int) {
	isMarked := false
	for _, entry := range of.GetManagedFields() {
		updates := entry.Operation == metav1.ManagedFieldsOperationUpdate
		switch {
		case entry.Subresource != "":
		case entry.Manager == o.Manager:
			kept = append(kept, metav1.ManagedFieldsEntry{
				Manager: entry.Manager, Operation: entry.Operation, FieldsV1: entry.FieldsV1,
			})
			size += lengthOf(entry)
		case !updates || isMarked || !o.marks(entry):
		default:
			isMarked = true
			field := metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:` + o.Mark + `":{}}}}`)
			kept = append(kept, metav1.ManagedFieldsEntry{
				Manager: entry.Manager, Operation: entry.Operation, FieldsV1: field,
			})
		}
	}

	return kept, size
}

// Updated returns the entry of managedFields for an object whose own is too large to be kept: what it has is taken
// over, and applied anew.
func (o *Owner) Updated() metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: o.Manager, Operation: metav1.ManagedFieldsOperationUpdate}
}

func lengthOf(e metav1.ManagedFieldsEntry) int {
	if e.FieldsV1 == nil {
		return 0
	}
	return len(e.FieldsV1.GetRawBytes())
}

// marks reports whether a manager has set the Mark. It decodes the labels only, and none of them: all fields may take
// many times what their text does.
func (o *Owner) marks(e metav1.ManagedFieldsEntry) bool {
	var fields struct {
		Metadata struct {
			Labels json.RawMessage `json:"f:labels"`
		} `json:"f:metadata"`
	}
	return e.FieldsV1 != nil && json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) == nil &&
		bytes.Contains(fields.Metadata.Labels, []byte(`"f:`+o.Mark+`"`))
}

// fieldsOf returns the fields of an entry; none if it is malformed.
func fieldsOf(e metav1.ManagedFieldsEntry) fieldSet {
	var s fieldSet
	if e.FieldsV1 == nil || json.Unmarshal(e.FieldsV1.GetRawBytes(), &s) != nil {
		return nil
	}
	return s
}

func (o *Owner) updaters(of metav1.Object) sets.Set[string] {
	all := sets.Set[string]{}
	for _, e := range of.GetManagedFields() {
		updates := e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == ""
		if updates && (e.Manager == o.Manager || o.marks(e)) {
			all.Insert(e.Manager)
		}
	}
	return all
}

// HasUpdaters reports whether an object has fields that we, or others as we do, wrote otherwise than by apply: Apply
// takes them over.
func (o *Owner) HasUpdaters(of metav1.Object) bool { return len(o.updaters(of)) > 0 }

// IsApplied reports whether an object is as it was applied with a hash, and all of these fields are still ours, beside
// those of [MarkFields].
func (o *Owner) IsApplied(is metav1.Object, hash string, fields [][]string) bool {
	if is.GetAnnotations()[o.Annotation] != hash {
		return false
	}
	var owned []fieldSet
	for _, e := range is.GetManagedFields() {
		if e.Manager == o.Manager && e.Subresource == "" {
			owned = append(owned, fieldsOf(e))
		}
	}
	return !slices.ContainsFunc(fields, func(path []string) bool {
		return !slices.ContainsFunc(owned, func(s fieldSet) bool { return s.contains(path...) })
	})
}

// Sign annotates an object with the hash of its labels, its annotations and these parts, which have to be plain values,
// and returns it.
func (o *Owner) Sign(object metav1.Object, parts ...any) string {
	signed := map[string]string{}
	maps.Copy(signed, object.GetAnnotations())
	delete(signed, o.Annotation)
	all := maps.Clone(signed)
	for _, key := range o.Unsigned {
		delete(signed, key)
	}

	text, err := json.Marshal(append(parts, object.GetLabels(), signed))
	if err != nil {
		panic(err) // it is made of strings and numbers
	}

	h := fnv.New64a()
	_, _ = h.Write(text) // it cannot fail
	all[o.Annotation] = fmt.Sprintf("%016x", h.Sum64())
	object.SetAnnotations(all)
	return all[o.Annotation]
}

// MarkFields returns the labels and annotations of an object as fields, as paths of an entry of managedFields.
func MarkFields(o metav1.Object) (all [][]string) {
	for k := range o.GetLabels() {
		all = append(all, []string{"f:metadata", "f:labels", "f:" + k})
	}
	for k := range o.GetAnnotations() {
		all = append(all, []string{"f:metadata", "f:annotations", "f:" + k})
	}
	return all
}
