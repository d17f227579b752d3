package rules

import (
	"fmt"
	"slices"
	"strings"
)

// Parts of objects that a Finding is about. They are labels of a metric, and few.
const (
	PartSpec          = "spec"
	PartParent        = "parentRef"
	PartHostname      = "hostname"
	PartRule          = "rule"
	PartMatch         = "match"
	PartFilter        = "filter"
	PartBackend       = "backendRef"
	PartBackendFilter = "backendRef filter"
	PartTimeouts      = "timeouts"
	PartAnnotation    = "annotation"
	PartNetwork       = "network"
	PartIdentity      = "identity"
	PartReference     = "reference"
	PartSelector      = "selector"
	PartAccess        = "accessPolicy"
)

// A Finding is a part of an object that has not the effect that its author may expect.
type Finding struct {
	// Unconverted is whether the part does not convert or is not sent: the status of routes then has it. What is not
	// used, or is sent and has no effect, is for people who ask, and for the warnings of the webhook.
	Unconverted bool

	Rule   int    // which rule of a route, the first is 1; 0: none
	Part   string // one of the constants above
	Reason string // a line of printable text, at most MaxReason bytes
}

// Bounds on Findings.
const (
	MaxReason   = 200 // bytes
	MaxFindings = 100 // of one object
)

// ObjectFindings are what is wrong with an object. They are immutable.
type ObjectFindings struct {
	Unreadable string // why nothing of it can be used; empty if it can. The rest is then empty
	Findings   []Finding
	More       int // that are not in Findings
}

// Unusable reports whether something of the object cannot be used.
func (f *ObjectFindings) Unusable() bool {
	return f.Unreadable != "" || slices.ContainsFunc(f.Findings, func(f Finding) bool { return f.Unconverted })
}

// Problem returns what cannot be used: the reason of all of it, or the parts that do not convert, a line each; empty if
// everything can. What has merely no effect is not in it.
func (f *ObjectFindings) Problem() string {
	if f.Unreadable != "" {
		return f.Unreadable
	}
	meta := Meta{Findings: f.Findings, MoreFindings: f.More}
	return meta.Partial()
}

// String returns the Finding as one line: rule 2: filter: URLRewrite is not supported.
func (f Finding) String() string {
	var line strings.Builder
	if f.Rule > 0 {
		fmt.Fprintf(&line, "rule %d: ", f.Rule)
	}
	line.WriteString(f.Part + ": " + f.Reason)
	return line.String()
}
