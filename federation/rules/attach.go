package rules

// Which routes count for a Server, a Service or an EgressNetwork? The API has controllers write that into the status of
// routes. Answers here do not read a status back: it may be about another form of the route or of its parent, and be
// that of another controller. One function decides, and both the answers and the status that is written follow from
// it, so that they cannot differ.
//
// Routes of different kinds that name the very same parent, which is an object and a port of it or none, exclude each
// other: gRPC before HTTP, before TLS, before TCP. For example
//
//	GRPCRoute a -> Service web:80     attached
//	HTTPRoute b -> Service web:80     not attached: Conflicted
//	HTTPRoute c -> Service web        attached to all ports; at 80 the GRPCRoute is used nevertheless

// A Reason is why a route counts for a parent, or why it does not: that of the condition Accepted.
type Reason string

// Reasons of the condition Accepted, as the Gateway API (GEP-1364) and Linkerd have them.
const (
	Accepted         Reason = "Accepted"
	NoMatchingParent Reason = "NoMatchingParent"
	Conflicted       Reason = "RouteReasonConflicted"
)

// A Verdict is whether a route counts for a parent.
type Verdict struct {
	Reason  Reason
	Message string // empty: the Reason has it all
}

// Accepted reports whether the route counts.
func (v Verdict) Accepted() bool { return v.Reason == Accepted }

// A ParentObject is what routes name as their parent, and what there is of it.
type ParentObject struct {
	Reference
	Exists     bool
	HasIP      bool // of a Service: it has a cluster IP
	IsAccepted bool // of an EgressNetwork
}

// An Attachment is what is decided about one of a route's parents.
type Attachment struct {
	Route *Route
	Parent
	Verdict
}

// Attach decides about all parents of the routes that are a certain object: one Attachment for each, in the order of
// the routes. These are all that name it.
func Attach(object ParentObject, routes []*Route) (all []Attachment) {
	highest := map[uint16]int{} // of ranks, by port
	for _, route := range routes {
		for _, parent := range route.Parents {
			if parent.Reference == object.Reference {
				highest[parent.Port] = max(highest[parent.Port], rank(route.Kind))
				all = append(all, Attachment{Route: route, Parent: parent})
			}
		}
	}

	for i := range all {
		a := &all[i]
		a.Verdict = object.decide(a.Route)
		if a.Accepted() && rank(a.Route.Kind) < highest[a.Port] {
			a.Verdict = Verdict{Reason: Conflicted}
		}
	}
	return all
}

// rank orders the kinds of routes that exclude each other.
func rank(kind Kind) int {
	switch kind {
	case KindGRPCRoute:
		return 4
	case KindPolicyHTTPRoute, KindHTTPRoute:
		return 3
	case KindTLSRoute:
		return 2
	default:
		return 1
	}
}

// decide decides about a route without regard to others.
func (o ParentObject) decide(route *Route) Verdict {
	no := func(message string) Verdict { return Verdict{NoMatchingParent, message} }
	switch {
	case o.Kind == KindServer && o.Namespace != route.Namespace:
		return no("a Server must be in the namespace of the route")
	case !o.Exists:
		return no("")
	case o.Kind == KindService && !o.HasIP:
		return no("parent service must have a ClusterIP")
	case o.Kind == KindEgressNetwork && !o.IsAccepted:
		return no("EgressNetwork parent has not been accepted")
	}
	return Verdict{Reason: Accepted}
}

// counts reports whether a route is in answers about a Server. The status does not depend on it: it has the route as
// accepted, and a Finding has that a port or a section of a Server is none that there is.
func (a *Attachment) counts() bool {
	return a.Accepted() && (a.Kind != KindServer || a.Port == 0 && !a.Section)
}
