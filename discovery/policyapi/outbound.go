package policyapi

import (
	"net/netip"
	"time"

	destinationpb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	opaquepb "github.com/linkerd/linkerd2-proxy-api/go/opaque_route"
	pb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	tlspb "github.com/linkerd/linkerd2-proxy-api/go/tls_route"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fingerpost/fingerpost/discovery/proxyapi"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// Fixed parts of messages to clients.
const (
	detectTimeout   = 10 * time.Second
	queueCapacity   = 100
	failfastTimeout = 3 * time.Second
	defaultRTT      = 30 * time.Millisecond
	loadDecay       = 10 * time.Second

	maxRequestBytes = 64 << 10 // of a request that is kept to be sent again
	minRetryBackoff = 25 * time.Millisecond
	maxRetryBackoff = 250 * time.Millisecond
	retryJitter     = 1
)

// An outboundEncoder makes messages to a client that has asked for an address; it is not valid for a name.
type outboundEncoder struct{ original netip.AddrPort }

// EncodeOutbound returns the message of an answer. original is the address that was asked for.
func EncodeOutbound(answer *rules.Outbound, original netip.AddrPort) *pb.OutboundPolicy {
	to := outboundEncoder{original}
	return &pb.OutboundPolicy{
		Metadata: newMetadata(answer.Origin, answer.Port), Protocol: to.protocol(answer),
	}
}

func (e outboundEncoder) protocol(answer *rules.Outbound) *pb.ProxyProtocol {
	accrual := newAccrual(answer.Accrual)
	switch answer.Protocol {
	case rules.OutboundHTTP1:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Http1_{
			Http1: &pb.ProxyProtocol_Http1{Routes: e.httpRoutes(answer.Routes), FailureAccrual: accrual},
		}}
	case rules.OutboundHTTP2:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Http2_{
			Http2: &pb.ProxyProtocol_Http2{Routes: e.httpRoutes(answer.Routes), FailureAccrual: accrual},
		}}
	case rules.OutboundGRPC:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Grpc_{
			Grpc: &pb.ProxyProtocol_Grpc{Routes: e.grpcRoutes(answer.Routes), FailureAccrual: accrual},
		}}
	case rules.OutboundTLS:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Tls_{
			Tls: &pb.ProxyProtocol_Tls{Routes: e.tlsRoutes(answer.Routes)},
		}}
	case rules.OutboundOpaque:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Opaque_{Opaque: e.opaque(&answer.Routes[0])}}
	default:
	}

	routes := e.httpRoutes(answer.Routes)
	return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Detect_{Detect: &pb.ProxyProtocol_Detect{
		Timeout: durationpb.New(detectTimeout), Opaque: e.opaque(&answer.Opaque),
		Http1: &pb.ProxyProtocol_Http1{Routes: routes, FailureAccrual: accrual},
		Http2: &pb.ProxyProtocol_Http2{Routes: routes, FailureAccrual: accrual},
	}}}
}

func (e outboundEncoder) httpRoutes(routes []rules.OutboundRoute) (all []*pb.HttpRoute) {
	for i := range routes {
		from := &routes[i]
		route := &pb.HttpRoute{Metadata: newMetadata(from.Origin, 0), Hosts: newHosts(from.Hosts)}
		for j := range from.Rules {
			route.Rules = append(route.Rules, e.httpRule(&from.Rules[j]))
		}
		all = append(all, route)
	}
	return all
}

func (e outboundEncoder) httpRule(from *rules.OutboundRule) *pb.HttpRoute_Rule {
	rule := &pb.HttpRoute_Rule{
		Matches: newHTTPMatches(from.Matches), Filters: newHTTPFilters(from.Filters, from.Fail),
		Timeouts: newTimeouts(from.Timeouts),
		//nolint:staticcheck // older proxies know no other field
		RequestTimeout:         newTimeout(from.Timeouts.Request),
		AllowL5DRequestHeaders: from.AllowHeaders,
	}
	if r := from.Retry; r != nil {
		rule.Retry = &pb.HttpRoute_Retry{
			MaxRetries: uint32(r.Limit), MaxRequestBytes: maxRequestBytes, Backoff: newRetryBackoff(),
			Timeout: newDuration(r.Timeout), Conditions: new(pb.HttpRoute_Retry_Conditions),
		}
		for _, s := range r.Statuses {
			rule.Retry.Conditions.StatusRanges = append(rule.Retry.Conditions.StatusRanges,
				&pb.HttpRoute_Retry_Conditions_StatusRange{Start: uint32(s.First), End: uint32(s.Last)})
		}
	}

	rule.Backends = e.httpDistribution(from)
	return rule
}

