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

// A Kind is one kind of object that a Reconciler reads, and the store that waits for its objects.
type Kind struct {
	Resource schema.GroupVersionResource
	Name     string         // of the kind
	Metadata bool           // only metadata is needed: objects arrive as PartialObjectMetadata
	Versions []string       // the newest served of these is read: objects arrive as Unstructured; nil: that of Resource
	Object   runtime.Object // an empty object of the type that the store takes
	Selector string         // label selector for the server; empty for all
	Required bool           // without it nothing can be said; otherwise it is a feature that may be absent

	Store     records.Target
	Synced    <-chan struct{} // closed once the store holds a complete listing
	Len       func() int
	Malformed func() int // objects so far of which something was left out, because it cannot be used
}

// Kinds returns what the Reconciler reads.
func (r *Reconciler) Kinds() []Kind {
	services := corev1.SchemeGroupVersion.WithResource("services")
	kinds := []Kind{
		kindOf(r.services, Kind{Resource: services, Name: "Service", Object: &corev1.Service{}, Required: true}),
		kindOf(r.slices, r.endpoints()),
		kindOf(r.pods, Kind{Resource: corev1.SchemeGroupVersion.WithResource("pods"), Name: "Pod", Object: &corev1.Pod{}, Required: true}),
		kindOf(r.replicaSets, metadata("apps", "replicasets", "ReplicaSet")),
		kindOf(r.jobs, metadata("batch", "jobs", "Job")),
		kindOf(r.externals, custom(linkerd.ExternalWorkloads, linkerd.ExternalWorkloadVersions, linkerd.ExternalWorkloadKind)),
		kindOf(r.servers, custom(linkerd.Servers, linkerd.ServerVersions, "Server")),
	}
	if r.options.Local {
		kinds = append(kinds,
			kindOf(r.nodes, metadata("", "nodes", "Node")),
			kindOf(r.profiles, custom(linkerd.ServiceProfiles, linkerd.ServiceProfileVersions, "ServiceProfile")))
	}
	for i := range kinds {
		kinds[i].Malformed = func() int { return r.border.count(kinds[i].Name) }
	}
	return kinds
}

// endpoints returns the kind that says where Services are.
func (r *Reconciler) endpoints() Kind {
	if r.options.Endpoints {
		return Kind{
			Resource: corev1.SchemeGroupVersion.WithResource("endpoints"), Name: "Endpoints",
			Object: &corev1.Endpoints{}, Required: true, //nolint:staticcheck // who reads Endpoints was asked to
		}
	}
	return Kind{
		Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Name: "EndpointSlice", Object: &discoveryv1.EndpointSlice{},
		Selector: discoveryv1.LabelManagedBy + "!=" + ManagedBy, Required: true,
	}
}

func metadata(group, resource, kind string) Kind {
	return Kind{
		Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, Name: kind,
		Metadata: true, Object: &metav1.PartialObjectMetadata{},
	}
}

// custom returns a kind of Linkerd's, of which the newest version that is served is read.
func custom(resource schema.GroupResource, versions []string, kind string) Kind {
	return Kind{Resource: resource.WithVersion(versions[0]), Name: kind, Versions: versions, Object: &unstructured.Unstructured{}}
}

func kindOf[R any](s *records.Store[R], k Kind) Kind {
	k.Store, k.Synced, k.Len = s, s.Synced(), s.Len
	return k
}
