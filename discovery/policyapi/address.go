package policyapi

import (
	"encoding/binary"
	"net/netip"

	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
)

func newAddress(a netip.AddrPort) *netpb.TcpAddress {
	return &netpb.TcpAddress{Ip: newIP(a.Addr()), Port: uint32(a.Port())}
}

func newIP(a netip.Addr) *netpb.IPAddress {
	if a.Is4() {
		b := a.As4()
		return &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: binary.BigEndian.Uint32(b[:])}}
	}
	b := a.As16()
	return &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{
		First: binary.BigEndian.Uint64(b[:8]), Last: binary.BigEndian.Uint64(b[8:]),
	}}}
}

// parseIP returns false for none.
func parseIP(ip *netpb.IPAddress) (netip.Addr, bool) {
	switch asked := ip.GetIp().(type) {
	case *netpb.IPAddress_Ipv4:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], asked.Ipv4)
		return netip.AddrFrom4(b), true
	case *netpb.IPAddress_Ipv6:
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], asked.Ipv6.GetFirst())
		binary.BigEndian.PutUint64(b[8:], asked.Ipv6.GetLast())
		return netip.AddrFrom16(b), true
	default:
		return netip.Addr{}, false
	}
}
