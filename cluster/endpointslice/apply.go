package endpointslice

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/apply"
)

// applyPlan carries out a plan, and returns all that failed. What is refused for one slice, as by a quota
// or a webhook, keeps no other from being written. Deletions and updates, which remove dead endpoints, go
// first. It stops if the API server does not respond, or the term is over.
func (t *sliceWriter) applyPlan(ctx context.Context, svc *serviceRecord, plan slicePlan) error {
	api := t.Client.DiscoveryV1().EndpointSlices(svc.Namespace)
	var failed []error
	done := func(verb, what string, err error) (goOn bool) {
		if err == nil {
			t.writer.count(t.writer.metrics.writes, t.Name, t.managedBy, verb)
			return true
		}
		failed = append(failed, fmt.Errorf("%s %s: %w", verb, what, err))
		return ctx.Err() == nil && isResponse(err)
	}

	for _, es := range plan.remove {
		err := api.Delete(ctx, es.Name, apply.IfUnchanged(es))
		if apierrors.IsNotFound(err) {
			err = nil
		}
		if err == nil {
			t.tracker.ExpectDeletion(es)
		}
		if !done("delete", "slice "+es.Name, err) {
			return errors.Join(failed...)
		}
	}

	for _, es := range plan.update {
		updated, err := api.Update(ctx, es, metav1.UpdateOptions{})
		if err == nil {
			t.tracker.Update(updated)
		}
		if !done("update", "slice "+es.Name, err) {
			return errors.Join(failed...)
		}
	}

	if len(plan.create) == 0 || t.isGone(ctx, svc) {
		return errors.Join(failed...)
	}

	for _, es := range plan.create {
		created, err := api.Create(ctx, es, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			break
		}
		if err == nil {
			t.tracker.Update(created)
		}
		if !done("create", "a slice", err) || apierrors.IsForbidden(err) { // a quota refuses the next one, too
			break
		}
	}
	return errors.Join(failed...)
}

// isGone reads whether a Service is being deleted, or was. The watch of its slices may show that before the watch of
// Services does, and slices that are written after their owner is gone are for the garbage collector. So if it cannot
// be read, they are written: others may be withdrawn next, and these take their place.
func (t *sliceWriter) isGone(ctx context.Context, svc *serviceRecord) bool {
	now, err := readService(ctx, t.Client, svc.key)
	return err == nil && (now == nil || now.UID != svc.uid || now.DeletionTimestamp != nil)
}

// readService reads a Service from the API server; nil if there is none.
func readService(ctx context.Context, client kubernetes.Interface, k key) (*corev1.Service, error) {
	svc, err := client.CoreV1().Services(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return svc, err
}

// isResponse reports whether an error is a response of an API server: then the next request may succeed.
func isResponse(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}
