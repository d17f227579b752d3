package links

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/view"
)

// A Mirroring is the part of a Link that asks for Services in the local cluster. It is immutable.
type Mirroring struct {
	Link       api.Key
	UID        string
	Generation int64
	Created    time.Time
	Spec       string // as JSON, to compare

	Cluster       string
	ClusterDomain string
	Problem       string // why the fields below cannot be used; empty if they can

	// Which Services of the cluster. An absent or empty selector selects nothing.
	Selector                 labels.Selector // mirrored through the gateway
	RemoteDiscoverySelector  labels.Selector // mirrored without it: clients reach the Pods directly
	FederatedServiceSelector labels.Selector // members of the federated Service of their name

	Gateway             Gateway
	Probe               *Probe   // nil: the gateway is not probed
	ExcludedAnnotations []string // keys that are not copied; foo/* excludes all that begin with foo/
	ExcludedLabels      []string
}

// A Gateway is the gateway of a linked cluster.
type Gateway struct {
	Addresses []string // IP addresses and host names; sorted
	Port      int32
	Identity  string // of its TLS certificate
}

// A Probe configures the health probe of a gateway.
type Probe struct {
	Path             string
	Port             int32
	Period, Timeout  time.Duration
	FailureThreshold int // consecutive failures after which the gateway counts as dead
}

// Defaults of a Link's fields. The CRD sets them itself since v1alpha2.
const (
	defaultGatewayPort      = 4143
	defaultProbePeriod      = 3 * time.Second
	defaultProbeTimeout     = 30 * time.Second
	defaultFailureThreshold = 3
)

// Bounds of a Link's fields: a gateway is resolved and probed for as long as it is linked.
const (
	maxGatewayAddresses = 100
	maxHostName         = 253 // RFC 1035, section 2.3.4, as text
	minProbeDuration    = 100 * time.Millisecond
	maxProbeDuration    = time.Hour
)

// mirroringSpec is the spec of a Link as far as it is about mirroring.
type mirroringSpec struct {
	GatewayAddress           string                `json:"gatewayAddress"`
	GatewayPort              string                `json:"gatewayPort"`
	GatewayIdentity          string                `json:"gatewayIdentity"`
	Selector                 *metav1.LabelSelector `json:"selector"`
	RemoteDiscoverySelector  *metav1.LabelSelector `json:"remoteDiscoverySelector"`
	FederatedServiceSelector *metav1.LabelSelector `json:"federatedServiceSelector"`
	ExcludedAnnotations      []string              `json:"excludedAnnotations"`
	ExcludedLabels           []string              `json:"excludedLabels"`
	ProbeSpec                struct {
		Path             string `json:"path"`
		Port             string `json:"port"`
		Period           string `json:"period"`
		Timeout          string `json:"timeout"`
		FailureThreshold string `json:"failureThreshold"`
	} `json:"probeSpec"`
}

// newMirroring reads what a Link asks to be mirrored. A problem with it does not keep the cluster from being
// linked.
func newMirroring(u *unstructured.Unstructured, l *Link) *Mirroring {
	mirroring := &Mirroring{
		Link: l.key, UID: l.uid, Generation: l.generation, Created: l.created,
		Cluster: l.clusterName, ClusterDomain: cmp.Or(l.clusterDomain, "cluster.local"), Problem: l.refused,
	}
	var fields fieldReader
	var spec mirroringSpec
	text, err := json.Marshal(u.Object["spec"])
	if err == nil {
		mirroring.Spec = string(text)
		err = json.Unmarshal(text, &spec)
	}

	fields.problems = err
	mirroring.Selector = fields.readSelector("spec.selector", spec.Selector)
	mirroring.RemoteDiscoverySelector = fields.readSelector(
		"spec.remoteDiscoverySelector", spec.RemoteDiscoverySelector)
	mirroring.FederatedServiceSelector = fields.readSelector(
		"spec.federatedServiceSelector", spec.FederatedServiceSelector)
	mirroring.ExcludedAnnotations, mirroring.ExcludedLabels = spec.ExcludedAnnotations, spec.ExcludedLabels
	mirroring.Gateway = fields.readGateway(&spec)
	if spec.ProbeSpec.Path != "" && len(mirroring.Gateway.Addresses) > 0 {
		mirroring.Probe = fields.readProbe(&spec, mirroring.Gateway.Port)
	}

	if fields.problems != nil && mirroring.Problem == "" {
		mirroring.Problem = oneLine(fields.problems)
	}
	return mirroring
}

// MirroringProblem returns what a server would report of the part of a Link's spec that is about mirroring; empty for
// nothing.
func MirroringProblem(spec map[string]any) string {
	return newMirroring(&unstructured.Unstructured{Object: map[string]any{"spec": spec}}, &Link{}).Problem
}

// A fieldReader parses fields of a Link, and collects what is wrong with them.
type fieldReader struct{ problems error }

