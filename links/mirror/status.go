package mirror

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/internal/words"
	"github.com/fingerpost/fingerpost/links"
)

// The reasons of the condition Mirroring.
const (
	reasonMirroring   = "Mirroring"       // True
	reasonInvalidLink = "InvalidLink"     // False: a field of the Link is invalid; existing mirrors are kept
	reasonForbidden   = "Forbidden"       // False: we lack a permission
	reasonTooMany     = "TooManyServices" // False: the budget of the cluster is used up
	reasonPaced       = "Paced"           // False: more is to be created and deleted than is written at once
	reasonWaiting     = "Waiting"         // Unknown: the cluster was not listed; existing mirrors are kept
	reasonRemovalHeld = "RemovalHeld"     // Unknown: most Services vanished at once; a listing decides
	conditionMirrored = "Mirrored"        // the condition of one Service
	kindService       = "Service"
)

// resultIndex has the results of the last plans. It finds those of a Link, so that a change of one costs what its Link
// has, and not what all Links have.
type resultIndex struct {
	byName     map[api.Key][]serviceResult // of the last plan for a name
	byLink     index[api.Key]              // names
	byHeadless index[api.Key]              // names of results for endpoints, by their remote Service
}

func newResultIndex() *resultIndex { return &resultIndex{byName: map[api.Key][]serviceResult{}} }

// replaceResults replaces the results for a name, and returns the Links that this concerns; none if they are equal.
func (x *resultIndex) replaceResults(name api.Key, results []serviceResult) (concerned []api.Key) {
	old := x.byName[name]
	if slices.Equal(old, results) {
		return nil
	}
	x.byName[name] = results
	if len(results) == 0 {
		delete(x.byName, name)
	}

	x.byLink.put(name, linksOf(results)...)
	var headless []api.Key
	for _, r := range results {
		if r.endpoint != "" {
			headless = append(headless, r.remote)
		}
	}
	x.byHeadless.put(name, headless...)
	return linksOf(slices.Concat(old, results))
}

func linksOf(results []serviceResult) (all []api.Key) {
	for _, r := range results {
		if !slices.Contains(all, r.link) {
			all = append(all, r.link)
		}
	}
	return all
}

// resultsOf returns the results for a Link's Services, sorted.
func (x *resultIndex) resultsOf(link api.Key) (results []serviceResult) {
	for _, name := range x.byLink.dependents(link) {
		for _, r := range x.byName[name] {
			if r.link == link {
				results = append(results, r)
			}
		}
	}

	slices.SortFunc(results, func(a, b serviceResult) int {
		return cmp.Or(strings.Compare(a.remote.Namespace, b.remote.Namespace),
			strings.Compare(a.remote.Name, b.remote.Name), strings.Compare(a.endpoint, b.endpoint),
			strings.Compare(a.reason, b.reason), strings.Compare(a.message, b.message))
	})
	return results
}

// withEndpoints returns the results for Services of those for Services and for endpoints of headless ones, which are
// sorted. A Service whose endpoint is not mirrored is not mirrored either: clients of that endpoint reach nothing.
// While there is no result for a Service there is none for its endpoints.
func withEndpoints(results []serviceResult) (services []serviceResult) {
	refused := map[api.Key][]serviceResult{}
	for _, r := range results {
		switch {
		case r.endpoint == "":
			services = append(services, r)
		case !r.mirrored:
			refused[r.remote] = append(refused[r.remote], r)
		}
	}

	for i := range services {
		s := &services[i]
		if of := refused[s.remote]; len(of) > 0 && s.mirrored && !s.federated {
			s.refuse(of)
		}
	}
	return services
}

// refuse makes r the result for a headless Service of which these endpoints are not mirrored. The first problem counts,
// and begins the message.
func (r *serviceResult) refuse(endpoints []serviceResult) {
	first := endpoints[0]
	r.mirrored, r.reason = false, first.reason
	r.overBudget, r.forbidden = first.overBudget, first.forbidden
	r.message = fmt.Sprintf("%s; so its endpoint %s is not mirrored", first.message, first.endpoint)
	if more := len(endpoints) - 1; more > 0 {
		r.message += fmt.Sprintf(", and %d more are not", more)
	}
}

// reportLink hands over what the status of a Link is to report. The lists of Services are handed over when
// there is a result for each that the Link selects.
func (t *term) reportLink(_ context.Context, k api.Key) error {
	now, _ := t.linkSet.Load()
	t.metrics.keepServices(now)
	link := now.linkNamed(k)
	if link == nil {
		return nil
	}
	t.mu.Lock()
	r, results, localRefusal := t.remotes[link.Cluster], withEndpoints(t.results.resultsOf(k)), t.localRefusal
	t.mu.Unlock()

	t.metrics.setServices(link.Cluster, results)
	t.metrics.setGateway(link, t.gateway(link.Cluster))
	s := links.MirrorStatus{Condition: t.mirroringCondition(link, r, results, localRefusal)}
	if r != nil && link.skipReason == "" && link.Problem == "" {
		s.Unmatched = r.unmatched(link)
		if r.hasAllResults(link, results) {
			s.Services = &links.MirroredServices{
				Mirrored: serviceStatuses(link, results, false), Federated: serviceStatuses(link, results, true),
			}
		}
	}

	t.links.SetMirrorStatus(link.Link, link.UID, s)
	if until := t.paces.pacedUntil(link.Cluster); !until.IsZero() {
		return &apply.Retry{After: time.Until(until), Err: apply.ErrPaced}
	}
	return nil
}