func (e outboundEncoder) httpDistribution(rule *rules.OutboundRule) *pb.HttpRoute_Distribution {
	to := new(pb.HttpRoute_Distribution)
	var backends []*pb.HttpRoute_RouteBackend
	for i := range rule.Backends {
		b := &rule.Backends[i]
		backends = append(backends, &pb.HttpRoute_RouteBackend{
			Backend: e.backend(b, rule.IsSplit), Filters: newHTTPFilters(b.Filters, failureOf(b)),
		})
	}

	switch {
	case len(backends) == 0:
		to.Kind = &pb.HttpRoute_Distribution_Empty_{Empty: new(pb.HttpRoute_Distribution_Empty)}
	case !rule.IsSplit:
		to.Kind = &pb.HttpRoute_Distribution_FirstAvailable_{
			FirstAvailable: &pb.HttpRoute_Distribution_FirstAvailable{Backends: backends},
		}
	default:
		split := new(pb.HttpRoute_Distribution_RandomAvailable)
		for i, b := range backends {
			split.Backends = append(split.Backends, &pb.HttpRoute_WeightedRouteBackend{
				Backend: b, Weight: rule.Backends[i].Weight,
			})
		}
		to.Kind = &pb.HttpRoute_Distribution_RandomAvailable_{RandomAvailable: split}
	}
	return to
}

// newHTTPFilters returns filters, or the one that answers instead.
func newHTTPFilters(filters []rules.Filter, fail *rules.Failure) (all []*pb.HttpRoute_Filter) {
	if fail != nil {
		instead := &pb.HttpRoute_Filter_FailureInjector{FailureInjector: newHTTPFailure(fail)}
		return []*pb.HttpRoute_Filter{{Kind: instead}}
	}

	for _, filter := range filters {
		next := new(pb.HttpRoute_Filter)
		switch {
		case filter.RequestHeaders != nil:
			headers := newRequestHeaders(filter.RequestHeaders)
			next.Kind = &pb.HttpRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: headers}
		case filter.ResponseHeaders != nil:
			headers := newResponseHeaders(filter.ResponseHeaders)
			next.Kind = &pb.HttpRoute_Filter_ResponseHeaderModifier{ResponseHeaderModifier: headers}
		default:
			next.Kind = &pb.HttpRoute_Filter_Redirect{Redirect: newRedirect(filter.Redirect)}
		}
		all = append(all, next)
	}
	return all
}

// failureOf returns what is answered for a backend that there is not; nil for others.
func failureOf(b *rules.OutboundBackend) *rules.Failure {
	if b.Fail == "" {
		return nil
	}
	return &rules.Failure{Message: b.Fail}
}

func (e outboundEncoder) grpcRoutes(routes []rules.OutboundRoute) (all []*pb.GrpcRoute) {
	for i := range routes {
		from := &routes[i]
		route := &pb.GrpcRoute{Metadata: newMetadata(from.Origin, 0), Hosts: newHosts(from.Hosts)}
		for j := range from.Rules {
			route.Rules = append(route.Rules, e.grpcRule(&from.Rules[j]))
		}
		all = append(all, route)
	}
	return all
}

