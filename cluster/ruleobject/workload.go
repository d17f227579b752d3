package ruleobject

import (
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// Bounds on workloads: what follows is left out.
const (
	maxPorts  = 1000 // that have names
	maxProbes = 100
)

// Pod reads what the policy of a Pod's ports depends on.
func Pod(from *corev1.Pod) *rules.Workload {
	r := &reader{kind: rules.KindPod, object: from.ObjectMeta}
	to := r.workload(nil)
	for _, containers := range [...][]corev1.Container{from.Spec.InitContainers, from.Spec.Containers} {
		for i := range containers {
			r.container(&containers[i], to)
		}
	}
	to.Findings = r.findings
	return to
}

// External reads what the policy of an ExternalWorkload's ports depends on. A name is that of its first port of the
// name.
func External(from *unstructured.Unstructured) (*rules.Workload, error) {
	parsed, err := linkerd.ParseExternalWorkload(from)
	if err != nil {
		return nil, bounded(err)
	}

	r := &reader{kind: rules.KindExternalWorkload, object: parsed.ObjectMeta}
	var ports []rules.NamedPort
	for _, p := range parsed.Spec.Ports {
		isOld := slices.ContainsFunc(ports, func(o rules.NamedPort) bool { return o.Name == p.Name })
		if !isOld {
			ports = r.appendPort(ports, p.Name, p.Port, p.Protocol)
		}
	}
	to := r.workload(ports)
	to.External, to.Findings = true, r.findings
	return to, nil
}

// workload reads labels and annotations.
func (r *reader) workload(ports []rules.NamedPort) *rules.Workload {
	to := &rules.Workload{Namespace: r.object.Namespace, Labels: r.labels(), Ports: ports}
	if text, given := r.object.Annotations[linkerd.DefaultPolicyAnnotation]; given {
		to.Default, to.HasDefault = rules.ParseDefaultPolicy(text)
		if !to.HasDefault {
			r.leaveOut(rules.PartAnnotation, "%s: %.64q is no default policy", linkerd.DefaultPolicyAnnotation, text)
		}
	}
	to.RequireIdentity = r.portList(linkerd.RequireIdentityAnnotation)
	to.Opaque = r.portList(linkerd.OpaquePortsAnnotation)
	return to
}

// portList reads a list of ports from an annotation; nil without it.
func (r *reader) portList(key string) *rules.PortList {
	text, given := r.object.Annotations[key]
	if !given {
		return nil
	}
	list, dropped, err := rules.ParsePortList(text)
	if dropped > 0 {
		r.leaveOut(rules.PartAnnotation, "%s: %d items are left out: %v", key, dropped, err)
	}
	return list
}

// container reads the ports of a container that have names, and its probes by HTTP.
func (r *reader) container(from *corev1.Container, to *rules.Workload) {
	for _, p := range from.Ports {
		to.Ports = r.appendPort(to.Ports, p.Name, p.ContainerPort, p.Protocol)
	}

	for _, probe := range []*corev1.Probe{from.LivenessProbe, from.ReadinessProbe, from.StartupProbe} {
		if probe == nil || probe.HTTPGet == nil || len(to.Probes) == maxProbes {
			continue
		}

		port, path := probePort(from, probe.HTTPGet.Port), probePath(probe.HTTPGet.Path)
		if port != 0 && path != "" {
			to.Probes = append(to.Probes, rules.Probe{Port: port, Path: path})
		}
	}
}

// appendPort appends a port that has a name and carries TCP.
func (r *reader) appendPort(
	to []rules.NamedPort, name string, number int32, protocol corev1.Protocol,
) []rules.NamedPort {
	if !isTCP(protocol) || !isPlain(name, maxLabel) || number < 1 || number > 65535 || len(to) == maxPorts {
		return to
	}
	port := rules.NamedPort{Name: name, Number: uint16(number)}
	if slices.Contains(to, port) {
		return to
	}
	return append(to, port)
}

func isTCP(protocol corev1.Protocol) bool {
	return protocol == "" || strings.EqualFold(string(protocol), string(corev1.ProtocolTCP))
}

// probePort returns the number of a probe's port; 0 if there is none. A name is that of a port of the container.
func probePort(of *corev1.Container, port intstr.IntOrString) uint16 {
	number := port.IntVal
	if port.Type == intstr.String {
		for _, p := range of.Ports {
			if p.Name == port.StrVal && isTCP(p.Protocol) {
				number = p.ContainerPort
				break
			}
		}
	}

	if number < 1 || number > 65535 {
		return 0
	}
	return uint16(number)
}

// probePath returns the path that a kubelet asks for, without its query; empty if it cannot be parsed.
func probePath(text string) string {
	parsed, err := url.Parse(text)
	if err != nil || len(text) > maxText {
		return ""
	}
	path := parsed.EscapedPath()
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return path
}

// A Service is what clients of a Service depend on.
type Service struct {
	rules.Target      // without what attaches to it
	HasIP        bool // it has a cluster IP
	Findings     []rules.Finding

	// Clusters are those of the Services that it stands for, sorted; a plain one has none. A mirror through a gateway
	// has one, and imports nothing.
	Clusters []federation.Cluster
}

// StandsForOthers reports whether its requests go to other Services, as those of a mirror do.
func (s *Service) StandsForOthers() bool { return s.Imports || len(s.Clusters) > 0 }

// StandsForSame reports whether two Services stand for others in the same clusters, or for none.
func (s *Service) StandsForSame(o *Service) bool {
	return s.Imports == o.Imports && slices.Equal(s.Clusters, o.Clusters)
}

// ReadService reads a Service.
func ReadService(from *corev1.Service) *Service {
	reader := &reader{kind: rules.KindService, object: metav1.ObjectMeta{
		Namespace: from.Namespace, Name: from.Name,
		CreationTimestamp: from.CreationTimestamp, Annotations: from.Annotations,
	}}
	to := &Service{
		Target: rules.Target{
			Reference: rules.Reference{Kind: rules.KindService, Namespace: from.Namespace, Name: from.Name},
			Created:   reader.meta().Created, Exists: true, Settings: reader.settings(true),
		},
		HasIP: from.Spec.ClusterIP != "" && from.Spec.ClusterIP != corev1.ClusterIPNone &&
			from.Spec.Type != corev1.ServiceTypeExternalName,
	}

	for _, carriesTCP := range []bool{true, false} { // what a port of both declares is about TCP
		for _, p := range from.Spec.Ports {
			if carriesTCP == isTCP(p.Protocol) {
				to.Ports = reader.appendServicePort(to.Ports, p)
			}
		}
	}
	to.Findings = reader.findings
	return to
}

func (r *reader) appendServicePort(to []rules.ServicePort, from corev1.ServicePort) []rules.ServicePort {
	if from.Port < 1 || from.Port > 65535 || len(to) == maxPorts {
		return to
	}
	port := rules.ServicePort{NamedPort: rules.NamedPort{Number: uint16(from.Port)}}
	if isPlain(from.Name, maxLabel) {
		port.Name = from.Name
	}

	if from.AppProtocol != nil {
		port.AppProtocol = *from.AppProtocol
		if !isPlain(port.AppProtocol, maxName+1+maxLabel) {
			r.leaveOut(rules.PartSpec, "port %d: its appProtocol is no name of a protocol", from.Port)
			port.AppProtocol = ""
		}
	}
	return append(to, port)
}
