package mirror

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/links"
)

// Mirroring is the condition of a Link that reports whether we mirror its Services.
const Mirroring = "Mirroring"

// The reasons of the condition Mirroring.
const (
	reasonMirroring     = "Mirroring"       // True
	reasonLeftToLinkerd = "LeftToLinkerd"   // False: Linkerd's service mirror does it, or may
	reasonInvalidLink   = "InvalidLink"     // False: a field of the Link is invalid; existing mirrors are kept
	reasonForbidden     = "Forbidden"       // False: we lack a permission
	reasonTooMany       = "TooManyServices" // False: the budget of the cluster is used up
	reasonWaiting       = "Waiting"         // Unknown: the cluster was not listed; existing mirrors are kept
	reasonRemovalHeld   = "RemovalHeld"     // Unknown: most Services vanished at once; a listing decides
	conditionMirrored   = "Mirrored"        // the condition of one Service
	kindService         = "Service"
)

// updateLinkStatus patches the results for a Link's Services into its status, as far as they have changed.
func (t *term) updateLinkStatus(ctx context.Context, k api.Key) (reconcile.Result, error) {
	now, _ := t.linkSet.Load()
	i := slices.IndexFunc(now.links, func(l *link) bool { return l.Link == k })
	if i < 0 {
		return reconcile.Result{}, nil
	}
	l := now.links[i]
	results, complete := t.resultsFor(l)
	condition := t.mirroringCondition(l, results)
	status := map[string]any{}
	t.mu.Lock()
	unsupported := t.conditionsUnsupported[l.UID]
	t.mu.Unlock()
	if !unsupported && !sameCondition(meta.FindStatusCondition(l.Conditions, Mirroring), &condition) {
		conditions := slices.Clone(l.Conditions)
		meta.SetStatusCondition(&conditions, condition)
		status["conditions"] = conditions
	}
	if complete {
		if list := serviceStatuses(l, results, false, l.MirrorServices); list != nil {
			status["mirrorServices"] = list
		}
		if list := serviceStatuses(l, results, true, l.FederatedServices); list != nil {
			status["federatedServices"] = list
		}
	}
	if len(status) == 0 {
		return reconcile.Result{}, nil
	}
	return t.patchStatus(ctx, l, status)
}

func sameCondition(is, want *metav1.Condition) bool {
	return is != nil && is.Status == want.Status && is.Reason == want.Reason &&
		is.Message == want.Message && is.ObservedGeneration == want.ObservedGeneration
}

func (t *term) patchStatus(ctx context.Context, l *link, status map[string]any) (reconcile.Result, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": l.UID, "resourceVersion": l.ResourceVersion},
		"status":   status,
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	client := t.dynamic.Resource(l.Resource).Namespace(l.Link.Namespace)
	options := metav1.PatchOptions{FieldManager: fieldManager}
	back, err := client.Patch(ctx, l.Link.Name, types.MergePatchType, patch, options, "status")
	t.metrics.countWrite("links/status", "patch", err)
	switch {
	case ctx.Err() != nil: // the next term patches it
		return reconcile.Result{}, nil //nolint:nilerr // it is no failure
	case apierrors.IsNotFound(err): // the Link was deleted, or is served without status
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err): // the event of the newer Link enqueues it; this is a second net
		return reconcile.Result{RequeueAfter: 2 * statusDelay}, nil
	case apierrors.IsForbidden(err):
		t.log.Info("The status of Links cannot be written: grant patch on links/status in "+links.Group,
			"link", l.Link.String(), "error", err.Error())
		return reconcile.Result{RequeueAfter: permissionRetry}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("status of Link %s: %w", l.Link, err)
	}
	_, patched := status["conditions"]
	if patched && !hasCondition(back, Mirroring) { // the schema of Links drops conditions
		t.mu.Lock()
		t.conditionsUnsupported[l.UID] = true
		t.mu.Unlock()
	}
	return reconcile.Result{}, nil
}

func hasCondition(u *unstructured.Unstructured, condition string) bool {
	list, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	return err == nil && slices.ContainsFunc(list, func(c any) bool {
		m, ok := c.(map[string]any)
		return ok && m["type"] == condition
	})
}

// resultsFor returns the results for a Link's Services, and whether there is one for each that it selects. As
// long as one is missing, the lists in the Link's status stay as they are.
func (t *term) resultsFor(l *link) (results []serviceResult, complete bool) {
	t.mu.Lock()
	r := t.remotes[l.Cluster]
	known := map[bool]map[api.Key]bool{false: {}, true: {}} // by federated
	for _, all := range t.results {
		for _, result := range all {
			if result.link == l.Link {
				results = append(results, result)
				known[result.federated][result.remote] = true
			}
		}
	}
	t.mu.Unlock()
	t.metrics.setServices(l.Cluster, results)
	if r == nil || l.skipReason != "" || l.Problem != "" || !isClosed(t.ready) {
		return results, false
	}
	for _, k := range r.Keys() {
		svc, found := r.Get(k)
		if !found {
			continue
		}
		set := labels.Set(svc.Labels)
		mirrored := l.RemoteDiscoverySelector.Matches(set) || l.Selector.Matches(set)
		federated := l.FederatedServiceSelector.Matches(set)
		if mirrored && !known[false][k] || federated && !known[true][k] {
			return results, false
		}
	}
	return results, true
}

