package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// maxValues bounds the values that are parsed, in bytes. Linkerd writes some kilobytes.
const maxValues = 256 << 10

// Values are what is used of the values that a mesh was installed with, by the names that Linkerd's chart has for them.
// Keys that are not known are of no effect. A copy shares its maps and lists, which must not be changed.
type Values struct {
	ClusterDomain           Text `json:"clusterDomain"`
	ClusterNetworks         Text `json:"clusterNetworks"` // prefixes of addresses, separated by commas
	DisableIPv6             bool `json:"disableIPv6"`
	CNIEnabled              bool `json:"cniEnabled"`
	ImagePullPolicy         Text `json:"imagePullPolicy"`
	LinkerdVersion          Text `json:"linkerdVersion"` // tag of images that have none
	IdentityTrustDomain     Text `json:"identityTrustDomain"`
	IdentityTrustAnchorsPEM Text `json:"identityTrustAnchorsPEM"`

	Identity struct {
		ExternalCA                    bool `json:"externalCA"` // the anchors are not among the values
		ServiceAccountTokenProjection bool `json:"serviceAccountTokenProjection"`
	} `json:"identity"`

	Proxy            proxyValues     `json:"proxy"`
	ProxyInit        initValues      `json:"proxyInit"`
	NetworkValidator validatorValues `json:"networkValidator"`
	DebugContainer   struct {
		Image image `json:"image"`
	} `json:"debugContainer"`
}

// proxyValues are about the container of the proxy.
type proxyValues struct {
	Image image `json:"image"`
	Ports struct {
		Admin    int32 `json:"admin"`
		Control  int32 `json:"control"`
		Inbound  int32 `json:"inbound"`
		Outbound int32 `json:"outbound"`
	} `json:"ports"`

	Cores   int64 `json:"cores"` // 0: what Runtime has counts
	Runtime struct {
		Workers struct {
			Minimum         int64 `json:"minimum"`
			Maximum         int64 `json:"maximum"`
			MaximumCPURatio Text  `json:"maximumCPURatio"`
		} `json:"workers"`
	} `json:"runtime"`

	Resources       resourceValues          `json:"resources"`
	UID             int64                   `json:"uid"`
	GID             int64                   `json:"gid"` // negative for none
	SecurityContext *corev1.SecurityContext `json:"securityContext"`

	NativeSidecar         bool   `json:"nativeSidecar"`
	Await                 bool   `json:"await"`
	WaitBeforeExitSeconds uint64 `json:"waitBeforeExitSeconds"`
	LivenessProbe         probe  `json:"livenessProbe"`
	ReadinessProbe        probe  `json:"readinessProbe"`
	StartupProbe          probe  `json:"startupProbe"`
	ShutdownGracePeriod   Text   `json:"shutdownGracePeriod"`
	EnableShutdown        bool   `json:"enableShutdownEndpoint"`

	LogLevel       Text `json:"logLevel"`
	LogFormat      Text `json:"logFormat"`
	LogHTTPHeaders Text `json:"logHTTPHeaders"`
	AccessLog      Text `json:"accessLog"`

	DefaultInboundPolicy Text `json:"defaultInboundPolicy"`
	RequireIdentityPorts Text `json:"requireIdentityOnInboundPorts"`
	RequireTLSPorts      Text `json:"requireTLSOnInboundPorts"`
	OpaquePorts          Text `json:"opaquePorts"`

	EnableExternalProfiles bool `json:"enableExternalProfiles"`
	IsGateway              bool `json:"isGateway"`
	IsIngress              bool `json:"isIngress"`

	OutboundConnectTimeout Text `json:"outboundConnectTimeout"`
	InboundConnectTimeout  Text `json:"inboundConnectTimeout"`
	OutboundUnusedTimeout  Text `json:"outboundDiscoveryCacheUnusedTimeout"`
	InboundUnusedTimeout   Text `json:"inboundDiscoveryCacheUnusedTimeout"`
	NoOutboundDetectLimit  bool `json:"disableOutboundProtocolDetectTimeout"`
	NoInboundDetectLimit   bool `json:"disableInboundProtocolDetectTimeout"`

	Control struct {
		Streams struct {
			InitialTimeout Text `json:"initialTimeout"`
			IdleTimeout    Text `json:"idleTimeout"`
			Lifetime       Text `json:"lifetime"`
		} `json:"streams"`
	} `json:"control"`
	Metrics struct {
		HostnameLabels bool `json:"hostnameLabels"`
	} `json:"metrics"`
	Tracing tracing `json:"tracing"`

	// Inbound and Outbound are parameters by scope, protocol and name, such as server.http2.keepAliveInterval.
	Inbound  map[string]map[string]map[string]Text `json:"inbound"`
	Outbound map[string]map[string]map[string]Text `json:"outbound"`

	AdditionalEnv   []corev1.EnvVar `json:"additionalEnv"`
	ExperimentalEnv []corev1.EnvVar `json:"experimentalEnv"`
}