func (r *fieldReader) reject(format string, args ...any) {
	r.problems = errors.Join(r.problems, fmt.Errorf(format, args...))
}

func (r *fieldReader) readGateway(spec *mirroringSpec) Gateway {
	gateway := Gateway{Identity: spec.GatewayIdentity}
	gateway.Port = r.readPort("spec.gatewayPort", spec.GatewayPort, defaultGatewayPort)

	for address := range strings.SplitSeq(spec.GatewayAddress, ",") {
		if address = strings.TrimSpace(address); address != "" {
			gateway.Addresses = append(gateway.Addresses, address)
		}
		switch ip, err := netip.ParseAddr(address); {
		case err == nil && !IsGatewayIP(ip):
			r.reject("spec.gatewayAddress %s is loopback, link-local, multicast or unspecified", address)
		case len(address) > maxHostName:
			r.reject("spec.gatewayAddress has a name of %d characters: DNS has %d at most", len(address), maxHostName)
		}
	}

	slices.Sort(gateway.Addresses)
	gateway.Addresses = slices.Compact(gateway.Addresses)
	if n := len(gateway.Addresses); n > maxGatewayAddresses {
		r.reject("spec.gatewayAddress names %d addresses: name %d at most", n, maxGatewayAddresses)
		gateway.Addresses = gateway.Addresses[:maxGatewayAddresses]
	}
	return gateway
}

// IsGatewayIP reports whether Endpoints may hold an address. An API server rejects Endpoints with any other.
func IsGatewayIP(ip netip.Addr) bool { return view.IsUsable(ip.Unmap()) }

func (r *fieldReader) readProbe(spec *mirroringSpec, gatewayPort int32) *Probe {
	given := spec.ProbeSpec
	probe := &Probe{
		Path:             given.Path,
		Port:             r.readPort("spec.probeSpec.port", given.Port, gatewayPort),
		Period:           r.readDuration("spec.probeSpec.period", given.Period, defaultProbePeriod),
		Timeout:          r.readDuration("spec.probeSpec.timeout", given.Timeout, defaultProbeTimeout),
		FailureThreshold: defaultFailureThreshold,
	}
	if _, err := url.ParseRequestURI(given.Path); err != nil || given.Path[0] != '/' {
		r.reject("spec.probeSpec.path %q is not a path such as /ready", given.Path)
	}

	if given.FailureThreshold != "" {
		n, err := strconv.Atoi(given.FailureThreshold)
		if err != nil || n < 1 {
			r.reject("spec.probeSpec.failureThreshold %q is not a number above 0", given.FailureThreshold)
		}
		probe.FailureThreshold = n
	}
	return probe
}

func (r *fieldReader) readPort(field, text string, otherwise int32) int32 {
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		r.reject("%s %q is not a port", field, text)
	}
	return int32(n)
}

func (r *fieldReader) readDuration(field, text string, otherwise time.Duration) time.Duration {
	if text == "" {
		return otherwise
	}
	withUnit := text
	if _, err := strconv.Atoi(text); err == nil { // link-gen has written bare seconds
		withUnit += "s"
	}

	d, err := time.ParseDuration(withUnit)
	if err != nil || d < minProbeDuration || d > maxProbeDuration {
		r.reject("%s %q is not a duration from 100ms to 1h, such as 3s", field, text)
		return otherwise
	}
	return d
}

func (r *fieldReader) readSelector(field string, s *metav1.LabelSelector) labels.Selector {
	if s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return labels.Nothing()
	}
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		r.reject("%s: %w", field, err)
		return labels.Nothing()
	}
	return parsed
}

// Mirrorings returns what Links ask to be mirrored, the oldest Link first. Of several Links that name one cluster only
// one counts, as compareLinks has it; all Links that name no cluster are included. The channel closes when the result
// may have changed.
func (r *Reconciler) Mirrorings() ([]*Mirroring, <-chan struct{}) {
	_, changed := r.changes.Load()
	r.mu.Lock()
	links := slices.SortedFunc(maps.Values(r.seenLinks), compareLinks)
	r.mu.Unlock()

	var all []*Mirroring
	counted := map[string]bool{r.options.ClusterName: true}
	for _, l := range links {
		if l.clusterName == "" || !counted[l.clusterName] {
			all = append(all, l.mirroring)
		}
		counted[l.clusterName] = true
	}
	slices.SortFunc(all, func(a, b *Mirroring) int { return compareAge(a.Created, b.Created, a.Link, b.Link) })
	return all, changed
}

// Namespace returns the namespace that Links are read in; empty for all.
func (r *Reconciler) Namespace() string { return r.options.LinkNamespace }

// Synced returns a channel that closes once all Links were listed; never, as long as they cannot be.
func (r *Reconciler) Synced() <-chan struct{} { return r.links.Synced() }