func (t *term) mirroringCondition(l *link, results []serviceResult) metav1.Condition {
	t.mu.Lock()
	r, localRefusal := t.remotes[l.Cluster], t.localRefusal
	t.mu.Unlock()
	condition := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{
			Type: Mirroring, Status: status, Reason: reason, Message: message, ObservedGeneration: l.Generation,
		}
	}
	forbidden := slices.IndexFunc(results, func(r serviceResult) bool {
		return strings.HasPrefix(r.message, noPermissionPrefix)
	})
	switch {
	case l.skipReason != "":
		return condition(metav1.ConditionFalse, reasonLeftToLinkerd, l.skipReason)
	case l.Problem != "":
		return condition(metav1.ConditionFalse, reasonInvalidLink, l.Problem+"; existing mirrors are kept")
	case localRefusal != "":
		return condition(metav1.ConditionFalse, reasonForbidden, localRefusal)
	case r == nil:
		return condition(metav1.ConditionUnknown, reasonWaiting,
			"the Services of the cluster were not listed yet: existing mirrors are kept")
	case r.removalHeld.Load():
		return condition(metav1.ConditionUnknown, reasonRemovalHeld,
			"most of the mirrored Services have vanished at once: they are removed if the next listing lacks them too")
	case forbidden >= 0:
		return condition(metav1.ConditionFalse, reasonForbidden, results[forbidden].message)
	case t.budget.exhausted(l.Cluster):
		waiting := 0
		for _, result := range results {
			if result.overBudget {
				waiting++
			}
		}
		return condition(metav1.ConditionFalse, reasonTooMany, fmt.Sprintf(
			"%d Services exist here for the cluster, as many as -max-mirrors-per-link allows: they are kept up to "+
				"date, and %d more that the Link selects are not created", t.options.MaxServices, waiting))
	}
	return condition(metav1.ConditionTrue, reasonMirroring, "Services are mirrored as the Link asks")
}

// serviceStatuses returns a list of Services for a Link's status; nil if the present list is equal. Entries
// of other controllers are kept.
func serviceStatuses(
	l *link, results []serviceResult, federated bool, present []links.ServiceStatus,
) []links.ServiceStatus {
	want := []links.ServiceStatus{} // not nil: an empty list must be patched as such
	for _, r := range results {
		if r.federated == federated {
			want = append(want, r.statusEntry(l))
		}
	}
	slices.SortFunc(want, func(a, b links.ServiceStatus) int {
		return cmp.Or(
			strings.Compare(a.RemoteRef.Namespace, b.RemoteRef.Namespace),
			strings.Compare(a.RemoteRef.Name, b.RemoteRef.Name))
	})
	for _, s := range present {
		if s.ControllerName != controllerName {
			want = append(want, s)
			continue
		}
		i := slices.IndexFunc(want, func(o links.ServiceStatus) bool {
			return o.ControllerName == controllerName && o.RemoteRef == s.RemoteRef
		})
		if i >= 0 && len(s.Conditions) == 1 && s.Conditions[0].Status == want[i].Conditions[0].Status {
			want[i].Conditions[0].LastTransitionTime = s.Conditions[0].LastTransitionTime
		}
	}
	if slices.EqualFunc(present, want, sameStatus) {
		return nil
	}
	return want
}

func (r serviceResult) statusEntry(l *link) links.ServiceStatus {
	c := metav1.Condition{
		Type: conditionMirrored, Status: metav1.ConditionFalse, Reason: r.reason, Message: r.message,
		LastTransitionTime: metav1.Now(),
	}
	s := links.ServiceStatus{
		ControllerName: controllerName,
		RemoteRef:      links.ObjectRef{Kind: kindService, Namespace: r.remote.Namespace, Name: r.remote.Name},
	}
	if r.mirrored {
		c.Status = metav1.ConditionTrue
		local := mirrorName(l.Cluster, r.remote)
		if r.federated {
			local = federatedName(r.remote)
		}
		s.LocalRef = &links.ObjectRef{Kind: kindService, Namespace: local.Namespace, Name: local.Name}
	}
	s.Conditions = []metav1.Condition{c}
	return s
}

func sameStatus(a, b links.ServiceStatus) bool {
	sameLocal := a.LocalRef == b.LocalRef || a.LocalRef != nil && b.LocalRef != nil && *a.LocalRef == *b.LocalRef
	return a.ControllerName == b.ControllerName && a.RemoteRef == b.RemoteRef && sameLocal &&
		slices.EqualFunc(a.Conditions, b.Conditions, func(a, b metav1.Condition) bool {
			return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message &&
				a.LastTransitionTime.Equal(&b.LastTransitionTime)
		})
}
