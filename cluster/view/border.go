package view

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation"
)

// This is the border: what an API server sends is checked here, and nowhere behind it. An honest API server refuses most of what is left
// out here, but strings that are no UTF-8 pass it in protobuf, some lengths it does not check, and a hostile one checks nothing.
//
// Everything that is kept is valid UTF-8, no longer than Kubernetes has it, and of a bounded number. What is not is left out: the field if
// the object is the same without it, the part of the object (a port, an address, a member), or else the object; nothing else is lost for it.
// It is logged once for each object, cut, and counted.
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
	maxMembers      = 1000 // of a federated Service
	maxLabels       = 1000 // of a Pod
	maxRanges       = 1000 // of ports in an annotation
	maxRequirements = 100  // of the selector of a Server
	maxValues       = 1000 // in all of them

	maxReported = 1000 // objects that are logged once
	maxRemarks  = 10   // of one object
	maxQuote    = 64   // bytes of what is quoted
)

// remarks say what is left out of one object.
type remarks struct {
	all  []string
	more int // that are not in all
}

func (r *remarks) add(format string, args ...any) {
	if len(r.all) == maxRemarks {
		r.more++
		return
	}
	for i, a := range args {
		if s, is := a.(string); is {
			args[i] = quote(s)
		}
	}
	r.cut(fmt.Sprintf(format, args...))
}

// quote returns at most some bytes of a string, in quotes and readable whatever is in it.
func quote(s string) string {
	if len(s) > maxQuote {
		return fmt.Sprintf("%+q... (%d bytes)", s[:maxQuote], len(s))
	}
	return fmt.Sprintf("%+q", s)
}

// cut adds a text as it is, but for its length.
func (r *remarks) cut(text string) {
	const limit = 500
	if len(r.all) == maxRemarks {
		r.more++
		return
	}
	if len(text) > limit {
		text = text[:limit] + " ..."
	}
	r.all = append(r.all, strings.ToValidUTF8(text, "?"))
}

func (r *remarks) String() string {
	text := strings.Join(r.all, "; ")
	if r.more > 0 {
		text += fmt.Sprintf("; and %d more", r.more)
	}
	return text
}

// valid reports whether a string may be kept, and remarks on one that may not.
func (r *remarks) valid(what, s string, limit int) bool {
	switch {
	case len(s) > limit:
		r.add(what+" %s is longer than %d bytes", s, limit)
	case !utf8.ValidString(s):
		r.add(what+" %s is not valid UTF-8", s)
	default:
		return true
	}
	return false
}

// text returns one copy of equal strings, and nothing for one that may not be kept.
func (r *remarks) text(what, s string, limit int) string {
	if !r.valid(what, s, limit) {
		return ""
	}
	return intern(s)
}

// first returns the first n of a list, and remarks on what is behind them.
func first[T any](r *remarks, what string, list []T, n int) []T {
	if len(list) > n {
		r.add("there are %d "+what+": those after the first %d", len(list), n)
		return list[:n]
	}
	return list
}

// address returns an address at which a client may be sent, as EndpointSlices may hold them; what is none is passed over.
func (r *remarks) address(text string) (addr netip.Addr, usable bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return addr, false // a DNS name, or junk
	}
	addr = addr.Unmap()
	if addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
		r.add("address %s is loopback, link-local, multicast or unspecified", text)
		return addr, false
	}
	return addr, true
}

// A border reports what is left out of the objects of one cluster. Many goroutines use it.
type border struct {
	log logr.Logger

	mu       sync.Mutex
	reported map[malformed]bool
	counts   map[string]int // by kind
}

// malformed names an object of which something is left out.
type malformed struct {
	Kind string
	key
}

func newBorder(log logr.Logger) *border {
	return &border{log: log, reported: map[malformed]bool{}, counts: map[string]int{}}
}

// report logs and counts an object that was in order when it was last seen, if ever. Where too many are not, it counts each time.
func (b *border) report(kind string, k key, r *remarks) {
	id := malformed{kind, k}
	b.mu.Lock()
	known := b.reported[id]
	logs := len(r.all) > 0 && !known && len(b.reported) < maxReported
	switch {
	case len(r.all) == 0 && known:
		delete(b.reported, id)
	case logs:
		b.reported[id] = true
	}
	if len(r.all) > 0 && !known {
		b.counts[kind]++
	}
	b.mu.Unlock()
	if logs {
		b.log.Info("Parts of an object cannot be used and are left out", "kind", kind, "object", quote(k.String()), "leftOut", r.String())
	}
}

// count returns how many objects of a kind were reported.
func (b *border) count(kind string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts[kind]
}

// checked returns keep for objects of which the names may be kept, and reports what it leaves out.
func checked[R any](b *border, kind string, keep func(object any, r *remarks) (R, bool)) func(object any) (R, bool) {
	return func(object any) (kept R, ok bool) {
		m, err := meta.Accessor(object)
		if err != nil {
			return kept, false
		}
		var r remarks
		if r.valid("all of it: its namespace", m.GetNamespace(), maxLabel) && r.valid("all of it: its name", m.GetName(), maxName) {
			kept, ok = keep(object, &r)
		}
		b.report(kind, key{Namespace: m.GetNamespace(), Name: m.GetName()}, &r)
		return kept, ok
	}
}

// label is remarks.text for values of labels, and of what Kubernetes limits as them.
func (r *remarks) label(what, s string) string { return r.text(what, s, maxLabel) }

// hostname returns a name of an endpoint that may be part of a name in DNS.
func (r *remarks) hostname(s string) string {
	if s != "" && len(validation.IsDNS1123Label(s)) > 0 {
		r.add("hostname %s is no label of a DNS name", s)
		return ""
	}
	return s
}

// app returns an application protocol, which has the form of the key of a label.
func (r *remarks) app(s string) string {
	if s != "" && len(validation.IsQualifiedName(s)) > 0 {
		r.add("application protocol %s has not the form of the key of a label", s)
		return ""
	}
	return intern(s)
}

// protocol returns the transport protocol of a port; TCP if there is none, empty for one that is unknown.
func (r *remarks) protocol(p corev1.Protocol) string {
	if p == "" {
		return string(corev1.ProtocolTCP)
	}
	known := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	if i := slices.Index(known, p); i >= 0 {
		return string(known[i])
	}
	r.add("a port with protocol %s", string(p))
	return ""
}
