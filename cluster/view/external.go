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

// reduceExternal returns what is kept of an ExternalWorkload: the same as of a Pod.
func (r *Reconciler) reduceExternal(u *unstructured.Unstructured, out *omissions) (record podRecord, ok bool) {
	parsed, err := linkerd.ParseExternalWorkload(u)
	if err != nil {
		out.addText("all of it: " + err.Error())
		return record, false
	}

	spec := parsed.Spec
	template := federation.Template{InboundPort: defaultProxyPort}
	template.Identity = out.text("identity", spec.MeshTLS.Identity, maxIdentity)
	template.ServerName = out.text("name of the server", spec.MeshTLS.ServerName, maxName)
	var host hostPorts
	var named namedPorts

	for _, p := range firstOf(out, "ports", spec.Ports, maxPorts) {
		n, is := portNumber(p.Port)
		if !is || !out.validText("a port: its name", p.Name, maxLabel) {
			continue
		}
		host.ports = appendPort(host.ports, p.Port)
		named = named.withPort(p.Name, p.Port)
		if p.Name == proxyPortName {
			template.InboundPort = n
		}
	}

	for _, ip := range firstOf(out, "workload IPs", spec.WorkloadIPs, maxAddresses) {
		host.ips = appendIP(host.ips, ip.IP, out)
	}
	if list, found := parsed.Annotations[linkerd.OpaquePortsAnnotation]; found {
		template.Opaque = parsePorts(list, named.first, out)
	}

	record.class = unique.Make(podClass{
		owner:     newOwner(parsed.OwnerReferences, out),
		template:  unique.Make(template),
		labels:    newLabelSet(parsed.Name, parsed.Labels, out),
		ports:     named,
		available: parsed.Ready() && parsed.DeletionTimestamp == nil,
	})

	if r.options.Local {
		// Ready or not: it may be asked for to become ready.
		record.ips = otherIPs{hostPorts: &host, phase: phase{running: true}}.withOwn(nil)
	}
	return record, true
}