// An image is one of a container.
type image struct {
	Name       Text `json:"name"`
	PullPolicy Text `json:"pullPolicy"`
	Version    Text `json:"version"`
}

// A probe has times in seconds.
type probe struct {
	InitialDelaySeconds int32 `json:"initialDelaySeconds"`
	TimeoutSeconds      int32 `json:"timeoutSeconds"`
	PeriodSeconds       int32 `json:"periodSeconds"`
	FailureThreshold    int32 `json:"failureThreshold"`
}

// tracing is where the proxy sends spans.
type tracing struct {
	Enabled     bool            `json:"enabled"`
	Protocol    Text            `json:"protocol"`
	ServiceName Text            `json:"traceServiceName"`
	Labels      map[string]Text `json:"labels"`
	Collector   struct {
		Endpoint     Text `json:"endpoint"`
		MeshIdentity struct {
			ServiceAccount Text `json:"serviceAccountName"`
			Namespace      Text `json:"namespace"`
		} `json:"meshIdentity"`
	} `json:"collector"`
}

// initValues are about the init container that leads connections to the proxy.
type initValues struct {
	IptablesMode       Text  `json:"iptablesMode"`
	IgnoreInbound      Text  `json:"ignoreInboundPorts"`
	IgnoreOutbound     Text  `json:"ignoreOutboundPorts"`
	SkipSubnets        Text  `json:"skipSubnets"`
	LogLevel           Text  `json:"logLevel"`
	LogFormat          Text  `json:"logFormat"`
	CloseWaitSeconds   int64 `json:"closeWaitTimeoutSecs"`
	Privileged         bool  `json:"privileged"`
	RunAsRoot          bool  `json:"runAsRoot"`
	RunAsUser          int64 `json:"runAsUser"`
	RunAsGroup         int64 `json:"runAsGroup"`
	XtablesMountSource struct {
		MountPath Text `json:"mountPath"`
		Name      Text `json:"name"`
	} `json:"xtMountPath"`
}

// validatorValues are about the init container that tests what a CNI plugin has set up.
type validatorValues struct {
	LogLevel              Text                    `json:"logLevel"`
	LogFormat             Text                    `json:"logFormat"`
	ConnectAddr           Text                    `json:"connectAddr"`
	ListenAddr            Text                    `json:"listenAddr"`
	Timeout               Text                    `json:"timeout"`
	EnableSecurityContext *bool                   `json:"enableSecurityContext"` // nil for true
	SecurityContext       *corev1.SecurityContext `json:"securityContext"`
}

// resourceValues are quantities; empty ones are not set.
type resourceValues struct {
	CPU              limits `json:"cpu"`
	Memory           limits `json:"memory"`
	EphemeralStorage limits `json:"ephemeral-storage"`
}

type limits struct {
	Limit   Text `json:"limit"`
	Request Text `json:"request"`
}

// A Text is a value that YAML may have as a text, a number or a boolean.
type Text string

// UnmarshalJSON reads a scalar as it is written.
func (t *Text) UnmarshalJSON(b []byte) error {
	switch {
	case bytes.Equal(b, []byte("null")):
		return nil
	case b[0] == '{' || b[0] == '[':
		return errors.New("a text, a number or a boolean is expected")
	case b[0] != '"':
		*t = Text(b)
		return nil
	}
	return json.Unmarshal(b, (*string)(t))
}

// Policies of ports that no object of policy is about.
var defaultPolicies = []string{
	"all-unauthenticated", "all-authenticated", "cluster-unauthenticated", "cluster-authenticated", "deny", "audit",
}

var pullPolicies = []string{string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)}

const (
	modeNFT    = "nft"
	modeLegacy = "legacy"

	headersOff      = "off"
	headersInsecure = "insecure" // the log may have headers of requests

	clusterLocal = "cluster.local"
	proxyImage   = "cr.l5d.io/linkerd/proxy"
	xtablesName  = "linkerd-proxy-init-xtables-lock"
	unprivileged = 65534 // a user and a group without rights
)

