package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fingerpost/fingerpost/cluster/records"
)

const fieldManager = us

// reconcile makes one object what it should be, or tells a Link what became of its Services.
func (t *term) reconcile(ctx context.Context, it item) (reconcile.Result, error) {
	if it.isLink {
		return t.tell(ctx, it.Key)
	}
	if !isClosed(t.ready) {
		return reconcile.Result{}, nil // it is named again then
	}
	w := t.world()
	t.attendTo(w, it.Key)
	existing := w.local(it.Key) // read once: what was not decided about is not written over
	t.enqueue(t.budget.note(it.Key, payer(existing))...)
	d := w.decide(it.Key, existing)
	if !d.refused {
		t.enqueue(t.budget.settle(it.Key)...)
	}
	err := t.write(ctx, it.Key, d, existing)
	if isHeadlessMirror(existing) || isHeadlessMirror(d.service) {
		t.enqueue(t.children(it.Key)...)
	}
	if ctx.Err() != nil {
		return reconcile.Result{}, nil //nolint:nilerr // whoever comes next looks at everything
	}
	var forbidden errForbidden
	switch {
	case err == nil:
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		// What we have read is not the newest yet: it brings us back. If it does not, we come by ourselves.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case apierrors.IsNotFound(err): // of what is made only the namespace can be missing
		refuse(d.verdicts, "there is no namespace "+it.Namespace+" in the local cluster")
		for i := range d.verdicts {
			d.verdicts[i].reason = reasonNamespace
		}
		t.record(w, it.Key, d.verdicts)
		return reconcile.Result{RequeueAfter: refusedFor}, nil
	case errors.As(err, &forbidden) || apierrors.IsForbidden(err):
		refuse(d.verdicts, err.Error())
		t.record(w, it.Key, d.verdicts)
		return reconcile.Result{RequeueAfter: refusedFor}, nil
	default:
		refuse(d.verdicts, err.Error())
		t.record(w, it.Key, d.verdicts)
		return reconcile.Result{}, fmt.Errorf("mirror %s: %w", it.Key, err)
	}
	t.record(w, it.Key, d.verdicts)
	return reconcile.Result{}, nil
}

func isHeadlessMirror(svc *corev1.Service) bool {
	return svc != nil && isHeadless(svc) && isMirror(svc)
}

// write makes what is there what was decided. What is equal is not written.
func (t *term) write(ctx context.Context, k records.Key, d decision, existing *corev1.Service) error {
	if d.namespace != nil && !d.keepService {
		err := t.do(ctx, right{"create", "namespaces", ""}, func() error {
			_, err := t.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: k.Namespace, Labels: d.namespace}}, metav1.CreateOptions{FieldManager: fieldManager})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if !d.keepService {
		if err := t.writeService(ctx, k, d.service, existing); err != nil {
			return err
		}
	}
	is, found := t.endpoints.Get(k)
	if !found {
		is = nil
	}
	if existing == nil && !d.claims() {
		return nil // Kubernetes removes the Endpoints of a Service that is gone
	}
	return t.writeEndpoints(ctx, k, d, is)
}

func (t *term) writeService(ctx context.Context, k records.Key, want, is *corev1.Service) error {
	api := t.core.CoreV1().Services(k.Namespace)
	switch {
	case want == nil && is == nil:
		t.remember(k, nil, nil)
		return nil
	case is != nil && !isOurs(is):
		return errTaken{k, is}
	case want == nil, is != nil && isHeadless(is) != isHeadless(want): // whether it has a cluster IP cannot be changed; it is made anew when it is gone
		t.remember(k, nil, nil)
		t.log.Info("A mirror is removed", "service", k.String())
		return t.do(ctx, right{"delete", "services", k.Namespace}, func() error {
			return gone(api.Delete(ctx, k.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &is.UID, ResourceVersion: &is.ResourceVersion}}))
		})
	case is == nil:
		t.log.Info("A mirror is made", "service", k.String())
		return t.do(ctx, right{"create", "services", k.Namespace}, func() error {
			back, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: fieldManager})
			switch {
			case err == nil:
				t.remember(k, want, back)
				return nil
			case !apierrors.IsAlreadyExists(err):
				return err
			}
			if rerr := t.rights.check(ctx, right{"get", "services", k.Namespace}); rerr != nil {
				return rerr
			}
			there, gerr := api.Get(ctx, k.Name, metav1.GetOptions{})
			if gerr == nil && (there.DeletionTimestamp != nil || !isOurs(there)) {
				return errTaken{k, there}
			}
			return err // we have not heard of it yet
		})
	case sameService(is, want) || t.asMade(k, want, is):
		return nil
	}
	patch, err := patchOf(is, want, map[string]any{"spec": map[string]any{"ports": want.Spec.Ports}})
	if err != nil {
		return err
	}
	t.log.V(1).Info("A mirror is changed", "service", k.String())
	return t.do(ctx, right{"patch", "services", k.Namespace}, func() error {
		back, err := api.Patch(ctx, k.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		if err == nil {
			t.remember(k, want, back)
		}
		return gone(err)
	})
}

