package view

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// A Kind is one kind of object that a Reconciler reads, and the store that an informer fills with it.
type Kind struct {
	api.Kind
	Required bool // the cluster is not synced without it; an optional kind may be absent

	Store     api.Target
	Len       func() int
	Malformed func() int // objects so far of which malformed parts were left out
}

// Kinds returns what the Reconciler reads.
func (r *Reconciler) Kinds() []Kind { return r.kinds }

// addKinds makes the stores.
func (r *Reconciler) addKinds() {
	core := corev1.SchemeGroupVersion
	r.services = required(r, kindService, r.reduceService, api.Typed(core, "services", "Service", &corev1.Service{}))
	if r.options.Endpoints {
		//nolint:staticcheck // the option asks for them
		endpoints := api.Typed(core, "endpoints", "Endpoints", &corev1.Endpoints{})
		r.slices = required(r, kindSlice, r.reduceEndpoints, endpoints)
	} else {
		gv := discoveryv1.SchemeGroupVersion
		slices := api.Typed(gv, "endpointslices", "EndpointSlice", &discoveryv1.EndpointSlice{})
		slices.Labels = discoveryv1.LabelManagedBy + "!=" + ManagedBy
		r.slices = required(r, kindSlice, r.reduceSlice, slices)
	}
	r.pods = required(r, kindPod, r.reducePod, api.Typed(core, "pods", "Pod", &corev1.Pod{}).Reading(podFields))
	r.replicaSets = optional(r, kindReplicaSet, reduceOwner,
		api.Metadata(appsv1.SchemeGroupVersion, "replicasets", "ReplicaSet"))
	r.jobs = optional(r, kindJob, reduceOwner, api.Metadata(batchv1.SchemeGroupVersion, "jobs", "Job"))
	r.externals = optional(r, kindExternal, r.reduceExternal,
		api.Newest(linkerd.ExternalWorkloads, linkerd.ExternalWorkloadVersions, linkerd.ExternalWorkloadKind))
	r.servers = optional(r, kindServer, reduceServer, api.Newest(linkerd.Servers, linkerd.ServerVersions, "Server"))
	if r.options.Local {
		r.nodes = optional(r, kindNode, reduceNode, api.Metadata(core, "nodes", "Node"))
		r.profiles = optional(r, kindProfile, reduceProfile,
			api.Newest(linkerd.ServiceProfiles, linkerd.ServiceProfileVersions, "ServiceProfile"))
	}
}

// required adds a kind, whose store holds what reduce makes of objects, and enqueues those that change as of.
func required[O metav1.Object, R any](
	r *Reconciler, of objectKind, reduce func(O, *omissions) (R, bool), kind api.Kind,
) *api.Store[R] {
	store := optional(r, of, reduce, kind)
	r.kinds[len(r.kinds)-1].Required = true
	return store
}

// optional is required for a kind that may be absent.
func optional[O metav1.Object, R any](
	r *Reconciler, of objectKind, reduce func(O, *omissions) (R, bool), kind api.Kind,
) *api.Store[R] {
	store := api.NewStore(checked(r.border, kind.Name, reduce), func(k key) {
		if r.enqueues.Load() {
			r.queue.Add(objectRef{of, k})
		}
	})
	r.kinds = append(r.kinds, Kind{
		Kind: kind, Store: store, Len: store.Len,
		Malformed: func() int { return r.border.malformed(kind.Name) },
	})
	return store
}
