package status

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
)

// # What a schema does not declare
//
// A kind has the schema that an admin has installed: of another program, an older one of ours, or one of a fork.
// Linkerd's schema of Links knows no conditions of the Link itself. A field that it lacks makes an API server reject an
// apply as a whole, and is dropped from a merge patch. Such a field alone is left out of what is written, and
// reported by its name; all others are written.
//
// Which fields those are the API server reports itself, so that it is the schema in use that counts, and no further
// right is needed: a rejection names each of them, and what comes back from a write lacks them. For example
//
//	.status.mirrorServices[3].conditions[0].localRef: field not declared in schema
//
// makes mirrorServices.conditions.localRef one. A rejected apply is sent again at once without them. They are known
// of a version of the kind, not of each object, and are forgotten after unsupportedRetry: the next write has all fields
// again.

// maxUndeclared bounds the fields of one version. Of Links we write some 30 in all.
const maxUndeclared = 50

// An undeclared is what the schema lacks in the version in which they are read.
type undeclared struct {
	version string
	fields  []string // of the status, as conditions or mirrorServices.conditions.localRef; sorted
	logged  sets.Set[string]
	found   time.Time
}

// in returns the fields that a version lacks, as was found last.
func (u *undeclared) in(version string) []string {
	if u.version != version {
		return nil
	}
	return u.fields
}

// leftOut returns the fields that are not written in a version.
func (u *undeclared) leftOut(version string) []string {
	if time.Since(u.found) >= unsupportedRetry {
		return nil
	}
	return u.in(version)
}

// add adds fields that a version lacks, and returns those that were not logged yet.
func (u *undeclared) add(version string, fields []string) (added []string) {
	known := u.leftOut(version)
	if len(known) == 0 {
		u.found = time.Now()
	}
	if u.version != version {
		u.version, u.logged = version, sets.New[string]()
	}
	all := sets.List(sets.New(known...).Insert(fields...))
	u.fields = all[:min(len(all), maxUndeclared)]
	added = sets.List(sets.New(u.fields...).Difference(u.logged))
	u.logged.Insert(added...)
	return added
}

// remove takes note that the schema of a version has fields.
func (u *undeclared) remove(version string, fields sets.Set[string]) {
	if u.version == version && fields.HasAny(u.fields...) {
		u.fields = sets.List(sets.New(u.fields...).Difference(fields))
		u.logged = u.logged.Difference(fields)
	}
}

// undeclaredField is what an API server calls a field that an apply has and the schema does not.
var undeclaredField = regexp.MustCompile(
	`\.status((?:\.[^\s.:\[\]]+|\[(?:"(?:\\.|[^"\\])*"|[^\]"])*\])*): field not declared in schema`,
)

// elementOfList is the part of a path that names which element of a list is meant.
var elementOfList = regexp.MustCompile(`\[(?:"(?:\\.|[^"\\])*"|[^\]"])*\]`)

// rejectedFields returns the fields that an API server rejects because the schema does not have them; "" for the status
// as a whole. The error has no reason of its own.
func rejectedFields(err error) (fields []string) {
	if err == nil {
		return nil
	}
	for _, match := range undeclaredField.FindAllStringSubmatch(err.Error(), -1) {
		field := strings.TrimPrefix(elementOfList.ReplaceAllString(match[1], ""), ".")
		if !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	return fields
}

// errNoStatus is that the schema has no status.
var errNoStatus = errors.New("the schema has no status")

// dropFields deletes fields from a status.
func dropFields(status map[string]any, fields []string) {
	for _, field := range fields {
		dropField(status, strings.Split(field, "."))
	}
}

// dropField deletes the field at a path from an object, or from all objects in a list.
func dropField(within any, path []string) {
	switch within := within.(type) {
	case []any:
		for _, element := range within {
			dropField(element, path)
		}
	case map[string]any:
		if len(path) == 1 {
			delete(within, path[0])
		} else {
			dropField(within[path[0]], path[1:])
		}
	}
}

// fieldsIn returns the fields of a status.
func fieldsIn(status map[string]any) sets.Set[string] {
	all := sets.New[string]()
	forEachField(status, "", func(field string) bool {
		all.Insert(field)
		return true
	})
	return all
}

// droppedFields returns the fields that one status has and another one has nowhere: an API server drops them. Of a
// field that is dropped the fields within are not named.
func droppedFields(sent, stored map[string]any) []string {
	kept, dropped := fieldsIn(stored), sets.New[string]()
	forEachField(sent, "", func(field string) bool {
		if !kept.Has(field) {
			dropped.Insert(field)
		}
		return kept.Has(field)
	})
	return sets.List(dropped)
}

// forEachField calls a function with each field of an object or a list of objects, and goes on within it if that
// returns true. Fields without content are none: API servers drop them.
func forEachField(within any, prefix string, do func(field string) bool) {
	switch within := within.(type) {
	case []any:
		for _, element := range within {
			forEachField(element, prefix, do)
		}
	case map[string]any:
		for name, value := range within {
			list, isList := value.([]any)
			if value != nil && (!isList || len(list) > 0) && do(prefix+name) {
				forEachField(value, prefix+name+".", do)
			}
		}
	}
}
