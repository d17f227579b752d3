package linkerd

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
	"unique"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/discovery/proxyapi"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// Field numbers of the messages that are put together by hand.
const (
	updateAdd      = 1 // Update.add
	updateRemove   = 2 // Update.remove
	setAddrs       = 1 // WeightedAddrSet.addrs and AddrSet.addrs
	setLabels      = 2 // WeightedAddrSet.metric_labels
	addrAddr       = 1 // WeightedAddr.addr
	addrWeight     = 3 // WeightedAddr.weight
	addrLabels     = 4 // WeightedAddr.metric_labels
	mapKey, mapVal = 1, 2
	tcpIP, tcpPort = 1, 2 // TcpAddress
	ip4, ip6       = 1, 2 // IPAddress
	first6, last6  = 1, 2 // IPv6
)

// encoder turns choices into frames for clients that asked for one port.
//
// Addresses of one kind, such as the Pods of a ReplicaSet, differ in the address, the weight and up to
// three labels. So weightedAddr is asked once a kind, what it returns is encoded once, and for each
// address the rest is appended by hand: twenty times as fast as a message for each address, and without
// garbage. A property test compares what decoders see with weightedAddr of each address.
type encoder struct {
	config *Config
	port   uint16 // that clients asked for
}

// A label is a metric label. Those that all addresses of an update have in common stand once, on the message.
type label struct{ name, value string }

func (l label) valid() bool { return utf8.ValidString(l.name) && utf8.ValidString(l.value) }

// kind is everything that the content of a message for an address depends on, but for the address
// itself and what each address has for itself.
type kind struct {
	origin *federation.Origin
	port   uint16
	cohort unique.Handle[federation.Cohort] // of the workload; zero for none
	mirror federation.Mirror                // zero for none
}

func (e encoder) kindOf(entry federation.Choice) kind {
	k := kind{origin: entry.Origin(), port: entry.At(e.port).Port()}
	if w := entry.Endpoint.Workload; w != nil {
		k.cohort = w.Cohort
	}
	if m := entry.Endpoint.Mirror(); m != nil {
		k.mirror = *m
	}
	return k
}

// nameOf returns the label that names a workload. A workload without an owner owns itself.
func nameOf(w *federation.Workload) label {
	l := label{"pod", w.Name}
	if w.Kind() == federation.ExternalWorkload {
		l.name = "external_workload"
	}
	if kind, name := w.Owner(); kind == l.name {
		l.value = name
	}
	return l
}

// sharedPart is what addresses of one kind have in common.
type sharedPart struct {
	valid  bool
	bytes  []byte  // of a WeightedAddr
	labels []label // of the message, if all its addresses have them
	own    []byte  // those of them that not all have, on the address
}

func (e encoder) sharedPart(entry federation.Choice) *sharedPart {
	a := e.weightedAddr(entry)
	a.Addr, a.Weight = nil, 0
	if w := entry.Endpoint.Workload; w != nil {
		for _, own := range []string{nameOf(w).name, "zone", "zone_locality"} {
			delete(a.GetMetricLabels(), own)
		}
	}
	p := &sharedPart{labels: setLabelsOf(entry)}
	var err error
	p.bytes, err = marshal(a)
	p.valid = err == nil && !slices.ContainsFunc(p.labels, func(l label) bool { return !l.valid() })
	return p
}

// encodedAddr is an address on its way into a message.
type encodedAddr struct {
	addr     netip.AddrPort
	weight   uint32
	part     *sharedPart
	workload bool
	own      [3]label // of a workload
}

func (e encoder) encodeAddr(entry federation.Choice, p *sharedPart) encodedAddr {
	m := encodedAddr{addr: entry.At(e.port), weight: entry.Weight, part: p}
	if w := entry.Endpoint.Workload; w != nil {
		m.workload = true
		m.own = [...]label{nameOf(w), {"zone", entry.Endpoint.Zone.String()}, {"zone_locality", localityOf(entry)}}
	}
	return m
}

func (m *encodedAddr) valid() bool { return m.part.valid && m.own[0].valid() && m.own[1].valid() }

