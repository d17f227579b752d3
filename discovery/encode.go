package discovery

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/fingerpost/fingerpost/federation"
)

const (
	weight     = 10_000
	weightNear = 10 * weight // in the client's zone, if zones weigh
)

// Field numbers of the messages that are put together from encoded parts.
const (
	updateAdd      = 1 // Update.add
	updateRemove   = 2 // Update.remove
	setAddrs       = 1 // WeightedAddrSet.addrs and AddrSet.addrs
	setLabels      = 2 // WeightedAddrSet.metric_labels
	addrLabels     = 4 // WeightedAddr.metric_labels
	mapKey, mapVal = 1, 2
)

// encoder turns entries into frames for one port, and clients in one zone.
type encoder struct {
	config *Config
	port   uint16 // of the Service
	zone   string // the clients'; empty if it is not known, or makes no difference
}

// encode returns the frames that turn old into new: Adds, then Removes, each within the limit of a message.
func (e encoder) encode(old, new *federation.Set) []*frame {
	add, remove := federation.Diff(old, new)
	frames := e.adds(add)
	return append(frames, removes(remove)...)
}

// A label is a metric label. Those that all addresses of a step have in common stand once, on the message.
type label struct{ name, value string }

func (e encoder) adds(entries []*federation.Entry) []*frame {
	if len(entries) == 0 {
		return nil
	}
	shared := setLabelsOf(entries[0])
	for _, entry := range entries[1:] {
		own := setLabelsOf(entry)
		shared = slices.DeleteFunc(shared, func(l label) bool { return !slices.Contains(own, l) })
	}
	var tail []byte // of each message
	for _, l := range shared {
		tail = appendLabel(tail, setLabels, l)
	}
	p := packer{what: toAdd, field: updateAdd, tail: tail}
	for _, entry := range entries {
		b := marshal(e.weightedAddr(entry))
		for _, l := range setLabelsOf(entry) {
			if !slices.Contains(shared, l) {
				b = appendLabel(b, addrLabels, l)
			}
		}
		p.put(b)
	}
	return p.done()
}

func removes(addrs []netip.AddrPort) []*frame {
	p := packer{what: toRemove, field: updateRemove}
	for _, a := range addrs {
		p.put(marshal(tcpAddress(a)))
	}
	return p.done()
}

// packer fills frames with encoded addresses.
type packer struct {
	what   what
	field  protowire.Number // of Update
	tail   []byte           // repeated in each frame
	set    []byte
	n      int
	frames []*frame
}

func (p *packer) put(addr []byte) {
	if p.n > 0 && len(p.set)+len(addr)+len(p.tail) > maxFrame {
		p.flush()
	}
	p.set = protowire.AppendTag(p.set, setAddrs, protowire.BytesType)
	p.set = protowire.AppendBytes(p.set, addr)
	p.n++
}

func (p *packer) flush() {
	p.set = append(p.set, p.tail...)
	b := make([]byte, 0, len(p.set)+protowire.SizeTag(p.field)+protowire.SizeVarint(uint64(len(p.set))))
	b = protowire.AppendTag(b, p.field, protowire.BytesType)
	f := &frame{bytes: protowire.AppendBytes(b, p.set), what: p.what}
	if p.what == toAdd {
		f.adds = p.n
	} else {
		f.removes = p.n
	}
	p.frames = append(p.frames, f)
	p.set, p.n = p.set[:0], 0
}

func (p *packer) done() []*frame {
	if p.n > 0 {
		p.flush()
	}
	return p.frames
}

func appendLabel(b []byte, field protowire.Number, l label) []byte {
	size := protowire.SizeTag(mapKey) + protowire.SizeBytes(len(l.name)) + protowire.SizeTag(mapVal) + protowire.SizeBytes(len(l.value))
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = protowire.AppendTag(b, mapKey, protowire.BytesType)
	b = protowire.AppendString(b, l.name)
	b = protowire.AppendTag(b, mapVal, protowire.BytesType)
	return protowire.AppendString(b, l.value)
}

