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
