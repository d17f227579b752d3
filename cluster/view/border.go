package view

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
)

// The border: what an API server sends is checked here, and nowhere behind it. An API server in good order
// rejects most of what is left out here, but strings that are not UTF-8 pass it in protobuf, some lengths
// and the characters of owner references it does not check, and a hostile one checks nothing.
//
// Everything that passes is plain text (federation.IsPlain), no longer than Kubernetes allows it, and of a
// bounded number. What does not pass is left out: the field, if the object means the same without it; else the
// part of the object (a port, an address, a member); else the object. Nothing else is lost for it. What is left
// out of an object is logged once, cut to a bounded length, and counted.
//
// Much of it ends as labels in the metrics of proxies, which escape nothing. The keys of these labels are ours, but
// for the kind of an owner: that is one of federation.OwnerKinds.
const (
	maxLabel    = validation.DNS1123LabelMaxLength     // namespaces, Services, ports, zones, values of labels
	maxName     = validation.DNS1123SubdomainMaxLength // all other names, and names of hosts
	maxIdentity = 2048                                 // a SPIFFE ID

	maxPorts        = 1000   // of a Service, and of the containers of a Pod; there is no limit in Kubernetes
	maxSlicePorts   = 100    // as in Kubernetes, like the next two
	maxEndpoints    = 1000   // of a slice
	maxAddresses    = 100    // of an endpoint
	maxSubsets      = 1000   // of Endpoints
	maxSubset       = 50_000 // addresses of one
	maxHints        = 8
	maxIP           = 100     // bytes of an IP
	maxMembers      = 1000    // of a federated Service
	maxLabelText    = 8 << 10 // bytes of the labels of a Pod, keys and values
	maxRanges       = 1000    // of ports in an annotation
	maxRequirements = 100     // of the selector of a Server
	maxValues       = 1000    // in all of them

	maxReported  = 1000 // objects that are logged once
	maxOmissions = 10   // of one object
	maxQuote     = 64   // bytes of what is quoted
)

// omissions is what is left out of one object, for the log. Its methods return what may be kept of a value.
type omissions struct {
	all  []string
	more int // that are not in all
}

// addf adds an omission. Strings among args are quoted.
func (o *omissions) addf(format string, args ...any) {
	if len(o.all) == maxOmissions {
		o.more++
		return
	}
	for i, a := range args {
		if s, is := a.(string); is {
			args[i] = quote(s)
		}
	}
	o.addText(fmt.Sprintf(format, args...))
}

// addText adds an omission as it is, but for its length.
func (o *omissions) addText(text string) {
	const limit = 500
	if len(o.all) == maxOmissions {
		o.more++
		return
	}
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + " ..."
	}
	o.all = append(o.all, federation.Printable(text))
}

func (o *omissions) String() string {
	text := strings.Join(o.all, "; ")
	if o.more > 0 {
		text += fmt.Sprintf("; and %d more", o.more)
	}
	return text
}

// quote returns at most maxQuote bytes of a string, quoted, in ASCII.
func quote(s string) string {
	if len(s) > maxQuote {
		return fmt.Sprintf("%+q... (%d bytes)", s[:maxQuote], len(s))
	}
	return fmt.Sprintf("%+q", s)
}

// validText reports whether a string may be kept.
func (o *omissions) validText(what, s string, limit int) bool {
	switch {
	case len(s) > limit:
		o.addf(what+" %s is longer than %d bytes", s, limit)
	case !utf8.ValidString(s):
		o.addf(what+" %s is not valid UTF-8", s)
	case !federation.IsPlain(s):
		o.addf(what+" %s has a character that stands in no name", s)
	default:
		return true
	}
	return false
}

// text returns an interned string, or an empty one if it may not be kept.
func (o *omissions) text(what, s string, limit int) string {
	if !o.validText(what, s, limit) {
		return ""
	}
	return api.Intern(s)
}

// name returns what text does, for what endpoints have.
func (o *omissions) name(what, s string, limit int) (n federation.Name) {
	if o.validText(what, s, limit) {
		n = federation.NameOf(s)
	}
	return n
}

// firstOf returns the first n elements of a list.
func firstOf[T any](o *omissions, what string, list []T, n int) []T {
	if len(list) > n {
		o.addf("there are %d "+what+": those after the first %d", len(list), n)
		return list[:n]
	}
	return list
}

// address returns an address that EndpointSlices may hold.
func (o *omissions) address(text string) (addr netip.Addr, usable bool) {
	addr, is := o.parseIP("address", text)
	if is && !IsUsable(addr) {
		o.addf("address %s is loopback, link-local, multicast or unspecified", text)
	}
	return addr, is && IsUsable(addr)
}

