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

// An Input is one Kind that a Reconciler reads, and the store that an informer fills with it.
type Input struct {
	api.Kind
	Required bool // the cluster is not synced without it; an optional kind may be absent

	// Publishes: what is withdrawn is so because an object of the kind is gone. What depends on other kinds is only
	// what is known of an endpoint.
	Publishes bool

	Store     api.Sink
	Len       func() int
	Malformed func() int // objects so far of which malformed parts were left out

	of   objectKind
	keys func() []key
}

// Inputs returns what the Reconciler reads.
func (r *Reconciler) Inputs() []Input { return r.inputs }

const required, optional = true, false

// addKinds makes the stores.
func (r *Reconciler) addKinds() {
	core := corev1.SchemeGroupVersion

	r.services = addKind(r, kindService, required, ServiceKind(), r.reduceService)
	if r.options.Endpoints {
		//nolint:staticcheck // the option asks for them
		endpoints := api.Typed(core, "endpoints", "Endpoints", &corev1.Endpoints{})
		r.slices = addKind(r, kindSlice, required, endpoints, r.reduceEndpoints)
	} else {
		slices := api.Typed(discoveryv1.SchemeGroupVersion, "endpointslices", "EndpointSlice",
			&discoveryv1.EndpointSlice{})
		slices.Labels = discoveryv1.LabelManagedBy + "!=" + ManagedBy
		r.slices = addKind(r, kindSlice, required, slices, r.reduceSlice)
	}

	r.pods = addKind(r, kindPod, required, PodKind(r.options.Probes), r.reducePod)
	replicaSets := api.Metadata(appsv1.SchemeGroupVersion, "replicasets", "ReplicaSet")
	r.replicaSets = addKind(r, kindReplicaSet, optional, replicaSets, reduceOwner)
	jobs := api.Metadata(batchv1.SchemeGroupVersion, "jobs", "Job")
	r.jobs = addKind(r, kindJob, optional, jobs, reduceOwner)

	r.externals = addKind(r, kindExternal, optional, ExternalWorkloadKind(), r.reduceExternal)
	servers := api.Newest(linkerd.Servers, linkerd.ServerVersions, "Server")
	r.servers = addKind(r, kindServer, optional, servers, reduceServer)
	if r.options.Local {
		r.nodes = addKind(r, kindNode, optional, api.Metadata(core, "nodes", "Node"), reduceNode)
		profiles := api.Newest(linkerd.ServiceProfiles, linkerd.ServiceProfileVersions, "ServiceProfile")
		r.profiles = addKind(r, kindProfile, optional, profiles, reduceProfile)
	}
}

// Kinds that others read as well: what is equal is watched once.

// ServiceKind returns the kind of Services.
func ServiceKind() api.Kind {
	return api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})
}

// PodKind returns the kind of Pods, with the probes of their containers or without.
func PodKind(probes bool) api.Kind {
	fields := podFields
	if probes {
		fields = podFieldsWithProbes
	}
	return api.Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{}).Reading(fields)
}

// ExternalWorkloadKind returns the kind of ExternalWorkloads.
func ExternalWorkloadKind() api.Kind {
	return api.Newest(linkerd.ExternalWorkloads, linkerd.ExternalWorkloadVersions, linkerd.ExternalWorkloadKind)
}

// addKind adds a kind, whose store holds what reduce makes of objects, and enqueues
// the keys of those that change.
func addKind[O metav1.Object, R any](
	r *Reconciler, of objectKind, isRequired bool, kind api.Kind, reduce func(O, *omissions) (R, bool),
) *api.Store[R] {
	store := api.NewStore(checked(r.border, kind.Name, reduce), func(k key) {
		if r.enqueues.Load() {
			r.queue.Add(objectRef{of, k})
		}
	})
	r.inputs = append(r.inputs, Input{
		Kind: kind, Required: isRequired, Publishes: of == kindService || of == kindSlice,
		Store: store, Len: store.Len,
		Malformed: func() int { return r.border.malformed(kind.Name) },
		of:        of, keys: store.Keys,
	})
	return store
}
