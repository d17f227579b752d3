// Package checkpoint keeps what clusters have published in files, so that a replica that starts while a cluster
// cannot be reached serves what it held last.
//
// A file holds one cluster: a sequence of CBOR items, and the CRC-32C of all of them, big-endian. The first item is
// the Header. Workloads and what Pods of one template share stand once, before what refers to them by their number.
// So both directions handle one Service at a time. Services and facts stand in the sequence of their names, so that
// what a cluster has published has one encoding. The time as of which the content holds is that of the file's last
// modification: where nothing changes, a file is not written again.
//
// What is read is checked as far as readers of Views depend on it: order, distinctness and references. A file that is
// torn, of another version or wrong is an error, and none of it is used.
package checkpoint

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"
	"unique"

	"github.com/fxamacker/cbor/v2"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
)

const format = "fingerpost checkpoint 3"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Header is what a checkpoint has about its cluster.
type Header struct {
	Cluster       string
	Local         bool
	TrustDomain   string
	ClusterDomain string
	Released      string // when what was held of the cluster was released last, as its Link has it
}

// A Checkpoint is what one cluster had published at a time.
type Checkpoint struct {
	Header
	Published federation.Published
	AsOf      time.Time // not a part of the encoding
}

// record is one item of a file: exactly one field is set. There are others, with other numbers: facts (facts.go), and
// what newer versions may write, which is left out.
type record struct {
	Format   string               `cbor:"0,keyasint,omitempty"`
	Header   *Header              `cbor:"1,keyasint,omitempty"`
	Template *federation.Template `cbor:"2,keyasint,omitempty"`
	Workload *workload            `cbor:"3,keyasint,omitempty"`
	Service  *service             `cbor:"4,keyasint,omitempty"`
	Held     *held                `cbor:"8,keyasint,omitempty"`

	RuleWorkload cbor.RawMessage `cbor:"15,keyasint,omitempty"`
}

type (
	workload struct {
		_                    struct{} `cbor:",toarray"`
		Kind                 federation.WorkloadKind
		Namespace, Name      string
		OwnerKind, OwnerName string
		Template             int // number of the Template record, from 0
	}
	service struct {
		_       struct{} `cbor:",toarray"`
		Service federation.Service
		View    federation.View // without Slices
		Slices  []slice
	}
	held struct {
		_     struct{} `cbor:",toarray"`
		Of    service  // as it was before
		Until int64    // Unix time in nanoseconds; not confirmed: minus the time when that began, or 0
	}
	slice struct {
		_         struct{} `cbor:",toarray"`
		Name      string
		Ports     []federation.Port
		Endpoints []endpoint
	}
	endpoint struct {
		_              struct{} `cbor:",toarray"`
		Addr           netip.Addr
		Ready, Serving bool
		Terminating    bool
		Copied         bool
		Hostname       string
		Node, Zone     string
		Hints          []string
		Workload       int // number of the Workload record, from 1; 0: none
		Mirror         *federation.Mirror
	}
)

func encode(to io.Writer, checkpoint Checkpoint) error {
	sum := crc32.New(castagnoli)
	buffered := bufio.NewWriterSize(to, 1<<16)
	encoder := encoder{
		cbor:      cbor.NewEncoder(io.MultiWriter(buffered, sum)),
		templates: map[unique.Handle[federation.Template]]int{},
		workloads: map[*federation.Workload]int{},

		ruleWorkloads: map[*rules.Workload]int{},
	}

	encoder.write(record{Format: format})
	encoder.write(record{Header: &checkpoint.Header})
	for _, svc := range sortedServices(checkpoint.Published.Views.All()) {
		encoder.write(record{Service: encoder.newService(svc, checkpoint.Published.Views.Get(svc))})
	}

	for _, svc := range sortedServices(maps.All(checkpoint.Published.Holds)) {
		h := checkpoint.Published.Holds[svc]
		out := &held{Of: *encoder.newService(svc, h.Before)}
		switch {
		case !h.Until.IsZero():
			out.Until = h.Until.UnixNano()
		case !h.Since.IsZero():
			out.Until = -h.Since.UnixNano()
		}
		encoder.write(record{Held: out})
	}

	for _, of := range codecs {
		of.encode(&encoder, checkpoint.Published.Facts[of.table])
	}
	if encoder.err != nil {
		return encoder.err
	}
	_, err := buffered.Write(sum.Sum(nil))
	return errors.Join(err, buffered.Flush())
}

