package fakeapi

import (
	"encoding/binary"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An Object is what an API server keeps. Those of custom resources are unstructured.
type Object interface {
	metav1.Object
	runtime.Object
}

type kind struct {
	version schema.GroupVersion
	name    string
	empty   func() Object // for bookmarks
}

// kinds are those that are served, by resource. All that is read of some is their metadata.
var kinds = map[string]kind{
	"namespaces": {corev1.SchemeGroupVersion, "Namespace", func() Object { return &corev1.Namespace{} }},
	"nodes":      {corev1.SchemeGroupVersion, "Node", func() Object { return &corev1.Node{} }},
	"pods":       {corev1.SchemeGroupVersion, "Pod", func() Object { return &corev1.Pod{} }},
	"services":   {corev1.SchemeGroupVersion, "Service", func() Object { return &corev1.Service{} }},
	"secrets":    {corev1.SchemeGroupVersion, "Secret", func() Object { return &corev1.Secret{} }},
	"endpointslices": {
		discoveryv1.SchemeGroupVersion, "EndpointSlice", func() Object { return &discoveryv1.EndpointSlice{} },
	},
	"replicasets": {
		schema.GroupVersion{Group: "apps", Version: "v1"},
		"ReplicaSet",
		func() Object { return &metav1.PartialObjectMetadata{} },
	},
	"jobs": {
		schema.GroupVersion{Group: "batch", Version: "v1"},
		"Job",
		func() Object { return &metav1.PartialObjectMetadata{} },
	},
	"links": {
		schema.GroupVersion{Group: "multicluster.linkerd.io", Version: "v1alpha3"},
		"Link",
		newCustom,
	},
	"servers":    {schema.GroupVersion{Group: "policy.linkerd.io", Version: "v1beta3"}, "Server", newCustom},
	"httproutes": {schema.GroupVersion{Group: "gateway.networking.k8s.io", Version: "v1"}, "HTTPRoute", newCustom},
}

func newCustom() Object { return &unstructured.Unstructured{Object: map[string]any{}} }

// resourceOf returns under which resource an object is served.
func resourceOf(o Object) string {
	switch o := o.(type) {
	case *corev1.Namespace:
		return "namespaces"
	case *corev1.Node:
		return "nodes"
	case *corev1.Pod:
		return "pods"
	case *corev1.Service:
		return "services"
	case *corev1.Secret:
		return "secrets"
	case *discoveryv1.EndpointSlice:
		return "endpointslices"
	default:
		return strings.ToLower(o.GetObjectKind().GroupVersionKind().Kind) + "s"
	}
}

// A form is how a client wants objects of a kind.
type form struct {
	kind
	metadata bool // no more than that
	protobuf bool
}

func formOf(k kind, accept string) form {
	f := form{
		kind:     k,
		metadata: strings.Contains(accept, "as=PartialObjectMetadata"),
		protobuf: strings.Contains(accept, runtime.ContentTypeProtobuf),
	}
	if _, custom := k.empty().(*unstructured.Unstructured); custom && !f.metadata {
		f.protobuf = false
	}
	if f.metadata {
		f.kind = kind{
			metav1.SchemeGroupVersion.WithKind("").GroupVersion(), "PartialObjectMetadata",
			func() Object { return &metav1.PartialObjectMetadata{} },
		}
		f.version.Group = "meta.k8s.io"
	}
	return f
}

func (f form) contentType() string {
	if f.protobuf {
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

type marshaler interface{ Marshal() ([]byte, error) }

// raw returns an object as it stands in a list.
func (f form) raw(o Object) []byte {
	if f.metadata {
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
			ResourceVersion: o.GetResourceVersion(), Labels: o.GetLabels(),
			Annotations: o.GetAnnotations(), OwnerReferences: o.GetOwnerReferences(),
			CreationTimestamp: o.GetCreationTimestamp(), ManagedFields: o.GetManagedFields(),
		}}
		o = m
	}
	if f.protobuf {
		return must(o.(marshaler).Marshal())
	}
	o = o.DeepCopyObject().(Object)
	o.GetObjectKind().SetGroupVersionKind(f.version.WithKind(f.name))
	return must(json.Marshal(o))
}

// whole returns an object as it stands alone, or in an event.
func (f form) whole(o Object) []byte {
	if !f.protobuf {
		return f.raw(o)
	}
	return envelope(f.version, f.name, f.raw(o))
}

// event returns one event of a watch.
func (f form) event(what string, o Object) []byte { return Event(f.protobuf, what, f.whole(o)) }

// Event frames an encoded object as an event of a watch.
func Event(protobuf bool, what string, object []byte) []byte {
	if !protobuf {
		return append(must(json.Marshal(map[string]any{"type": what, "object": json.RawMessage(object)})), '\n')
	}
	e := metav1.WatchEvent{Type: what, Object: runtime.RawExtension{Raw: object}}
	b := must(e.Marshal())
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// list returns one page of a list. In protobuf field 1 of any list is its metadata, and field 2 its items.
func (f form) list(m metav1.ListMeta, items [][]byte) []byte {
	if !f.protobuf {
		raw := make([]json.RawMessage, 0, len(items))
		for _, i := range items {
			raw = append(raw, i)
		}
		return must(json.Marshal(map[string]any{
			"apiVersion": f.version.String(),
			"kind":       f.name + "List",
			"metadata":   m,
			"items":      raw,
		}))
	}
	field := func(to []byte, tag byte, value []byte) []byte {
		return append(binary.AppendUvarint(append(to, tag), uint64(len(value))), value...)
	}
	body := field(nil, 0x0a, must(m.Marshal()))
	for _, i := range items {
		body = field(body, 0x12, i)
	}
	return envelope(f.version, f.name+"List", body)
}

// envelope is what Kubernetes puts around each message in protobuf.
func envelope(version schema.GroupVersion, name string, raw []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version.String(), Kind: name}, Raw: raw}
	return append([]byte("k8s\x00"), must(u.Marshal())...)
}

// Status encodes a Status, whatever strings it holds if it is protobuf.
func Status(protobuf bool, s metav1.Status) []byte {
	s.Status = metav1.StatusFailure
	if protobuf {
		return envelope(schema.GroupVersion{Version: "v1"}, "Status", must(s.Marshal()))
	}
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return must(json.Marshal(s))
}

// must returns what cannot fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
