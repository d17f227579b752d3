package inject

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ownPrefix begins the keys of labels and annotations that an injection adds, but for those of settings.
const ownPrefix = "linkerd.io/"

// ownVolumes are the volumes that an injection adds.
var ownVolumes = []string{endEntityName, tokenName, podinfoName, xtablesName}

// Uninject returns what to remove for a Workload to be as before its injection, in this order. The Workload is a part
// of an object, whose metadata has labels and annotations of Linkerd as well; they are those of the Workload itself
// where that is a Pod. Annotations of settings stay, and the one by which a proxy is refused, and those of the template
// to keep. So do all labels and annotations of the control plane's own objects. A list or map of which everything is
// removed is left empty.
func Uninject(workload *Workload, object *metav1.ObjectMeta, keep ...string) []Operation {
	from := patch{prefix: workload.Path}
	meta := workload.Meta
	if meta == nil {
		meta = &metav1.ObjectMeta{}
	}

	if !IsControlPlane(workload, object) {
		from.removeMeta(meta, keep)
	}
	if spec := workload.Spec; spec != nil {
		from.removeEach("/spec/containers", len(spec.Containers), func(i int) bool {
			return isAdded(spec.Containers[i].Name)
		})
		from.removeEach("/spec/initContainers", len(spec.InitContainers), func(i int) bool {
			return isAdded(spec.InitContainers[i].Name)
		})
		from.removeEach("/spec/volumes", len(spec.Volumes), func(i int) bool {
			return slices.Contains(ownVolumes, spec.Volumes[i].Name)
		})
	}

	if workload.Path == "" || IsControlPlane(workload, object) {
		return from.operations
	}
	return append(from.operations, UninjectMeta(object)...)
}

// UninjectMeta returns what to remove of the metadata of an object, such as a Namespace.
func UninjectMeta(object *metav1.ObjectMeta) []Operation {
	var from patch
	from.removeMeta(object, nil)
	return from.operations
}

// IsControlPlane reports whether a Workload, or the object that it is a part of, belongs to the control plane.
func IsControlPlane(workload *Workload, object *metav1.ObjectMeta) bool {
	_, is := object.Labels[componentLabel]
	if workload.Meta != nil && !is {
		_, is = workload.Meta.Labels[componentLabel]
	}
	return is
}

func (p *patch) remove(path string) {
	p.operations = append(p.operations, Operation{Op: OpRemove, Path: p.prefix + path})
}

func (p *patch) removeMeta(meta *metav1.ObjectMeta, keep []string) {
	for _, key := range slices.Sorted(maps.Keys(meta.Annotations)) {
		isRefusal := key == InjectAnnotation && meta.Annotations[key] == disabled
		if strings.HasPrefix(key, ownPrefix) && !isRefusal && !slices.Contains(keep, key) {
			p.remove("/metadata/annotations/" + escapePointer.Replace(key))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(meta.Labels)) {
		if strings.HasPrefix(key, ownPrefix) {
			p.remove("/metadata/labels/" + escapePointer.Replace(key))
		}
	}
}

// removeEach removes elements of a list from its end, so that indexes of others stay as they are.
func (p *patch) removeEach(path string, length int, isOwn func(i int) bool) {
	for i := length - 1; i >= 0; i-- {
		if isOwn(i) {
			p.remove(path + "/" + strconv.Itoa(i))
		}
	}
}