func (m *encodedAddr) size() int {
	n := 1 + protowire.SizeBytes(sizeTCP(m.addr)) + 1 + protowire.SizeVarint(uint64(m.weight))
	n += len(m.part.bytes) + len(m.part.own)
	if m.workload {
		for _, l := range m.own {
			n += 1 + protowire.SizeBytes(l.size())
		}
	}
	return n
}

func (m *encodedAddr) append(to []byte) []byte {
	to = protowire.AppendTag(to, addrAddr, protowire.BytesType)
	to = appendTCP(protowire.AppendVarint(to, uint64(sizeTCP(m.addr))), m.addr)
	to = protowire.AppendTag(to, addrWeight, protowire.VarintType)
	to = protowire.AppendVarint(to, uint64(m.weight))
	to = append(to, m.part.bytes...)
	if m.workload {
		for _, l := range m.own {
			to = l.append(to, addrLabels)
		}
	}
	return append(to, m.part.own...)
}

func (e encoder) adds(entries []federation.Choice) (frames []*serving.Frame, leftOut int) {
	parts := map[kind]*sharedPart{}
	all := make([]encodedAddr, 0, len(entries))
	var last kind
	var its *sharedPart

	for _, entry := range entries {
		if k := e.kindOf(entry); its == nil || k != last {
			last, its = k, parts[k]
			if its == nil {
				its = e.sharedPart(entry)
				parts[k] = its
			}
		}

		if m := e.encodeAddr(entry, its); m.valid() {
			all = append(all, m)
		} else {
			leftOut++
		}
	}

	if len(all) == 0 {
		return nil, leftOut
	}
	shared := slices.Clone(all[0].part.labels)
	for _, p := range parts {
		shared = slices.DeleteFunc(shared, func(l label) bool { return p.valid && !slices.Contains(p.labels, l) })
	}

	for _, p := range parts {
		for _, l := range p.labels {
			if !slices.Contains(shared, l) {
				p.own = l.append(p.own, addrLabels)
			}
		}
	}

	var tail []byte // of each message
	for _, l := range shared {
		tail = l.append(tail, setLabels)
	}
	frames, large := pack(discovery.Add, all, tail, (*encodedAddr).size, (*encodedAddr).append)
	return frames, leftOut + large
}

func removes(addrs []netip.AddrPort) []*serving.Frame {
	size := func(a *netip.AddrPort) int { return sizeTCP(*a) }
	put := func(a *netip.AddrPort, b []byte) []byte { return appendTCP(b, *a) }
	frames, _ := pack(discovery.Remove, addrs, nil, size, put)
	return frames
}

// pack fills messages with addresses and a tail each, and leaves out what is larger than a message may be.
func pack[A any](
	messageType serving.MessageType, addrs []A, tail []byte, size func(*A) int, put func(*A, []byte) []byte,
) (frames []*serving.Frame, leftOut int) {
	field := protowire.Number(updateAdd)
	if messageType == discovery.Remove {
		field = updateRemove
	}

	for len(addrs) > 0 {
		count, total := 0, len(tail)
		for count < len(addrs) {
			more := 1 + protowire.SizeBytes(size(&addrs[count]))
			if total+more > serving.MaxFrame {
				break
			}
			count, total = count+1, total+more
		}

		if count == 0 {
			addrs, leftOut = addrs[1:], leftOut+1
			continue
		}

		message := make([]byte, 0, 1+protowire.SizeBytes(total))
		message = protowire.AppendTag(message, field, protowire.BytesType)
		message = protowire.AppendVarint(message, uint64(total))
		for i := range addrs[:count] {
			message = protowire.AppendTag(message, setAddrs, protowire.BytesType)
			message = protowire.AppendVarint(message, uint64(size(&addrs[i])))
			message = put(&addrs[i], message)
		}

		added, removed := count, 0
		if messageType == discovery.Remove {
			added, removed = 0, count
		}
		frames = append(frames, serving.NewFrame(messageType, append(message, tail...), added, removed))
		addrs = addrs[count:]
	}
	return frames, leftOut
}

func (l label) size() int {
	return 1 + protowire.SizeBytes(len(l.name)) + 1 + protowire.SizeBytes(len(l.value))
}

