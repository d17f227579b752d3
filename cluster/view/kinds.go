package view

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

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
func (r *Reconciler) Kinds() []Kind {
	core := corev1.SchemeGroupVersion
	kinds := []Kind{
		required(r.services, api.Typed(core, "services", "Service", &corev1.Service{})),
		required(r.slices, r.endpointsKind()),
		required(r.pods, api.Typed(core, "pods", "Pod", &corev1.Pod{}).Reading(podFields)),
		optional(r.replicaSets, api.Metadata(appsv1.SchemeGroupVersion, "replicasets", "ReplicaSet")),
		optional(r.jobs, api.Metadata(batchv1.SchemeGroupVersion, "jobs", "Job")),
		optional(r.externals, api.Newest(linkerd.ExternalWorkloads, linkerd.ExternalWorkloadVersions,
			linkerd.ExternalWorkloadKind)),
		optional(r.servers, api.Newest(linkerd.Servers, linkerd.ServerVersions, "Server")),
	}
	if r.options.Local {
		kinds = append(kinds,
			optional(r.nodes, api.Metadata(core, "nodes", "Node")),
			optional(r.profiles, api.Newest(linkerd.ServiceProfiles, linkerd.ServiceProfileVersions, "ServiceProfile")),
		)
	}
	for i := range kinds {
		kinds[i].Malformed = func() int { return r.border.malformed(kinds[i].Name) }
	}
	return kinds
}

// endpointsKind returns the kind that has the addresses of Services.
func (r *Reconciler) endpointsKind() api.Kind {
	if r.options.Endpoints {
		//nolint:staticcheck // the option asks for them
		return api.Typed(corev1.SchemeGroupVersion, "endpoints", "Endpoints", &corev1.Endpoints{})
	}
	slices := api.Typed(discoveryv1.SchemeGroupVersion, "endpointslices", "EndpointSlice", &discoveryv1.EndpointSlice{})
	slices.Labels = discoveryv1.LabelManagedBy + "!=" + ManagedBy
	return slices
}

func required[R any](s *api.Store[R], k api.Kind) Kind {
	return Kind{Kind: k, Required: true, Store: s, Len: s.Len}
}

func optional[R any](s *api.Store[R], k api.Kind) Kind {
	return Kind{Kind: k, Store: s, Len: s.Len}
}
