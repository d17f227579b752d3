package view

import (
	"bytes"
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

// What is read of Pods besides the names of package linkerd.
const (
	templateHashLabel = "pod-template-hash"
	defaultAccount    = "default"
	inboundListenEnv  = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR"
	adminListenEnv    = "LINKERD2_PROXY_ADMIN_LISTEN_ADDR"
	controlListenEnv  = "LINKERD2_PROXY_CONTROL_LISTEN_ADDR"
)

// podFields are what is read of a Pod (see newPodRecord, newWorkloadIPs): metadata; of the spec
// containers, account, node and network; of the status phase, conditions and IPs. Of
// containers: name, ports and environment; with probes for rules the HTTP requests of probes, too.
var (
	podFields           = podFieldsOf(api.Fields{1: nil, 6: nil, 7: {If: namesListener}})
	podFieldsWithProbes = podFieldsOf(api.Fields{
		1: nil, 6: nil, 7: {If: namesListener}, 10: httpProbe, 11: httpProbe, 22: httpProbe,
	})
	httpProbe = &api.Message{Fields: api.Fields{1: {Fields: api.Fields{2: nil}}}}
)

func podFieldsOf(container api.Fields) *api.Message {
	containers := &api.Message{Fields: container}
	return &api.Message{Fields: api.Fields{
		1: api.MetadataFields,
		2: {Fields: api.Fields{2: containers, 8: nil, 10: nil, 11: nil, 20: containers}},
		3: {Fields: api.Fields{1: nil, 2: nil, 5: nil, 6: nil, 12: nil, 16: nil}},
	}}
}

// namesListener reports whether a variable may be one of those that listenPort reads.
func namesListener(variable []byte) bool { return bytes.Contains(variable, []byte("_LISTEN_ADDR")) }

// Kinds of owners, in lower case.
const (
	ownerReplicaSet = "replicaset"
	ownerJob        = "job"
)

// replicaSetOwners are the kinds that count as owners of a ReplicaSet.
var replicaSetOwners = []string{"job", "statefulset", "daemonset", "deployment"}

// owner is the one controller that an object has, of federation.OwnerKinds; zero if it has none, or several, or one of
// another kind, such as a custom resource: metrics have no label for that, and nothing is wrong with it.
type owner struct{ kind, name string }

// refIn returns the reference to an owner that is a ReplicaSet or a Job.
func (o owner) refIn(namespace string) objectRef {
	ref := objectRef{kindReplicaSet, key{Namespace: namespace, Name: o.name}}
	if o.kind == ownerJob {
		ref.kind = kindJob
	}
	return ref
}

func newOwner(refs []metav1.OwnerReference, out *omissions) owner {
	if len(refs) != 1 {
		return owner{}
	}
	ref := refs[0]
	if !out.validText("the owner: its kind", ref.Kind, maxLabel) ||
		!out.validText("the owner: its name", ref.Name, maxName) {
		return owner{}
	}

	kind := strings.ToLower(ref.Kind)
	switch {
	case slices.Contains(federation.OwnerKinds, kind):
		return owner{kind, ref.Name}
	case len(validation.IsDNS1035Label(kind)) > 0: // of a custom resource API servers ask for as much
		out.addf("the owner: %s is no name of a kind", ref.Kind)
	}
	return owner{}
}

// podRecord is what is kept of a Pod, or of an ExternalWorkload.
type podRecord struct {
	node  federation.Name
	class unique.Handle[podClass]
	ips   *workloadIPs // of the local cluster only; nil if there are none
}

type templateHandle = unique.Handle[federation.Template]

// podClass is what is kept once of Pods that do not differ in it, as those of one ReplicaSet or
// StatefulSet.
type podClass struct {
	owner     owner
	template  templateHandle // without what Servers add
	labels    labelSet
	ports     namedPorts
	available bool // ready, and not terminating
}

// newPodRecord returns what is kept of a Pod. A Pod whose identity is malformed is left out: without it, it
// would have the identity of another.
func newPodRecord(pod *corev1.Pod, out *omissions) (record podRecord, ok bool) {
	controlPlane := pod.Labels[linkerd.ControlPlaneLabel]
	if !out.validText("all of it: its service account", pod.Spec.ServiceAccountName, maxName) ||
		!out.validText("all of it: label "+linkerd.ControlPlaneLabel, controlPlane, maxLabel) {
		return podRecord{}, false
	}

	ports := namedPortsOf(pod, out)
	template := federation.Template{
		ServiceAccount: cmp.Or(pod.Spec.ServiceAccountName, defaultAccount),
		ControlPlane:   controlPlane,
		Hash:           out.label("label "+templateHashLabel, pod.Labels[templateHashLabel]),
	}

	if list, found := pod.Annotations[linkerd.OpaquePortsAnnotation]; found {
		template.Opaque = parsePorts(list, ports.first, out)
	}
	if list, found := pod.Annotations[linkerd.SkipInboundPortsAnnotation]; found {
		template.Skip = parsePorts(list, nil, out)
	}

	if template.ControlPlane != "" {
		template.InboundPort = listenPort(pod, inboundListenEnv)
		template.AdminPort = listenPort(pod, adminListenEnv)
		template.ControlPort = listenPort(pod, controlListenEnv)
	}

	class := podClass{
		owner:     newOwner(pod.OwnerReferences, out),
		template:  unique.Make(template),
		labels:    newLabelSet(pod.Name, pod.Labels, out),
		ports:     ports,
		available: pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, isReady),
	}
	return podRecord{node: out.name("node", pod.Spec.NodeName, maxName), class: unique.Make(class)}, true
}

// containersOf yields all containers of a Pod. They are not copied: each is large.
func containersOf(p *corev1.Pod) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [...][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

func isReady(c corev1.PodCondition) bool {
	return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
}

// namedPortsOf returns the ports that have names, by their numbers in the Pod and, if they are mapped, at
// the host.
func namedPortsOf(pod *corev1.Pod, out *omissions) (ports namedPorts) {
	var n int
	for c := range containersOf(pod) {
		for _, port := range c.Ports {
			if port.Name == "" || !out.validText("a port: its name", port.Name, maxLabel) {
				continue
			}

			n++
			if n > maxPorts {
				out.addf("ports with names: those after the first %d", maxPorts)
				return ports
			}
			ports = ports.withPort(port.Name, port.ContainerPort)
			if port.HostPort != port.ContainerPort {
				ports = ports.withPort(port.Name, port.HostPort)
			}
		}
	}

	return ports
}

// listenPort reads the port of a listen address from the environment of the proxy's container; 0 if it is
// not there.
func listenPort(p *corev1.Pod, env string) uint16 {
	for c := range containersOf(p) {
		if c.Name != linkerd.ProxyContainer {
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

// controllerOf returns the controller of a Pod that has this owner: the Deployment of a ReplicaSet, the
// CronJob of a Job, and otherwise the owner itself. ownerOf looks up the owner of a ReplicaSet or a Job.
func controllerOf(direct owner, ownerOf func(owner) (owner, bool)) owner {
	switch direct.kind {
	case ownerReplicaSet:
		if up, found := ownerOf(direct); found && slices.Contains(replicaSetOwners, up.kind) {
			return up
		}
	case ownerJob:
		if up, found := ownerOf(direct); found && up.kind != "" {
			return up
		}
	}
	return direct
}

// withServers adds to a Template which ports Servers make opaque.
func withServers(template templateHandle, opaque federation.Ports) templateHandle {
	if !opaque.Given() {
		return template
	}
	t := template.Value()
	t.ServerOpaque = opaque
	return unique.Make(t)
}