// absent returns what the chart's templates take for keys that are not there: a boolean is false.
func absent() *Values {
	values := &Values{
		ClusterDomain: clusterLocal, ImagePullPolicy: Text(corev1.PullIfNotPresent),
	}

	proxy := &values.Proxy
	proxy.Image.Name = proxyImage
	proxy.Ports.Control, proxy.Ports.Admin, proxy.Ports.Inbound, proxy.Ports.Outbound = 4190, 4191, 4143, 4140
	proxy.UID, proxy.GID = 2102, -1
	proxy.LogLevel, proxy.LogFormat = "warn,linkerd=info,hickory=error", "plain"
	proxy.DefaultInboundPolicy = "all-unauthenticated"
	proxy.LivenessProbe = probe{InitialDelaySeconds: 10, TimeoutSeconds: 1}
	proxy.ReadinessProbe = probe{InitialDelaySeconds: 2, TimeoutSeconds: 1}
	proxy.StartupProbe = probe{PeriodSeconds: 1, FailureThreshold: 120}

	values.ProxyInit.IptablesMode = modeLegacy
	values.ProxyInit.RunAsUser, values.ProxyInit.RunAsGroup = unprivileged, unprivileged
	values.ProxyInit.XtablesMountSource.MountPath, values.ProxyInit.XtablesMountSource.Name = "/run", xtablesName

	validator := &values.NetworkValidator
	validator.LogLevel, validator.LogFormat, validator.Timeout = "debug", "plain", "10s"
	values.DebugContainer.Image.Name = "cr.l5d.io/linkerd/debug"
	return values
}

// Defaults returns the values of Linkerd's chart, with a version of Linkerd as the tag of images.
func Defaults(version string) *Values {
	values := absent()
	values.LinkerdVersion = Text(version)
	values.ClusterNetworks = "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"
	values.DisableIPv6, values.Identity.ServiceAccountTokenProjection = true, true
	values.ProxyInit.IptablesMode = modeNFT
	values.ProxyInit.IgnoreInbound, values.ProxyInit.IgnoreOutbound = "4567,4568", "4567,4568"

	proxy := &values.Proxy
	proxy.NativeSidecar, proxy.Await = true, true
	proxy.Runtime.Workers.Minimum = 1
	proxy.LogHTTPHeaders = headersOff

	proxy.OpaquePorts = "25,587,3306,4444,5432,6379,9300,11211"
	proxy.OutboundConnectTimeout, proxy.InboundConnectTimeout = "1000ms", "100ms"
	proxy.OutboundUnusedTimeout, proxy.InboundUnusedTimeout = "5s", "90s"
	proxy.Control.Streams.InitialTimeout, proxy.Control.Streams.IdleTimeout = "3s", "5m"
	proxy.Control.Streams.Lifetime = "1h"
	proxy.Tracing.ServiceName = "linkerd-proxy"
	proxy.Tracing.Labels = map[string]Text{
		"k8s.pod.ip": "$(_pod_ip)", "k8s.pod.uid": "$(_pod_uid)", "k8s.container.name": "$(_pod_containerName)",
	}

	keepAlive := map[string]Text{"keepAliveInterval": "10s", "keepAliveTimeout": "3s"}
	proxy.Inbound = map[string]map[string]map[string]Text{"server": {"http2": keepAlive}}
	proxy.Outbound = proxy.Inbound
	return values
}

// ParseValues reads the values that a mesh was installed with, as Linkerd keeps them (YAML, up to 256 KiB). What is
// missing is as the chart's templates take it. An error means that none of them are used: a proxy with half of its
// settings would be worse than the previous values, or none.
func ParseValues(text []byte) (*Values, error) {
	if len(text) > maxValues {
		return nil, fmt.Errorf("the values have %d bytes, more than %d", len(text), maxValues)
	}
	values := absent()
	if err := yaml.Unmarshal(text, values); err != nil {
		return nil, fmt.Errorf("the values are not those of Linkerd: %w", err)
	}

	for _, of := range []**corev1.SecurityContext{
		&values.Proxy.SecurityContext, &values.NetworkValidator.SecurityContext,
	} {
		if *of != nil && **of == (corev1.SecurityContext{}) {
			*of = nil // the chart has {} for none
		}
	}

	if err := values.validate(); err != nil {
		return nil, err
	}
	return values, nil
}

