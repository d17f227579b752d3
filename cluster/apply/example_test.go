package apply_test

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	configcorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/federation"
)

// listings is a writer: for each Service with the label "listed" a ConfigMap of its name, with the addresses of its
// endpoints in all clusters. All that the engine needs of it is below: the task, what is read, and what should exist.
type listings struct {
	*apply.Target
	loop     *apply.Loop[api.Key]
	services *api.Informer[bool] // whether it is to be listed
}

var needed = []apply.Permission{
	{Resource: schema.GroupResource{Resource: "services"}, Verbs: []string{"list", "watch"}},
	{Resource: schema.GroupResource{Resource: "configmaps"}, Verbs: []string{"get", "patch", "delete"}},
}

// listingsTask returns the task that is added to a Campaign.
func listingsTask(store *federation.Store) apply.Task {
	review := func(ctx context.Context, t *apply.Target) error { return apply.Review(ctx, t.Client, needed...) }
	return apply.Task{
		Name: "listings", Wanted: func(s cluster.Spec) bool { return s.Local }, Review: review,
		Run: func(term context.Context, t *apply.Target) error {
			l := &listings{Target: t}
			l.loop = apply.NewLoop(t.Log, apply.Config[api.Key]{
				Reconcile: l.reconcile, Begin: func() { l.loop.Enqueue(l.services.Keys()...) }, Store: store,
				Review: func(ctx context.Context) error { return review(ctx, t) },
			})
			kind := api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})
			l.services = api.NewInformer(t.Conn, kind, func(object any) (listed, ok bool) {
				service, ok := object.(*corev1.Service)
				return ok && service.Labels["listed"] != "", ok
			}, func(k api.Key) { l.loop.Enqueue(k) })
			l.loop.Read(l.services, needed[0])
			return l.loop.Run(term)
		},
	}
}

// reconcile makes the ConfigMap of a Service what it should be.
func (l *listings) reconcile(ctx context.Context, k api.Key) error {
	configMaps := l.Client.CoreV1().ConfigMaps(k.Namespace)
	if listed, _ := l.services.Get(k); !listed {
		l.loop.Unfollow(k)
		if err := configMaps.Delete(ctx, k.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	service := federation.Service{Namespace: k.Namespace, Name: k.Name}
	l.loop.Follow(k, federation.Ref{Cluster: federation.Cluster(l.Name), Service: service})
	var addresses []string
	for _, member := range l.loop.Snapshot(k).Members {
		if !member.Known {
			return nil // unknown is not empty
		}
		for _, slice := range member.View.Slices {
			for _, endpoint := range slice.Endpoints {
				addresses = append(addresses, endpoint.Addr.String())
			}
		}
	}
	slices.Sort(addresses)
	content := map[string]string{"addresses": strings.Join(addresses, " ")}
	is, err := configMaps.Get(ctx, k.Name, metav1.GetOptions{})
	if err == nil && is.Data["addresses"] == content["addresses"] {
		return nil // equal is not written
	}
	_, err = configMaps.Apply(ctx, configcorev1.ConfigMap(k.Name, k.Namespace).WithData(content),
		metav1.ApplyOptions{FieldManager: "listings", Force: true})
	return err
}
