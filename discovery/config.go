package discovery

import (
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/fingerpost/fingerpost/federation"
)

// Config is what the operator decides about answers.
type Config struct {
	Cluster             federation.Cluster // that we run in: the one whose Services are asked for
	ClusterDomain       string             // of its DNS names, such as cluster.local
	TrustDomain         string             // of the identities of this cluster's workloads
	ControllerNamespace string             // of the mesh's control plane: workloads of another one get no identity
	DefaultOpaquePorts  federation.Ports   // of workloads that do not say

	H2Upgrade     bool                  // tell proxies to speak HTTP/2 to each other
	TransportMode string                // "transport-header": use the opaque transport for all ports; anything else: for opaque ones
	IPv6          bool                  // reach workloads over IPv6 where they have it
	ZoneWeights   bool                  // weigh endpoints in the client's zone ten times
	HTTP2         *pb.Http2ClientParams // for connections to meshed workloads; nil for none

	MaxStreamAge   time.Duration // after which a stream ends with OK, more or less by a tenth, so that clients spread anew; 0: never
	DrainWindow    time.Duration // in which streams end when the process is told to stop
	FirstSyncGrace time.Duration // how long a first answer waits for a cluster that was never heard, from when it was linked
	FrameBytes     int64         // bound on the encoded messages that are kept
	Admission      AdmissionConfig

	DetailedMetrics bool // count streams by the member of the Service, the node of the client and the hostname asked for, too
}

// Defaults returns a Config with the defaults of everything that has one.
func Defaults() Config {
	return Config{
		Cluster: "local", ClusterDomain: "cluster.local", ControllerNamespace: "linkerd",
		H2Upgrade: true, IPv6: true,
		MaxStreamAge: 30 * time.Minute, DrainWindow: 5 * time.Second, FirstSyncGrace: 10 * time.Second, FrameBytes: 64 << 20,
		Admission: DefaultAdmission(),
	}
}

// The modes of transport between proxies.
const (
	Transparent     = "transparent"
	TransportHeader = "transport-header"
)