// validate rejects values of which no Pod could be made, or none that works.
func (v *Values) validate() error {
	switch proxy := &v.Proxy; {
	case v.LinkerdVersion == "" && proxy.Image.Version == "":
		return errors.New("linkerdVersion is missing: the image of the proxy would have no tag")
	case v.ClusterDomain == "":
		return errors.New("clusterDomain is empty")
	case proxy.Image.Name == "" || v.DebugContainer.Image.Name == "":
		return errors.New("proxy.image.name and debugContainer.image.name must not be empty")
	case v.ProxyInit.IptablesMode != modeNFT && v.ProxyInit.IptablesMode != modeLegacy:
		return fmt.Errorf("proxyInit.iptablesMode is %q, neither %s nor %s", v.ProxyInit.IptablesMode, modeNFT,
			modeLegacy)
	case !slices.Contains([]Text{headersOff, headersInsecure, ""}, proxy.LogHTTPHeaders):
		return fmt.Errorf("proxy.logHTTPHeaders is %q, neither %s nor %s", proxy.LogHTTPHeaders, headersOff,
			headersInsecure)
	case !slices.Contains(defaultPolicies, string(proxy.DefaultInboundPolicy)):
		return fmt.Errorf("proxy.defaultInboundPolicy is %q, and none of %s", proxy.DefaultInboundPolicy,
			strings.Join(defaultPolicies, ", "))
	case v.ProxyInit.CloseWaitSeconds > 0 && !v.ProxyInit.RunAsRoot:
		return errors.New("proxyInit.closeWaitTimeoutSecs needs proxyInit.runAsRoot")
	case proxy.Tracing.Enabled && !proxy.Tracing.isComplete():
		return errors.New("proxy.tracing needs collector.endpoint, and both serviceAccountName and namespace of " +
			"collector.meshIdentity")
	}

	return errors.Join(v.validatePorts(), v.validateNetworks(), v.Proxy.Resources.validate())
}

func (t *tracing) isComplete() bool {
	of := &t.Collector.MeshIdentity
	return t.Collector.Endpoint != "" && of.ServiceAccount != "" && of.Namespace != ""
}

func (v *Values) validatePorts() error {
	of := &v.Proxy.Ports
	for _, port := range []int32{of.Admin, of.Control, of.Inbound, of.Outbound} {
		if !isPort(port) {
			return fmt.Errorf("proxy.ports has %d, which is no port", port)
		}
	}
	return nil
}

// validateNetworks rejects what the proxy would reject: it does not start then.
func (v *Values) validateNetworks() error {
	for network := range strings.SplitSeq(strings.Trim(string(v.ClusterNetworks), ","), ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(network)); err != nil && network != "" {
			return fmt.Errorf("clusterNetworks: %w", err)
		}
	}
	return nil
}

func (r *resourceValues) validate() error {
	for _, of := range []limits{r.CPU, r.Memory, r.EphemeralStorage} {
		for _, quantity := range []Text{of.Limit, of.Request} {
			if _, err := parseQuantity(string(quantity)); err != nil && quantity != "" {
				return fmt.Errorf("proxy.resources: %q: %w", quantity, err)
			}
		}
	}
	return nil
}

// parseQuantity reads a quantity that an API server accepts as a limit or request.
func parseQuantity(text string) (resource.Quantity, error) {
	const longest = 64 // bytes
	if len(text) > longest {
		return resource.Quantity{}, fmt.Errorf("longer than %d bytes", longest)
	}
	quantity, err := resource.ParseQuantity(text)
	if err == nil && quantity.Sign() < 0 {
		err = errors.New("negative")
	}
	return quantity, err
}

// trustDomain returns that of identities in the mesh.
func (v *Values) trustDomain() string {
	if v.IdentityTrustDomain != "" {
		return string(v.IdentityTrustDomain)
	}
	return string(v.ClusterDomain)
}

// Tag returns that of the proxy's image.
func (v *Values) Tag() string {
	if v.Proxy.Image.Version != "" {
		return string(v.Proxy.Image.Version)
	}
	return string(v.LinkerdVersion)
}

// reference returns an image with its tag.
func (v *Values) reference(of *image) string {
	if of.Version != "" {
		return string(of.Name + ":" + of.Version)
	}
	return string(of.Name + ":" + v.LinkerdVersion)
}

// pullPolicy returns the policy of an image.
func (v *Values) pullPolicy(of *image) corev1.PullPolicy {
	if of.PullPolicy != "" {
		return corev1.PullPolicy(of.PullPolicy)
	}
	return corev1.PullPolicy(v.ImagePullPolicy)
}
