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

	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/links"
)

// Mirroring is the condition of a Link that says whether its Services are written from here.
const Mirroring = "Mirroring"

// The reasons of the condition Mirroring.
const (
	reasonMirroring     = "Mirroring"       // True: as the Link asks
	reasonLeftToLinkerd = "LeftToLinkerd"   // False: Linkerd's service mirror does it, or may
	reasonInvalidLink   = "InvalidLink"     // False: the Link cannot be read; what is there is kept
	reasonForbidden     = "Forbidden"       // False: we lack a right
	reasonWaiting       = "Waiting"         // Unknown: the cluster was not heard; what is there is kept
	reasonTooMany       = "TooManyServices" // False: there are as many Services for the cluster as there may be; no more are made
	reasonRemovalHeld   = "RemovalHeld"     // Unknown: most Services have vanished at once; the next listing decides
	conditionMirrored   = "Mirrored"        // the condition of one Service
	kindService         = "Service"         // kind of what stands for it
)

// tell writes into a Link what became of its Services, as far as that has changed.
func (t *term) updateLinkStatus(ctx context.Context, k records.Key) (reconcile.Result, error) {
	now, _ := t.linkSet.Load()
	i := slices.IndexFunc(now.links, func(l *link) bool { return l.Link == k })
	if i < 0 {
		return reconcile.Result{}, nil
	}
	l := now.links[i]
	verdicts, complete := t.resultsFor(l)
	condition := t.mirroringCondition(l, verdicts)
	status := map[string]any{}
	t.mu.Lock()
	mute := t.conditionsUnsupported[l.UID]
	t.mu.Unlock()
	if old := meta.FindStatusCondition(l.Conditions, Mirroring); !mute && (old == nil || old.Status != condition.Status || old.Reason != condition.Reason ||
		old.Message != condition.Message || old.ObservedGeneration != condition.ObservedGeneration) {
		conditions := slices.Clone(l.Conditions)
		meta.SetStatusCondition(&conditions, condition)
		status["conditions"] = conditions
	}
	if complete {
		if list := serviceStatuses(l, verdicts, false, l.MirrorServices); list != nil {
			status["mirrorServices"] = list
		}
		if list := serviceStatuses(l, verdicts, true, l.FederatedServices); list != nil {
			status["federatedServices"] = list
		}
	}
	if len(status) == 0 {
		return reconcile.Result{}, nil
	}
	return t.patchStatus(ctx, l, status)
}

