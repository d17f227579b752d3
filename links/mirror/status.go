package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/links"
)

// The reasons of the condition Mirroring.
const (
	reasonMirroring   = "Mirroring"       // True
	reasonInvalidLink = "InvalidLink"     // False: a field of the Link is invalid; existing mirrors are kept
	reasonForbidden   = "Forbidden"       // False: we lack a permission
	reasonTooMany     = "TooManyServices" // False: the budget of the cluster is used up
	reasonWaiting     = "Waiting"         // Unknown: the cluster was not listed; existing mirrors are kept
	reasonRemovalHeld = "RemovalHeld"     // Unknown: most Services vanished at once; a listing decides
	conditionMirrored = "Mirrored"        // the condition of one Service
	kindService       = "Service"
)

// resultIndex has the results of the last plans by Link, so that a change of one costs what its Link has, and
// not what all Links have.
type resultIndex struct {
	byName map[api.Key][]serviceResult             // of the last plan for a name
	byLink map[api.Key]map[api.Key][]serviceResult // by Link and name
}

func newResultIndex() *resultIndex {
	return &resultIndex{map[api.Key][]serviceResult{}, map[api.Key]map[api.Key][]serviceResult{}}
}

// set replaces the results for a name, and returns the Links that this concerns; none if they are equal.
func (x *resultIndex) set(name api.Key, results []serviceResult) (concerned []api.Key) {
	old := x.byName[name]
	if slices.Equal(old, results) {
		return nil
	}
	if x.byName[name] = results; len(results) == 0 {
		delete(x.byName, name)
	}
	for _, r := range old {
		if delete(x.byLink[r.link], name); len(x.byLink[r.link]) == 0 {
			delete(x.byLink, r.link)
		}
	}
	for _, r := range results {
		if x.byLink[r.link] == nil {
			x.byLink[r.link] = map[api.Key][]serviceResult{}
		}
		x.byLink[r.link][name] = append(x.byLink[r.link][name], r)
	}
	for _, r := range slices.Concat(old, results) {
		if !slices.Contains(concerned, r.link) {
			concerned = append(concerned, r.link)
		}
	}
	return concerned
}

// resultsOf returns the results for a Link's Services, sorted.
func (x *resultIndex) resultsOf(link api.Key) (results []serviceResult) {
	for _, some := range x.byLink[link] {
		results = append(results, some...)
	}
	slices.SortFunc(results, func(a, b serviceResult) int {
		return cmp.Or(strings.Compare(a.remote.Namespace, b.remote.Namespace),
			strings.Compare(a.remote.Name, b.remote.Name), strings.Compare(a.reason, b.reason),
			strings.Compare(a.message, b.message))
	})
	return results
}

// reportLink hands over what the status of a Link is to report. The lists of Services are handed over when
// there is a result for each that the Link selects.
func (t *term) reportLink(k api.Key) {
	now, _ := t.linkSet.Load()
	l := now.linkNamed(k)
	if l == nil {
		return
	}
	results, complete := t.resultsFor(l)
	s := links.MirrorStatus{Condition: t.mirroringCondition(l, results), Unmatched: t.unmatched(l)}
	if complete {
		s.Services = &links.MirroredServices{
			Mirrored: serviceStatuses(l, results, false), Federated: serviceStatuses(l, results, true),
		}
	}
	t.links.SetMirrorStatus(l.Link, l.UID, s)
}

// resultsFor returns the results for a Link's Services, and whether there is one for each that it selects.
func (t *term) resultsFor(l *link) (results []serviceResult, complete bool) {
	t.mu.Lock()
	r := t.remotes[l.Cluster]
	results = t.results.resultsOf(l.Link)
	t.mu.Unlock()
	known := map[bool]map[api.Key]bool{false: {}, true: {}} // by federated
	for _, result := range results {
		known[result.federated][result.remote] = true
	}
	t.metrics.setServices(l.Cluster, results)
	if r == nil || l.skipReason != "" || l.Problem != "" || !watch.IsClosed(t.ready) {
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

// exportLabels are those by which Services ask to be mirrored, as Linkerd's Links select them.
var exportLabels = []string{linkerd.ExportedLabel, federatedLabel}

// asksForMirror reports whether a Service has one of them.
func asksForMirror(svc *corev1.Service) bool {
	return slices.ContainsFunc(exportLabels, func(key string) bool { return svc.Labels[key] != "" })
}

// selects reports whether a Service with these labels is mirrored for the Link, or a member of a federated one.
func (l *link) selects(set labels.Set) bool {
	return l.RemoteDiscoverySelector.Matches(set) || l.Selector.Matches(set) ||
		l.FederatedServiceSelector.Matches(set)
}

// unmatched returns the Services of a Link's cluster that have a label by which others are mirrored, and that no
// selector of the Link matches, each with that label; sorted. A typo in its value looks like that.
func (t *term) unmatched(l *link) (all []string) {
	t.mu.Lock()
	r := t.remotes[l.Cluster]
	t.mu.Unlock()
	if r == nil || l.skipReason != "" || l.Problem != "" {
		return nil
	}
	for _, k := range r.Keys() {
		svc, found := r.Get(k)
		if !found || isMirror(svc) || !asksForMirror(svc.Service) || l.selects(labels.Set(svc.Labels)) {
			continue
		}
		for _, key := range exportLabels {
			if value := svc.Labels[key]; value != "" {
				all = append(all, fmt.Sprintf("%s (%s=%s)", k, key, value))
			}
		}
	}
	slices.Sort(all)
	r.hasUnmatched.Store(len(all) > 0)
	return all
}

func (t *term) mirroringCondition(l *link, results []serviceResult) metav1.Condition {
	t.mu.Lock()
	r, localRefusal := t.remotes[l.Cluster], t.localRefusal
	t.mu.Unlock()
	condition := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{
			Type: links.Mirrors, Status: status, Reason: reason, Message: message, ObservedGeneration: l.Generation,
		}
	}
	forbidden := slices.IndexFunc(results, func(r serviceResult) bool {
		return strings.HasPrefix(r.message, noPermissionPrefix)
	})
	switch {
	case l.skipReason != "":
		return condition(metav1.ConditionFalse, links.LeftToLinkerd, l.skipReason)
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

// serviceStatuses returns a list of Services for a Link's status.
func serviceStatuses(l *link, results []serviceResult, federated bool) (list []links.ServiceStatus) {
	for _, r := range results {
		if r.federated == federated {
			list = append(list, r.statusEntry(l))
		}
	}
	return list
}

func (r serviceResult) statusEntry(l *link) links.ServiceStatus {
	c := metav1.Condition{
		Type: conditionMirrored, Status: metav1.ConditionFalse, Reason: r.reason, Message: r.message,
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
