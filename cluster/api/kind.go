package api

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// A Kind is a kind of object, and which objects of it are read. It is made by [Typed], [Metadata] or
// [Newest].
type Kind struct {
	Resource schema.GroupVersionResource
	Name     string // such as Service

	Namespace string // empty for all
	Labels    string // a label selector for the API server; empty for all
	Fields    string // a field selector, likewise

	object   runtime.Object // an empty one of the type that requests return
	versions []string       // unless it is typed: the newest of these that is served is read
	read     *Message       // what is read of objects in protobuf; nil for all
	ours     bool           // we write the objects
}

// paths returns those of a list of all objects, of the newest version first.
func (k Kind) paths() (all []string) {
	root := "apis/"
	if k.Resource.Group == "" {
		root = "api/"
	}
	of := k.Resource.GroupResource()
	for _, version := range k.versionsOrOwn() {
		all = append(all, root+of.WithVersion(version).GroupVersion().String()+"/"+of.Resource)
	}
	return all
}

// versionsOrOwn returns the versions at which the kind may be read, the newest first.
func (k Kind) versionsOrOwn() []string {
	if len(k.versions) > 0 {
		return k.versions
	}
	return []string{k.Resource.Version}
}

// Ours returns the kind as one whose objects we write: a [Budget] counts each as one object, whatever it
// holds, and not against what the cluster itself may have.
func (k Kind) Ours() Kind {
	k.ours = true
	return k
}

// countsEndpoints reports whether objects of the kind count by their endpoints in a Budget.
func (k Kind) countsEndpoints() bool {
	switch k.object.(type) {
	case *discoveryv1.EndpointSlice, *corev1.Endpoints: //nolint:staticcheck // Endpoints are read on request
		return !k.ours
	}
	return false
}

// Typed returns a kind of Kubernetes' own, in protobuf where the API server supports it.
func Typed(gv schema.GroupVersion, resource, name string, object runtime.Object) Kind {
	return Kind{Resource: gv.WithResource(resource), Name: name, object: object}
}

// Metadata returns a kind of which only the metadata is read, as PartialObjectMetadata.
func Metadata(gv schema.GroupVersion, resource, name string) Kind {
	return Kind{
		Resource: gv.WithResource(resource),
		Name:     name,
		object:   &metav1.PartialObjectMetadata{},
		versions: []string{gv.Version},
	}
}

// Newest returns a kind of custom resource, read as Unstructured at the first of these versions that is
// served. An upgrade or a downgrade of its CRD shows at the next request.
func Newest(resource schema.GroupResource, versions []string, name string) Kind {
	return Kind{
		Resource: resource.WithVersion(versions[0]),
		Name:     name,
		object:   &unstructured.Unstructured{},
		versions: versions,
	}
}

var codecs = serializer.NewCodecFactory(scheme.Scheme)

// requests returns the requests that read a kind.
func (k Kind) requests(conn *Connection) (cache.ListerWatcher, error) {
	switch k.object.(type) {
	case *unstructured.Unstructured:
		client, err := dynamic.NewForConfigAndClient(conn.Config, conn.HTTPClient)
		return listWatch(k, func(kind schema.GroupVersionResource) lister[*unstructured.UnstructuredList] {
			return client.Resource(kind).Namespace(k.Namespace)
		}), err
	case *metav1.PartialObjectMetadata:
		client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(conn.Config), conn.HTTPClient)
		return listWatch(k, func(kind schema.GroupVersionResource) lister[*metav1.PartialObjectMetadataList] {
			return client.Resource(kind).Namespace(k.Namespace)
		}), err
	default:
		client, err := rest.RESTClientForConfigAndClient(k.typedConfig(conn.Config), conn.HTTPClient)
		return cache.NewFilteredListWatchFromClient(client, k.Resource.Resource, k.Namespace, k.addSelectors), err
	}
}

func (k Kind) addSelectors(o *metav1.ListOptions) {
	o.LabelSelector, o.FieldSelector = k.Labels, k.Fields
}

// A lister reads a kind at one version.
type lister[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// listWatch returns requests at the newest version that is served.
func listWatch[L runtime.Object](
	kind Kind, listerOf func(schema.GroupVersionResource) lister[L],
) cache.ListerWatcher {
	at := func(version string) lister[L] { return listerOf(kind.Resource.GroupResource().WithVersion(version)) }
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			kind.addSelectors(&o)
			return newestServed(kind.versions, func(version string) (L, error) {
				return at(version).List(ctx, o)
			})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			kind.addSelectors(&o)
			return newestServed(kind.versions, func(version string) (watch.Interface, error) {
				return at(version).Watch(ctx, o)
			})
		},
	}
}

// typedConfig returns the configuration of a client for a typed kind.
func (k Kind) typedConfig(base *rest.Config) *rest.Config {
	config, gv := rest.CopyConfig(base), k.Resource.GroupVersion()
	config.GroupVersion = &gv
	config.APIPath = "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = codecs.WithoutConversion()
	if k.read != nil {
		config.NegotiatedSerializer = pruner{config.NegotiatedSerializer, k.Name, k.read}
	}
	return config
}

// List lists a kind made by Newest once, and reads all of it into memory: for one namespace, or with a
// limit.
func (k Kind) List(
	ctx context.Context, client dynamic.Interface, options metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	return newestServed(k.versions, func(version string) (*unstructured.UnstructuredList, error) {
		resource := client.Resource(k.Resource.GroupResource().WithVersion(version))
		return resource.Namespace(k.Namespace).List(ctx, options)
	})
}

// newestServed returns the result of request for the newest version that is served.
func newestServed[T any](versions []string, request func(version string) (T, error)) (result T, err error) {
	for _, version := range versions {
		if result, err = request(version); !apierrors.IsNotFound(err) {
			break
		}
	}
	return result, err
}

// Named restricts a Kind to the object of a name.
func (k Kind) Named(name string) Kind {
	k.Fields = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return k
}
