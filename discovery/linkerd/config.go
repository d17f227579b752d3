package linkerd

import (
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
)

// Config is what the operator decides about answers.
type Config struct {
	discovery.Config

	ClusterDomain      string           // of this cluster's DNS names, such as cluster.local
	TrustDomain        string           // of the identities of this cluster's workloads
	DefaultOpaquePorts federation.Ports // of workloads that have no set of their own

	H2Upgrade     bool                  // proxies use HTTP/2 between each other
	TransportMode string                // TransportHeader: opaque transport for all ports; else for opaque ones
	HTTP2         *pb.Http2ClientParams // for connections to meshed workloads; nil for none
}

// Defaults returns a Config with the defaults of everything that has one.
func Defaults() Config {
	return Config{Config: discovery.DefaultConfig(), ClusterDomain: "cluster.local", H2Upgrade: true}
}

// The modes of transport between proxies.
const (
	Transparent     = "transparent"
	TransportHeader = "transport-header"
)
