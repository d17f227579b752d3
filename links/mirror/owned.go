package mirror

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
)

// # Which fields are ours
//
// Mirrors are written by server-side apply, with our own fields only: labels, annotations and ports, or subsets,
// that follow from the Services of linked clusters. What others add to a mirror is theirs, and stays. A field that we
// apply is taken from the manager that owned it.
//
// An object is written if it is not as we have applied it, which follows from two things that are in the object:
//
//   - The annotation appliedAnnotation is the hash of the configuration that was applied last. So a field that we
//     apply no longer is found as well as one that has another value.
//   - metadata.managedFields lists the fields that we own. A manager that changes one of them takes it
//     from us.
//
// Values are not compared. What an admission webhook makes of a field that we apply leaves that field ours, and
// is not contested; defaults and the order of lists do not matter.
//
// A mirror is created by create, which fails if there is an object, and not by apply, which would add our fields to
// a user's Service of that name. Fields that were created, and those that Linkerd's service mirror, or an earlier
// version of ours, has updated, are owned by an update, and would stay when we apply them no longer. So before
// the first apply to an object such owners are replaced by us (takeOver): they are found by the label of mirrors.
//
// It costs the annotation, our entry of managedFields in the record of each mirror, and two more requests before
// the first change of each.

// fieldSet is fields as an entry of metadata.managedFields lists them.
type fieldSet map[string]fieldSet

func (s fieldSet) contains(path ...string) bool {
	for _, field := range path {
		next, found := s[field]
		if !found {
			return false
		}
		s = next
	}
	return true
}

// markField is the field that only those who write an object as a mirror own.
var markField = metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:` + mirroredLabel + `":{}}}}`)

// ownEntries returns what decides on writes of the entries of managedFields, if the object is ours: our own, and that
// others have updated the object as a mirror. size is that of the text that it follows from, but for others' entries
// that were read.
func ownEntries(o metav1.Object) (kept []metav1.ManagedFieldsEntry, size int) {
	if !isOurs(o) {
		return nil, 0
	}

	isMarked := false
	for _, entry := range o.GetManagedFields() {
		updates := entry.Operation == metav1.ManagedFieldsOperationUpdate
		switch {
		case entry.Subresource != "":
		case entry.Manager == fieldManager:
			kept = append(kept, metav1.ManagedFieldsEntry{
				Manager: entry.Manager, Operation: entry.Operation, FieldsV1: entry.FieldsV1,
			})
			size += lengthOf(entry)
		case !updates || isMarked || !marksMirror(entry):
		default:
			isMarked = true
			kept = append(kept, metav1.ManagedFieldsEntry{
				Manager: entry.Manager, Operation: entry.Operation, FieldsV1: markField,
			})
		}
	}

	return kept, size
}

func lengthOf(e metav1.ManagedFieldsEntry) int {
	if e.FieldsV1 == nil {
		return 0
	}
	return len(e.FieldsV1.GetRawBytes())
}

// marksMirror reports whether a manager has made an object a mirror. It reads that field alone: all of them may take
// many times what their text does.
func marksMirror(e metav1.ManagedFieldsEntry) bool {
	var fields struct {
		Metadata struct {
			Labels struct {
				Mirrored *struct{} `json:"f:mirror.linkerd.io/mirrored-service"`
			} `json:"f:labels"`
		} `json:"f:metadata"`
	}
	return e.FieldsV1 != nil && json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) == nil &&
		fields.Metadata.Labels.Mirrored != nil
}

// fieldsOf returns the fields of an entry; none if it is malformed.
func fieldsOf(e metav1.ManagedFieldsEntry) fieldSet {
	var s fieldSet
	if e.FieldsV1 == nil || json.Unmarshal(e.FieldsV1.GetRawBytes(), &s) != nil {
		return nil
	}
	return s
}

// updaters returns the managers that wrote an object as a mirror, or are ours, otherwise than by apply.
func updaters(o metav1.Object) sets.Set[string] {
	all := sets.Set[string]{}
	for _, e := range o.GetManagedFields() {
		updates := e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == ""
		if updates && (e.Manager == fieldManager || marksMirror(e)) {
			all.Insert(e.Manager)
		}
	}
	return all
}

// isApplied reports whether an object is as it was applied with a hash, and all of the fields are still ours.
func isApplied(is metav1.Object, hash string, fields [][]string) bool {
	if is.GetAnnotations()[appliedAnnotation] != hash {
		return false
	}
	var owned []fieldSet
	for _, e := range is.GetManagedFields() {
		if e.Manager == fieldManager && e.Subresource == "" {
			owned = append(owned, fieldsOf(e))
		}
	}
	return !slices.ContainsFunc(fields, func(path []string) bool {
		return !slices.ContainsFunc(owned, func(s fieldSet) bool { return s.contains(path...) })
	})
}

