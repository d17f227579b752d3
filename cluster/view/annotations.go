package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Annotations by which users ask something of us have this prefix, and those that we write for ourselves.
const prefix = "federation.fingerpost.io/"

const (
	// MembersKey is an annotation with the members of a federated Service: service@cluster, or service for one
	// of its own cluster, separated by commas. Linkerd does not know it, and so its destination controller
	// serves the slices of the Service.
	MembersKey = prefix + "members"

	// OptIn is the annotation by which a Service asks for slices with endpoints of other clusters, and a Link
	// for slices in the cluster that it links.
	OptIn = prefix + "endpoint-slices"
	// Enabled is a value of OptIn.
	Enabled = "enabled"
	// Disabled is the other value of OptIn, and the default.
	Disabled = "disabled"
)

// Annotations under our prefix that an object of a kind may have: those of users, and those that we write.
var (
	ServiceKeys = []string{OptIn, MembersKey, prefix + "links", prefix + "applied"}
	LinkKeys    = []string{OptIn}
)

// OptsIn returns whether annotations ask for slices. It is unclear if the value is none of those that there are:
// then what was in force stays.
func OptsIn(annotations map[string]string) (optIn, unclear bool) {
	switch value, found := annotations[OptIn]; {
	case !found, value == Disabled:
		return false, false
	default:
		return value == Enabled, value != Enabled
	}
}

// Misread describes the annotations under our prefix that are not understood; it is empty if there are none.
// known are the keys that the object may have.
func Misread(annotations map[string]string, known []string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if name, is := strings.CutPrefix(key, prefix); is && !slices.Contains(known, key) {
			all = append(all, fmt.Sprintf("the annotation %s is not known: did you mean %s?",
				prefix+strings.Trim(quote(name), `"`), strings.Join(forUsers(known), " or ")))
		}
	}
	if _, unclear := OptsIn(annotations); unclear {
		all = append(all, fmt.Sprintf("the annotation %s has the value %s, so that what was in force stays: "+
			"set %s or %s", OptIn, quote(annotations[OptIn]), Enabled, Disabled))
	}
	if len(all) > maxOmissions {
		all = append(all[:maxOmissions], fmt.Sprintf("and %d more", len(all)-maxOmissions))
	}
	return strings.Join(all, "; ")
}

// forUsers returns those of the keys that users set.
func forUsers(known []string) []string {
	return slices.DeleteFunc(slices.Clone(known), func(key string) bool { return key != OptIn && key != MembersKey })
}
