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

const fieldManager = productName

// reconcile makes one object what it should be, or tells a Link what became of its Services.
func (t *term) reconcile(ctx context.Context, it queueKey) (reconcile.Result, error) {
	if it.isLink {
		return t.updateLinkStatus(ctx, it.Key)
	}
	if !isClosed(t.ready) {
		return reconcile.Result{}, nil // it is named again then
	}
	w := t.inputs()
	t.watchEndpoints(w, it.Key)
	existing := w.local(it.Key) // read once: what was not decided about is not written over
	t.enqueue(t.budget.assign(it.Key, chargedCluster(existing))...)
	d := w.Plan(it.Key, existing)
	if !d.overBudget {
		t.enqueue(t.budget.withdraw(it.Key)...)
	}
	err := t.apply(ctx, it.Key, d, existing)
	if isHeadlessMirror(existing) || isHeadlessMirror(d.service) {
		t.enqueue(t.endpointMirrors(it.Key)...)
	}
	if ctx.Err() != nil {
		return reconcile.Result{}, nil //nolint:nilerr // whoever comes next looks at everything
	}
	var forbidden errNoPermission
	switch {
	case err == nil:
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		// What we have read is not the newest yet: it brings us back. If it does not, we come by ourselves.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case apierrors.IsNotFound(err): // of what is made only the namespace can be missing
		failResults(d.results, "there is no namespace "+it.Namespace+" in the local cluster")
		for i := range d.results {
			d.results[i].reason = reasonMissingNamespace
		}
		t.setResults(w, it.Key, d.results)
		return reconcile.Result{RequeueAfter: permissionRetry}, nil
	case errors.As(err, &forbidden) || apierrors.IsForbidden(err):
		failResults(d.results, err.Error())
		t.setResults(w, it.Key, d.results)
		return reconcile.Result{RequeueAfter: permissionRetry}, nil
	default:
		failResults(d.results, err.Error())
		t.setResults(w, it.Key, d.results)
		return reconcile.Result{}, fmt.Errorf("mirror %s: %w", it.Key, err)
	}
	t.setResults(w, it.Key, d.results)
	return reconcile.Result{}, nil
}

func isHeadlessMirror(svc *corev1.Service) bool {
	return svc != nil && isHeadless(svc) && isMirror(svc)
}

// write makes what is there what was decided. What is equal is not written.
func (t *term) apply(ctx context.Context, k records.Key, d plan, existing *corev1.Service) error {
	if d.namespaceLabels != nil && !d.keepService {
		err := t.withPermission(ctx, permission{"create", "namespaces", ""}, func() error {
			_, err := t.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: k.Namespace, Labels: d.namespaceLabels}}, metav1.CreateOptions{FieldManager: fieldManager})
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
		if err := t.applyService(ctx, k, d.service, existing); err != nil {
			return err
		}
	}
	is, found := t.endpoints.Get(k)
	if !found {
		is = nil
	}
	if existing == nil && !d.takesName() {
		return nil // Kubernetes removes the Endpoints of a Service that is gone
	}
	return t.applyEndpoints(ctx, k, d, is)
}

func (t *term) applyService(ctx context.Context, k records.Key, want, is *corev1.Service) error {
	api := t.core.CoreV1().Services(k.Namespace)
	switch {
	case want == nil && is == nil:
		t.noteMutation(k, nil, nil)
		return nil
	case is != nil && !isOurs(is):
		return errNameTaken{k, is}
	case want == nil, is != nil && isHeadless(is) != isHeadless(want): // whether it has a cluster IP cannot be changed; it is made anew when it is gone
		t.noteMutation(k, nil, nil)
		t.log.Info("A mirror is removed", "service", k.String())
		return t.withPermission(ctx, permission{"delete", "services", k.Namespace}, func() error {
			return ignoreNotFound(api.Delete(ctx, k.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &is.UID, ResourceVersion: &is.ResourceVersion}}))
		})
	case is == nil:
		t.log.Info("A mirror is made", "service", k.String())
		return t.withPermission(ctx, permission{"create", "services", k.Namespace}, func() error {
			back, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: fieldManager})
			switch {
			case err == nil:
				t.noteMutation(k, want, back)
				return nil
			case !apierrors.IsAlreadyExists(err):
				return err
			}
			if rerr := t.permissions.require(ctx, permission{"get", "services", k.Namespace}); rerr != nil {
				return rerr
			}
			there, gerr := api.Get(ctx, k.Name, metav1.GetOptions{})
			if gerr == nil && (there.DeletionTimestamp != nil || !isOurs(there)) {
				return errNameTaken{k, there}
			}
			return err // we have not heard of it yet
		})
	case sameService(is, want) || t.mutatedAsBefore(k, want, is):
		return nil
	}
	patch, err := mergePatch(is, want, map[string]any{"spec": map[string]any{"ports": want.Spec.Ports}})
	if err != nil {
		return err
	}
	t.log.V(1).Info("A mirror is changed", "service", k.String())
	return t.withPermission(ctx, permission{"patch", "services", k.Namespace}, func() error {
		back, err := api.Patch(ctx, k.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		if err == nil {
			t.noteMutation(k, want, back)
		}
		return ignoreNotFound(err)
	})
}

