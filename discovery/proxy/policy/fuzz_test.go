package policy_test

import (
	"errors"
	"testing"

	inboundpb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outboundpb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
)

// requestsOf returns a request of each protocol for a host and a path.
func requestsOf(host, path string) []policy.Request {
	var all []policy.Request
	for _, protocol := range []policy.Protocol{
		"", policy.HTTP1, policy.HTTP2, policy.GRPC, policy.TLS, policy.Opaque,
	} {
		for _, method := range []string{"GET", "POST"} {
			all = append(all, policy.Request{
				Protocol: protocol, Method: method, Authority: host, SNI: host, Path: path,
				MeshTLS: true, Identity: host,
			})
		}
	}
	return all
}

// checkError fails if an error has another class than it must, or comes with what it must not.
func checkError(t *testing.T, err error, decoded bool) {
	t.Helper()
	failsAtOnce := errors.Is(err, policy.ErrFailsAtOnce)
	refused := errors.Is(err, policy.ErrInvalid) || errors.Is(err, policy.ErrPanic)
	if err != nil && failsAtOnce == refused || decoded == refused {
		t.Errorf("decoded: %t, with the error %v", decoded, err)
	}
}

func FuzzDecodeOutbound(f *testing.F) {
	for _, text := range []string{httpPolicy, grpcPolicy, tlsPolicy, tcpPolicy, detect} {
		message := &outboundpb.OutboundPolicy{}
		if err := prototext.Unmarshal([]byte(text), message); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "web", "/?q=v")
	}
	f.Fuzz(func(t *testing.T, b []byte, host, path string) {
		message := &outboundpb.OutboundPolicy{}
		if proto.Unmarshal(b, message) != nil {
			return
		}
		client, err := policy.DecodeOutbound(message)
		checkError(t, err, client != nil)
		if client == nil {
			return
		}
		for _, request := range requestsOf(host, path) {
			route, rule := client.Route(request)
			if route != nil && rule.Outcomes() == nil {
				t.Errorf("%+v has no outcome", request)
			}
		}
	})
}

func FuzzDecodeInbound(f *testing.F) {
	for _, text := range []string{inboundWeb, inboundHTTP2, inboundGRPC, inboundTLS, inboundTCP} {
		message := &inboundpb.Server{}
		if err := prototext.Unmarshal([]byte(text), message); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "web", "/")
	}
	f.Fuzz(func(t *testing.T, b []byte, host, path string) {
		message := &inboundpb.Server{}
		if proto.Unmarshal(b, message) != nil {
			return
		}
		server, err := policy.DecodeInbound(message)
		checkError(t, err, server != nil)
		if server == nil {
			return
		}
		for _, request := range requestsOf(host, path) {
			if route, by := server.Authorize(request); by != nil && route == nil && server.Protocol == policy.HTTP1 {
				t.Errorf("%+v is let in by %v without a route", request, by.Metadata)
			}
		}
	})
}
