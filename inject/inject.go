package inject

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Values of [InjectAnnotation].
const (
	enabled  = "enabled"
	disabled = "disabled"
	ingress  = "ingress" // enabled, and requests are routed by their authority
)

// Names of what is added.
const (
	proxyName     = "linkerd-proxy"
	initName      = "linkerd-init"
	validatorName = "linkerd-network-validator"
	debugName     = "linkerd-debug"

	endEntityName = "linkerd-identity-end-entity"
	tokenName     = "linkerd-identity-token"
	podinfoName   = "linkerd-podinfo"
)

// isAdded reports whether a container is one that is added here.
func isAdded(name string) bool {
	return name == proxyName || name == initName || name == validatorName || name == debugName
}

// On Pods that are injected.
const (
	VersionAnnotation = "linkerd.io/proxy-version"     // of the proxy
	AnchorsAnnotation = "linkerd.io/trust-root-sha256" // of the text of the trust anchors, in hexadecimal
)

const accountPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// A Reason is why a Pod gets no proxy.
type Reason string

// Reasons, in the order in which they are listed.
const (
	HostNetwork         Reason = "host_network_enabled"
	SidecarExists       Reason = "sidecar_already_exists"
	UnsupportedResource Reason = "unsupported_resource"
	InjectDisabled      Reason = "injection_disable_annotation_present"
	InjectNotEnabled    Reason = "injection_enable_annotation_absent"
	InvalidAtNamespace  Reason = "invalid_inject_annotation_at_ns"
	InvalidAtWorkload   Reason = "invalid_inject_annotation_at_workload"
	NoAccountToken      Reason = "disabled_automount_service_account_token_account"
	UDPPort             Reason = "udp_ports_enabled" // of manifests alone
)

var reasonWords = map[Reason]string{
	HostNetwork:         "the Pod uses the network of its node",
	SidecarExists:       "the Pod has a proxy already",
	UnsupportedResource: "there is no template of a Pod",
	InjectDisabled:      InjectAnnotation + " is disabled",
	InjectNotEnabled:    InjectAnnotation + " is enabled neither on the Namespace nor on the Pod",
	InvalidAtNamespace:  InjectAnnotation + " of the Namespace is none of enabled, ingress and disabled",
	InvalidAtWorkload:   InjectAnnotation + " is none of enabled, ingress and disabled",
	NoAccountToken:      "the first container has no token of the ServiceAccount, which the proxy needs",
	UDPPort:             "a container has a port of UDP, which no proxy takes",
}

// Words returns a Reason for people.
func (r Reason) Words() string { return reasonWords[r] }

// Where it was decided that a Pod gets a proxy.
const (
	AtNamespace = "namespace"
	AtWorkload  = "workload"
)

// Options are what an Injector needs besides Values.
type Options struct {
	Namespace string // of the control plane
	Anchors   string // trust anchors of the mesh (PEM), by which proxies know each other
	CreatedBy string // for people: the program, with its version
	Services  Services
}

// An Injector adds proxies to Pods, for as long as the Values stay as they are.
type Injector struct {
	values     Values
	options    Options
	anchors    string // as the proxy gets them
	anchorsSum string // of the very text, in hexadecimal
	opaque     portList
}

// New returns an Injector. It fails without anchors, of which no proxy can do without.
func New(values *Values, options Options) (*Injector, error) {
	anchors := strings.TrimSpace(options.Anchors)
	if anchors == "" {
		return nil, errors.New("there are no trust anchors")
	}
	if options.Namespace == "" {
		return nil, errors.New("the namespace of the control plane is not known")
	}
	if err := options.Services.Validate(); err != nil {
		return nil, err
	}

	sum := sha256.Sum256([]byte(options.Anchors))
	opaque, _ := parsePorts(string(values.Proxy.OpaquePorts), nil)
	return &Injector{
		values: *values, options: options, anchors: anchors + "\n",
		anchorsSum: hex.EncodeToString(sum[:]), opaque: opaque,
	}, nil
}

// An Owner is what has made a Pod, top-most: that a Deployment owns a ReplicaSet has been looked up.
type Owner struct{ Kind, Name string }

// A Workload is a Pod, or an object with a template of Pods.
type Workload struct {
	Namespace            string
	NamespaceAnnotations map[string]string
	Owner                Owner // zero for none

	Meta *metav1.ObjectMeta // of the Pod or template; nil: it has none at all
	Spec *corev1.PodSpec    // nil: there is no Pod to make
	Path string             // of the template in the object, such as /spec/template; empty for a Pod

	// Manifest is whether no API server has seen it, which mounts tokens of ServiceAccounts.
	Manifest bool
}

