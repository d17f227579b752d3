package proxy_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	inboundpb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	outboundpb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// policies answers both services: the first streams with what sends them messages, the others with a code.
type policies struct {
	inboundpb.UnimplementedInboundServerPoliciesServer
	outboundpb.UnimplementedOutboundPoliciesServer
	ports []*inboundpb.Server
	code  codes.Code
}

func (p *policies) WatchPort(_ *inboundpb.PortSpec, to inboundpb.InboundServerPolicies_WatchPortServer) error {
	for _, message := range p.ports {
		if err := to.Send(message); err != nil {
			return err
		}
	}
	return status.Error(p.code, "")
}

func (p *policies) Watch(_ *outboundpb.TrafficSpec, to outboundpb.OutboundPolicies_WatchServer) error {
	if p.code == codes.OK {
		return to.Send(&outboundpb.OutboundPolicy{})
	}
	return status.Error(p.code, "")
}

// watch lets a proxy look up the policy of a port or of a target for half a second, and returns what it has seen.
func (p *policies) watch(t *testing.T, outbound bool) (seen string, violations error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener, server := bufconn.Listen(1<<16), grpc.NewServer()
		inboundpb.RegisterInboundServerPoliciesServer(server, p)
		outboundpb.RegisterOutboundPoliciesServer(server, p)
		go func() { _ = server.Serve(listener) }()
		conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
		if err != nil {
			t.Fatal(err)
		}

		var all []string
		observe := func(e proxy.Event) {
			switch {
			case e.End != nil:
				all = append(all, "end "+e.End.Code().String())
			case e.Policy.Repeated:
				all = append(all, "repeated")
			default:
				all = append(all, "policy")
			}
		}
		var s *proxy.PolicyStream
		if outbound {
			to := &netpb.TcpAddress{Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: 1}}, Port: 80}
			spec := &outboundpb.TrafficSpec{Target: &outboundpb.TrafficSpec_Addr{Addr: to}}
			s = proxy.OpenOutbound(t.Context(), conn, spec, true, observe)
		} else {
			spec := &inboundpb.PortSpec{Workload: "ns:p", Port: 80}
			s = proxy.OpenInbound(t.Context(), conn, spec, true, observe)
		}

		time.Sleep(time.Second / 2) //nolint:forbidigo // virtual time
		synctest.Wait()
		s.Close()
		seen, violations = strings.Join(all, " "), s.Violations()
		if got := s.Newest(); (got != nil) != strings.Contains(seen, "policy") {
			t.Errorf("the newest policy is %v", got)
		}
		conn.Close()
		server.Stop()
	})
	return seen, violations
}

// A proxy comes back when a stream ends, but for codes that depend on the direction; and goes by the newest policy.
func TestPolicyStream(t *testing.T) {
	t.Parallel()
	detect := func(timeout time.Duration) *inboundpb.Server {
		kind := &inboundpb.ProxyProtocol_Detect{Timeout: durationpb.New(timeout)}
		return &inboundpb.Server{
			Protocol: &inboundpb.ProxyProtocol{Kind: &inboundpb.ProxyProtocol_Detect_{Detect: kind}},
			Labels:   map[string]string{"name": "v"},
		}
	}

	for _, test := range []struct {
		outbound  bool
		ports     []*inboundpb.Server
		code      codes.Code
		seen      string // the first of it, where the proxy comes back
		back      bool
		violation string
	}{
		{false, nil, codes.NotFound, "end NotFound end NotFound", true, ""},
		{true, nil, codes.NotFound, "end NotFound", false, ""},
		{true, nil, codes.Unimplemented, "end Unimplemented", false, ""},
		{false, nil, codes.InvalidArgument, "end InvalidArgument", false, ""},
		{true, nil, codes.FailedPrecondition, "end FailedPrecondition", false, ""},
		{true, nil, codes.Unavailable, "end Unavailable end Unavailable", true, ""},
		{true, nil, codes.OK, "policy end OK policy", true, "0.0.0.1:80: metadata: absent"},
		{
			false,
			[]*inboundpb.Server{detect(time.Second), detect(time.Second), detect(time.Minute)},
			codes.InvalidArgument,
			"policy repeated policy end InvalidArgument", false, "",
		},
		{
			false,
			[]*inboundpb.Server{detect(-time.Second)},
			codes.InvalidArgument, "policy end InvalidArgument", false,
			"ns:p:80: protocol.detect.timeout",
		},
	} {
		t.Run(fmt.Sprint(test.outbound, test.code, len(test.ports)), func(t *testing.T) {
			t.Parallel()
			p := &policies{ports: test.ports, code: test.code}
			seen, violations := p.watch(t, test.outbound)
			if ok := seen == test.seen || test.back && strings.HasPrefix(seen, test.seen+" "); !ok {
				t.Errorf("it has seen %q, want %q", seen, test.seen)
			}
			if !strings.Contains(fmt.Sprint(violations), test.violation) || test.violation == "" && violations != nil {
				t.Errorf("violations: %v, want %q", violations, test.violation)
			}
		})
	}
}
