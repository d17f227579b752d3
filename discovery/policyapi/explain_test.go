package policyapi_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
	"github.com/fingerpost/fingerpost/federation/rules"
)

const identities = ".serviceaccount.identity.linkerd.cluster.local"

// A client is let in, and by what, as a proxy decides it of the message.
func TestDecideAsProxies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInbound(t)
		server, err := policy.DecodeInbound(policyapi.EncodeInbound(in))
		if err != nil {
			t.Fatal(err)
		}

		client := rules.Client{
			TLS: rapid.Bool().Draw(t, "TLS"),
			Addr: netip.MustParseAddr(rapid.SampledFrom([]string{
				"10.1.0.1", "1.1.1.1", "127.0.0.1", "::1", "fd00::1",
			}).Draw(t, "addr")),
		}
		if client.TLS {
			client.Identity = rapid.SampledFrom([]string{
				"", "web.till" + identities, "WEB.shop" + identities, "spiffe://t/a", "till" + identities,
			}).Draw(t, "identity")
		}

		for i, d := range options().Decide(in, client) {
			request := policy.Request{Client: client.Addr, MeshTLS: client.TLS, Identity: client.Identity}
			switch {
			case i == len(in.Routes):
				request.Protocol = policy.Opaque
			case in.Protocol == rules.ProtocolGRPC:
				request.Protocol, request.Method, request.Path = policy.GRPC, "POST", fmt.Sprintf("/s%d/m", i)
			default:
				request.Path = fmt.Sprint("/r", i)
			}

			_, by := server.Authorize(request)
			want, got := "nothing", "nothing"
			if by != nil {
				want = by.Metadata.Name
			}
			if d.By != nil {
				got = d.By.Name + d.By.Default
			}
			if got != want || d.By == nil && len(d.Misses) == 0 && len(in.Authorizations) > 0 {
				t.Fatalf("route %d lets %+v in by %s, and a proxy by %s; %+v\n%s",
					i, client, got, want, d.Misses, prototext.Format(policyapi.EncodeInbound(in)))
			}
		}
	})
}

func drawInbound(t *rapid.T) *rules.Inbound {
	in := &rules.Inbound{
		Origin:         rules.Origin{Default: "deny"},
		Protocol:       rules.ServerProtocol(rapid.IntRange(0, 5).Draw(t, "protocol")),
		Authorizations: drawAuthorizations(t, "of the port"),
	}
	if in.Protocol == rules.ProtocolOpaque || in.Protocol == rules.ProtocolTLS {
		return in
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "routes") {
		match := rules.Match{Path: rules.PathMatch{Type: rules.PathExact, Text: fmt.Sprint("/r", i)}}
		if in.Protocol == rules.ProtocolGRPC {
			match = rules.Match{RPCService: fmt.Sprint("s", i), RPCMethod: "m"}
		}
		in.Routes = append(in.Routes, rules.InboundRoute{
			Origin: rules.Origin{Default: "default"}, Rules: []rules.InboundRule{{Matches: []rules.Match{match}}},
			Authorizations: drawAuthorizations(t, "of the route"),
		})
	}
	return in
}

func drawAuthorizations(t *rapid.T, label string) (all []rules.Authorization) {
	classes := []rules.ClientClass{rules.ClientsAny, rules.ClientsTLS, rules.ClientsIdentified}
	networks := [][]rules.Network{rules.Everywhere, {network("10.0.0.0/8")}, {network("fd00::/8")}}
	for i := range rapid.IntRange(0, 3).Draw(t, label) {
		a := rules.Authorization{
			Origin: rules.Origin{Reference: rules.Reference{
				Kind: rules.KindServerAuthorization, Namespace: "shop", Name: fmt.Sprint(label[7:8], i),
			}},
			Clients:  rapid.SampledFrom(classes).Draw(t, "class"),
			Networks: rapid.SampledFrom(networks).Draw(t, "networks"),
		}
		if a.Clients == rules.ClientsIdentified {
			text := rapid.SampledFrom([]string{
				"*", "web.till" + identities, "web.shop" + identities, "*.till" + identities, "spiffe://t/a",
			}).Draw(t, "who")
			a.Identities = []rules.Pattern{rules.ParseIdentity(text)}
		}
		all = append(all, a)
	}
	return all
}

