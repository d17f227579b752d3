package mirror

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/apply/object"
)

const fieldManager = productName

// reconcile applies the plan for one name, or updates what is known of the endpoints of a remote Service.
func (t *term) reconcile(ctx context.Context, key queueKey) error {
	if key.cluster != "" {
		t.reconcileEndpoints(key)
		return nil
	}

	name := key.Key
	now, _ := t.linkSet.Load()
	t.followEndpoints(now, name)
	in := readInputs(t, now, &t.options, name)
	if err := t.readLarge(ctx, in); err != nil || ctx.Err() != nil {
		return err
	}

	existing := in.existing
	t.forgetDeleted(name, existing)
	t.enqueue(t.budget.assign(name, chargedCluster(existing))...)
	plan := in.Plan()
	if existing == nil && plan.service != nil && !t.reserveSpace(name, chargeableClusters(plan.service)) {
		plan = plan.withoutSpace()
	}
	if !plan.overBudget {
		t.enqueue(t.budget.withdraw(name)...)
	}

	err := t.applyPlan(ctx, in, plan)
	if isHeadlessMirror(existing) || isHeadlessMirror(plan.service) {
		t.enqueue(t.endpointMirrors(name)...)
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the next term enqueues everything
	}

	if err == nil {
		t.paces.drop(name)
	}
	if existing == nil && errors.Is(err, apply.ErrPaced) {
		failResults(plan.results, "it is created in its turn: "+pacedMessage)
	}
	return t.finishPlan(name, plan, err)
}

// finishPlan stores the results of a plan that was applied, or why it was not, and decides on the retry.
func (t *term) finishPlan(key api.Key, plan namePlan, err error) error {
	var retried error
	switch {
	case err == nil:
	case errors.Is(err, apply.ErrPaced):
		retried = err
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		// The record was not the newest: the event of the newer one enqueues the name. This is a second net.
		return &apply.Retry{After: time.Second, Err: err}
	case apierrors.IsNotFound(err): // only the namespace of a created object can be missing
		failResults(plan.results, missingNamespace(key.Namespace))
		for i := range plan.results {
			plan.results[i].reason = reasonMissingNamespace
		}
		retried = &apply.Retry{After: apply.PermissionRetry, Err: err}
	case apply.IsMissingPermissions(err):
		failResults(plan.results, err.Error())
		for i := range plan.results {
			plan.results[i].forbidden = true
		}
		retried = &apply.Retry{After: apply.PermissionRetry, Err: err}
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		failResults(plan.results, err.Error())
		retried = &apply.Retry{After: apply.PermissionRetry, Err: err}
	default:
		failResults(plan.results, err.Error())
		retried = err
	}

	t.setResults(key, plan.results)
	return retried
}

func isHeadlessMirror(svc *corev1.Service) bool {
	return svc != nil && isHeadless(svc) && isMirror(svc)
}

// applyPlan writes what differs from a plan: first a missing namespace, then the Service, then its Endpoints. A
// Service whose creation is refused leaves its space to others until it is tried again.
//
// Endpoints exist no longer than their Service, by which the next term knows whose they are, whatever request is the
// last one of this term. Those that are there without one all the same, as by a request that was late, are planned from
// like a Service. Kubernetes deletes them, too, but only when it sees the Service go.
func (t *term) applyPlan(ctx context.Context, in *inputs, plan namePlan) error {
	key, existing := in.name, in.existing
	if plan.replaces(existing) {
		return t.removeService(ctx, key, existing, in.existingEndpoints)
	}

	if !plan.keepService {
		err := t.applyNamespaced(ctx, key, plan, existing)
		if existing == nil && (object.IsRefusal(err) || errors.As(err, new(errNameTaken))) {
			t.enqueue(t.budget.assign(key, "")...)
		}
		if err != nil {
			return err
		}
	}
	return t.applyEndpoints(ctx, key, plan, in.existingEndpoints)
}

// replaces reports whether an existing Service is to be deleted, as not wanted, or as one of another kind than is
// wanted: clusterIP is immutable.
func (p *namePlan) replaces(existing *corev1.Service) bool {
	return existing != nil && !p.keepService && (p.service == nil || isHeadless(existing) != isHeadless(p.service))
}

// applyNamespaced writes the Service of a plan, after a missing namespace.
func (t *term) applyNamespaced(ctx context.Context, k api.Key, p namePlan, existing *corev1.Service) error {
	if p.namespaceLabels != nil {
		if err := t.createNamespace(ctx, k.Namespace, p.namespaceLabels); err != nil {
			return err
		}
	}
	return t.applyService(ctx, k, p.service, existing, p.shared)
}