// sign annotates an object with the hash of what it is made of, and returns that. The version of the remote Service
// alone is no reason to write.
func sign(object metav1.Object, parts ...any) string {
	annotations := map[string]string{}
	maps.Copy(annotations, object.GetAnnotations())
	delete(annotations, appliedAnnotation)
	delete(annotations, versionAnnotation)
	h := fnv.New64a()
	text, err := json.Marshal(append(parts, object.GetLabels(), annotations))
	if err != nil {
		panic(err) // it is made of strings and numbers
	}

	_, _ = h.Write(text) // it cannot fail
	hash := fmt.Sprintf("%016x", h.Sum64())
	if version, found := object.GetAnnotations()[versionAnnotation]; found {
		annotations[versionAnnotation] = version
	}
	annotations[appliedAnnotation] = hash
	object.SetAnnotations(annotations)
	return hash
}

func signService(svc *corev1.Service) string { return sign(svc, svc.Spec.Ports, svc.Spec.ClusterIP) }

func signEndpoints(e *endpoints) string { return sign(e, e.Subsets) }

// markFields returns the labels and annotations of an object as fields.
func markFields(o metav1.Object) (all [][]string) {
	for k := range o.GetLabels() {
		all = append(all, []string{"f:metadata", "f:labels", "f:" + k})
	}
	for k := range o.GetAnnotations() {
		all = append(all, []string{"f:metadata", "f:annotations", "f:" + k})
	}
	return all
}

func serviceFields(svc *corev1.Service) [][]string {
	all := markFields(svc)
	for _, p := range svc.Spec.Ports {
		port := fmt.Sprintf(`k:{"port":%d,"protocol":%q}`, p.Port, protocolOf(p))
		add := func(field string, isSet bool) {
			if isSet {
				all = append(all, []string{"f:spec", "f:ports", port, field})
			}
		}
		add("f:port", true)
		add("f:name", p.Name != "")
		add("f:appProtocol", p.AppProtocol != nil)
		add("f:targetPort", p.TargetPort != intstr.IntOrString{})
	}

	return all
}

func endpointsFields(e *endpoints) [][]string {
	all := markFields(e)
	if len(e.Subsets) > 0 {
		all = append(all, []string{"f:subsets"})
	}
	return all
}

type endpointsApplied = applycorev1.EndpointsApplyConfiguration //nolint:staticcheck // Linkerd's tools read them

func protocolOf(p corev1.ServicePort) corev1.Protocol { return cmp.Or(p.Protocol, corev1.ProtocolTCP) }

// serviceConfiguration returns what is applied of a Service, to the version with this UID and resourceVersion.
func serviceConfiguration(svc *corev1.Service, uid types.UID, version string) *applycorev1.ServiceApplyConfiguration {
	spec := applycorev1.ServiceSpec()
	if isHeadless(svc) {
		spec.WithClusterIP(corev1.ClusterIPNone)
	}

	for _, p := range svc.Spec.Ports {
		port := applycorev1.ServicePort().WithPort(p.Port).WithProtocol(protocolOf(p))
		if p.Name != "" {
			port.WithName(p.Name)
		}
		if p.TargetPort != (intstr.IntOrString{}) {
			port.WithTargetPort(p.TargetPort)
		}
		port.AppProtocol = p.AppProtocol
		spec.WithPorts(port)
	}

	return applycorev1.Service(svc.Name, svc.Namespace).WithUID(uid).WithResourceVersion(version).
		WithLabels(svc.Labels).WithAnnotations(svc.Annotations).WithSpec(spec)
}

// endpointsConfiguration returns what is applied of Endpoints, to the version with this UID and resourceVersion.
func endpointsConfiguration(e *endpoints, uid types.UID, version string) *endpointsApplied {
	applied := applycorev1.Endpoints(e.Name, e.Namespace).WithUID(uid).WithResourceVersion(version).
		WithLabels(e.Labels).WithAnnotations(e.Annotations)
	text, err := json.Marshal(e.Subsets)
	if err == nil {
		err = json.Unmarshal(text, &applied.Subsets)
	}
	if err != nil {
		panic(err) // both have the same fields
	}

	for i := range applied.Subsets {
		for j := range applied.Subsets[i].Ports {
			p := &applied.Subsets[i].Ports[j]
			p.Protocol = cmp.Or(p.Protocol, new(corev1.ProtocolTCP))
		}
	}
	return applied
}
