// Package linkerd holds the names by which Linkerd marks objects, each once, and parsers of ExternalWorkloads and of
// the values that Linkerd was installed with. It imports no package of this module.
//
// Where a key stands on Services, Pods or slices, its constant is called Label or Annotation for where;
// Key, if it is both.
package linkerd

import "k8s.io/apimachinery/pkg/runtime/schema"

// MulticlusterGroup is the API group of Links.
const MulticlusterGroup = "multicluster.linkerd.io"

// Groups of the objects of policy.
const (
	PolicyGroup  = "policy.linkerd.io"
	GatewayGroup = "gateway.networking.k8s.io" // of the Gateway API
)

// Custom resources.
var (
	ServiceProfiles   = schema.GroupResource{Group: "linkerd.io", Resource: "serviceprofiles"}
	ExternalWorkloads = schema.GroupResource{Group: "workload.linkerd.io", Resource: "externalworkloads"}
	Links             = schema.GroupResource{Group: MulticlusterGroup, Resource: "links"}

	Servers                = schema.GroupResource{Group: PolicyGroup, Resource: "servers"}
	ServerAuthorizations   = schema.GroupResource{Group: PolicyGroup, Resource: "serverauthorizations"}
	AuthorizationPolicies  = schema.GroupResource{Group: PolicyGroup, Resource: "authorizationpolicies"}
	MeshTLSAuthentications = schema.GroupResource{Group: PolicyGroup, Resource: "meshtlsauthentications"}
	NetworkAuthentications = schema.GroupResource{Group: PolicyGroup, Resource: "networkauthentications"}
	RateLimits             = schema.GroupResource{Group: PolicyGroup, Resource: "httplocalratelimitpolicies"}
	EgressNetworks         = schema.GroupResource{Group: PolicyGroup, Resource: "egressnetworks"}
	PolicyHTTPRoutes       = schema.GroupResource{Group: PolicyGroup, Resource: "httproutes"}

	HTTPRoutes = schema.GroupResource{Group: GatewayGroup, Resource: "httproutes"}
	GRPCRoutes = schema.GroupResource{Group: GatewayGroup, Resource: "grpcroutes"}
	TLSRoutes  = schema.GroupResource{Group: GatewayGroup, Resource: "tlsroutes"}
	TCPRoutes  = schema.GroupResource{Group: GatewayGroup, Resource: "tcproutes"}
)

// Versions that can be read, the newest first.
var (
	ServiceProfileVersions   = []string{"v1alpha2"}
	ServerVersions           = []string{"v1beta3", "v1beta2", "v1beta1"}
	ExternalWorkloadVersions = []string{"v1beta1", "v1alpha1"}
	LinkVersions             = []string{"v1alpha3", "v1alpha2", "v1alpha1"}

	AuthorizationVersions   = []string{"v1beta1", "v1alpha1"} // of ServerAuthorizations
	PolicyVersions          = []string{"v1alpha1"}            // of the kinds of policy that have no other
	PolicyHTTPRouteVersions = []string{"v1beta3", "v1beta2", "v1beta1", "v1alpha1"}
	HTTPRouteVersions       = []string{"v1", "v1beta1"}
	GRPCRouteVersions       = []string{"v1", "v1alpha2"}
	TLSRouteVersions        = []string{"v1alpha2", "v1"} // v1 is of Gateway API 1.5 on, which may serve it alone
	TCPRouteVersions        = []string{"v1alpha2", "v1"} // and of 1.6 on
)

// ExternalWorkloadKind is the kind that targetRef in an EndpointSlice names.
const ExternalWorkloadKind = "ExternalWorkload"

// ComponentLabel is on the objects of a control plane: which part of it they belong to.
const ComponentLabel = "linkerd.io/control-plane-component"

// On proxies.
const (
	ProxyContainer = "linkerd-proxy"

	// AnchorsVariable is the variable of a proxy's environment with the anchors that it trusts, as PEM.
	AnchorsVariable = "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS"
)

// On Pods, ExternalWorkloads and Services.
const (
	ControlPlaneLabel          = "linkerd.io/control-plane-ns" // namespace of the control plane of a Pod's proxy
	OpaquePortsAnnotation      = "config.linkerd.io/opaque-ports"
	SkipInboundPortsAnnotation = "config.linkerd.io/skip-inbound-ports"

	DefaultPolicyAnnotation   = "config.linkerd.io/default-inbound-policy"
	RequireIdentityAnnotation = "config.linkerd.io/proxy-require-identity-inbound-ports"
)

// On Services that stand for Services of other clusters.
const (
	// RemoteDiscoveryKey is a label on a mirror in a flat network: the cluster of the one Service that it
	// stands for. It is an annotation on a federated Service: its remote members, service@cluster,
	// separated by commas.
	RemoteDiscoveryKey       = "multicluster.linkerd.io/remote-discovery"
	RemoteServiceLabel       = "multicluster.linkerd.io/remote-service"  // on such a mirror: name of that Service
	LocalDiscoveryAnnotation = "multicluster.linkerd.io/local-discovery" // on a federated Service: its local member
	MulticlusterPrefix       = "multicluster.linkerd.io/"
)

