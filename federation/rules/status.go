package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// What is written into the status of objects. It follows from what answers follow from: whether a route counts for a
// parent is decided by Attach, and which EgressNetwork is accepted by AcceptsEgress. No status is an input.

// A WantedStatus is what an object's status should have by what is there now. It is immutable.
type WantedStatus struct {
	Generation int64 // of the object that it follows from

	// Of routes.
	Parents []ParentStatus // in the order of the object; none: it names no parent that it could have
	Partial string         // what of the route does not convert; empty: all does

	// Of rate limits and EgressNetworks.
	Target  Reference // of a rate limit: the Server that it names
	Verdict Verdict
}

// A Resolution is whether the backends of a route exist: the condition ResolvedRefs.
type Resolution struct {
	Reason  Reason
	Message string // empty: the Reason has it all
}

// Reasons of the condition ResolvedRefs (GEP-1364).
const (
	ResolvedRefs    Reason = "ResolvedRefs"
	InvalidKind     Reason = "InvalidKind"
	BackendNotFound Reason = "BackendNotFound"
)

// Reasons of the condition Accepted of rate limits and EgressNetworks, besides Accepted.
const (
	NoMatchingTarget Reason = "NoMatchingTarget"
	AlreadyExists    Reason = "RateLimitReasonAlreadyExists"
	NetworkOverlap   Reason = "EgressReasonNetworkOverlap"
)

// A ParentStatus is what the status of a route has of one of its parents.
type ParentStatus struct {
	Parent
	Verdict
	Backends *Resolution // nil: none, as of a Server
}

// StatusOf returns what the status of a route has of its parents, in the order of the object: of those that are a
// Server, a Service or an EgressNetwork. attached returns what Attach decides about all routes of an object, and find
// whether a Service exists, and why it leads nowhere if it does.
func StatusOf(
	route *Route, attached func(Reference) []Attachment, find func(Reference) (exists bool, nowhere string),
) (all []ParentStatus) {
	for _, parent := range route.Parents {
		found := attached(parent.Reference)
		i := slices.IndexFunc(found, func(a Attachment) bool { return a.Route == route && a.Parent == parent })
		if i < 0 {
			continue
		}

		status := ParentStatus{Parent: parent, Verdict: found[i].Verdict}
		if parent.Kind != KindServer {
			status.Backends = resolve(route, parent.Reference, find)
		}
		all = append(all, status)
	}
	return all
}

// resolve returns the first thing that is wrong with the backends of a route. Ports and filters do not count. That one
// leads nowhere is no fault of the route: the message names it.
func resolve(
	route *Route, parent Reference, find func(Reference) (exists bool, nowhere string),
) *Resolution {
	resolved := &Resolution{Reason: ResolvedRefs}

	for i := range route.Rules {
		for _, b := range route.Rules[i].Backends {
			switch {
			case b.Kind == KindEgressNetwork && b.Reference != parent:
				return &Resolution{InvalidKind, "EgressNetwork " + b.Name + " is not the parent of the route"}
			case b.Kind == KindEgressNetwork:
			case b.Kind != KindService:
				return &Resolution{Reason: InvalidKind}
			default:
				exists, nowhere := find(b.Reference)
				if !exists {
					return &Resolution{Reason: BackendNotFound}
				}
				resolved.Message = cmp.Or(resolved.Message, nowhere)
			}
		}
	}
	return resolved
}

// MaxPartial is how many bytes of what is wrong with a route its status has.
const MaxPartial = 1000

// Partial describes what of an object does not convert or is not sent, a line for each part; empty if all does. It has
// at most MaxPartial bytes: the last line then counts what is left out.
func (m *Meta) Partial() string {
	var lines []string
	size, more := 0, m.MoreFindings

	for _, finding := range m.Findings {
		if !finding.Unconverted {
			continue
		}

		line := finding.String()
		if size += len(line) + 1; size > MaxPartial-len("and 100000 more") {
			more++
			continue
		}
		lines = append(lines, line)
	}

	if more > 0 && len(lines) > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// StatusOfLimits returns the verdicts on rate limits by the Servers that exist: of several that name one Server the
// oldest is accepted. One whose target is no Server has none.
func StatusOfLimits(limits []*RateLimit, exists func(server Reference) bool) map[*RateLimit]Verdict {
	sorted := slices.SortedFunc(slices.Values(limits), func(a, b *RateLimit) int {
		return CompareAge(&a.Meta, &b.Meta)
	})

	all, taken := map[*RateLimit]Verdict{}, map[Reference]bool{}

	for _, limit := range sorted {
		server := Reference{KindServer, limit.Namespace, limit.Server}
		switch {
		case limit.Server == "":
		case !exists(server):
			all[limit] = Verdict{Reason: NoMatchingTarget}
		case taken[server]:
			all[limit] = Verdict{Reason: AlreadyExists}
		default:
			all[limit], taken[server] = Verdict{Reason: Accepted}, true
		}
	}
	return all
}

// StatusOfEgress returns the verdict on an EgressNetwork.
func (o *Options) StatusOfEgress(e *EgressNetwork) Verdict {
	if o.AcceptsEgress(e) {
		return Verdict{Reason: Accepted}
	}
	return Verdict{NetworkOverlap, "networks overlap with clusterNetworks"}
}
