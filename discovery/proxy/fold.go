package proxy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
)

// A MessageType is what a message does.
type MessageType string

// The types of message.
const (
	Add         MessageType = "add"
	Remove      MessageType = "remove"
	NoEndpoints MessageType = "no-endpoints"
	Heartbeat   MessageType = "heartbeat"
)

// A Message is one Update as a proxy understands it.
type Message struct {
	Type      MessageType
	Reset     bool              // an Add that replaces everything
	Added     []Address         // of an Add, sorted
	Removed   []netip.AddrPort  // of a Remove, sorted
	SetLabels map[string]string // of an Add
	Exists    bool              // of NoEndpoints
	Bytes     int               // encoded
}

// An Address is an endpoint with everything that messages have about it.
type Address struct {
	Addr netip.AddrPort
	*pb.WeightedAddr
	Labels map[string]string // its own and those of its message
}

// A Fold is what a proxy holds: every message of a stream applied in order. The zero Fold holds nothing.
type Fold struct {
	addresses map[netip.AddrPort]Address
	fed       bool // there was an Add or NoEndpoints since the last connect
}

// Reconnect makes the next Add replace everything. What is held stays until then.
func (f *Fold) Reconnect() { f.fed = false }

// Addresses returns what is held, sorted.
func (f *Fold) Addresses() []Address {
	all := make([]Address, 0, len(f.addresses))
	for _, addr := range slices.SortedFunc(maps.Keys(f.addresses), netip.AddrPort.Compare) {
		all = append(all, f.addresses[addr])
	}
	return all
}

// Apply takes a message. It returns an error if a server must not send it; it is applied as well as may be
// all the same.
func (f *Fold) Apply(u *pb.Update) (Message, error) {
	switch {
	case u.GetAdd() != nil:
		return f.add(u.GetAdd())
	case u.GetRemove() != nil:
		return f.remove(u.GetRemove())
	case u.GetNoEndpoints() != nil:
		f.addresses, f.fed = nil, true
		return Message{Type: NoEndpoints, Exists: u.GetNoEndpoints().GetExists()}, nil
	default:
		return Message{Type: Heartbeat}, nil
	}
}

func (f *Fold) add(set *pb.WeightedAddrSet) (Message, error) {
	if len(set.GetAddrs()) == 0 {
		return Message{Type: Heartbeat}, nil
	}
	message := Message{Type: Add, Reset: !f.fed, SetLabels: set.GetMetricLabels()}
	if !f.fed {
		f.addresses, f.fed = nil, true
	}
	if f.addresses == nil {
		f.addresses = map[netip.AddrPort]Address{}
	}

	var violation error
	for _, w := range set.GetAddrs() {
		a, err := addressOf(w, set.GetMetricLabels())
		if err != nil {
			violation = fmt.Errorf("address %s in an Add: %w", a.Addr, err)
		}
		f.addresses[a.Addr] = a
		message.Added = append(message.Added, a)
	}

	slices.SortFunc(message.Added, func(a, b Address) int { return a.Addr.Compare(b.Addr) })
	return message, violation
}

func (f *Fold) remove(set *pb.AddrSet) (Message, error) {
	message := Message{Type: Remove}
	var violation error
	if !f.fed {
		violation = fmt.Errorf("a Remove before the first Add of the stream")
	}

	for _, a := range set.GetAddrs() {
		addr, err := addrOf(a)
		if err != nil {
			violation = fmt.Errorf("address in a Remove: %w", err)
		} else if _, held := f.addresses[addr]; !held && violation == nil {
			violation = fmt.Errorf("a Remove of %s, which was never added", addr)
		}
		delete(f.addresses, addr)
		message.Removed = append(message.Removed, addr)
	}

	slices.SortFunc(message.Removed, netip.AddrPort.Compare)
	return message, violation
}

// addressOf reads an address of a message with labels of its own. It returns an error if a server must not send it.
func addressOf(w *pb.WeightedAddr, setLabels map[string]string) (Address, error) {
	addr, err := addrOf(w.GetAddr())
	if err == nil {
		err = checkAddress(w)
	}
	labels := map[string]string{}
	maps.Copy(labels, setLabels)
	maps.Copy(labels, w.GetMetricLabels())
	return Address{addr, w, labels}, err
}

// checkAddress returns what a proxy could not use an address for.
func checkAddress(weighted *pb.WeightedAddr) error {
	if id := weighted.GetTlsIdentity(); id != nil {
		switch s := id.GetStrategy().(type) {
		case *pb.TlsIdentity_DnsLikeIdentity_:
			if s.DnsLikeIdentity.GetName() == "" {
				return fmt.Errorf("a TLS identity without a name")
			}
		case *pb.TlsIdentity_UriLikeIdentity_:
			if id.GetServerName().GetName() == "" {
				return fmt.Errorf("the URI identity %s without a server name", s.UriLikeIdentity.GetUri())
			}
		default:
			return fmt.Errorf("a TLS identity without a strategy")
		}
	}

	if t := weighted.GetProtocolHint().GetOpaqueTransport(); t != nil &&
		(t.GetInboundPort() == 0 || t.GetInboundPort() >= 65535) {
		return fmt.Errorf("an opaque transport to port %d", t.GetInboundPort())
	}
	if weighted.GetWeight() == 0 {
		return fmt.Errorf("a weight of 0")
	}
	return nil
}

func addrOf(address *netpb.TcpAddress) (netip.AddrPort, error) {
	var ip netip.Addr
	switch v := address.GetIp().GetIp().(type) {
	case *netpb.IPAddress_Ipv4:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], v.Ipv4)
		ip = netip.AddrFrom4(b)
	case *netpb.IPAddress_Ipv6:
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], v.Ipv6.GetFirst())
		binary.BigEndian.PutUint64(b[8:], v.Ipv6.GetLast())
		ip = netip.AddrFrom16(b)
	default:
		return netip.AddrPort{}, fmt.Errorf("an address without an IP")
	}

	if address.GetPort() == 0 || address.GetPort() > 65535 {
		return netip.AddrPort{}, fmt.Errorf("port %d of %s", address.GetPort(), ip)
	}
	return netip.AddrPortFrom(ip, uint16(address.GetPort())), nil
}