func (t *term) createNamespace(ctx context.Context, name string, labels map[string]string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	needed := permission("create", "namespaces", "")
	err := t.permissions.Do(ctx, needed, func() error {
		_, err := t.core.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{FieldManager: fieldManager})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	t.metrics.countWrite("namespaces", "create", err)
	return err
}

// applyService makes the Service that exists the wanted one; nil is none that exists, or nothing to write. It refuses
// to write a Service that is not ours, whatever was planned.
func (t *term) applyService(ctx context.Context, key api.Key, want, is *corev1.Service, shared bool) error {
	switch {
	case want == nil:
		return nil
	case is != nil && !isOurs(is):
		return errNameTaken{key, is}
	}

	hash := signService(want)

	if is == nil {
		if err := t.takeTurn(t.paces.creations, want, key); err != nil {
			return err
		}
		t.log.Info("Creating a mirror", "service", key.String())
		return t.writesServices.Create(ctx, want, func(found *corev1.Service) error {
			if found.DeletionTimestamp != nil || !isOurs(found) {
				return errNameTaken{key, found}
			}
			return nil
		})
	}

	if owner.IsApplied(is, hash, serviceFields(want)) {
		return nil
	}
	if err := t.paces.take(t.paces.updates, key.String(), key); err != nil {
		return err
	}

	t.log.V(1).Info("Applying a mirror", "service", key.String())
	return t.writesServices.Apply(ctx, is, shared, func(version string) *applycorev1.ServiceApplyConfiguration {
		return serviceConfiguration(want, is.UID, version)
	})
}

// takeTurn returns nil if a Service may be created or deleted now, or a Retry.
func (t *term) takeTurn(of *apply.Pace[api.Key], svc *corev1.Service, k api.Key) error {
	cluster := t.causeOf(svc)
	err := t.paces.take(of, cluster, k)
	t.reportPace(cluster, err)
	return err
}

// removeService deletes a Service, after its Endpoints. That these may not be deleted is no reason to keep it. It
// refuses to delete a Service that is not ours, whatever was planned. One deletion takes one turn, however often the
// Service is looked at before the watch has it gone.
func (t *term) removeService(ctx context.Context, key api.Key, is *corev1.Service, of *endpoints) error {
	if !isOurs(is) {
		return errNameTaken{key, is}
	}
	if t.isDeleted(key, is) {
		return nil
	}
	if err := t.takeTurn(t.paces.deletions, is, key); err != nil {
		return err
	}
	t.log.Info("Deleting a mirror", "service", key.String())

	endpointsErr := t.applyEndpoints(ctx, key, namePlan{}, of)
	if endpointsErr != nil && !object.IsRefusal(endpointsErr) {
		return endpointsErr
	}
	if err := t.writesServices.Delete(ctx, is); err != nil {
		return err
	}
	t.noteDeleted(key, is)
	return endpointsErr
}

// noteDeleted notes that the deletion of a Service was accepted: the event of it enqueues its name.
func (t *term) noteDeleted(k api.Key, svc *corev1.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deleted[k] = svc.UID
}

func (t *term) isDeleted(k api.Key, svc *corev1.Service) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	uid, found := t.deleted[k]
	return found && uid == svc.UID
}

// forgetDeleted forgets a deletion once its Service is gone, or another one has its name.
func (t *term) forgetDeleted(k api.Key, svc *corev1.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if svc == nil || svc.UID != t.deleted[k] {
		delete(t.deleted, k)
	}
}

// applyEndpoints makes the Endpoints that exist the planned ones.
func (t *term) applyEndpoints(ctx context.Context, key api.Key, p namePlan, is *endpoints) error {
	want := p.endpoints
	switch {
	case want == nil && (p.keepEndpoints || is == nil || !isOurs(is)):
		return nil
	case want == nil:
		return t.writesEndpoints.Delete(ctx, is)
	}

	hash := signEndpoints(want)
	if is == nil {
		return t.writesEndpoints.Create(ctx, want, func(found *endpoints) error {
			if found.Labels[clusterLabel] == "" {
				return fmt.Errorf("the Endpoints %s exist already and are not a mirror: delete them", key)
			}
			return nil
		})
	}

	if owner.IsApplied(is, hash, endpointsFields(want)) {
		return nil
	}
	if err := t.paces.take(t.paces.updates, key.String(), key); err != nil {
		return err
	}

	return t.writesEndpoints.Apply(ctx, is, false, func(version string) *endpointsApplied {
		return endpointsConfiguration(want, is.UID, version)
	})
}

// errNameTaken reports that another Service has the name of a mirror.
type errNameTaken struct {
	api.Key
	by *corev1.Service
}

func (e errNameTaken) Error() string {
	if e.by.DeletionTimestamp != nil {
		return fmt.Sprintf("Service %s is being deleted, and kept by its finalizers %q", e.Key, e.by.Finalizers)
	}
	if cluster := e.by.Labels[clusterLabel]; isMirror(e.by) && cluster != "" {
		return fmt.Sprintf("Service %s is the mirror of another cluster, %s, whose Link is not served here: "+
			"rename one of the two Services", e.Key, cluster)
	}
	return fmt.Sprintf("Service %s exists already and is not a mirror: rename one of the two, "+
		"or delete the local one", e.Key)
}

// permission is one for a verb on a core resource in a namespace; empty: in all.
func permission(verb, resource, namespace string) apply.Permission {
	return apply.Permission{Resource: corev1.Resource(resource), Namespace: namespace, Verbs: []string{verb}}
}

// setResults replaces the results for a name, and enqueues the Links that they concern.
func (t *term) setResults(k api.Key, results []serviceResult) {
	t.mu.Lock()
	concerned := t.results.replaceResults(k, results)
	t.mu.Unlock()
	for _, link := range concerned {
		t.enqueueLink(link)
	}
}