func (t *term) patchStatus(ctx context.Context, l *link, status map[string]any) (reconcile.Result, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": l.UID, "resourceVersion": l.ResourceVersion}, "status": status})
	if err != nil {
		return reconcile.Result{}, err
	}
	back, err := t.dynamic.Resource(l.Resource).Namespace(l.Link.Namespace).
		Patch(ctx, l.Link.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	t.metrics.countWrite("links/status", "patch", err)
	switch {
	case ctx.Err() != nil, apierrors.IsNotFound(err): // whoever comes next tells it; or it is gone, or served without status
		return reconcile.Result{}, nil //nolint:nilerr // as said
	case apierrors.IsConflict(err): // a newer one brings us back
		return reconcile.Result{RequeueAfter: 2 * statusDelay}, nil
	case apierrors.IsForbidden(err):
		t.log.Info("The status of Links cannot be written: grant patch on links/status in "+links.Group, "link", l.Link.String(), "error", err.Error())
		return reconcile.Result{RequeueAfter: permissionRetry}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("status of Link %s: %w", l.Link, err)
	}
	if _, asked := status["conditions"]; asked && !hasCondition(back, Mirroring) { // the schema drops it
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

// verdictsOf returns the verdicts about a Link's Services, and whether there is one about each that it asks for: as long as there is
// not, its lists of Services stay as they are.
func (t *term) resultsFor(l *link) (verdicts []serviceResult, complete bool) {
	t.mu.Lock()
	r := t.remotes[l.Cluster]
	told := map[bool]map[records.Key]bool{false: {}, true: {}}
	for _, about := range t.results {
		for _, v := range about {
			if v.link == l.Link {
				verdicts = append(verdicts, v)
				told[v.federated][v.remote] = true
			}
		}
	}
	t.mu.Unlock()
	t.metrics.setServices(l.Cluster, verdicts)
	if r == nil || l.skipReason != "" || l.Problem != "" || !isClosed(t.ready) {
		return verdicts, false
	}
	for _, k := range r.Keys() {
		svc, found := r.Get(k)
		if !found {
			continue
		}
		set := labels.Set(svc.Labels)
		if (l.RemoteDiscoverySelector.Matches(set) || l.Selector.Matches(set)) && !told[false][k] || l.FederatedServiceSelector.Matches(set) && !told[true][k] {
			return verdicts, false
		}
	}
	return verdicts, true
}

func (t *term) mirroringCondition(l *link, verdicts []serviceResult) metav1.Condition {
	t.mu.Lock()
	r, blocked := t.remotes[l.Cluster], t.localRefusal
	t.mu.Unlock()
	c := metav1.Condition{Type: Mirroring, Status: metav1.ConditionFalse, ObservedGeneration: l.Generation}
	forbidden := slices.IndexFunc(verdicts, func(v serviceResult) bool { return strings.HasPrefix(v.message, noPermissionPrefix) })
	switch {
	case l.skipReason != "":
		c.Reason, c.Message = reasonLeftToLinkerd, l.skipReason
	case l.Problem != "":
		c.Reason, c.Message = reasonInvalidLink, l.Problem+"; what is there is kept"
	case blocked != "":
		c.Reason, c.Message = reasonForbidden, blocked
	case r == nil:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, reasonWaiting, "the cluster was not heard yet: what is there is kept"
	case r.removalHeld.Load():
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, reasonRemovalHeld, "most of the Services that are mirrored have vanished at once: they are removed if the next listing lacks them too"
	case forbidden >= 0:
		c.Reason, c.Message = reasonForbidden, verdicts[forbidden].message
	case t.budget.exhausted(l.Cluster):
		refused := 0
		for _, v := range verdicts {
			if v.overBudget {
				refused++
			}
		}
		c.Reason, c.Message = reasonTooMany, fmt.Sprintf("%d Services stand here for the cluster, as many as -max-mirrors-per-link allows: "+
			"they are kept up to date, and %d more that the Link selects are not made", t.options.MaxServices, refused)
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonMirroring, "Services are mirrored as the Link asks"
	}
	return c
}

// statuses returns the list of Services as it should stand in a Link; nil if it does already. Those of other controllers are kept.
func serviceStatuses(l *link, verdicts []serviceResult, federated bool, is []links.ServiceStatus) []links.ServiceStatus {
	want := []links.ServiceStatus{} // an empty list must be written as such, or the last Service would stay
	for _, v := range verdicts {
		if v.federated == federated {
			want = append(want, v.statusEntry(l))
		}
	}
	slices.SortFunc(want, func(a, b links.ServiceStatus) int {
		return cmp.Or(strings.Compare(a.RemoteRef.Namespace, b.RemoteRef.Namespace), strings.Compare(a.RemoteRef.Name, b.RemoteRef.Name))
	})
	for i, s := range is {
		if s.ControllerName != controllerName {
			want = append(want, is[i])
			continue
		}
		j := slices.IndexFunc(want, func(o links.ServiceStatus) bool {
			return o.ControllerName == controllerName && o.RemoteRef == s.RemoteRef
		})
		if j >= 0 && len(s.Conditions) == 1 && s.Conditions[0].Status == want[j].Conditions[0].Status {
			want[j].Conditions[0].LastTransitionTime = s.Conditions[0].LastTransitionTime
		}
	}
	if slices.EqualFunc(is, want, sameStatus) {
		return nil
	}
	return want
}

func (v serviceResult) statusEntry(l *link) links.ServiceStatus {
	c := metav1.Condition{Type: conditionMirrored, Status: metav1.ConditionFalse, Reason: v.reason, Message: v.message, LastTransitionTime: metav1.Now()}
	s := links.ServiceStatus{ControllerName: controllerName, RemoteRef: links.ObjectRef{Kind: kindService, Namespace: v.remote.Namespace, Name: v.remote.Name}}
	if v.mirrored {
		c.Status = metav1.ConditionTrue
		name := v.remote.Name + "-" + l.Cluster
		if v.federated {
			name = v.remote.Name + federatedSuffix
		}
		s.LocalRef = &links.ObjectRef{Kind: kindService, Namespace: v.remote.Namespace, Name: name}
	}
	s.Conditions = []metav1.Condition{c}
	return s
}

func sameStatus(a, b links.ServiceStatus) bool {
	return a.ControllerName == b.ControllerName && a.RemoteRef == b.RemoteRef && (a.LocalRef == nil) == (b.LocalRef == nil) &&
		(a.LocalRef == nil || *a.LocalRef == *b.LocalRef) && slices.EqualFunc(a.Conditions, b.Conditions, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message && a.LastTransitionTime.Equal(&b.LastTransitionTime)
	})
}
