package view

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster/linkerd/serviceprofile"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/profile"
)

// Functions that reduce an object to its record, for a records.Store. They return false for an object of
// which nothing is kept, and add to out what they leave out (see border.go).

// serviceRecord is what is kept of a Service.
type serviceRecord struct {
	federation.View              // without slices
	ips             []netip.Addr // its cluster IPs; of the local cluster only
}

// readPolicy sets the policy of a Service of the local cluster. Only a federated one has more than one cluster to
// divide its traffic between.
func (r *serviceRecord) readPolicy(annotations map[string]string) {
	if r.Composition == nil || !r.Composition.Union {
		return
	}
	if p, _ := policy.ServiceOf(annotations); !p.None() {
		r.Policy = &p
	}
}

func (r *Reconciler) reduceService(object any, out *omissions) (*serviceRecord, bool) {
	svc, ok := object.(*corev1.Service)
	if !ok {
		return nil, false
	}
	record := &serviceRecord{View: newView(r.cluster, svc, out)}
	if r.options.Local {
		record.ips = clusterIPs(svc)
		record.readPolicy(svc.Annotations)
	}
	return record, true
}

func (r *Reconciler) reduceSlice(object any, out *omissions) ([]*sliceRecord, bool) {
	records, ok := newSliceRecords(object, out)
	return r.withoutForeignMarks(records), ok
}

func (r *Reconciler) reduceEndpoints(object any, out *omissions) ([]*sliceRecord, bool) {
	records, ok := newEndpointsRecords(object, out)
	return r.withoutForeignMarks(records), ok
}

// withoutForeignMarks drops the marks of gateways from the slices of a linked cluster. They count for the
// cluster's own clients only: otherwise that cluster could send our clients, under any authority, to any
// gateway that it names, and have them trust it.
func (r *Reconciler) withoutForeignMarks(records []*sliceRecord) []*sliceRecord {
	if r.options.Local {
		return records
	}
	for _, s := range records {
		for i := range s.endpoints {
			s.endpoints[i].Mirror = nil
		}
	}
	return records
}

func (r *Reconciler) reducePod(object any, out *omissions) (podRecord, bool) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return podRecord{}, false
	}
	record, ok := newPodRecord(p, out)
	if r.options.Local {
		record.ips = newWorkloadIPs(p)
	}
	return record, ok
}

func (r *Reconciler) reduceExternal(object any, out *omissions) (podRecord, bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return podRecord{}, false
	}
	record, err := newExternalRecord(u, out)
	if err != nil {
		out.addText("all of it: " + err.Error())
		return podRecord{}, false
	}
	if !r.options.Local {
		record.ips = nil
	}
	return record, true
}

func reduceServer(object any, out *omissions) (*serverRecord, bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	s, err := newServerRecord(u, out)
	if err != nil {
		out.addText("all of it: " + err.Error())
	}
	return s, s != nil
}

// reduceProfile returns nil for a ServiceProfile that cannot be read: the one before stays in effect.
func reduceProfile(object any, out *omissions) (*profile.Profile, bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	p, warnings, err := serviceprofile.Parse(u)
	if err != nil {
		out.addText("all of it, so that its former state stays in effect, or the default: " + err.Error())
	}
	for _, w := range warnings {
		out.addText(w)
	}
	return p, true
}

func reduceOwner(object any, out *omissions) (owner, bool) {
	m, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return owner{}, false
	}
	return newOwner(m.OwnerReferences, out), true
}

func reduceNode(object any, out *omissions) (zone string, ok bool) {
	m, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return "", false
	}
	return out.label("label "+corev1.LabelTopologyZone, m.Labels[corev1.LabelTopologyZone]), true
}