// setLabelsOf returns the labels of a whole message: which Service an address belongs to, and for a mirrored one which Service it
// stands for.
func setLabelsOf(entry *federation.Entry) []label {
	labels := []label{{"service", entry.Origin().Name}, {"namespace", entry.Origin().Namespace}}
	if m := entry.Endpoint.Mirror; m != nil && m.Cluster != "" {
		labels = append(labels, label{"target_cluster", m.Cluster})
		if parts := strings.Split(m.Name, "."); len(parts) >= 2 {
			labels = append(labels, label{"target_service", parts[0]}, label{"target_service_namespace", parts[1]})
		}
	}
	return labels
}

// weightedAddr says everything about one address, except the labels of its message.
func (e encoder) weightedAddr(entry *federation.Entry) *pb.WeightedAddr {
	a := &pb.WeightedAddr{Addr: tcpAddress(entry.Addr), Weight: weight}
	locality := "unknown"
	if zone := entry.Endpoint.Zone; zone != "" && e.zone != "" {
		locality = "remote"
		if zone == e.zone {
			locality = "local"
			if e.config.ZoneWeights {
				a.Weight = weightNear
			}
		}
	}
	if w := entry.Endpoint.Workload; w != nil {
		e.workload(a, entry.Addr, entry.Origin().TrustDomain, w)
		if !entry.Origin().Trusts(w) {
			a.TlsIdentity = nil
		}
		a.MetricLabels["zone"] = entry.Endpoint.Zone
		a.MetricLabels["zone_locality"] = locality
		return a
	}
	a.MetricLabels = map[string]string{"zone_locality": "unknown"}
	if m := entry.Endpoint.Mirror; m != nil {
		e.gateway(a, m)
	}
	return a
}

// workload adds what is known of a workload.
func (e encoder) workload(a *pb.WeightedAddr, addr netip.AddrPort, trustDomain string, w *federation.Workload) {
	if w.Kind == federation.ExternalWorkload {
		e.external(a, addr.Port(), w)
	} else {
		e.pod(a, addr, trustDomain, w)
	}
}

// external adds what is known of an ExternalWorkload: it is always meshed, and says itself who it is.
func (e encoder) external(a *pb.WeightedAddr, port uint16, w *federation.Workload) {
	t := w.Template.Value()
	a.MetricLabels = map[string]string{"external_workload": w.Name}
	if w.OwnerKind != "" {
		a.MetricLabels[w.OwnerKind] = w.OwnerName
	}
	if t.Identity != "" && t.ServerName != "" { // a proxy can use neither alone
		a.TlsIdentity = &pb.TlsIdentity{
			Strategy:   &pb.TlsIdentity_UriLikeIdentity_{UriLikeIdentity: &pb.TlsIdentity_UriLikeIdentity{Uri: t.Identity}},
			ServerName: &pb.TlsIdentity_DnsLikeIdentity{Name: t.ServerName},
		}
	}
	a.Http2 = e.config.HTTP2
	a.ProtocolHint = &pb.ProtocolHint{Protocol: &pb.ProtocolHint_H2_{H2: &pb.ProtocolHint_H2{}}}
	opaque := e.config.opaque(t, port)
	if opaque {
		a.ProtocolHint.Protocol = &pb.ProtocolHint_Opaque_{Opaque: &pb.ProtocolHint_Opaque{}}
	}
	if opaque || e.config.TransportMode == TransportHeader {
		a.ProtocolHint.OpaqueTransport = opaqueTransport(t.InboundPort)
	}
}

// opaqueTransport returns nil for a port that a proxy cannot use.
func opaqueTransport(port uint16) *pb.ProtocolHint_OpaqueTransport {
	if port == 0 || port == math.MaxUint16 {
		return nil
	}
	return &pb.ProtocolHint_OpaqueTransport{InboundPort: uint32(port)}
}

// opaque reports whether a port of a workload carries no protocol that a proxy should detect.
func (c *Config) opaque(t federation.Template, port uint16) bool {
	return c.opaqueIn(t.Opaque, port) || t.ServerOpaque.Contains(port)
}

