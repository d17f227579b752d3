package checkpoint

import (
	"bytes"
	"cmp"

	"github.com/fxamacker/cbor/v2"

	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// The records of rules are the types of package rules as they are. What they mean opens ports, so that one of another
// version must not be read in part: whenever one of the types changes, its codec gets a new number. A version that does
// not know a number does not restore the Table, and calls wait until it is listed. TestShapes fails until then.

// sortedMode has one encoding for equal maps.
var sortedMode = func() cbor.EncMode {
	mode, err := cbor.EncOptions{Sort: cbor.SortBytewiseLexical}.EncMode()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return mode
}()

// beginning stands before the records of a Table that is complete: without it nothing of the Table is known, as it is
// of a replica that does not serve policy.
var beginning = cbor.RawMessage{0xf6} // null

// wholeCodecOf returns a codec as codecOf does, of a Table that is in a file as a whole, or not at all.
func wholeCodecOf[K, V comparable, R any](
	number byte, table string, order func(a, b K) int,
	encode func(*encoder, K, V) R, decode func(*decoder, *R) (K, V, error),
) codec {
	of := codecOf(number, table, order,
		func(e *encoder, k K, v V) cbor.RawMessage { return e.sorted(encode(e, k, v)) },
		func(d *decoder, content *cbor.RawMessage) (k K, v V, err error) {
			var r R
			if err := decMode.Unmarshal(*content, &r); err != nil {
				return k, v, err
			}
			return decode(d, &r)
		})
	encodeAll, decodeOne := of.encode, of.decode

	of.none = func() any { return nil }
	of.encode = func(e *encoder, from facts.Copy) {
		if from.IsComplete {
			e.write(map[byte]cbor.RawMessage{number: beginning})
			encodeAll(e, from)
		}
	}

	of.decode = func(d *decoder, content cbor.RawMessage) error {
		switch isBeginning := bytes.Equal(content, beginning); {
		case isBeginning:
			d.out.Facts[table] = facts.Copy{All: map[K]V{}, IsComplete: true}
			return nil
		case !d.out.Facts[table].IsComplete:
			return errInvalid
		}
		return decodeOne(d, content)
	}
	return of
}

func (e *encoder) sorted(value any) cbor.RawMessage {
	b, err := sortedMode.Marshal(value)
	e.err = cmp.Or(e.err, err)
	return b
}

func (d *decoder) addRuleWorkload(content cbor.RawMessage) error {
	of := &rules.Workload{}
	if err := decMode.Unmarshal(content, of); err != nil {
		return err
	}
	d.ruleWorkloads = append(d.ruleWorkloads, of)
	return nil
}

type ruleWorkload struct {
	_        struct{} `cbor:",toarray"`
	Name     rules.WorkloadRef
	Workload int // number of the RuleWorkload record, from 0
}

func (e *encoder) newRuleWorkload(name rules.WorkloadRef, of *rules.Workload) ruleWorkload {
	number, written := e.ruleWorkloads[of]
	if !written {
		number = len(e.ruleWorkloads)
		e.ruleWorkloads[of] = number
		e.write(record{RuleWorkload: e.sorted(of)})
	}
	return ruleWorkload{Name: name, Workload: number}
}

func (d *decoder) ruleWorkload(from *ruleWorkload) (rules.WorkloadRef, *rules.Workload, error) {
	if from.Workload < 0 || from.Workload >= len(d.ruleWorkloads) {
		return from.Name, nil, errInvalid
	}
	return from.Name, d.ruleWorkloads[from.Workload], nil
}

type serverRules struct {
	_         struct{} `cbor:",toarray"`
	Namespace string
	Servers   *rules.NamespaceServers
}

func newServerRules(_ *encoder, namespace string, of *rules.NamespaceServers) serverRules {
	return serverRules{Namespace: namespace, Servers: of}
}

func (d *decoder) serverRules(from *serverRules) (string, *rules.NamespaceServers, error) {
	if from.Servers == nil {
		return "", nil, errInvalid
	}
	for _, s := range from.Servers.All {
		isServer := s != nil && s.Server != nil
		if !isServer || !areRoutes(s.Routes, serverRoute) || !areRoutes(s.NotAttached, attachedRoute) {
			return "", nil, errInvalid
		}
	}
	return from.Namespace, from.Servers, nil
}

func serverRoute(r rules.ServerRoute) *rules.Route { return r.Route }

func attachedRoute(a rules.Attachment) *rules.Route { return a.Route }

// areRoutes reports whether each has its route.
func areRoutes[T any](all []T, route func(T) *rules.Route) bool {
	for _, one := range all {
		if route(one) == nil {
			return false
		}
	}
	return true
}

type target struct {
	_      struct{} `cbor:",toarray"`
	Name   rules.Reference
	Target *rules.Target
}

func newTarget(_ *encoder, name rules.Reference, of *rules.Target) target {
	return target{Name: name, Target: of}
}

func (d *decoder) target(from *target) (rules.Reference, *rules.Target, error) {
	if from.Target == nil || !areRoutes(from.Target.Attached, attachedRoute) {
		return from.Name, nil, errInvalid
	}
	return from.Name, from.Target, nil
}

type egress struct {
	_         struct{} `cbor:",toarray"`
	Namespace string
	Networks  *rules.NamespaceEgress
}

func newEgress(_ *encoder, namespace string, of *rules.NamespaceEgress) egress {
	return egress{Namespace: namespace, Networks: of}
}

func (d *decoder) egress(from *egress) (string, *rules.NamespaceEgress, error) {
	if from.Networks == nil {
		return "", nil, errInvalid
	}
	for _, e := range from.Networks.All {
		if e == nil {
			return "", nil, errInvalid
		}
	}
	return from.Namespace, from.Networks, nil
}