// append appends the label as an entry of a map.
func (l label) append(b []byte, field protowire.Number) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(l.size()))
	b = protowire.AppendTag(b, mapKey, protowire.BytesType)
	b = protowire.AppendString(b, l.name)
	b = protowire.AppendTag(b, mapVal, protowire.BytesType)
	return protowire.AppendString(b, l.value)
}

const size4, size6 = 1 + 4, 1 + 1 + 2*(1+8) // of an IPAddress

func sizeTCP(a netip.AddrPort) int {
	ip := size6
	if a.Addr().Is4() {
		ip = size4
	}
	return 1 + 1 + ip + 1 + protowire.SizeVarint(uint64(a.Port()))
}

// appendTCP appends a TcpAddress.
func appendTCP(to []byte, addr netip.AddrPort) []byte {
	to = protowire.AppendTag(to, tcpIP, protowire.BytesType)
	if addr.Addr().Is4() {
		ip := addr.Addr().As4()
		to = append(to, size4)
		to = protowire.AppendTag(to, ip4, protowire.Fixed32Type)
		to = protowire.AppendFixed32(to, binary.BigEndian.Uint32(ip[:]))
	} else {
		ip := addr.Addr().As16()
		to = append(to, size6)
		to = protowire.AppendTag(to, ip6, protowire.BytesType)
		to = append(to, size6-2)
		to = protowire.AppendTag(to, first6, protowire.Fixed64Type)
		to = protowire.AppendFixed64(to, binary.BigEndian.Uint64(ip[:8]))
		to = protowire.AppendTag(to, last6, protowire.Fixed64Type)
		to = protowire.AppendFixed64(to, binary.BigEndian.Uint64(ip[8:]))
	}

	to = protowire.AppendTag(to, tcpPort, protowire.VarintType)
	return protowire.AppendVarint(to, uint64(addr.Port()))
}

// setLabelsOf returns the labels of a whole message: which Service an address belongs to, and for a
// mirrored one which Service it stands for.
func setLabelsOf(entry federation.Choice) []label {
	labels := []label{{"service", entry.Origin().Name}, {"namespace", entry.Origin().Namespace}}
	if m := entry.Endpoint.Mirror(); m != nil && m.Cluster != "" {
		labels = append(labels, label{"target_cluster", m.Cluster})
		if parts := strings.Split(m.Name, "."); len(parts) >= 2 {
			labels = append(labels, label{"target_service", parts[0]}, label{"target_service_namespace", parts[1]})
		}
	}
	return labels
}

// localityOf returns the label of how far an endpoint is from the client.
func localityOf(entry federation.Choice) string {
	return [...]string{
		federation.UnknownZone: "unknown", federation.SameZone: "local", federation.DifferentZone: "remote",
	}[entry.Nearness]
}

// weightedAddr returns everything about one address, except the labels of its message.
func (e encoder) weightedAddr(entry federation.Choice) *pb.WeightedAddr {
	addr := entry.At(e.port)
	weighted := &pb.WeightedAddr{Addr: proxyapi.Address(addr), Weight: entry.Weight}
	if w := entry.Endpoint.Workload; w != nil {
		e.config.addWorkload(weighted, addr.Port(), entry.Origin().TrustDomain, w)
		if !entry.Origin().Trusts(w) {
			weighted.TlsIdentity = nil
		}
		weighted.MetricLabels["zone"] = entry.Endpoint.Zone.String()
		weighted.MetricLabels["zone_locality"] = localityOf(entry)
		return weighted
	}

	weighted.MetricLabels = map[string]string{"zone_locality": "unknown"}
	if m := entry.Endpoint.Mirror(); m != nil {
		e.setGateway(weighted, m)
	}
	return weighted
}

// addWorkload adds what is known of a workload at a port. trustDomain is that of its cluster.
func (c *Config) addWorkload(a *pb.WeightedAddr, port uint16, trustDomain string, w *federation.Workload) {
	if w.Kind() == federation.ExternalWorkload {
		c.addExternal(a, port, w)
	} else {
		c.addPod(a, port, trustDomain, w)
	}
}

