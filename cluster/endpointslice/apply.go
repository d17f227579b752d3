package endpointslice

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"github.com/fingerpost/fingerpost/cluster/apply/object"
)

// applyPlan carries out a plan, and returns all that failed. What is refused for one slice, as by a quota or a webhook,
// keeps no other from being written. It stops if the API server does not respond, or the term is over.
func (t *sliceWriter) applyPlan(ctx context.Context, svc *serviceRecord, plan slicePlan) error {
	requests := &planWriter{sliceWriter: t, api: t.Client.DiscoveryV1().EndpointSlices(svc.Namespace)}
	each := func(all []*discoveryv1.EndpointSlice, write func(context.Context, *discoveryv1.EndpointSlice)) {
		for _, es := range all {
			if ctx.Err() == nil && !requests.stopped {
				write(ctx, es)
			}
		}
	}

	each(plan.extend, requests.update)
	if len(plan.create) > 0 && !requests.stopped && !t.isGone(ctx, svc) {
		each(plan.create, requests.create)
	}
	each(plan.update, requests.update)
	each(plan.remove, requests.remove)
	return errors.Join(requests.failed...)
}

// planWriter sends the requests of a plan.
type planWriter struct {
	*sliceWriter
	api     discoveryclient.EndpointSliceInterface
	full    bool // no slice can be created
	stopped bool // no request can succeed
	failed  []error
}

func (w *planWriter) update(ctx context.Context, es *discoveryv1.EndpointSlice) {
	updated, err := w.api.Update(ctx, es, metav1.UpdateOptions{})
	if err == nil {
		w.tracker.Update(updated)
	}
	w.done("update", "slice "+es.Name, err)
}

func (w *planWriter) create(ctx context.Context, es *discoveryv1.EndpointSlice) {
	if w.full {
		return
	}
	created, err := w.api.Create(ctx, es, metav1.CreateOptions{})
	w.full = apierrors.IsForbidden(err) // a quota refuses the next one, too
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return
	}
	if err == nil {
		w.tracker.Update(created)
	}
	w.done("create", "a slice", err)
}

func (w *planWriter) remove(ctx context.Context, es *discoveryv1.EndpointSlice) {
	err := object.Delete(ctx, w.api, es)
	if err == nil {
		w.tracker.ExpectDeletion(es)
	}
	w.done("delete", "slice "+es.Name, err)
}

// done records what became of a request.
func (w *planWriter) done(verb, what string, err error) {
	if err == nil {
		w.writer.count(w.writer.metrics.writes, w.Name, w.managedBy, verb)
		return
	}
	w.failed = append(w.failed, fmt.Errorf("%s %s: %w", verb, what, err))
	w.stopped = w.stopped || !object.IsResponse(err)
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