func sortedServices[V any](all iter.Seq2[federation.Service, V]) (sorted []federation.Service) {
	for svc := range all {
		sorted = append(sorted, svc)
	}
	slices.SortFunc(sorted, compareServices)
	return sorted
}

// encoder holds the first error.
type encoder struct {
	cbor      *cbor.Encoder
	err       error
	templates map[unique.Handle[federation.Template]]int
	workloads map[*federation.Workload]int

	ruleWorkloads map[*rules.Workload]int
}

// write writes a record, or a map of one number to what has it.
func (e *encoder) write(r any) {
	if e.err == nil {
		e.err = e.cbor.Encode(r)
	}
}

func (e *encoder) newService(svc federation.Service, v *federation.View) *service {
	out := &service{Service: svc, View: *v, Slices: make([]slice, len(v.Slices))}
	out.View.Slices = nil

	for i, s := range v.Slices {
		all := make([]endpoint, len(s.Endpoints))
		for j, at := range s.Endpoints {
			all[j] = endpoint{
				Addr: at.Addr, Ready: at.Ready, Serving: at.Serving, Terminating: at.Terminating,
				Copied: at.Copied,
				Node:   at.Node.String(), Zone: at.Zone.String(), Workload: e.numberOf(at.Workload),
				Hostname: at.Hostname(), Hints: at.Hints(), Mirror: at.Mirror(),
			}
		}
		out.Slices[i] = slice{Name: s.Name, Ports: s.Ports, Endpoints: all}
	}

	return out
}

// numberOf returns the number of a Workload, and writes it if it has none yet.
func (e *encoder) numberOf(of *federation.Workload) int {
	if of == nil {
		return 0
	}
	if n, written := e.workloads[of]; written {
		return n
	}

	cohort := of.Cohort.Value()
	template, written := e.templates[cohort.Template]
	if !written {
		template = len(e.templates)
		e.templates[cohort.Template] = template
		e.write(record{Template: new(cohort.Template.Value())})
	}

	n := len(e.workloads) + 1
	e.workloads[of] = n
	kind, owner := of.Owner()
	e.write(record{Workload: &workload{
		Kind: cohort.Kind, Namespace: cohort.Namespace, Name: of.Name,
		OwnerKind: kind, OwnerName: owner, Template: template,
	}})
	return n
}

var (
	errTorn   = errors.New("it is not complete")
	errFormat = errors.New("it is of another version, or no checkpoint")
)

// decMode bounds what one record takes.
var decMode = func() cbor.DecMode {
	mode, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		MaxArrayElements: 1 << 20,
		MaxMapPairs:      1 << 16, // a Pod may have as many labels as its object has room for
		MaxNestedLevels:  128,     // a ServiceProfile has 70
	}.DecMode()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return mode
}()

// decode returns a Checkpoint of no time.
func decode(b []byte) (Checkpoint, error) {
	content, err := verified(b)
	if err != nil {
		return Checkpoint{}, err
	}
	return decodeContent(bytes.NewReader(content))
}

// decodeContent decodes what stands before the checksum.
func decodeContent(content io.Reader) (Checkpoint, error) {
	decoder := decoder{out: federation.Published{
		Holds: map[federation.Service]federation.PublishedHold{},
		Facts: map[string]facts.Copy{},
	}}
	for _, of := range codecs {
		if all := of.none(); all != nil {
			decoder.out.Facts[of.table] = facts.Copy{All: all}
		}
	}

	in := decMode.NewDecoder(content)
	header, err := decodeHeader(in)
	var item cbor.RawMessage // one buffer for all
	for n := 2; err == nil; n++ {
		if err = in.Decode(&item); err == nil {
			err = decoder.addItem(item)
		}
		if err != nil && err != io.EOF { //nolint:errorlint // the Decoder returns io.EOF itself at the end
			return Checkpoint{}, fmt.Errorf("record %d: %w", n, err)
		}
	}

	if err != io.EOF { //nolint:errorlint // see above
		return Checkpoint{}, err
	}
	return Checkpoint{Header: header, Published: decoder.out}, nil
}

// verified returns b without its checksum, which is right.
func verified(b []byte) ([]byte, error) {
	at := len(b) - crc32.Size
	if at < 0 || binary.BigEndian.Uint32(b[at:]) != crc32.Checksum(b[:at], castagnoli) {
		return nil, errTorn
	}
	return b[:at], nil
}

func decodeHeader(in *cbor.Decoder) (Header, error) {
	var first, second record
	if err := in.Decode(&first); err != nil || first.Format != format {
		return Header{}, errFormat
	}
	if err := in.Decode(&second); err != nil || second.Header == nil {
		return Header{}, errFormat
	}
	return *second.Header, nil
}