// What people are shown is what a client gets that asks at the same time; and what is wrong with objects is beside it.
func TestExplain(t *testing.T) {
	inWorld(t, func(w *world) {
		_, err := w.server.ExplainInbound("shop:p", 8080, nil)
		w.wantsCode(err, codes.Unavailable)
		_, err = w.server.ExplainOutbound("web.shop:80", "till")
		w.wantsCode(err, codes.Unavailable)

		w.setPod("p")
		w.setServers(serverOf(8080))
		w.targets.Set(web, &rules.Target{Reference: web, Exists: true})
		w.findings.Set(serverOf(8080).Reference, &rules.ObjectFindings{
			Findings: []rules.Finding{{Part: "port", Reason: "odd"}},
		})
		broken := rules.Reference{Kind: rules.KindAuthorizationPolicy, Namespace: "shop", Name: "broken"}
		w.findings.Set(broken, &rules.ObjectFindings{Unreadable: "no target"})
		w.list()

		client, err := w.server.ParseClient("web.till", "10.0.0.1", false)
		if err != nil || client.Identity != "web.till"+identities {
			t.Errorf("the client is %+v: %v", client, err)
		}
		in, err := w.server.ExplainInbound("shop:p", 8080, &client)
		if err != nil {
			t.Fatal(err)
		}
		got, err := w.server.GetPort(t.Context(), &inbound.PortSpec{Workload: "shop:p", Port: 8080})
		if err != nil || !proto.Equal(got, policyapi.EncodeInbound(in.Answer)) {
			t.Errorf("the proxy gets %v: %v", got, err)
		}
		if len(in.Decisions) != 2 || in.Decisions[0].By != nil {
			t.Errorf("a Server that lets no client in lets this one in: %+v", in.Decisions)
		}
		var lines []string
		for _, f := range in.Findings {
			lines = append(lines, f.Lines...)
		}
		if text := fmt.Sprint(lines); !strings.Contains(text, "port: odd") || !strings.Contains(text, "no target") {
			t.Errorf("what is wrong with objects is not shown: %s", text)
		}

		for _, text := range []string{"web.shop:80", "web.shop.svc", "web.shop.svc.cluster.local:80"} {
			out, err := w.server.ExplainOutbound(text, "till")
			if err != nil {
				t.Fatal(text, err)
			}
			message, err := w.server.Get(t.Context(), sentBy("till:x", "web.shop.svc.cluster.local:80"))
			if err != nil || !proto.Equal(message, policyapi.EncodeOutbound(out.Answer, netip.AddrPort{})) {
				t.Errorf("a client of %s gets %v: %v", text, message, err)
			}
		}

		away, err := w.server.ExplainOutbound("1.1.1.1:443", "till")
		if err != nil || away.Answer.Default == "" || len(away.Notes) == 0 {
			t.Errorf("an address outside: %+v, %v", away, err)
		}
		for text, code := range map[string]codes.Code{
			"10.0.0.9:80": codes.NotFound, "www.example.com": codes.NotFound,
			"a b": codes.InvalidArgument, "": codes.InvalidArgument,
		} {
			_, err := w.server.ExplainOutbound(text, "till")
			w.wantsCode(err, code)
		}
		for _, from := range []string{"web", ".till", "web."} {
			_, err := w.server.ParseClient(from, "", false)
			w.wantsCode(err, codes.InvalidArgument)
		}
	})
}

func (w *world) wantsCode(err error, code codes.Code) {
	w.t.Helper()
	if status.Code(err) != code {
		w.t.Errorf("%v, want %v", err, code)
	}
}