// On mirrors, their Endpoints and their slices.
const (
	MirrorPrefix            = "mirror.linkerd.io"
	MirroredServiceLabel    = "mirror.linkerd.io/mirrored-service" // =true, on all that stands for others
	MirroredGatewayLabel    = "mirror.linkerd.io/mirrored-gateway" // on the Service over which a gateway is probed
	MirrorClusterNameLabel  = "mirror.linkerd.io/cluster-name"     // not on federated Services
	HeadlessMirrorLabel     = "mirror.linkerd.io/headless-mirror-svc-name"
	RemoteNameAnnotation    = "mirror.linkerd.io/remote-svc-fq-name" // DNS name of the mirrored Service in its cluster
	RemoteVersionAnnotation = "mirror.linkerd.io/remote-resource-version"

	// RemoteGatewayIdentityAnnotation names the TLS identity that Linkerd's destination controller gives
	// all addresses of a slice.
	RemoteGatewayIdentityAnnotation = "mirror.linkerd.io/remote-gateway-identity"
)

// On Services that are to be mirrored, and on gateways.
const (
	ExportedLabel                   = "mirror.linkerd.io/exported"  // =true by gateway, =remote-discovery without
	FederatedLabel                  = "mirror.linkerd.io/federated" // =member
	GatewayIdentityAnnotation       = "mirror.linkerd.io/gateway-identity"
	ProbePathAnnotation             = "mirror.linkerd.io/probe-path"
	ProbePeriodAnnotation           = "mirror.linkerd.io/probe-period"  // seconds, or a duration
	ProbeTimeoutAnnotation          = "mirror.linkerd.io/probe-timeout" // the same
	ProbeFailureThresholdAnnotation = "mirror.linkerd.io/probe-failure-threshold"
)

// On Secrets with the credentials of a linked cluster, and on Links.
const (
	RemoteKubeconfigType    = "mirror.linkerd.io/remote-kubeconfig"    // type of the Secrets
	ClusterNameLabel        = "multicluster.linkerd.io/cluster-name"   // which cluster the Secret leads to
	TrustDomainAnnotation   = "multicluster.linkerd.io/trust-domain"   // of the cluster's identities
	ClusterDomainAnnotation = "multicluster.linkerd.io/cluster-domain" // of the cluster's DNS names
	CreatedByAnnotation     = "linkerd.io/created-by"
)

// On Services and EgressNetworks; those of timeouts and retries on routes, too.
const (
	FailureAccrualAnnotation     = "balancer.linkerd.io/failure-accrual" // consecutive, or unified
	MaxFailuresAnnotation        = "balancer.linkerd.io/failure-accrual-consecutive-max-failures"
	MinPenaltyAnnotation         = "balancer.linkerd.io/failure-accrual-consecutive-min-penalty"
	MaxPenaltyAnnotation         = "balancer.linkerd.io/failure-accrual-consecutive-max-penalty"
	JitterRatioAnnotation        = "balancer.linkerd.io/failure-accrual-consecutive-jitter-ratio"
	SuccessThresholdAnnotation   = "balancer.alpha.linkerd.io/failure-accrual-success-rate-threshold"
	SuccessWindowAnnotation      = "balancer.alpha.linkerd.io/failure-accrual-success-rate-window"
	SuccessMinRequestsAnnotation = "balancer.alpha.linkerd.io/failure-accrual-success-rate-min-requests"
	HonorRetryAfterAnnotation    = "balancer.alpha.linkerd.io/failure-accrual-honor-retry-after"
	PenalizeFailuresAnnotation   = "balancer.alpha.linkerd.io/penalize-failures"
	LoadPenaltyAnnotation        = "balancer.alpha.linkerd.io/load-biaser-penalty"
	LoadMaxRetryAfterAnnotation  = "balancer.alpha.linkerd.io/load-biaser-max-retry-after"

	RequestTimeoutAnnotation  = "timeout.linkerd.io/request"
	ResponseTimeoutAnnotation = "timeout.linkerd.io/response"
	IdleTimeoutAnnotation     = "timeout.linkerd.io/idle"

	RetryLimitAnnotation   = "retry.linkerd.io/limit"
	RetryTimeoutAnnotation = "retry.linkerd.io/timeout" // of each attempt
	RetryHTTPAnnotation    = "retry.linkerd.io/http"    // on which statuses
	RetryGRPCAnnotation    = "retry.linkerd.io/grpc"    // on which codes
)

// ExternalWorkloadsLease is the Lease under which the slices of ExternalWorkloads are written, by Linkerd's destination
// controller, too. It is in the namespace of the control plane.
const ExternalWorkloadsLease = "linkerd-destination-endpoint-write"

// PolicyLease is the Lease under which the status of routes, rate limits and EgressNetworks is written, by Linkerd's
// policy controller, too. It is in the namespace of the control plane.
const PolicyLease = "policy-controller-write"

// PolicyController is the controllerName of Linkerd's policy controller in the status of routes, and its field manager.
const PolicyController = "linkerd.io/policy-controller"

// ServiceMirrorController is the controllerName of Linkerd's service mirror in the status of Links.
const ServiceMirrorController = "linkerd.io/service-mirror"