type decoder struct {
	templates []unique.Handle[federation.Template]
	workloads []*federation.Workload
	out       federation.Published

	ruleWorkloads []*rules.Workload
}

var errInvalid = errors.New("it is invalid")

// addItem adds an item: a fact, or a record.
func (d *decoder) addItem(item cbor.RawMessage) error {
	for _, of := range codecs {
		if content, is := of.contentOf(item); is {
			return of.decode(d, content)
		}
	}

	var r record
	if err := decMode.Unmarshal(item, &r); err != nil {
		return err
	}
	return d.add(r)
}

func (d *decoder) add(record record) error {
	switch {
	case record.Template != nil:
		t := *record.Template
		if !plain(t.ServiceAccount, t.ControlPlane, t.Hash, t.Identity, t.ServerName) {
			return errInvalid
		}
		d.templates = append(d.templates, unique.Make(t))
	case record.Workload != nil:
		return d.addWorkload(record.Workload)
	case record.Service != nil:
		v, err := d.newView(record.Service)
		if err != nil {
			return err
		}
		d.out.Views = d.out.Views.With(record.Service.Service, v)
	case record.Held != nil:
		return d.addHeld(record.Held)
	case record.RuleWorkload != nil:
		return d.addRuleWorkload(record.RuleWorkload)
	}
	return nil
}

// addWorkload adds a workload. Versions that wrote the same format let owners of any kind and name pass: such a one is
// none.
func (d *decoder) addWorkload(w *workload) error {
	if w.Template < 0 || w.Template >= len(d.templates) || !plain(w.Namespace, w.Name) {
		return errInvalid
	}
	cohort := federation.Cohort{Kind: w.Kind, Namespace: w.Namespace, Template: d.templates[w.Template]}
	if slices.Contains(federation.OwnerKinds, w.OwnerKind) && plain(w.OwnerName) {
		cohort.OwnerKind, cohort.OwnerName = w.OwnerKind, w.OwnerName
	}
	d.workloads = append(d.workloads, new(cohort.Workload(w.Name)))
	return nil
}

// plain reports whether texts may stand in Views.
func plain(texts ...string) bool {
	return !slices.ContainsFunc(texts, func(s string) bool { return !federation.IsPlain(s) })
}

func (d *decoder) addHeld(from *held) error {
	before, err := d.newView(&from.Of)
	if err != nil {
		return err
	}

	h := federation.PublishedHold{Before: before}
	switch {
	case from.Until > 0:
		h.Until = time.Unix(0, from.Until)
	case from.Until < 0:
		h.Since = time.Unix(0, -from.Until)
	}
	d.out.Holds[from.Of.Service] = h
	return nil
}

func (d *decoder) newView(s *service) (*federation.View, error) {
	view := s.View
	view.Slices = make([]*federation.Slice, len(s.Slices))

	for index, from := range s.Slices {
		all := make([]*federation.Endpoint, len(from.Endpoints))
		for j, at := range from.Endpoints {
			w, err := d.workloadAt(at.Workload)
			if err != nil || !at.Addr.IsValid() || !at.plain() {
				return nil, errInvalid
			}
			all[j] = &federation.Endpoint{
				Addr: at.Addr, Ready: at.Ready, Serving: at.Serving, Terminating: at.Terminating,
				Copied: at.Copied,
				Node:   federation.NameOf(at.Node), Zone: federation.NameOf(at.Zone), Workload: w,
				Detail: (&federation.Detail{Hostname: at.Hostname, Hints: at.Hints, Mirror: at.Mirror}).OrNone(),
			}
		}

		view.Slices[index] = &federation.Slice{Name: from.Name, Ports: from.Ports, Endpoints: all}
	}

	if !view.Valid() {
		return nil, errInvalid
	}
	return &view, nil
}

// plain reports whether the texts of an endpoint may stand in Views.
func (e *endpoint) plain() bool {
	m := federation.Mirror{}
	if e.Mirror != nil {
		m = *e.Mirror
	}
	return plain(e.Hostname, e.Node, e.Zone, m.Cluster, m.Identity, m.Name) && plain(e.Hints...)
}

func (d *decoder) workloadAt(n int) (*federation.Workload, error) {
	switch {
	case n == 0:
		return nil, nil //nolint:nilnil // an address without a workload
	case n < 0 || n > len(d.workloads):
		return nil, errInvalid
	}
	return d.workloads[n-1], nil
}
