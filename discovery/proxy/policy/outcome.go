package policy

import "fmt"

// An OutcomeKind is what becomes of a request.
type OutcomeKind string

// The kinds of outcome.
const (
	Balanced   OutcomeKind = "balancer"
	Forwarded  OutcomeKind = "forward"
	Fails      OutcomeKind = "fail" // with a status of HTTP or a code of gRPC
	Redirected OutcomeKind = "redirect"
	Closed     OutcomeKind = "close" // the connection
)

// An Outcome is one thing that may become of the requests of an outbound rule.
type Outcome struct {
	Kind    OutcomeKind
	Weight  uint32 // of the backend; 1 if it is that of the rule
	To      string // the authority of a balancer, or an address
	Status  uint32 // of a failure or a redirect; 0 if the proxy chooses it
	Message string // of a failure, or the reason
}

// String returns the weight and all that is known, such as "1 balancer web.shop.svc.cluster.local:80".
func (o Outcome) String() string {
	text := fmt.Sprintf("%d %s", o.Weight, o.Kind)
	if o.To != "" {
		text += " " + o.To
	}
	if o.Status != 0 {
		text += fmt.Sprintf(" %d", o.Status)
	}
	if o.Message != "" {
		text += ": " + o.Message
	}
	return text
}

// Outcomes returns what may become of the requests of an outbound rule: what its filters do, then its backends in
// order. A filter that stops every request has the last outcome of its rule, or of its backend.
func (r *Rule) Outcomes() []Outcome {
	all, ended := outcomesOf(r.Filters, 1)
	switch {
	case ended:
		return all
	case len(r.Backends) == 0:
		return append(all, Outcome{Kind: Fails, Weight: 1, Message: "no backend"})
	}

	for _, backend := range r.Backends {
		own, ended := outcomesOf(backend.Filters, backend.Weight)
		all = append(all, own...)
		if !ended {
			all = append(all, backend.outcome())
		}
	}
	return all
}

// outcome is that of a request which no filter stops.
func (b *Backend) outcome() Outcome {
	switch {
	case b.Authority != "":
		return Outcome{Kind: Balanced, Weight: b.Weight, To: b.Authority}
	case b.Address.IsValid():
		return Outcome{Kind: Forwarded, Weight: b.Weight, To: b.Address.String()}
	default:
		return Outcome{Kind: Fails, Weight: b.Weight, Message: "no dispatcher"}
	}
}

// outcomesOf returns what filters do to requests, and whether none gets beyond them.
func outcomesOf(filters []Filter, weight uint32) (all []Outcome, ended bool) {
	for _, filter := range filters {
		one := Outcome{Weight: weight, Status: filter.Status, Message: filter.Message}
		switch filter.Kind {
		case FailureInjector:
			one.Kind = Fails
			ended = filter.Share == 1
			if filter.Share == 0 {
				continue
			}
		case Redirect:
			one.Kind, ended = Redirected, true
		case InvalidBackend:
			one.Kind, ended = Closed, true
		case Forbidden:
			one.Kind, one.Message, ended = Closed, "forbidden", true
		default: // headers alone
			continue
		}

		all = append(all, one)
		if ended {
			return all, true
		}
	}
	return all, false
}
