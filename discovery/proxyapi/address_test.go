package proxyapi_test

import (
	"net/netip"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/net"

	"github.com/fingerpost/fingerpost/discovery/proxyapi"
)

func TestIP(t *testing.T) {
	for _, text := range []string{"10.1.2.3", "2001:db8::1:2", "::ffff:10.1.2.3"} {
		want := netip.MustParseAddr(text)
		if got, is := proxyapi.ParseIP(proxyapi.IP(want)); !is || got != want {
			t.Errorf("%s is read as %s, %t", want, got, is)
		}
	}
	for _, none := range []*pb.IPAddress{nil, {}} {
		if got, is := proxyapi.ParseIP(none); is {
			t.Errorf("none is read as %s", got)
		}
	}

	at := proxyapi.Address(netip.MustParseAddrPort("1.1.1.1:443"))
	if at.GetIp().GetIpv4() != 0x01010101 || at.GetPort() != 443 {
		t.Errorf("%v", at)
	}
}
