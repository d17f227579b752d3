package ruleobject

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// A backendSpec is a backendRef of any kind of route.
type backendSpec struct {
	routeReference `json:",inline"`
	Weight         *int64          `json:"weight"`
	Filters        json.RawMessage `json:"filters"`
}

// backends reads those of a rule. One that does not convert fails its part of the traffic, and a list that cannot be
// read all of it: without it the traffic would go to the parent.
func (r *reader) backends(raw json.RawMessage) (backends []rules.Backend) {
	all, err := r.elements(rules.PartBackend, raw, maxBackends)
	if err != nil {
		return []rules.Backend{{Weight: 1, Invalid: r.leaveOutFor(rules.PartBackend, err)}}
	}
	for _, raw := range all {
		backends = append(backends, r.backend(raw))
	}
	return backends
}

func (r *reader) backend(raw json.RawMessage) rules.Backend {
	var from backendSpec
	if err := decode(raw, &from); err != nil {
		return rules.Backend{Weight: 1, Invalid: r.leaveOutFor(rules.PartBackend, err)}
	}
	to := rules.Backend{Weight: r.weight(from.Weight)}

	group, kind := cmp.Or(or(from.Group, ""), "core"), or(from.Kind, serviceKind)
	leadsTo, err := r.referent(reference{group, kind, from.Namespace, from.Name})
	if err != nil {
		to.Invalid = r.leaveOutFor(rules.PartBackend, err)
		return to
	}
	if leadsTo.Kind != rules.KindService && leadsTo.Kind != rules.KindEgressNetwork {
		to.Invalid = r.note(rules.PartBackend, "unsupported backend type %.64s %.64s", group, kind)
		return to
	}

	to.Reference = leadsTo
	to.Port, to.Invalid = r.backendPort(from, to.Kind)
	filters, converted := r.backendFilters(from.Filters)
	if !converted && to.Invalid == "" {
		to.Invalid = "unsupported backend filter"
	}
	if to.Invalid == "" {
		to.Filters = filters
	}
	return to
}

// weight returns the weight of a backend, within the bounds of the Gateway API.
func (r *reader) weight(given *int64) uint32 {
	if given == nil {
		return 1
	}
	within := min(max(*given, 0), rules.MaxWeight)
	if within != *given {
		r.leaveOut(rules.PartBackend, "weight %d counts as %d", *given, within)
	}
	return uint32(within)
}

// backendPort returns the port of a backend, or why it cannot be one. New HTTPRoutes and GRPCRoutes of the Gateway API
// are denied for a Service without, if they name the kind as that API does.
func (r *reader) backendPort(from backendSpec, kind rules.Kind) (port uint16, invalid string) {
	port, err := from.port()
	switch {
	case err != nil:
		err = fmt.Errorf("backend %v %s: %w", kind, from.Name, err)
		invalid = r.leaveOutFor(rules.PartBackend, err)
	case kind == rules.KindService && port == 0:
		invalid = r.note(rules.PartBackend, "missing port for backend Service %s", from.Name)
	}

	isService := kind == rules.KindService && or(from.Kind, serviceKind) == serviceKind
	isChecked := r.kind == rules.KindHTTPRoute || r.kind == rules.KindGRPCRoute
	if invalid != "" && isService && isChecked {
		r.deny(invalid)
	}
	return port, invalid
}

// backendFilters reads the filters of a backend. It returns false if one does not convert.
func (r *reader) backendFilters(raw json.RawMessage) (filters []rules.Filter, converted bool) {
	if !r.kind.IsHTTP() && r.kind != rules.KindGRPCRoute {
		return nil, true
	}
	all, more, err := elements(raw, maxFilters)
	if more {
		err = errFilters
	}
	if err != nil {
		r.leaveOutFor(rules.PartBackendFilter, err)
		return nil, false
	}

	converted = true
	for _, raw := range all {
		filter, err := r.filter(raw)
		if err == nil && filter.ResponseHeaders != nil && r.kind == rules.KindGRPCRoute {
			err = errResponseHeaders
		}

		if err != nil {
			r.leaveOutFor(rules.PartBackendFilter, err)
			converted = false
		}
		filters = append(filters, filter)
	}

	return filters, converted
}

// serviceKind is the kind of a backendRef that names none.
const serviceKind = "Service"
