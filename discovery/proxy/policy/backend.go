package policy

import (
	"math"
	"net/netip"
)

// A Backend is where an outbound rule may send a request. It has a balancer, or an address, or fails its requests.
type Backend struct {
	Metadata  Metadata
	Weight    uint32 // 1 if the rule takes the first backend that is available
	Authority string // that a balancer looks up; empty if there is none
	Address   netip.AddrPort
	Filters   []Filter
}

// readBackends reads the distribution of a rule.
func (r *Rule) readBackends(owner part, protocol Protocol) {
	distribution, present := owner.need("backends")
	if !present {
		return
	}

	kind := distribution.needOne("kind")
	switch kind {
	case "":
		return
	case "empty":
		distribution.odd("", "empty, and each request of the rule fails")
		return
	}

	r.FirstAvailable = kind == "first_available"
	list := distribution.at(kind).list("backends")
	if len(list) == 0 {
		distribution.invalid(kind, "without backends")
	}
	for _, message := range list {
		r.Backends = append(r.Backends, routeBackendOf(message, !r.FirstAvailable, protocol))
	}
	if !r.FirstAvailable {
		checkWeights(distribution.at(kind), r.Backends)
	}
}

// checkWeights notes weights that the proxy cannot draw from. It does not draw from one backend.
func checkWeights(distribution part, backends []Backend) {
	var sum uint64
	for _, backend := range backends {
		sum += uint64(backend.Weight)
	}

	switch {
	case len(backends) == 1 && sum == 0:
		distribution.odd("backends", "one of weight 0, which gets every request")
	case len(backends) > 1 && sum == 0:
		distribution.panics("backends", "weights that sum to 0")
	case sum > math.MaxUint32:
		distribution.panics("backends", "weights that sum to %d, beyond 32 bits", sum)
	}
}

// routeBackendOf reads a backend of a route, and its weight if it has one.
func routeBackendOf(owner part, weighted bool, protocol Protocol) Backend {
	if !weighted {
		return backendOf(owner, 1, protocol)
	}

	weight := owner.number("weight")
	unweighted, present := owner.need("backend")
	if !present {
		return Backend{Weight: weight}
	}
	return backendOf(unweighted, weight, protocol)
}

func backendOf(owner part, weight uint32, protocol Protocol) Backend {
	filters := sends.filtersOf(owner)
	message, present := owner.need("backend")
	if !present {
		return Backend{Weight: weight, Filters: filters}
	}

	backend := Backend{Metadata: sends.metadataOf(message), Weight: weight, Filters: filters}
	switch message.which("kind") {
	case "balancer":
		backend.Authority = authorityOf(message.at("balancer"), protocol)
	case "forward":
		backend.Address = addressOf(message.at("forward"))
	default:
		message.odd("kind", "absent, and the requests of the backend fail")
	}

	checkQueue(message)
	return backend
}

// checkQueue reads the queue of a backend. That of a balancer is a channel, which cannot have a capacity of 0.
func checkQueue(backend part) {
	queue, present := backend.need("queue")
	if !present {
		return
	}

	queue.needDuration("failfast_timeout")
	if backend.which("kind") == "balancer" && queue.number("capacity") == 0 {
		queue.panics("capacity", "0")
	}
}

// authorityOf reads a balancer and returns what it looks up.
func authorityOf(balancer part, protocol Protocol) string {
	checkLoad(balancer, protocol)
	discovery, present := balancer.need("discovery")
	if !present {
		return ""
	}

	if discovery.needOne("kind") == "" {
		return ""
	}
	dst := discovery.at("dst")
	if path := dst.text("path"); !isNameAndPort(path) {
		dst.panics("path", "%.300q is no name and port", path)
	}
	return dst.text("path")
}

// checkLoad reads how a balancer estimates load. What is absent of penalties has a default.
func checkLoad(balancer part, protocol Protocol) {
	switch balancer.needOne("load") {
	case "peak_ewma":
		balancer.at("peak_ewma").needDuration("default_rtt")
		balancer.at("peak_ewma").needDuration("decay")

	case "penalty_peak_ewma":
		for _, name := range []string{"default_rtt", "decay", "penalty", "penalty_decay", "max_retry_after"} {
			balancer.at("penalty_peak_ewma").duration(name)
		}
		if !protocol.isHTTP() {
			balancer.odd("penalty_peak_ewma", "without HTTP, and the proxy leaves penalties out")
		}
	}
}

// addressOf reads the address that a backend forwards to. The proxy takes the lower 16 bits of the port.
func addressOf(forward part) netip.AddrPort {
	addr, present := forward.need("addr")
	if !present {
		return netip.AddrPort{}
	}

	port := addr.number("port")
	switch {
	case uint16(port) == 0:
		addr.panics("port", "%d", port)
	case port > math.MaxUint16:
		addr.odd("port", "%d, which is %d to the proxy", port, uint16(port))
	}
	ip, _ := addr.need("ip")
	return netip.AddrPortFrom(addrOf(ip), uint16(port))
}