// opaqueIn reports whether a port is in a set of opaque ones, or in the default one if nobody said.
func (c *Config) opaqueIn(ports federation.Ports, port uint16) bool {
	if !ports.Said() {
		ports = c.DefaultOpaquePorts
	}
	return ports.Contains(port)
}

// pod adds what is known of a Pod.
func (e encoder) pod(a *pb.WeightedAddr, addr netip.AddrPort, trustDomain string, w *federation.Workload) {
	t := w.Template.Value()
	ownerKind := w.OwnerKind
	if ownerKind == "job" {
		ownerKind = "k8s_job" // job is a label of Prometheus' own
	}
	a.MetricLabels = map[string]string{"pod": w.Name, ownerKind: w.OwnerName, "serviceaccount": t.ServiceAccount}
	if t.ControlPlane != "" {
		a.MetricLabels["control_plane_ns"] = t.ControlPlane
	}
	if t.Hash != "" {
		a.MetricLabels["pod_template_hash"] = t.Hash
	}
	port := addr.Port()
	if t.ControlPlane == "" || t.Skip.Contains(port) {
		return // no proxy, or one that does not see the port
	}
	opaque := e.config.opaque(t, port)
	a.ProtocolHint = &pb.ProtocolHint{}
	switch {
	case opaque:
		a.ProtocolHint.Protocol = &pb.ProtocolHint_Opaque_{Opaque: &pb.ProtocolHint_Opaque{}}
	case e.config.H2Upgrade:
		a.ProtocolHint.Protocol = &pb.ProtocolHint_H2_{H2: &pb.ProtocolHint_H2{}}
	}
	known := t.InboundPort != 0 && t.AdminPort != 0 && t.ControlPort != 0 // else the port may be one of the proxy's own
	if (opaque || e.config.TransportMode == TransportHeader) && known && port != t.AdminPort && port != t.ControlPort {
		a.ProtocolHint.OpaqueTransport = opaqueTransport(t.InboundPort)
	}
	a.Http2 = e.config.HTTP2
	if name := w.Identity(e.config.ControllerNamespace, trustDomain); name != "" {
		a.TlsIdentity = dnsIdentity(name)
		a.TlsIdentity.ServerName = &pb.TlsIdentity_DnsLikeIdentity{Name: name}
	}
}

// gateway adds what a mirrored slice says of the gateway that its addresses lead to.
func (e encoder) gateway(a *pb.WeightedAddr, m *federation.Mirror) {
	if m.Name != "" {
		a.AuthorityOverride = &pb.AuthorityOverride{AuthorityOverride: fmt.Sprintf("%s:%d", m.Name, e.port)}
	}
	if m.Identity == "" {
		return
	}
	a.TlsIdentity = dnsIdentity(m.Identity)
	a.Http2 = e.config.HTTP2
	if e.config.H2Upgrade {
		a.ProtocolHint = &pb.ProtocolHint{Protocol: &pb.ProtocolHint_H2_{H2: &pb.ProtocolHint_H2{}}}
	}
}

func dnsIdentity(name string) *pb.TlsIdentity {
	return &pb.TlsIdentity{Strategy: &pb.TlsIdentity_DnsLikeIdentity_{DnsLikeIdentity: &pb.TlsIdentity_DnsLikeIdentity{Name: name}}}
}

func tcpAddress(a netip.AddrPort) *netpb.TcpAddress {
	ip := &netpb.IPAddress{}
	if a.Addr().Is4() {
		b := a.Addr().As4()
		ip.Ip = &netpb.IPAddress_Ipv4{Ipv4: binary.BigEndian.Uint32(b[:])}
	} else {
		b := a.Addr().As16()
		ip.Ip = &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{First: binary.BigEndian.Uint64(b[:8]), Last: binary.BigEndian.Uint64(b[8:])}}
	}
	return &netpb.TcpAddress{Ip: ip, Port: uint32(a.Port())}
}