func (e outboundEncoder) grpcRule(from *rules.OutboundRule) *pb.GrpcRoute_Rule {
	rule := &pb.GrpcRoute_Rule{
		Matches: newGRPCMatches(from.Matches), Filters: newGRPCFilters(from.Filters, from.Fail),
		Timeouts: newTimeouts(from.Timeouts),
		//nolint:staticcheck // older proxies know no other field
		RequestTimeout:         newTimeout(from.Timeouts.Request),
		AllowL5DRequestHeaders: from.AllowHeaders,
	}
	if r := from.Retry; r != nil {
		rule.Retry = &pb.GrpcRoute_Retry{
			MaxRetries: uint32(r.Limit), MaxRequestBytes: maxRequestBytes, Backoff: newRetryBackoff(),
			Timeout: newDuration(r.Timeout), Conditions: newGRPCConditions(r.Codes),
		}
	}

	rule.Backends = e.grpcDistribution(from)
	return rule
}

func (e outboundEncoder) grpcDistribution(rule *rules.OutboundRule) *pb.GrpcRoute_Distribution {
	to := new(pb.GrpcRoute_Distribution)
	var backends []*pb.GrpcRoute_RouteBackend
	for i := range rule.Backends {
		b := &rule.Backends[i]
		backends = append(backends, &pb.GrpcRoute_RouteBackend{
			Backend: e.backend(b, rule.IsSplit), Filters: newGRPCFilters(b.Filters, failureOf(b)),
		})
	}

	switch {
	case len(backends) == 0:
		to.Kind = &pb.GrpcRoute_Distribution_Empty_{Empty: new(pb.GrpcRoute_Distribution_Empty)}
	case !rule.IsSplit:
		to.Kind = &pb.GrpcRoute_Distribution_FirstAvailable_{
			FirstAvailable: &pb.GrpcRoute_Distribution_FirstAvailable{Backends: backends},
		}
	default:
		split := new(pb.GrpcRoute_Distribution_RandomAvailable)
		for i, b := range backends {
			split.Backends = append(split.Backends, &pb.GrpcRoute_WeightedRouteBackend{
				Backend: b, Weight: rule.Backends[i].Weight,
			})
		}
		to.Kind = &pb.GrpcRoute_Distribution_RandomAvailable_{RandomAvailable: split}
	}
	return to
}

func newGRPCFilters(filters []rules.Filter, fail *rules.Failure) (all []*pb.GrpcRoute_Filter) {
	if fail != nil {
		instead := &pb.GrpcRoute_Filter_FailureInjector{FailureInjector: newGRPCFailure(fail)}
		return []*pb.GrpcRoute_Filter{{Kind: instead}}
	}

	for _, f := range filters {
		if f.RequestHeaders != nil {
			all = append(all, &pb.GrpcRoute_Filter{Kind: &pb.GrpcRoute_Filter_RequestHeaderModifier{
				RequestHeaderModifier: newRequestHeaders(f.RequestHeaders),
			}})
		}
	}
	return all
}

func newGRPCConditions(codes rules.GRPCCodes) *pb.GrpcRoute_Retry_Conditions {
	has := func(code rules.GRPCCodes) bool { return codes&code != 0 }
	return &pb.GrpcRoute_Retry_Conditions{
		Cancelled: has(rules.GRPCCancelled), DeadineExceeded: has(rules.GRPCDeadlineExceeded),
		ResourceExhausted: has(rules.GRPCResourceExhausted), Internal: has(rules.GRPCInternal),
		Unavailable: has(rules.GRPCUnavailable),
	}
}

func (e outboundEncoder) tlsRoutes(routes []rules.OutboundRoute) (all []*pb.TlsRoute) {
	for i := range routes {
		from := &routes[i]
		route := &pb.TlsRoute{Metadata: newMetadata(from.Origin, 0), Snis: newSNIs(from.Hosts)}
		for j := range from.Rules {
			route.Rules = append(route.Rules, e.tlsRule(&from.Rules[j]))
		}
		all = append(all, route)
	}
	return all
}

func newSNIs(patterns []rules.Pattern) (all []*tlspb.SniMatch) {
	for _, p := range patterns {
		match := &tlspb.SniMatch{Match: &tlspb.SniMatch_Exact{Exact: p.Text}}
		if p.Suffix {
			match.Match = &tlspb.SniMatch_Suffix_{Suffix: &tlspb.SniMatch_Suffix{ReverseLabels: reversed(p)}}
		}
		all = append(all, match)
	}
	return all
}