// hasAllResults reports whether there is a result for each Service of the cluster that its Link selects.
func (r *remoteCluster) hasAllResults(l *link, results []serviceResult) bool {
	known := map[bool]map[api.Key]bool{false: {}, true: {}} // by federated
	for _, result := range results {
		known[result.federated][result.remote] = true
	}
	for k, svc := range records(r.Store) {
		set := labels.Set(svc.Labels)
		if l.mirrors(set) && !known[false][k] || l.FederatedServiceSelector.Matches(set) && !known[true][k] {
			return false
		}
	}
	return true
}

// mirrors reports whether a Service with these labels is mirrored for the Link.
func (l *link) mirrors(set labels.Set) bool {
	return l.RemoteDiscoverySelector.Matches(set) || l.Selector.Matches(set)
}

// exportLabels are those by which Services ask to be mirrored, as Linkerd's Links select them.
var exportLabels = []string{linkerd.ExportedLabel, federatedLabel}

// asksForMirror reports whether a Service has one of them.
func asksForMirror(svc *corev1.Service) bool {
	return slices.ContainsFunc(exportLabels, func(key string) bool { return svc.Labels[key] != "" })
}

// unmatched returns the Services of the cluster that have a label by which others are mirrored, and that no selector of
// its Link matches, each with that label; sorted. A typo in its value looks like that.
func (r *remoteCluster) unmatched(l *link) (all []string) {
	for k, svc := range records(r.Store) {
		set := labels.Set(svc.Labels)
		if isMirror(svc) || !asksForMirror(svc.Service) || l.mirrors(set) || l.FederatedServiceSelector.Matches(set) {
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

func (t *term) mirroringCondition(
	link *link, remote *remoteCluster, results []serviceResult, localRefusal string,
) metav1.Condition {
	condition := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{
			Type: links.Mirrors, Status: status, Reason: reason, Message: message, ObservedGeneration: link.Generation,
		}
	}

	gateway := t.gateway(link.Cluster)
	noGateway := slices.IndexFunc(results, func(r serviceResult) bool { return r.noGateway })

	forbidden := slices.IndexFunc(results, func(r serviceResult) bool { return r.forbidden })
	switch {
	case link.skipReason != "":
		return condition(metav1.ConditionFalse, links.LeftToLinkerd, link.skipReason)
	case link.Problem != "":
		return condition(metav1.ConditionFalse, reasonInvalidLink, link.Problem+"; existing mirrors are kept")
	case localRefusal != "":
		return condition(metav1.ConditionFalse, reasonForbidden, localRefusal)
	case remote == nil:
		return condition(metav1.ConditionUnknown, reasonWaiting,
			"the Services of the cluster were not listed yet: existing mirrors are kept")
	case remote.removalHeld.Load():
		return condition(metav1.ConditionUnknown, reasonRemovalHeld,
			"most of the mirrored Services have vanished at once: they are removed if the next listing lacks them too")
	case forbidden >= 0:
		return condition(metav1.ConditionFalse, reasonForbidden, results[forbidden].message+
			"; or set -mirror-services=off")
	case gateway.problem != "" && len(gateway.addresses) > 0:
		return condition(metav1.ConditionFalse, links.GatewayUnresolved, gateway.problem)
	case gateway.problem != "":
		return condition(metav1.ConditionFalse, links.GatewayUnresolved,
			gateway.problem+": the gateway has no address, and Endpoints of mirrors stay as they are")
	case noGateway >= 0:
		return condition(metav1.ConditionFalse, links.GatewayUnresolved, results[noGateway].message)
	case gateway.unprobed != "":
		return condition(metav1.ConditionFalse, links.GatewayNotProbed, gateway.unprobed+
			": Services are mirrored, and the gateway counts as it did before")
	case t.budget.exhausted(link.Cluster):
		waiting := 0
		for _, result := range results {
			if result.overBudget {
				waiting++
			}
		}
		return condition(metav1.ConditionFalse, reasonTooMany, fmt.Sprintf(
			"the cluster has %s here, as many as -max-mirrors-per-link allows: what exists is kept up to "+
				"date, and %d more that the Link selects %s not created",
			words.Count(t.options.MaxServices, "Service"), waiting, words.Are(waiting)))
	}

	if !t.paces.pacedUntil(link.Cluster).IsZero() {
		return condition(metav1.ConditionFalse, reasonPaced, pacedMessage)
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

func (r serviceResult) statusEntry(link *link) links.ServiceStatus {
	condition := links.ServiceCondition{Condition: metav1.Condition{
		Type: conditionMirrored, Status: metav1.ConditionFalse, Reason: r.reason, Message: r.message,
	}}
	entry := links.ServiceStatus{
		ControllerName: controllerName,
		RemoteRef:      links.ObjectRef{Kind: kindService, Namespace: r.remote.Namespace, Name: r.remote.Name},
	}

	if r.mirrored {
		condition.Status = metav1.ConditionTrue
		local := mirrorName(link.Cluster, r.remote)
		if r.federated {
			local = federatedName(r.remote)
		}
		condition.LocalRef = &links.ObjectRef{Kind: kindService, Namespace: local.Namespace, Name: local.Name}
	}
	entry.Conditions = []links.ServiceCondition{condition}
	return entry
}
