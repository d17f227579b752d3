package view

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster/linkerd/serviceprofile"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/profile"
)

// Functions that reduce an object to its record, for an api.Store. They return false for an object of
// which nothing is kept, and add to out what they leave out (see border.go).

// serviceRecord is what is kept of a Service.
type serviceRecord struct {
	federation.View              // without slices
	ips             []netip.Addr // its cluster IPs; of the local cluster only
}

// readPolicy sets the policy of a Service of the local cluster. Only a federated one has more than one
// cluster to divide its traffic between.
func (r *serviceRecord) readPolicy(annotations map[string]string) {
	if r.Composition == nil || !r.Composition.Union {
		return
	}
	if p, _ := policy.ServiceOf(annotations); !p.None() {
		r.Policy = &p
	}
}

func (r *Reconciler) reduceService(svc *corev1.Service, out *omissions) (*serviceRecord, bool) {
	record := &serviceRecord{View: newView(r.cluster, svc, out)}
	if r.options.Local {
		record.ips = clusterIPs(svc, out)
		record.readPolicy(svc.Annotations)
		record.ThroughGateway = throughGateway(svc, &record.View, out)
	}
	return record, true
}

func (r *Reconciler) reduceSlice(es *discoveryv1.EndpointSlice, out *omissions) ([]*sliceRecord, bool) {
	return newSliceRecords(es, r.options.Local, out)
}

func (r *Reconciler) reducePod(p *corev1.Pod, out *omissions) (podRecord, bool) {
	record, ok := newPodRecord(p, out)
	if r.options.Local {
		record.ips = newWorkloadIPs(p, out)
	}
	return record, ok
}

func reduceServer(u *unstructured.Unstructured, out *omissions) (*serverRecord, bool) {
	s, err := newServerRecord(u, out)
	if err != nil {
		out.addText("all of it: " + err.Error())
	}
	return s, s != nil
}

// reduceProfile returns nil for a ServiceProfile that cannot be read: the one before stays in effect.
func reduceProfile(u *unstructured.Unstructured, out *omissions) (*profile.Profile, bool) {
	p, warnings, err := serviceprofile.Parse(u)
	if err != nil {
		out.addText("all of it, so that its former state stays in effect, or the default: " + err.Error())
	}
	for _, w := range warnings {
		out.addText(w)
	}
	return p, true
}

// reduceOwner reports nothing of an owner that does not count: the object itself is the owner of its Pods then.
func reduceOwner(m *metav1.PartialObjectMetadata, _ *omissions) (owner, bool) {
	return newOwner(m.OwnerReferences, &omissions{}), true
}

func reduceNode(m *metav1.PartialObjectMetadata, out *omissions) (node federation.Node, ok bool) {
	node.Zone = out.label("label "+corev1.LabelTopologyZone, m.Labels[corev1.LabelTopologyZone])
	return node, true
}
