package mirror

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
)

// # What is kept of objects of the local cluster
//
// Who may edit one namespace can put 1.5 MiB into each object there, and the replica that writes reads all Services. So
// of a Service that nothing is made of only a few labels are kept. Of one that we have written, or that joins a
// federated Service, what plans read is kept, if that is not more than maxKept. Of one with more, which is large, only
// the labels are kept, and it is read again when its name comes up (readLarge). So plans and comparisons have all of
// it, whatever its size, and it takes memory for that time only.
//
// Of Endpoints plans read whether there are addresses, and comparisons who owns which fields. We write small ones. So
// of those with more it is kept that they are not as we have applied them.

const (
	// maxKept is how many bytes of text are kept of an object. A federated Service of 200 clusters has about half as
	// many in its lists, and a mirror of 150 ports in what it lists of its fields.
	maxKept = 32 << 10
	// portSize is what one port counts for in maxKept.
	portSize = 100
	// largeMark is an annotation of the record of a large Service. No API server has one of that name.
	largeMark = " large"
)

var (
	// markLabels are the labels by which plans know what a Service of the local cluster is.
	markLabels = []string{mirroredLabel, clusterLabel, headlessLabel, gatewayLabel, federatedLabel, managedByLabel}
	// ownAnnotations are those of a mirror that plans and comparisons read.
	ownAnnotations = []string{linksAnnotation, appliedAnnotation, discoveryKey, localDiscoveryKey}
)

// trimLocal returns what is kept of a Service of the local cluster. The object is not changed.
func trimLocal(object any) (*corev1.Service, bool) {
	whole, ok := object.(*corev1.Service)
	if !ok || whole.DeletionTimestamp != nil {
		return nil, false
	}
	kept, size := whatPlansRead(whole)
	if size <= maxKept {
		return kept, true
	}
	marks := trimService(whole)
	marks.Labels, marks.Annotations = entries(whole.Labels, isMark), map[string]string{largeMark: ""}
	marks.Spec.Ports = nil
	return marks, true
}

// isLarge reports whether a record has not all that plans read of its Service.
func isLarge(svc *corev1.Service) bool {
	if svc == nil {
		return false
	}
	_, is := svc.Annotations[largeMark]
	return is
}

// whatPlansRead returns what plans and comparisons read of a Service of the local cluster, and its size.
func whatPlansRead(whole *corev1.Service) (kept *corev1.Service, size int) {
	ours, joins := isOurs(whole), joinsFederated(whole)
	isFederated := ours && whole.Labels[clusterLabel] == "" // what others have added to it is read as well
	kept = trimService(whole)
	kept.Labels = entries(whole.Labels, func(k string) bool {
		return isFederated || isMark(k) || joins && mayBeCopied(k)
	})
	kept.Annotations = entries(whole.Annotations, func(k string) bool {
		return isFederated || ours && slices.Contains(ownAnnotations, k) || joins && mayBeCopied(k)
	})

	if !joins && !isProbeService(whole) {
		kept.Spec.Ports = nil
	}
	if ours {
		kept.ManagedFields, size = owner.Entries(whole)
	}

	size += portSize * len(kept.Spec.Ports)
	for _, m := range []map[string]string{kept.Labels, kept.Annotations} {
		for k, v := range m {
			size += len(k) + len(v)
		}
	}
	return kept, size
}

func isMark(key string) bool { return slices.Contains(markLabels, key) }

// entries returns those of labels or annotations that are kept; nil for none.
func entries(all map[string]string, keep func(key string) bool) (kept map[string]string) {
	for k, v := range all {
		if !keep(k) {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[k] = v
	}
	return kept
}

// trimEndpoints returns what is kept of Endpoints: as subsets, that there are addresses. The object is not changed.
func trimEndpoints(object any) (*endpoints, bool) {
	whole, ok := object.(*endpoints)
	if !ok {
		return nil, false
	}
	endpoints := &endpoints{ObjectMeta: identityOfObject(whole)}
	endpoints.Labels = entries(whole.Labels, isMark)
	if slices.ContainsFunc(whole.Subsets, hasAddresses) {
		endpoints.Subsets = []endpointSubset{{Addresses: make([]corev1.EndpointAddress, 1)}}
	}

	var fields []metav1.ManagedFieldsEntry
	size := 0
	if isOurs(whole) {
		fields, size = owner.Entries(whole)
	}
	applied := whole.Annotations[appliedAnnotation]
	if size += len(applied); size > maxKept {
		fields, applied = []metav1.ManagedFieldsEntry{owner.Updated()}, "" // they are taken over, and applied anew
	}
	endpoints.ManagedFields, endpoints.Annotations = fields, map[string]string{appliedAnnotation: applied}
	return endpoints, true
}

func hasAddresses(s endpointSubset) bool { return len(s.Addresses)+len(s.NotReadyAddresses) > 0 }

// trimService returns a Service without what nothing is made of. The object is not changed.
func trimService(whole *corev1.Service) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: identityOfObject(whole)}
	svc.Labels, svc.Annotations = whole.Labels, whole.Annotations
	svc.Spec = corev1.ServiceSpec{
		Type: whole.Spec.Type, ClusterIP: whole.Spec.ClusterIP, IPFamilies: whole.Spec.IPFamilies,
		Ports: copyPorts(whole),
	}
	return svc
}

// identityOfObject returns the metadata by which requests name an object.
func identityOfObject(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: api.Intern(o.GetNamespace()), Name: o.GetName(), UID: o.GetUID(),
		ResourceVersion: o.GetResourceVersion(),
	}
}

// readLarge reads what inputs have of Services that are too large to be kept.
func (t *term) readLarge(ctx context.Context, in *inputs) error {
	if isLarge(in.existing) && isProbeService(in.existing) {
		whole, err := t.readWhole(ctx, in.existing)
		if err != nil {
			return err
		}
		in.existing = whole
	}

	if isLarge(in.localMember) && joinsFederated(in.localMember) {
		whole, err := t.readWhole(ctx, in.localMember)
		if err != nil {
			return err
		}
		in.localMember = whole
	}
	return nil
}

// readWhole reads a Service of which only the marks are kept; nil if it is gone, which an event is about to show.
func (t *term) readWhole(ctx context.Context, of *corev1.Service) (*corev1.Service, error) {
	err := t.permissions.Require(ctx, permission("get", "services", of.Namespace))
	if err != nil {
		return nil, &apply.Retry{After: apply.PermissionRetry, Err: err}
	}

	whole, err := t.core.CoreV1().Services(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && whole.DeletionTimestamp != nil:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Service %s/%s, which is too large to be kept: %w", of.Namespace, of.Name, err)
	}
	kept, _ := whatPlansRead(whole)
	return kept, nil
}
