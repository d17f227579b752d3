package view

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/records"
)

// A Kind is one kind of object that a Reconciler reads, and the store that an informer fills with it.
type Kind struct {
	Resource schema.GroupVersionResource
	Name     string         // of the kind
	Metadata bool           // the store takes PartialObjectMetadata
	Versions []string       // the newest served of these is read, as Unstructured; nil: that of Resource
	Object   runtime.Object // an empty object of the type that the store takes
	Selector string         // label selector for the server; empty for all
	Required bool           // the cluster is not synced without it; an optional kind may be absent

	Store     records.Target
	Synced    <-chan struct{} // closed once the store holds a complete listing
	Len       func() int
	Malformed func() int // objects so far of which malformed parts were left out
}

// Kinds returns what the Reconciler reads.
func (r *Reconciler) Kinds() []Kind {
	core := corev1.SchemeGroupVersion
	services := Kind{Resource: core.WithResource("services"), Name: "Service", Object: &corev1.Service{}}
	pods := Kind{Resource: core.WithResource("pods"), Name: "Pod", Object: &corev1.Pod{}}
	services.Required, pods.Required = true, true
	externals := linkerdKind(linkerd.ExternalWorkloads, linkerd.ExternalWorkloadVersions, linkerd.ExternalWorkloadKind)
	servers := linkerdKind(linkerd.Servers, linkerd.ServerVersions, "Server")
	kinds := []Kind{
		withStore(r.services, services),
		withStore(r.slices, r.endpointsKind()),
		withStore(r.pods, pods),
		withStore(r.replicaSets, metadataKind("apps", "replicasets", "ReplicaSet")),
		withStore(r.jobs, metadataKind("batch", "jobs", "Job")),
		withStore(r.externals, externals),
		withStore(r.servers, servers),
	}
	if r.options.Local {
		profiles := linkerdKind(linkerd.ServiceProfiles, linkerd.ServiceProfileVersions, "ServiceProfile")
		kinds = append(kinds, withStore(r.nodes, metadataKind("", "nodes", "Node")), withStore(r.profiles, profiles))
	}
	for i := range kinds {
		kinds[i].Malformed = func() int { return r.border.malformed(kinds[i].Name) }
	}
	return kinds
}

// endpointsKind returns the kind that has the addresses of Services.
func (r *Reconciler) endpointsKind() Kind {
	if r.options.Endpoints {
		return Kind{
			Resource: corev1.SchemeGroupVersion.WithResource("endpoints"), Name: "Endpoints",
			Object: &corev1.Endpoints{}, Required: true, //nolint:staticcheck // the option Endpoints asks for them
		}
	}
	return Kind{
		Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Name: "EndpointSlice",
		Object: &discoveryv1.EndpointSlice{}, Selector: discoveryv1.LabelManagedBy + "!=" + ManagedBy, Required: true,
	}
}

// metadataKind returns a kind of which only metadata is read.
func metadataKind(group, resource, kind string) Kind {
	return Kind{
		Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, Name: kind,
		Metadata: true, Object: &metav1.PartialObjectMetadata{},
	}
}

// linkerdKind returns a kind of Linkerd's, of which the newest version that is served is read.
func linkerdKind(resource schema.GroupResource, versions []string, kind string) Kind {
	newest := resource.WithVersion(versions[0])
	return Kind{Resource: newest, Name: kind, Versions: versions, Object: &unstructured.Unstructured{}}
}

// withStore completes a Kind with the store of its records.
func withStore[R any](s *records.Store[R], k Kind) Kind {
	k.Store, k.Synced, k.Len = s, s.Synced(), s.Len
	return k
}
