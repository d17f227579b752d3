package ruleset

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/ruleobject"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// A record is what is kept of an object.
type record struct {
	value      any // as package ruleobject returns it; nil if the object is unreadable
	unreadable string
}

// An input is a kind that is read.
type input struct {
	view.Input
	of    rules.Kind
	store *api.Store[record]
}

// addKinds makes the stores.
func (r *Reconciler) addKinds() {
	pods := view.PodKind(true)
	pods.Labels = linkerd.ControlPlaneLabel
	externals := view.ExternalWorkloadKind()

	addKind(r, rules.KindPod, pods, func(p *corev1.Pod) (*rules.Workload, error) {
		return r.interned.intern(ruleobject.Pod(p)), nil
	})
	addKind(r, rules.KindService, view.ServiceKind(), func(s *corev1.Service) (*ruleobject.Service, error) {
		service := ruleobject.ReadService(s)
		service.Imports, service.Clusters = view.StandsForOthers(s), view.ClustersBehind(r.cluster, s)
		return service, nil
	})
	addKind(r, rules.KindExternalWorkload, externals, func(u *unstructured.Unstructured) (*rules.Workload, error) {
		w, err := ruleobject.External(u)
		return r.interned.intern(w), err
	})

	for _, kind := range ruleobject.Kinds {
		addKind(r, kind.Kind, api.Newest(kind.Resource, kind.Versions, kind.String()), kind.Read)
	}
}

// addKind adds a kind, whose store holds what read makes of objects, and enqueues the keys of those that change.
func addKind[O metav1.Object, V any](
	reconciler *Reconciler, of rules.Kind, kind api.Kind, read func(O) (V, error),
) {
	reduce := func(object any) (record, bool) {
		o, is := object.(O)
		if !is {
			return record{}, false
		}
		value, err := read(o)
		if err != nil {
			return record{unreadable: err.Error()}, true
		}
		return record{value: value}, true
	}

	store := api.NewStore(reduce, func(k api.Key) {
		if reconciler.enqueues.Load() {
			reconciler.queue.Add(object{of, k})
		}
	})

	reconciler.inputs = append(reconciler.inputs, input{
		Input: view.Input{
			Kind: kind, Store: store, Len: store.Len,
			Malformed: func() int { return 0 }, // fingerpost_unreadable_objects has them, as they are now
		},
		of: of, store: store,
	})
}