func (e outboundEncoder) tlsRule(from *rules.OutboundRule) *pb.TlsRoute_Rule {
	rule := &pb.TlsRoute_Rule{Filters: newTLSFilters(from.Fail)}
	rule.Backends = e.tlsDistribution(from)
	return rule
}

func (e outboundEncoder) tlsDistribution(rule *rules.OutboundRule) *pb.TlsRoute_Distribution {
	to := new(pb.TlsRoute_Distribution)
	var backends []*pb.TlsRoute_RouteBackend
	for i := range rule.Backends {
		b := &rule.Backends[i]
		backends = append(backends, &pb.TlsRoute_RouteBackend{
			Backend: e.backend(b, rule.IsSplit), Filters: newTLSFilters(failureOf(b)),
		})
	}

	switch {
	case len(backends) == 0:
		to.Kind = &pb.TlsRoute_Distribution_Empty_{Empty: new(pb.TlsRoute_Distribution_Empty)}
	case !rule.IsSplit:
		to.Kind = &pb.TlsRoute_Distribution_FirstAvailable_{
			FirstAvailable: &pb.TlsRoute_Distribution_FirstAvailable{Backends: backends},
		}
	default:
		split := new(pb.TlsRoute_Distribution_RandomAvailable)
		for i, b := range backends {
			split.Backends = append(split.Backends, &pb.TlsRoute_WeightedRouteBackend{
				Backend: b, Weight: rule.Backends[i].Weight,
			})
		}
		to.Kind = &pb.TlsRoute_Distribution_RandomAvailable_{RandomAvailable: split}
	}
	return to
}

func newTLSFilters(fail *rules.Failure) []*pb.TlsRoute_Filter {
	switch {
	case fail == nil:
		return nil
	case fail.Forbidden:
		return []*pb.TlsRoute_Filter{{Kind: &pb.TlsRoute_Filter_Forbidden{Forbidden: new(opaquepb.Forbidden)}}}
	default:
		invalid := &opaquepb.Invalid{Message: fail.Message}
		return []*pb.TlsRoute_Filter{{Kind: &pb.TlsRoute_Filter_Invalid{Invalid: invalid}}}
	}
}

func (e outboundEncoder) opaque(from *rules.OutboundRoute) *pb.ProxyProtocol_Opaque {
	route := &pb.OpaqueRoute{Metadata: newMetadata(from.Origin, 0)}
	for i := range from.Rules {
		route.Rules = append(route.Rules, e.opaqueRule(&from.Rules[i]))
	}
	return &pb.ProxyProtocol_Opaque{Routes: []*pb.OpaqueRoute{route}}
}

func (e outboundEncoder) opaqueRule(from *rules.OutboundRule) *pb.OpaqueRoute_Rule {
	rule := &pb.OpaqueRoute_Rule{Filters: newOpaqueFilters(from.Fail)}
	rule.Backends = e.opaqueDistribution(from)
	return rule
}

func (e outboundEncoder) opaqueDistribution(rule *rules.OutboundRule) *pb.OpaqueRoute_Distribution {
	to := new(pb.OpaqueRoute_Distribution)
	var backends []*pb.OpaqueRoute_RouteBackend
	for i := range rule.Backends {
		b := &rule.Backends[i]
		backends = append(backends, &pb.OpaqueRoute_RouteBackend{
			Backend: e.backend(b, rule.IsSplit), Filters: newOpaqueFilters(failureOf(b)),
		})
	}

	switch {
	case len(backends) == 0:
		to.Kind = &pb.OpaqueRoute_Distribution_Empty_{Empty: new(pb.OpaqueRoute_Distribution_Empty)}
	case !rule.IsSplit:
		to.Kind = &pb.OpaqueRoute_Distribution_FirstAvailable_{
			FirstAvailable: &pb.OpaqueRoute_Distribution_FirstAvailable{Backends: backends},
		}
	default:
		split := new(pb.OpaqueRoute_Distribution_RandomAvailable)
		for i, b := range backends {
			split.Backends = append(split.Backends, &pb.OpaqueRoute_WeightedRouteBackend{
				Backend: b, Weight: rule.Backends[i].Weight,
			})
		}
		to.Kind = &pb.OpaqueRoute_Distribution_RandomAvailable_{RandomAvailable: split}
	}
	return to
}

