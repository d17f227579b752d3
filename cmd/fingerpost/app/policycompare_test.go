package app_test

import (
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
	inboundpb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outboundpb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// otherwise is in the transcript of a history in which an answer is not that of the model.
const otherwise = "is answered otherwise than by the model"

// policyMet is what many histories have to meet: without it nothing is known of that branch.
var policyMet = []string{
	"a GRPCRoute without rules", "a HTTPRoute without rules", "a TCPRoute without rules", "a TLSRoute without rules",
	"a Service by name that is not there", "two Services of one address", "a port that is not declared", "fallback",
	"a backend that fails Service", "a backend that fails missing", "a backend that fails unsupported",
	"another EgressNetwork as a backend", "an EgressNetwork as its own backend", "backends without a weight",
	"a conflict of HTTPRoute and GRPCRoute", "a conflict of TLSRoute and HTTPRoute",
	"a conflict of TCPRoute and TLSRoute", "a consumer route", "a parent that cannot be read", "a parent for others",
	"a filter of GRPCRoute that does not convert", "a filter of HTTPRoute that does not convert",
	"a hostname that is none",
	"a match of GRPCRoute that does not convert", "a match of HTTPRoute that does not convert",
	"a rule without a match that converts", "timeouts of a rule that cannot be read",
	"a timeout annotation with a bad value", "a retry annotation with a bad value", "an accrual with a bad value",
	"accrual consecutive", "accrual unified", "failures that count as load", "an opaque port by name",
	"a port in an opaque range", "an EgressNetwork for all namespaces", "an EgressNetwork that cannot be read",
	"an EgressNetwork that denies", "an EgressNetwork that is not accepted", "an address of two EgressNetworks",
	"rules of a port of http1", "routes of a port of detect", "routes of a port of grpc",
	"a filter at a Server that does not convert", "a change of responses at a Server",
	"an answer of http1 about a Service", "an answer of http2 about a Service", "an answer of grpc about a Service",
	"an answer of tls about a Service", "an answer of opaque about a EgressNetwork",
}

// policyQuestions are what clients ask about targets when answers are compared with the model: addresses and names of
// what histories have, and of what they have not.
func policyQuestions() (all []modelQuestion) {
	for _, client := range []string{"shop", "other", "nowhere"} {
		for _, target := range []string{
			"10.96.0.10:8080", "10.96.0.10:80", "10.96.0.10:3306", "10.96.0.20:8080", "203.0.113.10:8080",
			"[fd00:10::10]:8080", "10.96.0.30:80",
			"1.1.1.1:443", "1.1.1.0:80", "203.0.113.200:443", "203.0.113.10:80", "[2606:4700::1]:443",
			"a.shop.svc.cluster.local:8080", "a.shop.svc:80", "b.shop.svc.cluster.local.:8080",
			"a.other.svc.cluster.local:8080", "b.other.svc.cluster.local", "ghost.shop.svc.cluster.local:3306",
			"a.shop.svc.other.domain:80",
		} {
			all = append(all, modelQuestion{client, target})
		}
	}
	return all
}

// policyDifferences asks what the model knows, and returns where answers differ from those of the model.
func (s *scenario) policyDifferences() (differences []string) {
	s.t.Helper()
	m, conn := s.readPolicy(), s.connectTo(policyAddr, "")
	for _, port := range modelPorts {
		spec := &inboundpb.PortSpec{Workload: port.workload, Port: uint32(port.number)}
		message, err := inboundpb.NewInboundServerPoliciesClient(conn).GetPort(s.t.Context(), spec)
		if err != nil {
			differences = append(differences, fmt.Sprintf("port %d %s: %v", port.number, otherwise, err))
			continue
		}
		got := strings.Join(policied("", &proxy.Policy{Inbound: message}), "\n")
		if diff := cmp.Diff(m.answer(port), withoutRules(got)); diff != "" {
			differences = append(differences, fmt.Sprintf("port %d of %s %s (-want +got):\n%s",
				port.number, port.workload, otherwise, diff))
		}
		protocol := partOf(message).at("protocol")
		rules := withoutAllows(routesIn(protocol.at(protocol.which("kind"))))
		if diff := cmp.Diff(m.rulesAt(port), rules); diff != "" {
			differences = append(differences, fmt.Sprintf("port %d of %s, with its rules, %s (-want +got):\n%s",
				port.number, port.workload, otherwise, diff))
		}
	}

	for _, asked := range policyQuestions() {
		got := modelTarget{}
		spec := trafficSpec(asked.client+":client", asked.target)
		message, err := outboundpb.NewOutboundPoliciesClient(conn).Get(s.t.Context(), spec)
		if got.Code = status.Code(err); err == nil {
			got = targetIn(message)
		}
		if diff := cmp.Diff(m.outbound(asked), got); diff != "" {
			differences = append(differences, fmt.Sprintf("a client in %s that asks about %s %s (-want +got):\n%s",
				asked.client, asked.target, otherwise, diff))
		}
	}
	return differences
}
