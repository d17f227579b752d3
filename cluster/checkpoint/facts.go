package checkpoint

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"unique"

	"github.com/fxamacker/cbor/v2"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// A codec is how the facts of one Table stand in a file: a record for each, with the number of the codec. A number is
// never given to another one.
type codec struct {
	table  string
	prefix []byte // of its records: a map of one pair, and the number as the key

	none   func() any // a map of keys to values without any; nil: what is not in a file is not known
	encode func(e *encoder, of facts.Copy)
	decode func(d *decoder, content cbor.RawMessage) error
}

var codecs = []codec{
	codecOf(5, "nodes", cmp.Compare, newNode, (*decoder).node),
	codecOf(6, "addresses", netip.Addr.Compare, (*encoder).newAddress, (*decoder).address),
	codecOf(7, "profiles", compareServices, newProfile, (*decoder).profile),
	codecOf(9, "externals", compareServices, (*encoder).newExternal, (*decoder).external),
	codecOf(10, "servers", compareServices, newServer, (*decoder).server),

	wholeCodecOf(11, "workloads", rules.WorkloadRef.Compare, (*encoder).newRuleWorkload, (*decoder).ruleWorkload),
	wholeCodecOf(12, "server rules", cmp.Compare, newServerRules, (*decoder).serverRules),
	wholeCodecOf(13, "targets", rules.Reference.Compare, newTarget, (*decoder).target),
	wholeCodecOf(14, "egress", cmp.Compare, newEgress, (*decoder).egress),
	// 15 is in record.
}

// codecOf returns the codec of a Table with a number below 24. Facts are encoded in the order of their keys, as R,
// which may refer to workloads. What is decoded is checked as far as readers of facts depend on it.
func codecOf[K, V comparable, R any](
	number byte, table string, order func(a, b K) int,
	encode func(*encoder, K, V) R, decode func(*decoder, *R) (K, V, error),
) codec {
	return codec{
		table: table, prefix: []byte{0xa1, number},
		none: func() any { return map[K]V{} },
		encode: func(e *encoder, of facts.Copy) {
			values, _ := of.All.(map[K]V)
			for _, k := range slices.SortedFunc(maps.Keys(values), order) {
				content := encode(e, k, values[k]) // first: it may write the workloads to which it refers
				e.write(map[byte]R{number: content})
			}
		},
		decode: func(decoder *decoder, content cbor.RawMessage) error {
			var r R
			if err := decMode.Unmarshal(content, &r); err != nil {
				return err
			}
			k, v, err := decode(decoder, &r)
			if err != nil {
				return err
			}

			decoder.out.Facts[table].All.(map[K]V)[k] = v
			return nil
		},
	}
}

// contentOf returns what stands in an item, if that is of this codec.
func (c *codec) contentOf(item cbor.RawMessage) (content cbor.RawMessage, is bool) {
	return bytes.CutPrefix(item, c.prefix)
}

func compareServices(a, b federation.Service) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

type node struct {
	_          struct{} `cbor:",toarray"`
	Name, Zone string
}

func newNode(_ *encoder, name string, of federation.Node) node {
	return node{Name: name, Zone: of.Zone}
}

func (d *decoder) node(from *node) (name string, of federation.Node, err error) {
	if !plain(from.Name, from.Zone) {
		return "", of, errInvalid
	}
	return from.Name, federation.Node{Zone: unique.Make(from.Zone).Value()}, nil // which many share
}

type (
	address struct {
		_         struct{} `cbor:",toarray"`
		Addr      netip.Addr
		Services  []federation.Service
		Residents []resident
	}
	resident struct {
		_        struct{} `cbor:",toarray"`
		Workload int      // number of the Workload record, from 1
		Port     uint16
		Running  bool
	}
)

func (e *encoder) newAddress(ip netip.Addr, of *federation.Address) address {
	out := address{Addr: ip, Services: of.Services, Residents: make([]resident, len(of.Residents))}
	for i, r := range of.Residents {
		out.Residents[i] = resident{Workload: e.numberOf(r.Workload), Port: r.Port, Running: r.Running}
	}
	return out
}

func (d *decoder) address(from *address) (ip netip.Addr, of *federation.Address, err error) {
	of = &federation.Address{Services: from.Services, Residents: make([]federation.Resident, len(from.Residents))}
	for i, r := range from.Residents {
		w, err := d.workloadAt(r.Workload)
		if err != nil || w == nil {
			return ip, nil, errInvalid
		}
		of.Residents[i] = federation.Resident{Workload: w, Port: r.Port, Running: r.Running}
	}

	if !from.Addr.IsValid() {
		return ip, nil, errInvalid
	}
	return from.Addr, of, nil
}

type namedProfile struct {
	_       struct{} `cbor:",toarray"`
	Name    federation.Service
	Profile profile.Profile
}

func newProfile(_ *encoder, name federation.Service, of *profile.Profile) namedProfile {
	return namedProfile{Name: name, Profile: *of}
}

func (d *decoder) profile(from *namedProfile) (federation.Service, *profile.Profile, error) {
	return from.Name, &from.Profile, nil
}

type external struct {
	_        struct{} `cbor:",toarray"`
	Name     federation.Service
	Workload int // number of the Workload record, from 1
	Node     string
}

func (e *encoder) newExternal(name federation.Service, of federation.External) external {
	return external{Name: name, Workload: e.numberOf(of.Workload), Node: of.Node.String()}
}

func (d *decoder) external(from *external) (name federation.Service, of federation.External, err error) {
	w, err := d.workloadAt(from.Workload)
	if err != nil || w == nil || !plain(from.Node) {
		return name, of, errInvalid
	}
	return from.Name, federation.External{Workload: w, Node: federation.NameOf(from.Node)}, nil
}

type (
	server struct {
		_               struct{} `cbor:",toarray"`
		Name            federation.Service
		Pods, Externals selector
		Port            uint16
		PortName        string
	}
	selector struct {
		_     struct{} `cbor:",toarray"`
		Text  string
		Given bool
	}
)

func newServer(_ *encoder, name federation.Service, of federation.OpaqueServer) server {
	return server{
		Name: name, Port: of.Port, PortName: of.PortName,
		Pods:      selector{Text: of.Pods.Text, Given: of.Pods.Given},
		Externals: selector{Text: of.Externals.Text, Given: of.Externals.Given},
	}
}

func (d *decoder) server(from *server) (name federation.Service, of federation.OpaqueServer, err error) {
	if !plain(from.PortName, from.Pods.Text, from.Externals.Text) {
		return name, of, errInvalid
	}
	return from.Name, federation.OpaqueServer{
		Port: from.Port, PortName: from.PortName,
		Pods:      federation.Selector{Text: from.Pods.Text, Given: from.Pods.Given},
		Externals: federation.Selector{Text: from.Externals.Text, Given: from.Externals.Given},
	}, nil
}
