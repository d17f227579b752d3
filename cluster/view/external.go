package view

import (
	"unique"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

const (
	proxyPortName    = "linkerd-proxy" // of an ExternalWorkload's ports
	defaultProxyPort = 4143
)

// translateExternal returns what is kept of an ExternalWorkload: the same as of a Pod.
func translateExternal(u *unstructured.Unstructured, r *remarks) (pod, error) {
	parsed, err := linkerd.ParseExternalWorkload(u)
	if err != nil {
		return pod{}, err
	}
	spec := parsed.Spec
	t := federation.Template{InboundPort: defaultProxyPort}
	t.Identity = r.text("identity", spec.MeshTLS.Identity, maxIdentity)
	t.ServerName = r.text("name of the server", spec.MeshTLS.ServerName, maxName)
	home := &residence{running: true} // readiness has no say: it may be asked for to become ready
	var named namedPorts
	for _, p := range first(r, "ports", spec.Ports, maxPorts) {
		n, is := portNumber(p.Port)
		if !is || !r.valid("a port: its name", p.Name, maxLabel) {
			continue
		}
		home.ports = appendPort(home.ports, p.Port)
		named = named.with(p.Name, p.Port)
		if p.Name == proxyPortName {
			t.InboundPort = n
		}
	}
	for _, ip := range first(r, "workload IPs", spec.WorkloadIPs, maxAddresses) {
		home.shared = appendIP(home.shared, ip.IP)
	}
	if list, found := parsed.Annotations[linkerd.OpaquePortsAnnotation]; found {
		t.Opaque = parsePorts(list, named.first, r)
	}
	o := origin{owner: ownerOf(parsed.OwnerReferences, r), template: unique.Make(t), labels: labelsOf(parsed.Name, parsed.Labels, r), ports: named}
	o.settled = parsed.Ready() && parsed.DeletionTimestamp == nil
	return pod{origin: unique.Make(o), residence: home}, nil
}

// externalWorkload returns who an ExternalWorkload is to the clients of an address. opaque is what Servers say.
func externalWorkload(k key, from *origin, opaque federation.Ports) federation.Workload {
	return federation.Workload{
		Kind: federation.ExternalWorkload, Namespace: k.Namespace, Name: k.Name, OwnerKind: from.owner.kind, OwnerName: from.owner.name,
		Template: withServers(from.template, opaque),
	}
}
