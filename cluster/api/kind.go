package api

import (
	"context"
	"fmt"

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
	metadata bool           // requests return metadata only
	versions []string       // the newest of these that is served is read
	read     *Message       // what is read of objects in protobuf; nil for all
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
		metadata: true,
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

// requests returns the requests that read a kind. If no client can be made, which NewConnection rules out,
// each request fails.
func (k Kind) requests(conn *Connection) cache.ListerWatcher {
	requests, err := k.clientRequests(conn)
	if err == nil {
		return requests
	}
	err = fmt.Errorf("client for %s: %w", k.Resource.Resource, err)
	return &cache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, err },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, err },
	}
}

func (k Kind) clientRequests(conn *Connection) (cache.ListerWatcher, error) {
	selected := func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = k.Labels, k.Fields }
	switch {
	case k.versions != nil:
		client, err := dynamic.NewForConfigAndClient(conn.Config, conn.HTTPClient)
		if err != nil {
			return nil, err
		}
		return k.newestRequests(client, selected), nil
	case k.metadata:
		client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(conn.Config), conn.HTTPClient)
		if err != nil {
			return nil, err
		}
		objects := client.Resource(k.Resource).Namespace(k.Namespace)
		return &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				selected(&o)
				return objects.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				selected(&o)
				return objects.Watch(ctx, o)
			},
		}, nil
	default:
		client, err := rest.RESTClientForConfigAndClient(k.typedConfig(conn.Config), conn.HTTPClient)
		if err != nil {
			return nil, err
		}
		return cache.NewFilteredListWatchFromClient(client, k.Resource.Resource, k.Namespace, selected), nil
	}
}

// typedConfig returns the configuration of a client for a typed kind.
func (k Kind) typedConfig(base *rest.Config) *rest.Config {
	config, gv := rest.CopyConfig(base), k.Resource.GroupVersion()
	config.GroupVersion = &gv
	if config.APIPath = "/apis"; gv.Group == "" {
		config.APIPath = "/api"
	}
	if config.ContentType == "" {
		config.ContentType = runtime.ContentTypeProtobuf
	}
	config.NegotiatedSerializer = codecs.WithoutConversion()
	if k.read != nil {
		config.NegotiatedSerializer = pruner{config.NegotiatedSerializer, k.Name, k.read}
	}
	return config
}

func (k Kind) newestRequests(client dynamic.Interface, selected func(*metav1.ListOptions)) cache.ListerWatcher {
	at := func(version string) dynamic.ResourceInterface {
		return client.Resource(k.Resource.GroupResource().WithVersion(version)).Namespace(k.Namespace)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			selected(&o)
			return newestServed(k.versions, func(version string) (*unstructured.UnstructuredList, error) {
				return at(version).List(ctx, o)
			})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			selected(&o)
			return newestServed(k.versions, func(version string) (watch.Interface, error) {
				return at(version).Watch(ctx, o)
			})
		},
	}
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
			return result, err
		}
	}
	return result, err
}

// Named restricts a Kind to the object of a name.
func (k Kind) Named(name string) Kind {
	k.Fields = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return k
}