func (t *term) writeEndpoints(ctx context.Context, k records.Key, d decision, is *endpoints) error {
	api := t.core.CoreV1().Endpoints(k.Namespace)
	want := d.endpoints
	switch {
	case want == nil && (d.keepEndpoints || is == nil || !isOurs(is)):
		return nil
	case want == nil:
		return t.do(ctx, right{"delete", "endpoints", k.Namespace}, func() error {
			return gone(api.Delete(ctx, k.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &is.UID, ResourceVersion: &is.ResourceVersion}}))
		})
	case is == nil:
		return t.do(ctx, right{"create", "endpoints", k.Namespace}, func() error {
			_, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: fieldManager})
			if !apierrors.IsAlreadyExists(err) {
				return err
			}
			if rerr := t.rights.check(ctx, right{"get", "endpoints", k.Namespace}); rerr != nil {
				return rerr
			}
			there, gerr := api.Get(ctx, k.Name, metav1.GetOptions{})
			if gerr == nil && there.Labels[clusterLabel] == "" {
				return fmt.Errorf("there are Endpoints %s already that are no mirror: delete them", k)
			}
			return err // we have not heard of them yet
		})
	case sameEndpoints(is, want):
		return nil
	}
	patch, err := patchOf(is, want, map[string]any{"subsets": want.Subsets})
	if err != nil {
		return err
	}
	return t.do(ctx, right{"patch", "endpoints", k.Namespace}, func() error {
		_, err := api.Patch(ctx, k.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		return gone(err)
	})
}

// errTaken says that a name is taken.
type errTaken struct {
	records.Key
	by *corev1.Service
}

func (e errTaken) Error() string {
	if e.by.DeletionTimestamp != nil {
		return fmt.Sprintf("there is a Service %s that is being deleted, and kept by its finalizers %q", e.Key, e.by.Finalizers)
	}
	if cluster := e.by.Labels[clusterLabel]; isMirror(e.by) && cluster != "" {
		return fmt.Sprintf("Service %s is the mirror of another cluster, %s, whose Link is not ours to serve: rename one of the two Services", e.Key, cluster)
	}
	return fmt.Sprintf("there is a Service %s already that is no mirror: rename one of the two, or delete the local one", e.Key)
}

// gone takes it for success that there is nothing any more: what follows from that is looked at when we hear of it.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// patchOf returns a merge patch that makes the marks of an object what they should be, and parts of it besides, if it is still the one
// that we know.
func patchOf(is, want metav1.Object, parts map[string]any) ([]byte, error) {
	parts["metadata"] = map[string]any{
		"uid": is.GetUID(), "resourceVersion": is.GetResourceVersion(),
		"labels": replaced(is.GetLabels(), want.GetLabels()), "annotations": replaced(is.GetAnnotations(), want.GetAnnotations()),
	}
	return json.Marshal(parts)
}

// replaced returns what merges into one map so that it becomes another.
func replaced(is, want map[string]string) map[string]any {
	all := map[string]any{}
	for k := range is {
		all[k] = nil
	}
	for k, v := range want {
		all[k] = v
	}
	return all
}

// do makes a write that we have the right to.
func (t *term) do(ctx context.Context, needed right, write func() error) error {
	if err := t.rights.check(ctx, needed); err != nil {
		t.metrics.written(needed.resource, needed.verb, err)
		return err
	}
	err := write()
	if apierrors.IsForbidden(err) {
		t.rights.refused(needed)
	}
	t.metrics.written(needed.resource, needed.verb, err)
	return err
}

// remember notes what the API server has made of a Service, if that is not what it was asked: a webhook has a part in it, and must
// not be written against for ever.
func (t *term) remember(k records.Key, want, back *corev1.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if want == nil || sameService(back, want) {
		delete(t.made, k)
	} else {
		t.made[k] = made{want, back}
	}
}

func (t *term) asMade(k records.Key, want, is *corev1.Service) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, found := t.made[k]
	return found && sameService(m.want, want) && sameService(m.is, is)
}

// record keeps the verdicts about one name, for the Links that they concern.
func (t *term) record(w *world, k records.Key, verdicts []verdict) {
	t.mu.Lock()
	old := t.told[k]
	if len(verdicts) == 0 {
		delete(t.told, k)
	} else {
		t.told[k] = verdicts
	}
	t.mu.Unlock()
	if slices.Equal(old, verdicts) {
		return
	}
	for _, v := range slices.Concat(old, verdicts) {
		t.tellSoon(v.link)
	}
	for _, v := range verdicts {
		if l := w.linkByKey(v.link); v.reason == reasonNamespace && l != nil && !slices.Contains(old, v) {
			t.mu.Lock()
			r := t.remotes[l.Cluster]
			t.mu.Unlock()
			if r == nil {
				continue // it is unlinked by now
			}
			if svc, found := r.Get(v.remote); found {
				r.event(svc.Service, "Skipped mirroring service: "+v.message)
			}
		}
	}
}