func newOpaqueFilters(fail *rules.Failure) []*pb.OpaqueRoute_Filter {
	switch {
	case fail == nil:
		return nil
	case fail.Forbidden:
		return []*pb.OpaqueRoute_Filter{{Kind: &pb.OpaqueRoute_Filter_Forbidden{Forbidden: new(opaquepb.Forbidden)}}}
	default:
		invalid := &opaquepb.Invalid{Message: fail.Message}
		return []*pb.OpaqueRoute_Filter{{Kind: &pb.OpaqueRoute_Filter_Invalid{Invalid: invalid}}}
	}
}

// backend returns what a rule leads to. One that fails has no kind, and is not asked for.
func (e outboundEncoder) backend(from *rules.OutboundBackend, isSplit bool) *pb.Backend {
	backend := &pb.Backend{
		Metadata: newMetadata(from.Origin, from.Port),
		Queue:    &pb.Queue{Capacity: queueCapacity, FailfastTimeout: durationpb.New(failfastTimeout)},
	}

	switch {
	case from.Original:
		weight := uint32(1)
		if isSplit {
			weight = from.Weight
		}
		backend.Kind = &pb.Backend_Forward{Forward: &destinationpb.WeightedAddr{
			Addr: proxyapi.Address(e.original), Weight: weight,
		}}
	case from.Authority != "":
		backend.Kind = &pb.Backend_Balancer{Balancer: newBalancer(from)}
	}
	return backend
}

func newBalancer(from *rules.OutboundBackend) *pb.Backend_BalanceP2C {
	balancer := &pb.Backend_BalanceP2C{Discovery: &pb.Backend_EndpointDiscovery{
		Kind: &pb.Backend_EndpointDiscovery_Dst{
			Dst: &pb.Backend_EndpointDiscovery_DestinationGet{Path: from.Authority},
		},
	}}

	rtt, decay := durationpb.New(defaultRTT), durationpb.New(loadDecay)
	if load := from.Load; load != nil {
		balancer.Load = &pb.Backend_BalanceP2C_PenaltyPeakEwma_{PenaltyPeakEwma: &pb.Backend_BalanceP2C_PenaltyPeakEwma{
			DefaultRtt: rtt, Decay: decay, Penalty: durationpb.New(load.Penalty),
			PenaltyDecay: decay, MaxRetryAfter: durationpb.New(load.MaxRetryAfter),
		}}
		return balancer
	}

	balancer.Load = &pb.Backend_BalanceP2C_PeakEwma_{
		PeakEwma: &pb.Backend_BalanceP2C_PeakEwma{DefaultRtt: rtt, Decay: decay},
	}
	return balancer
}

func newRetryBackoff() *pb.ExponentialBackoff {
	return &pb.ExponentialBackoff{
		MinBackoff: durationpb.New(minRetryBackoff), MaxBackoff: durationpb.New(maxRetryBackoff),
		JitterRatio: retryJitter,
	}
}

func newAccrual(from *rules.Accrual) *pb.FailureAccrual {
	if from == nil {
		return nil
	}

	backoff := &pb.ExponentialBackoff{
		MinBackoff: durationpb.New(from.Backoff.Min), MaxBackoff: durationpb.New(from.Backoff.Max),
		JitterRatio: float32(from.Backoff.Jitter), RespectRetryAfterHint: from.HonorRetryAfter,
	}

	if from.Unified {
		return &pb.FailureAccrual{Kind: &pb.FailureAccrual_Unified_{Unified: &pb.FailureAccrual_Unified{
			SuccessRateThreshold: from.Threshold, Decay: durationpb.New(from.Window),
			MinRequests: from.MinRequests, MaxConsecutiveFailures: from.MaxFailures, Backoff: backoff,
		}}}
	}
	return &pb.FailureAccrual{Kind: &pb.FailureAccrual_ConsecutiveFailures_{
		ConsecutiveFailures: &pb.FailureAccrual_ConsecutiveFailures{MaxFailures: from.MaxFailures, Backoff: backoff},
	}}
}