// addExternal adds what is known of an ExternalWorkload: it is always meshed, and names its own identity.
func (c *Config) addExternal(weighted *pb.WeightedAddr, port uint16, workload *federation.Workload) {
	template := workload.Template()
	weighted.MetricLabels = map[string]string{"external_workload": workload.Name}
	if kind, name := workload.Owner(); kind != "" {
		weighted.MetricLabels[kind] = name
	}

	if template.Identity != "" && template.ServerName != "" { // a proxy can use neither alone
		weighted.TlsIdentity = &pb.TlsIdentity{
			Strategy: &pb.TlsIdentity_UriLikeIdentity_{
				UriLikeIdentity: &pb.TlsIdentity_UriLikeIdentity{Uri: template.Identity},
			},
			ServerName: &pb.TlsIdentity_DnsLikeIdentity{Name: template.ServerName},
		}
	}
	weighted.Http2 = c.HTTP2
	weighted.ProtocolHint = c.protocolHint(c.opaque(template, port), true, template.InboundPort)
}

// protocolHint returns how a proxy sends to a meshed workload: as opaque bytes, or else over HTTP/2 if h2. inbound is
// the port at which the workload's proxy takes opaque transports; 0 for none. A proxy cannot use the last port.
func (c *Config) protocolHint(opaque, h2 bool, inbound uint16) *pb.ProtocolHint {
	hint := &pb.ProtocolHint{}
	switch {
	case opaque:
		hint.Protocol = &pb.ProtocolHint_Opaque_{Opaque: &pb.ProtocolHint_Opaque{}}
	case h2:
		hint.Protocol = &pb.ProtocolHint_H2_{H2: &pb.ProtocolHint_H2{}}
	}
	if (opaque || c.TransportMode == TransportHeader) && inbound != 0 && inbound != math.MaxUint16 {
		hint.OpaqueTransport = &pb.ProtocolHint_OpaqueTransport{InboundPort: uint32(inbound)}
	}
	return hint
}

// opaque reports whether a port of a workload carries no protocol that a proxy should detect.
func (c *Config) opaque(t federation.Template, port uint16) bool {
	return c.opaqueIn(t.Opaque, port) || t.ServerOpaque.Contains(port)
}

// opaqueIn reports whether a port is in a set of opaque ones, or in the default one if none is given.
func (c *Config) opaqueIn(ports federation.Ports, port uint16) bool {
	if !ports.Given() {
		ports = c.DefaultOpaquePorts
	}
	return ports.Contains(port)
}

// addPod adds what is known of a Pod.
func (c *Config) addPod(weighted *pb.WeightedAddr, port uint16, trustDomain string, workload *federation.Workload) {
	template := workload.Template()
	ownerKind, owner := workload.Owner()
	if ownerKind == "job" {
		ownerKind = "k8s_job" // job is a label of Prometheus' own
	}
	weighted.MetricLabels = map[string]string{
		"pod": workload.Name, ownerKind: owner, "serviceaccount": template.ServiceAccount,
	}
	if template.ControlPlane != "" {
		weighted.MetricLabels["control_plane_ns"] = template.ControlPlane
	}

	if template.Hash != "" {
		weighted.MetricLabels["pod_template_hash"] = template.Hash
	}
	if template.ControlPlane == "" || template.Skip.Contains(port) {
		return // no proxy, or one that does not see the port
	}

	inbound := template.InboundPort
	if template.AdminPort == 0 || template.ControlPort == 0 ||
		port == template.AdminPort || port == template.ControlPort {
		inbound = 0 // port is the proxy's own, or may be
	}
	weighted.ProtocolHint = c.protocolHint(c.opaque(template, port), c.H2Upgrade, inbound)
	weighted.Http2 = c.HTTP2
	if name := workload.Identity(c.ControllerNamespace, trustDomain); name != "" {
		weighted.TlsIdentity = dnsIdentity(name)
		weighted.TlsIdentity.ServerName = &pb.TlsIdentity_DnsLikeIdentity{Name: name}
	}
}

// setGateway adds what a mirrored slice has about the gateway that its addresses lead to.
func (e encoder) setGateway(a *pb.WeightedAddr, m *federation.Mirror) {
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
	dns := &pb.TlsIdentity_DnsLikeIdentity{Name: name}
	return &pb.TlsIdentity{Strategy: &pb.TlsIdentity_DnsLikeIdentity_{DnsLikeIdentity: dns}}
}
