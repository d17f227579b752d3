package view

import (
	"net/netip"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

// What is read of Pods besides the names of package linkerd.
const (
	templateHashLabel   = "pod-template-hash"
	proxyContainer      = "linkerd-proxy"
	inboundListenEnv    = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR"
	adminListenEnv      = "LINKERD2_PROXY_ADMIN_LISTEN_ADDR"
	controlListenEnv    = "LINKERD2_PROXY_CONTROL_LISTEN_ADDR"
	defaultAccount      = "default"
	replicaSetKind      = "replicaset"
	jobKind             = "job"
	podKind             = "pod"
	ownerKindsSupported = "job statefulset daemonset deployment" // of a ReplicaSet
)

// owner is the one controller that an object has, kind in lower case; zero if it has none, or several.
type owner struct{ kind, name string }

func ownerOf(refs []metav1.OwnerReference, r *remarks) owner {
	if len(refs) != 1 || !r.valid("the owner: its kind", refs[0].Kind, maxLabel) || !r.valid("the owner: its name", refs[0].Name, maxName) {
		return owner{}
	}
	return owner{intern(strings.ToLower(refs[0].Kind)), intern(refs[0].Name)}
}

// pod is what is kept of a Pod, or of another workload.
type pod struct {
	node      string
	origin    unique.Handle[origin]
	residence *residence // nil if it cannot be asked for by IP
}

// origin is what is kept once of Pods that do not differ in it, as those of one ReplicaSet or StatefulSet.
type origin struct {
	owner    owner
	template unique.Handle[federation.Template] // without what Servers say
	labels   labelSet
	ports    namedPorts
	settled  bool // it is ready, and not terminating
}

// podOf returns what is kept of a Pod. One whose identity cannot be kept is left out, since it would be another's without it.
func podOf(p *corev1.Pod, r *remarks) (kept pod, ok bool) {
	if !r.valid("all of it: its service account", p.Spec.ServiceAccountName, maxName) ||
		!r.valid("all of it: label "+linkerd.ControlPlaneLabel, p.Labels[linkerd.ControlPlaneLabel], maxLabel) {
		return pod{}, false
	}
	containers := slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
	ports := portsOf(containers, r)
	t := federation.Template{
		ServiceAccount: intern(p.Spec.ServiceAccountName),
		ControlPlane:   intern(p.Labels[linkerd.ControlPlaneLabel]),
		Hash:           r.label("label "+templateHashLabel, p.Labels[templateHashLabel]),
	}
	if t.ServiceAccount == "" {
		t.ServiceAccount = defaultAccount
	}
	if list, found := p.Annotations[linkerd.OpaquePortsAnnotation]; found {
		t.Opaque = parsePorts(list, ports.first, r)
	}
	if list, found := p.Annotations[linkerd.SkipInboundPortsAnnotation]; found {
		t.Skip = parsePorts(list, nil, r)
	}
	if t.ControlPlane != "" {
		t.InboundPort = listenPort(containers, inboundListenEnv)
		t.AdminPort = listenPort(containers, adminListenEnv)
		t.ControlPort = listenPort(containers, controlListenEnv)
	}
	o := origin{owner: ownerOf(p.OwnerReferences, r), template: unique.Make(t), labels: labelsOf(p.Name, p.Labels, r), ports: ports}
	o.settled = p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	return pod{node: r.text("node", p.Spec.NodeName, maxName), origin: unique.Make(o)}, true
}

// portsOf returns the ports that have names, by which they are known in the Pod and, if there, at the host.
func portsOf(containers []corev1.Container, r *remarks) (ports namedPorts) {
	var n int
	for _, c := range containers {
		for _, p := range c.Ports {
			if p.Name == "" || !r.valid("a port: its name", p.Name, maxLabel) {
				continue
			}
			if n++; n > maxPorts {
				r.add("ports with names: those after the first %d", maxPorts)
				return ports
			}
			ports = ports.with(p.Name, p.ContainerPort)
			if p.HostPort != p.ContainerPort {
				ports = ports.with(p.Name, p.HostPort)
			}
		}
	}
	return ports
}

// listenPort reads the port of a listen address from the environment of the proxy's container; 0 if it is not there.
func listenPort(containers []corev1.Container, env string) uint16 {
	for _, c := range containers {
		if c.Name != proxyContainer {
			continue
		}
		for _, e := range c.Env {
			if e.Name != env {
				continue
			}
			if addr, err := netip.ParseAddrPort(e.Value); err == nil {
				return addr.Port()
			}
		}
	}
	return 0
}

// workload returns who a Pod is to the clients of an address: its controller is the Deployment behind its ReplicaSet, the CronJob
// behind its Job, and otherwise its direct owner. ownerOf looks up what owns a ReplicaSet or a Job. opaque is what Servers say.
func workload(k key, from *origin, opaque federation.Ports, ownerOf func(owner) (owner, bool)) federation.Workload {
	o := from.owner
	switch o.kind {
	case "":
		o = owner{podKind, k.Name}
	case replicaSetKind:
		if up, found := ownerOf(o); found && slices.Contains(strings.Fields(ownerKindsSupported), up.kind) {
			o = up
		}
	case jobKind:
		if up, found := ownerOf(o); found && up.kind != "" {
			o = up
		}
	}
	return federation.Workload{
		Kind: federation.Pod, Namespace: k.Namespace, Name: k.Name, OwnerKind: o.kind, OwnerName: o.name,
		Template: withServers(from.template, opaque),
	}
}

// withServers adds to a Template which ports Servers make opaque.
func withServers(template unique.Handle[federation.Template], opaque federation.Ports) unique.Handle[federation.Template] {
	if !opaque.Said() {
		return template
	}
	t := template.Value()
	t.ServerOpaque = opaque
	return unique.Make(t)
}