// An Outcome is what becomes of a Workload.
type Outcome struct {
	Injected  bool
	Reasons   []Reason    // why it is not
	DecidedAt string      // AtNamespace or AtWorkload; empty if neither asks for a proxy
	Patch     []Operation // to be applied in this order; a Pod that is not injected may have one, too

	Warnings []string // for who has sent it: at most ten, a line each
	Ignored  []string // annotations whose values cannot be honoured
}

const maxWarnings = 10

// Inject returns what to add to a Workload. It reads the Workload only, and shares no memory with it.
func (i *Injector) Inject(workload *Workload) Outcome {
	meta := workload.Meta
	if meta == nil {
		meta = &metav1.ObjectMeta{}
	}

	at, reason := Decide(workload.NamespaceAnnotations[InjectAnnotation], meta.Annotations[InjectAnnotation])
	outcome := Outcome{DecidedAt: at, Reasons: i.values.reasons(workload, reason)}
	if workload.Spec == nil {
		return outcome
	}

	to := patch{prefix: workload.Path}
	if len(outcome.Reasons) > 0 {
		if opaque, is := i.missingOpaque(workload, meta); is {
			to.addMeta(workload, map[string]string{OpaqueAnnotation: opaque}, nil)
		}
		outcome.Patch = to.operations
		return outcome
	}

	outcome.Injected = true
	i.inject(&to, workload, meta, &outcome)
	outcome.Patch = to.operations
	return outcome
}

// Decide returns by whose [InjectAnnotation] a Pod gets a proxy, [AtNamespace] or [AtWorkload], or why it gets none.
func Decide(namespace, pod string) (at string, reason Reason) {
	switch namespace {
	case enabled, ingress, disabled, "":
	default:
		return "", InvalidAtNamespace
	}

	switch pod {
	case enabled, ingress, disabled, "":
	default:
		return "", InvalidAtWorkload
	}

	byNamespace := namespace == enabled || namespace == ingress
	switch {
	case byNamespace && pod == disabled:
		return AtWorkload, InjectDisabled
	case byNamespace:
		return AtNamespace, ""
	case pod == enabled || pod == ingress:
		return AtWorkload, ""
	}
	return "", InjectNotEnabled
}

// Reasons returns why a Workload cannot have a proxy, whatever its annotations ask for.
func (v *Values) Reasons(workload *Workload) []Reason { return v.reasons(workload, "") }

// reasons returns why a Pod is not injected: that of its annotations, if there is one, among those of its spec.
func (v *Values) reasons(workload *Workload, annotated Reason) (all []Reason) {
	spec := workload.Spec
	if spec != nil && spec.HostNetwork {
		all = append(all, HostNetwork)
	}
	if spec != nil && hasSidecar(spec) {
		all = append(all, SidecarExists)
	}

	if spec == nil {
		all = append(all, UnsupportedResource)
	}
	if annotated != "" {
		all = append(all, annotated)
	}

	if spec != nil && !v.Identity.ServiceAccountTokenProjection && !mountsAccount(workload) {
		all = append(all, NoAccountToken)
	}
	if spec != nil && workload.Manifest && hasUDP(spec) {
		all = append(all, UDPPort)
	}
	return all
}

// hasUDP reports whether a container has a port of UDP. Pods that others make get proxies all the same: what they
// send and take as UDP passes by.
func hasUDP(spec *corev1.PodSpec) bool {
	for container := range containers(spec) {
		for i := range container.Ports {
			if container.Ports[i].Protocol == corev1.ProtocolUDP {
				return true
			}
		}
	}
	return false
}

// hasSidecar reports whether a Pod has a proxy of Linkerd or Istio, or an init container of one of them.
func hasSidecar(spec *corev1.PodSpec) bool {
	isProxy := func(c *corev1.Container) bool {
		return c.Name == proxyName || c.Name == "istio-proxy" ||
			strings.HasPrefix(c.Image, proxyImage+":") || strings.HasPrefix(c.Image, "gcr.io/istio-release/proxyv2:")
	}

	for i := range spec.Containers {
		if isProxy(&spec.Containers[i]) {
			return true
		}
	}

	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if isProxy(c) || c.Name == initName || c.Name == "istio-init" ||
			strings.HasPrefix(c.Image, "cr.l5d.io/linkerd/proxy-init:") ||
			strings.HasPrefix(c.Image, "gcr.io/istio-release/proxy_init:") {
			return true
		}
	}
	return false
}

