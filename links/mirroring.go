package links

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fingerpost/fingerpost/cluster/records"
)

// A Mirroring is what a Link asks to be written into the local cluster. It is immutable.
type Mirroring struct {
	Link            records.Key
	UID             string
	Resource        schema.GroupVersionResource // in which it was read
	ResourceVersion string
	Generation      int64
	Created         time.Time
	Spec            string // equal for equal specs

	Cluster       string
	ClusterDomain string
	Problem       string // why the rest cannot be used; empty if it can

	// Which Services of the cluster. One that is absent or empty selects nothing.
	Selector                 labels.Selector // mirrored through the gateway
	RemoteDiscoverySelector  labels.Selector // mirrored to be reached without it
	FederatedServiceSelector labels.Selector // members of the federated Service of their name

	Gateway             Gateway
	Probe               *Probe   // nil for none
	ExcludedAnnotations []string // keys that are not copied; one that ends in /* stands for all that begin with what is before the star
	ExcludedLabels      []string

	Conditions        []metav1.Condition // as they were read
	MirrorServices    []ServiceStatus
	FederatedServices []ServiceStatus
}

// A Gateway is the way into a cluster.
type Gateway struct {
	Addresses []string // IP addresses and host names; sorted
	Port      int32
	Identity  string // of its TLS certificate
}

// A Probe says how the gateway is asked whether it is alive.
type Probe struct {
	Path             string
	Port             int32
	Period, Timeout  time.Duration
	FailureThreshold int // failures in a row before it counts as dead
}

// A ServiceStatus says in a Link what became of one Service of its cluster.
type ServiceStatus struct {
	ControllerName string             `json:"controllerName"`
	RemoteRef      ObjectRef          `json:"remoteRef"`
	LocalRef       *ObjectRef         `json:"localRef,omitempty"` // nil: nothing stands for it
	Conditions     []metav1.Condition `json:"conditions"`
}

// An ObjectRef names an object in a status.
type ObjectRef struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// What a probe takes where a Link says nothing. Definitions of Links fill it in since v1alpha2.
const (
	defaultGatewayPort      = 4143
	defaultProbePeriod      = 3 * time.Second
	defaultProbeTimeout     = 30 * time.Second
	defaultFailureThreshold = 3
)