func (t *term) applyEndpoints(ctx context.Context, k records.Key, d plan, is *endpoints) error {
	api := t.core.CoreV1().Endpoints(k.Namespace)
	want := d.endpoints
	switch {
	case want == nil && (d.keepEndpoints || is == nil || !isOurs(is)):
		return nil
	case want == nil:
		return t.withPermission(ctx, permission{"delete", "endpoints", k.Namespace}, func() error {
			return ignoreNotFound(api.Delete(ctx, k.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &is.UID, ResourceVersion: &is.ResourceVersion}}))
		})
	case is == nil:
		return t.withPermission(ctx, permission{"create", "endpoints", k.Namespace}, func() error {
			_, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: fieldManager})
			if !apierrors.IsAlreadyExists(err) {
				return err
			}
			if rerr := t.permissions.require(ctx, permission{"get", "endpoints", k.Namespace}); rerr != nil {
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
	patch, err := mergePatch(is, want, map[string]any{"subsets": want.Subsets})
	if err != nil {
		return err
	}
	return t.withPermission(ctx, permission{"patch", "endpoints", k.Namespace}, func() error {
		_, err := api.Patch(ctx, k.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		return ignoreNotFound(err)
	})
}

// errTaken says that a name is taken.
type errNameTaken struct {
	records.Key
	by *corev1.Service
}

func (e errNameTaken) Error() string {
	if e.by.DeletionTimestamp != nil {
		return fmt.Sprintf("there is a Service %s that is being deleted, and kept by its finalizers %q", e.Key, e.by.Finalizers)
	}
	if cluster := e.by.Labels[clusterLabel]; isMirror(e.by) && cluster != "" {
		return fmt.Sprintf("Service %s is the mirror of another cluster, %s, whose Link is not ours to serve: rename one of the two Services", e.Key, cluster)
	}
	return fmt.Sprintf("there is a Service %s already that is no mirror: rename one of the two, or delete the local one", e.Key)
}

// gone takes it for success that there is nothing any more: what follows from that is looked at when we hear of it.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// patchOf returns a merge patch that makes the marks of an object what they should be, and parts of it besides, if it is still the one
// that we know.
func mergePatch(is, want metav1.Object, parts map[string]any) ([]byte, error) {
	parts["metadata"] = map[string]any{
		"uid": is.GetUID(), "resourceVersion": is.GetResourceVersion(),
		"labels": mergeMap(is.GetLabels(), want.GetLabels()), "annotations": mergeMap(is.GetAnnotations(), want.GetAnnotations()),
	}
	return json.Marshal(parts)
}

// replaced returns what merges into one map so that it becomes another.
func mergeMap(is, want map[string]string) map[string]any {
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
func (t *term) withPermission(ctx context.Context, needed permission, write func() error) error {
	if err := t.permissions.require(ctx, needed); err != nil {
		t.metrics.countWrite(needed.resource, needed.verb, err)
		return err
	}
	err := write()
	if apierrors.IsForbidden(err) {
		t.permissions.invalidate(needed)
	}
	t.metrics.countWrite(needed.resource, needed.verb, err)
	return err
}

// remember notes what the API server has made of a Service, if that is not what it was asked: a webhook has a part in it, and must
// not be written against for ever.
func (t *term) noteMutation(k records.Key, want, back *corev1.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if want == nil || sameService(back, want) {
		delete(t.mutated, k)
	} else {
		t.mutated[k] = mutatedService{want, back}
	}
}

func (t *term) mutatedAsBefore(k records.Key, want, is *corev1.Service) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, found := t.mutated[k]
	return found && sameService(m.requested, want) && sameService(m.stored, is)
}

// record keeps the verdicts about one name, for the Links that they concern.
func (t *term) setResults(w *inputs, k records.Key, verdicts []serviceResult) {
	t.mu.Lock()
	old := t.results[k]
	if len(verdicts) == 0 {
		delete(t.results, k)
	} else {
		t.results[k] = verdicts
	}
	t.mu.Unlock()
	if slices.Equal(old, verdicts) {
		return
	}
	for _, v := range slices.Concat(old, verdicts) {
		t.enqueueLink(v.link)
	}
	for _, v := range verdicts {
		if l := w.linkByKey(v.link); v.reason == reasonMissingNamespace && l != nil && !slices.Contains(old, v) {
			t.mu.Lock()
			r := t.remotes[l.Cluster]
			t.mu.Unlock()
			if r == nil {
				continue // it is unlinked by now
			}
			if svc, found := r.Get(v.remote); found {
				r.recordSkipped(svc.Service, "Skipped mirroring service: "+v.message)
			}
		}
	}
}