// mountsAccount reports whether the first container has the token of the ServiceAccount, or will have it.
func mountsAccount(workload *Workload) bool {
	automount := workload.Spec.AutomountServiceAccountToken
	if automount != nil && !*automount {
		return false
	}
	return workload.Manifest || accountMount(workload.Spec) != nil
}

// accountMount returns the mount of the ServiceAccount's token in the first container; nil if there is none.
func accountMount(spec *corev1.PodSpec) *corev1.VolumeMount {
	if len(spec.Containers) == 0 {
		return nil
	}
	for i := range spec.Containers[0].VolumeMounts {
		if mount := &spec.Containers[0].VolumeMounts[i]; mount.MountPath == accountPath {
			return &corev1.VolumeMount{Name: mount.Name, MountPath: mount.MountPath, ReadOnly: mount.ReadOnly}
		}
	}
	return nil
}

// missingOpaque returns the opaque ports that a Pod is to be annotated with, and whether it is. An empty value of the
// Namespace is one, too: nothing is opaque then, where without an annotation the defaults are.
func (i *Injector) missingOpaque(w *Workload, meta *metav1.ObjectMeta) (value string, is bool) {
	if _, has := meta.Annotations[OpaqueAnnotation]; has {
		return "", false
	}
	if value, is = w.NamespaceAnnotations[OpaqueAnnotation]; is {
		return value, true
	}
	value = i.opaque.opaqueOf(w.Spec)
	return value, value != ""
}

// Service returns what to add to a Service: the ports that are opaque, unless it is annotated.
func (i *Injector) Service(
	namespaceAnnotations map[string]string, meta *metav1.ObjectMeta, spec *corev1.ServiceSpec,
) []Operation {
	if _, has := meta.Annotations[OpaqueAnnotation]; has {
		return nil
	}
	value, is := namespaceAnnotations[OpaqueAnnotation]
	if !is {
		value = i.opaque.opaqueOfService(spec)
	}
	if !is && value == "" {
		return nil
	}

	var p patch
	p.addMeta(&Workload{Meta: meta}, map[string]string{OpaqueAnnotation: value}, nil)
	return p.operations
}

// inject adds everything to a patch.
func (i *Injector) inject(to *patch, workload *Workload, meta *metav1.ObjectMeta, outcome *Outcome) {
	added := inherited(workload.NamespaceAnnotations, meta.Annotations)
	if added == nil {
		added = map[string]string{}
	}
	all := meta.Annotations
	if len(added) > 0 {
		all = maps.Clone(added)
		maps.Copy(all, meta.Annotations)
	}

	with := &settings{Values: i.values, spec: workload.Spec, inboundPorts: inboundPorts(workload.Spec)}
	if _, is := added[OpaqueAnnotation]; !is {
		if opaque, is := i.missingOpaque(workload, meta); is {
			added[OpaqueAnnotation] = opaque
			with.Proxy.OpaquePorts = Text(opaque)
		}
	}
	with.apply(workload.NamespaceAnnotations, all, func(key, value string, why error) {
		outcome.Ignored = append(outcome.Ignored, key)
		outcome.warn("%s: %.40q: %s", key, value, why)
	})
	with.addAttributes(meta.Labels, all)

	added["linkerd.io/created-by"] = i.options.CreatedBy
	added[VersionAnnotation] = with.Tag()
	added[AnchorsAnnotation] = i.anchorsSum
	to.addMeta(workload, added, i.labels(workload, outcome))
	i.addSpec(to, workload, meta, with)
}

func (o *Outcome) warn(format string, args ...any) {
	if len(o.Warnings) < maxWarnings {
		o.Warnings = append(o.Warnings, fmt.Sprintf(format, args...))
	}
}

// ownerKinds have labels on their Pods.
var ownerKinds = []string{
	"deployment", "replicaset", "replicationcontroller", "statefulset", "daemonset", "job", "cronjob",
}

// labels returns those that distinguish metrics of proxies.
func (i *Injector) labels(workload *Workload, outcome *Outcome) map[string]string {
	labels := map[string]string{"linkerd.io/control-plane-ns": i.options.Namespace}
	if workload.Namespace != "" {
		labels["linkerd.io/workload-ns"] = workload.Namespace
	}

	kind := strings.ToLower(workload.Owner.Kind)
	if !slices.Contains(ownerKinds, kind) {
		return labels
	}
	if len(validation.IsValidLabelValue(workload.Owner.Name)) > 0 { // a Pod with it would be refused
		outcome.warn("the Pod has no label of its %s, whose name cannot be one: %.40q", kind, workload.Owner.Name)
		return labels
	}
	labels["linkerd.io/proxy-"+kind] = workload.Owner.Name
	return labels
}
