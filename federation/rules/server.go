package rules

// A Server is a port of workloads, and how it may be used.
type Server struct {
	Meta
	Labels map[string]string // which ServerAuthorizations select

	Pods, Externals *LabelSelector // in its namespace; nil selects none
	Port            PortRef
	Protocol        ServerProtocol
	Access          DefaultPolicy
}

// A ServerProtocol is what a Server's port is used for.
type ServerProtocol uint8

// Protocols.
const (
	ProtocolDetect ServerProtocol = iota
	ProtocolHTTP1
	ProtocolHTTP2
	ProtocolGRPC
	ProtocolOpaque
	ProtocolTLS
)

var serverProtocols = map[string]ServerProtocol{
	"": ProtocolDetect, "unknown": ProtocolDetect, "HTTP/1": ProtocolHTTP1, "HTTP/2": ProtocolHTTP2,
	"gRPC": ProtocolGRPC, "opaque": ProtocolOpaque, "TLS": ProtocolTLS,
}

// ParseServerProtocol reads the proxyProtocol of a Server; an empty one is that of a Server without.
func ParseServerProtocol(text string) (ServerProtocol, bool) {
	p, known := serverProtocols[text]
	return p, known
}

// A DefaultPolicy decides about clients that no authorization names. The zero DefaultPolicy is Deny.
type DefaultPolicy uint8

// Default policies, in the order of their names below.
const (
	Deny DefaultPolicy = iota
	AllUnauthenticated
	AllAuthenticated
	ClusterUnauthenticated
	ClusterAuthenticated
	Audit // as AllUnauthenticated; proxies log what was let in by it alone
)

var defaultPolicies = [...]string{
	Deny:                   "deny",
	AllUnauthenticated:     "all-unauthenticated",
	AllAuthenticated:       "all-authenticated",
	ClusterUnauthenticated: "cluster-unauthenticated",
	ClusterAuthenticated:   "cluster-authenticated",
	Audit:                  "audit",
}

// ParseDefaultPolicy reads one of the six names that flags, annotations and Servers use.
func ParseDefaultPolicy(name string) (DefaultPolicy, bool) {
	for policy, known := range defaultPolicies {
		if name == known {
			return DefaultPolicy(policy), true
		}
	}
	return Deny, false
}

// String returns the name.
func (p DefaultPolicy) String() string {
	if int(p) >= len(defaultPolicies) {
		return "" // what is read of a file may have it
	}
	return defaultPolicies[p]
}

// A RateLimit bounds the requests that each proxy of a Server lets in, per second (HTTPLocalRateLimitPolicy).
type RateLimit struct {
	Meta
	Server    string // of its namespace; empty: its target is none
	Total     uint32 // 0: no bound
	Identity  uint32 // of each client; 0: no bound
	Overrides []RateOverride
}

// A RateOverride is the bound of some clients, instead of Identity.
type RateOverride struct {
	Limit    uint32      // requests per second; 0: no bound
	Accounts []Reference // ServiceAccounts
}
