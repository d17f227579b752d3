// Package proxyapi has what the messages of all of linkerd2-proxy's APIs have in common.
package proxyapi

import (
	"encoding/binary"
	"net/netip"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/net"
)

// IdleHeartbeat is after how long of silence, more or less by a tenth, a message is sent again: a proxy gives up on a
// stream that was silent for 5 min.
const IdleHeartbeat = 4 * time.Minute

// Address returns an IP and a port as a message.
func Address(a netip.AddrPort) *pb.TcpAddress {
	return &pb.TcpAddress{Ip: IP(a.Addr()), Port: uint32(a.Port())}
}

// IP returns an IP as a message. One of IPv4 that is mapped to IPv6 is one of IPv6.
func IP(a netip.Addr) *pb.IPAddress {
	if a.Is4() {
		b := a.As4()
		return &pb.IPAddress{Ip: &pb.IPAddress_Ipv4{Ipv4: binary.BigEndian.Uint32(b[:])}}
	}
	b := a.As16()
	return &pb.IPAddress{Ip: &pb.IPAddress_Ipv6{Ipv6: &pb.IPv6{
		First: binary.BigEndian.Uint64(b[:8]), Last: binary.BigEndian.Uint64(b[8:]),
	}}}
}

// ParseIP reads an IP, and returns false for none.
func ParseIP(ip *pb.IPAddress) (netip.Addr, bool) {
	switch asked := ip.GetIp().(type) {
	case *pb.IPAddress_Ipv4:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], asked.Ipv4)
		return netip.AddrFrom4(b), true
	case *pb.IPAddress_Ipv6:
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], asked.Ipv6.GetFirst())
		binary.BigEndian.PutUint64(b[8:], asked.Ipv6.GetLast())
		return netip.AddrFrom16(b), true
	default:
		return netip.Addr{}, false
	}
}