// mirroringOf reads what a Link asks for. Its problems are no reason not to link the cluster.
func newMirroring(u *unstructured.Unstructured, l *Link) *Mirroring {
	m := &Mirroring{
		Link: l.key, UID: l.uid, Resource: linkResource(l.version), ResourceVersion: u.GetResourceVersion(), Generation: l.generation, Created: l.created,
		Cluster: l.clusterName, ClusterDomain: cmp.Or(l.clusterDomain, "cluster.local"), Problem: l.invalid, Conditions: l.conditions,
		Selector: labels.Nothing(), RemoteDiscoverySelector: labels.Nothing(), FederatedServiceSelector: labels.Nothing(),
	}
	var parsed struct {
		Spec struct {
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
		} `json:"spec"`
		Status struct {
			MirrorServices    []ServiceStatus `json:"mirrorServices"`
			FederatedServices []ServiceStatus `json:"federatedServices"`
		} `json:"status"`
	}
	spec, err := json.Marshal(u.Object["spec"])
	if err == nil {
		m.Spec = string(spec)
		err = json.Unmarshal(spec, &parsed.Spec)
	}
	if status, serr := json.Marshal(u.Object["status"]); serr == nil && json.Unmarshal(status, &parsed.Status) == nil {
		m.MirrorServices, m.FederatedServices = parsed.Status.MirrorServices, parsed.Status.FederatedServices
	}
	s := parsed.Spec
	port := func(field, text string, otherwise int32) int32 {
		n, perr := strconv.ParseUint(text, 10, 16)
		if text == "" {
			return otherwise
		}
		if perr != nil || n == 0 {
			err = errors.Join(err, fmt.Errorf("%s %q is no port", field, text))
		}
		return int32(n)
	}
	duration := func(field, text string, otherwise time.Duration) time.Duration {
		if text == "" {
			return otherwise
		}
		d, perr := time.ParseDuration(text)
		if n, nerr := strconv.Atoi(text); nerr == nil { // link-gen has written bare seconds
			d, perr = time.Duration(n)*time.Second, nil
		}
		if perr != nil || d <= 0 {
			err = errors.Join(err, fmt.Errorf("%s %q is no duration such as 3s", field, text))
		}
		return d
	}
	selector := func(field string, s *metav1.LabelSelector) labels.Selector {
		if s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			return labels.Nothing()
		}
		parsed, serr := metav1.LabelSelectorAsSelector(s)
		if serr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", field, serr))
			return labels.Nothing()
		}
		return parsed
	}
	m.Selector = selector("spec.selector", s.Selector)
	m.RemoteDiscoverySelector = selector("spec.remoteDiscoverySelector", s.RemoteDiscoverySelector)
	m.FederatedServiceSelector = selector("spec.federatedServiceSelector", s.FederatedServiceSelector)
	m.ExcludedAnnotations, m.ExcludedLabels = s.ExcludedAnnotations, s.ExcludedLabels
	m.Gateway = Gateway{Port: port("spec.gatewayPort", s.GatewayPort, defaultGatewayPort), Identity: s.GatewayIdentity}
	for address := range strings.SplitSeq(s.GatewayAddress, ",") {
		if address = strings.TrimSpace(address); address != "" {
			m.Gateway.Addresses = append(m.Gateway.Addresses, address)
		}
	}
	slices.Sort(m.Gateway.Addresses)
	m.Gateway.Addresses = slices.Compact(m.Gateway.Addresses)
	if p := s.ProbeSpec; p.Path != "" && len(m.Gateway.Addresses) > 0 {
		m.Probe = &Probe{
			Path: p.Path, Port: port("spec.probeSpec.port", p.Port, m.Gateway.Port),
			Period:           duration("spec.probeSpec.period", p.Period, defaultProbePeriod),
			Timeout:          duration("spec.probeSpec.timeout", p.Timeout, defaultProbeTimeout),
			FailureThreshold: defaultFailureThreshold,
		}
		if p.FailureThreshold != "" {
			n, perr := strconv.Atoi(p.FailureThreshold)
			if perr != nil || n < 1 {
				err = errors.Join(err, fmt.Errorf("spec.probeSpec.failureThreshold %q is no number above 0", p.FailureThreshold))
			}
			m.Probe.FailureThreshold = n
		}
	}
	if err != nil && m.Problem == "" {
		m.Problem = oneLine(err)
	}
	return m
}

// Mirrorings returns what Links ask for, the oldest first: for each cluster that of the Link that counts, and those of all Links that
// name none. The channel closes once that may have changed.
func (r *Reconciler) Mirrorings() ([]*Mirroring, <-chan struct{}) {
	_, changed := r.changes.Load()
	var all []*Mirroring
	for _, k := range r.links.Keys() {
		if l, found := r.links.Get(k); found {
			all = append(all, l.mirroring)
		}
	}
	slices.SortFunc(all, func(a, b *Mirroring) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Link.String(), b.Link.String()))
	})
	counted := map[string]bool{r.options.ClusterName: true}
	return slices.DeleteFunc(all, func(m *Mirroring) bool {
		again := m.Cluster != "" && counted[m.Cluster]
		counted[m.Cluster] = true
		return again
	}), changed
}

// Namespace returns the namespace that Links are read in; empty for all.
func (r *Reconciler) Namespace() string { return r.options.LinkNamespace }

// Listed returns a channel that is closed once all Links are known; never, where they cannot be read.
func (r *Reconciler) Synced() <-chan struct{} { return r.links.Synced() }
