package apply_test

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	configcorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/apply/object"
	"github.com/fingerpost/fingerpost/federation"
)

// listings is a writer: for each Service with the label "listed" a ConfigMap of its name, with the addresses of its
// endpoints in all clusters. All that the engine needs of it is below: the task, what is read, and what should exist.
type listings struct {
	*apply.Target
	loop     *apply.Loop[api.Key]
	services *api.Informer[bool]              // whether it is to be listed
	written  *api.Informer[*corev1.ConfigMap] // of those with our label: no other is touched
}

const field, managedBy, us = "addresses", "app.kubernetes.io/managed-by", "listings"

var needed = []apply.Permission{
	{Resource: schema.GroupResource{Resource: "services"}, Verbs: []string{"list", "watch"}},
	{
		Resource: schema.GroupResource{Resource: "configmaps"},
		Verbs:    []string{"list", "watch", "create", "patch", "delete"},
	},
}

// listingsTask returns the task that is added to a Campaign.
func listingsTask(store *federation.Store) apply.Task {
	run := func(term context.Context, t *apply.Target) error {
		l := &listings{Target: t}
		l.loop = apply.NewLoop(t.Log, apply.Config[api.Key]{
			Begin:     func() { l.loop.Enqueue(append(l.services.Keys(), l.written.Keys()...)...) },
			Reconcile: l.reconcile, Store: store, Needs: needed, Permissions: t.Permissions,
		})
		enqueue := func(k api.Key) { l.loop.Enqueue(k) }
		kind := api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})
		l.services = api.NewInformer(t.Conn, kind, func(object any) (listed, ok bool) {
			service, ok := object.(*corev1.Service)
			return ok && service.Labels["listed"] != "", ok
		}, enqueue)
		kind = api.Typed(corev1.SchemeGroupVersion, "configmaps", "ConfigMap", &corev1.ConfigMap{}).Ours()
		kind.Labels = managedBy + "=" + us
		l.written = api.NewInformer(t.Conn, kind, func(object any) (*corev1.ConfigMap, bool) {
			c, ok := object.(*corev1.ConfigMap)
			kept := metav1.ObjectMeta{Name: c.GetName(), UID: c.GetUID(), ResourceVersion: c.GetResourceVersion()}
			return &corev1.ConfigMap{ObjectMeta: kept, Data: map[string]string{field: c.Data[field]}}, ok
		}, enqueue)
		l.loop.Read(l.services, needed[0])
		l.loop.Read(l.written, needed[1])
		return l.loop.Run(term)
	}
	return apply.Task{Name: us, Wanted: func(s cluster.Spec) bool { return s.Local }, Needs: needed, Run: run}
}

// reconcile makes the ConfigMap of a Service what it should be. A conflict is an error, which is retried, and so is
// that a ConfigMap of the name exists which is not ours.
func (l *listings) reconcile(ctx context.Context, k api.Key) (err error) {
	configMaps := l.Client.CoreV1().ConfigMaps(k.Namespace)
	is, exists := l.written.Get(k)
	listed, _ := l.services.Get(k)
	wanted, known := l.addresses(k, listed)
	switch data := map[string]string{field: wanted}; {
	case !known, !listed && !exists, listed && exists && is.Data[field] == wanted:
		return nil // unknown is not empty, and equal is not written
	case !listed:
		err = object.Delete(ctx, configMaps, is)
	case !exists:
		meta := metav1.ObjectMeta{Name: k.Name, Labels: map[string]string{managedBy: us}}
		_, err = configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: data}, metav1.CreateOptions{})
	default: // the fields are taken over in the version that was read, which is ours
		next := configcorev1.ConfigMap(k.Name, k.Namespace).WithResourceVersion(is.ResourceVersion).WithData(data)
		_, err = configMaps.Apply(ctx, next.WithUID(is.UID), metav1.ApplyOptions{FieldManager: us, Force: true})
	}
	return err
}

// addresses returns those of all members of a Service that is listed, and whether they are known.
func (l *listings) addresses(k api.Key, listed bool) (text string, known bool) {
	if !listed {
		l.loop.Unfollow(k)
		return "", true
	}
	service := federation.Service{Namespace: k.Namespace, Name: k.Name}
	l.loop.Follow(k, federation.Ref{Cluster: federation.Cluster(l.Name), Service: service})
	var all []string
	for _, member := range l.loop.Snapshot(k).Members {
		if !member.Known {
			return "", false
		}
		if member.View == nil {
			continue // its cluster has no such Service
		}
		for _, slice := range member.View.Slices {
			for _, endpoint := range slice.Endpoints {
				all = append(all, endpoint.Addr.String())
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), true
}