// parseIP returns an IP as ParseIP does, or false if there is none.
func (o *omissions) parseIP(what, text string) (addr netip.Addr, is bool) {
	if addr, is = ParseIP(text); !is {
		o.addf(what+" %s is no IP", text)
	}
	return addr, is
}

// ParseIP reads an IP as Kubernetes does: numbers of an IPv4 address may begin with zeros, and are decimal. API
// servers before 1.36 accept such addresses, and keep those that they have. An IPv6 address that maps an IPv4 one is
// that one. There is none with a zone.
func ParseIP(text string) (addr netip.Addr, is bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil && len(text) <= maxIP {
		addr, is = netip.AddrFromSlice(netutils.ParseIPSloppy(text))
		return addr.Unmap(), is
	}
	return addr.Unmap(), err == nil && addr.Zone() == ""
}

// IsUsable reports whether EndpointSlices may hold an address, which is no IPv6 one that maps an IPv4 one.
// Loopback and link-local addresses mean something else on each node.
func IsUsable(a netip.Addr) bool {
	return a.Zone() == "" &&
		!a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

// label is text for values of labels, and for names that Kubernetes limits like them.
func (o *omissions) label(what, s string) string { return o.text(what, s, maxLabel) }

// hostname returns the name of an endpoint, which becomes a part of a DNS name.
func (o *omissions) hostname(s string) string {
	if s != "" && len(validation.IsDNS1123Label(s)) > 0 {
		o.addf("hostname %s is not a label of a DNS name", s)
		return ""
	}
	return s
}

// app returns an application protocol, which has the form of a label key.
func (o *omissions) app(s string) string {
	if s != "" && len(validation.IsQualifiedName(s)) > 0 {
		o.addf("application protocol %s does not have the form of a label key", s)
		return ""
	}
	return s
}

// protocol returns the transport protocol of a port, or false and a report if there is no such.
func (o *omissions) protocol(p corev1.Protocol) (t federation.Transport, known bool) {
	if t, known = federation.TransportOf(string(p)); !known {
		o.addf("a port with protocol %s", string(p))
	}
	return t, known
}

// A border reports what is left out of the objects of one cluster. The informers of all kinds use it at
// once.
type border struct {
	log logr.Logger

	mu       sync.Mutex
	reported map[objectID]bool
	counts   map[string]int // by kind
}

// objectID names an object that was reported.
type objectID struct {
	Kind string
	key
}

func newBorder(log logr.Logger) *border {
	return &border{log: log, reported: map[objectID]bool{}, counts: map[string]int{}}
}

// report logs and counts an object of which something is left out, unless it was so the last time. Once
// maxReported objects are remembered, further ones are not logged, and are counted each time.
func (b *border) report(kind string, key key, out *omissions) {
	id, malformed := objectID{kind, key}, len(out.all) > 0
	b.mu.Lock()
	known := b.reported[id]
	logs := malformed && !known && len(b.reported) < maxReported
	switch {
	case !malformed:
		delete(b.reported, id)
	case logs:
		b.reported[id] = true
	}

	if malformed && !known {
		b.counts[kind]++
	}
	b.mu.Unlock()

	if logs {
		b.log.Info("Parts of an object cannot be used and are left out",
			"kind", kind, "object", quote(key.String()), "leftOut", out.String())
	}
}

// malformed returns how many objects of a kind were reported.
func (b *border) malformed(kind string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts[kind]
}

// beginning returns a copy of the first n bytes of a string.
func beginning(s string, n int) string { return strings.Clone(s[:min(n, len(s))]) }

// checked wraps reduce: it leaves out objects with malformed names, and reports what is left out.
func checked[O metav1.Object, R any](
	border *border, kind string, reduce func(object O, out *omissions) (R, bool),
) func(object any) (R, bool) {
	return func(object any) (record R, ok bool) {
		o, isKind := object.(O)
		if !isKind {
			return record, false
		}

		var out omissions
		k := key{Namespace: o.GetNamespace(), Name: o.GetName()}
		if out.validText("all of it: its namespace", k.Namespace, maxLabel) &&
			out.validText("all of it: its name", k.Name, maxName) {
			record, ok = reduce(o, &out)
		} else { // it is remembered, so not at full length
			k = key{Namespace: beginning(k.Namespace, maxLabel), Name: beginning(k.Name, maxName)}
		}
		border.report(kind, k, &out)
		return record, ok
	}
}
