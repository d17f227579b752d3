// Package podowner reads from the local cluster what is not in a Pod itself, but decides how it is injected: the
// annotations of its Namespace, and who owns it.
//
// All that is read are metadata of Namespaces, ReplicaSets and Jobs, over one watch each. Where the newest object has
// not arrived yet (it may be a few milliseconds older than the Pod that asks) it is requested once, for a time that is
// short beside what an API server waits for its webhooks.
package podowner

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// How long a direct request may take.
const (
	namespaceTimeout = time.Second
	ownerTimeout     = 500 * time.Millisecond
)

// An Owner is an object that has made a Pod, or what a Pod was made by. The zero Owner is none.
type Owner struct {
	APIVersion string
	Kind       string
	Name       string
	UID        types.UID
}

// A Reader reads the three kinds of one API server.
type Reader struct {
	client     metadata.Interface
	namespaces *api.Informer[map[string]string]
	makers     map[schema.GroupKind]*maker
}

// A maker is a kind of object that makes Pods, and is itself made by one of another kind.
type maker struct {
	*api.Informer[Owner] // who controls each

	resource schema.GroupVersionResource
	by       schema.GroupKind
}

// NewReader returns a Reader over a connection. forgotten, which may be nil, is called with each Namespace that is
// there no longer.
func NewReader(conn *api.Connection, forgotten func(namespace string)) (*Reader, error) {
	client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(conn.Config), conn.HTTPClient)
	if err != nil {
		return nil, err
	}
	reader := &Reader{client: client}
	reader.namespaces = api.NewInformer(conn, api.Metadata(corev1.SchemeGroupVersion, "namespaces", "Namespace"),
		annotationsOf, func(k api.Key) {
			if _, is := reader.namespaces.Get(k); !is && forgotten != nil {
				forgotten(k.Name)
			}
		})

	of := func(gv schema.GroupVersion, resource, kind, by string) *maker {
		return &maker{
			Informer: api.NewInformer(conn, api.Metadata(gv, resource, kind), recordOwner, func(api.Key) {}),
			resource: gv.WithResource(resource), by: schema.GroupKind{Group: gv.Group, Kind: by},
		}
	}
	reader.makers = map[schema.GroupKind]*maker{
		{Group: appsv1.GroupName, Kind: "ReplicaSet"}: of(appsv1.SchemeGroupVersion, "replicasets", "ReplicaSet",
			"Deployment"),
		{Group: batchv1.GroupName, Kind: "Job"}: of(batchv1.SchemeGroupVersion, "jobs", "Job", "CronJob"),
	}
	return reader, nil
}

// annotationsOf returns those of a Namespace that injection knows: others may be large, and are not kept.
func annotationsOf(object any) (map[string]string, bool) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, false
	}
	all := maps.Clone(m.GetAnnotations())
	maps.DeleteFunc(all, func(key, _ string) bool {
		prefix, _, _ := strings.Cut(key, "/")
		return prefix != "linkerd.io" && !strings.HasSuffix(prefix, ".linkerd.io")
	})
	return all, true
}

// recordOwner reduces an object to who controls it.
func recordOwner(object any) (Owner, bool) {
	m, err := meta.Accessor(object)
	if err != nil {
		return Owner{}, false
	}
	return controller(m.GetOwnerReferences()), true
}

// controller returns the one of the owners that manages an object.
func controller(references []metav1.OwnerReference) Owner {
	for i := range references {
		if r := &references[i]; r.Controller != nil && *r.Controller {
			return Owner{api.Intern(r.APIVersion), api.Intern(r.Kind), r.Name, r.UID}
		}
	}
	return Owner{}
}

// Run reads until ctx ends.
func (r *Reader) Run(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { r.namespaces.Run(ctx) })
	for _, m := range r.makers {
		all.Go(func() { m.Run(ctx) })
	}
	all.Wait()
	return nil
}

// Synced returns channels that close once each kind was listed.
func (r *Reader) Synced() []<-chan struct{} {
	all := []<-chan struct{}{r.namespaces.Synced()}
	for _, m := range r.makers {
		all = append(all, m.Synced())
	}
	return all
}

// WaitSynced waits until all kinds were listed. It returns an error if ctx ends first.
func (r *Reader) WaitSynced(ctx context.Context) error {
	for _, synced := range r.Synced() {
		select {
		case <-synced:
		case <-ctx.Done():
			return fmt.Errorf("namespaces, replicasets and jobs are not listed: %w", ctx.Err())
		}
	}
	return nil
}

// Annotations returns those of a Namespace that injection knows. One that is not known is requested, for a second at
// most. The map must not be changed.
func (r *Reader) Annotations(ctx context.Context, namespace string) (map[string]string, error) {
	if all, is := r.namespaces.Get(api.Key{Name: namespace}); is {
		return all, nil
	}
	ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
	defer cancel()
	object, err := r.client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).
		Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("the Namespace of the object: %w", err)
	}
	all, _ := annotationsOf(object)
	return all, nil
}

// OwnerOf returns who owns a Pod of a namespace, with these owners: its controller; that of a ReplicaSet is its
// Deployment, and that of a Job its CronJob. What is not known of them is requested, for half a second at most; if
// there is no answer, the ReplicaSet or the Job itself is returned.
func (r *Reader) OwnerOf(ctx context.Context, namespace string, references []metav1.OwnerReference) Owner {
	owner := controller(references)
	made := r.makers[owner.groupKind()]
	if made == nil {
		return owner
	}

	above, is := made.Get(api.Key{Namespace: namespace, Name: owner.Name})
	if !is {
		ctx, cancel := context.WithTimeout(ctx, ownerTimeout)
		defer cancel()
		object, err := r.client.Resource(made.resource).Namespace(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return owner
		}
		above = controller(object.OwnerReferences)
	}

	if above.groupKind() != made.by {
		return owner
	}
	return above
}

func (o *Owner) groupKind() schema.GroupKind {
	return schema.FromAPIVersionAndKind(o.APIVersion, o.Kind).GroupKind()
}
