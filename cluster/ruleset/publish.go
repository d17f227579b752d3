package ruleset

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fingerpost/fingerpost/cluster/ruleobject"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// tables are the writers of the Tables that a Reconciler feeds, and their terms.
type tables struct {
	workloads *facts.Writer[rules.WorkloadRef, *rules.Workload]
	servers   *facts.Writer[string, *rules.NamespaceServers]
	targets   *facts.Writer[rules.Reference, *rules.Target]
	egress    *facts.Writer[string, *rules.NamespaceEgress]
	findings  *facts.Writer[rules.Reference, *rules.ObjectFindings]
	statuses  *facts.Writer[rules.Reference, *rules.WantedStatus]

	terms []term // those that have not ended
}

// A term is that of one Table.
type term struct {
	table any // the writer
	fedBy []rules.Kind
	end   func()
}

// Which kinds feed a Table, besides those of routes.
var (
	workloadKinds = []rules.Kind{rules.KindPod, rules.KindExternalWorkload}
	serverKinds   = []rules.Kind{
		rules.KindServer, rules.KindServerAuthorization, rules.KindAuthorizationPolicy,
		rules.KindMeshTLSAuthentication, rules.KindNetworkAuthentication, rules.KindRateLimit,
	}
	targetKinds = []rules.Kind{rules.KindService, rules.KindEgressNetwork}
	egressKinds = []rules.Kind{rules.KindEgressNetwork}
)

// beginTerms begins a term of each Table.
func (r *Reconciler) beginTerms() {
	tables := &r.tables
	tables.workloads = r.levels.Workloads.NewWriter(r.cluster)
	tables.servers = r.levels.Servers.NewWriter(r.cluster)
	tables.targets = r.levels.Targets.NewWriter(r.cluster)
	tables.egress = r.levels.Egress.NewWriter(r.cluster)
	tables.findings = r.levels.Findings.NewWriter(r.cluster)
	tables.statuses = r.levels.Statuses.NewWriter(r.cluster)

	var routeKinds, allKinds []rules.Kind
	for _, i := range r.inputs {
		allKinds = append(allKinds, i.of)
		if i.of.IsRoute() {
			routeKinds = append(routeKinds, i.of)
		}
	}

	tables.terms = []term{
		{tables.workloads, workloadKinds, tables.workloads.MarkSynced},
		{tables.servers, slices.Concat(serverKinds, routeKinds), tables.servers.MarkSynced},
		{tables.targets, slices.Concat(targetKinds, routeKinds), tables.targets.MarkSynced},
		{tables.egress, egressKinds, tables.egress.MarkSynced},
		{tables.findings, allKinds, tables.findings.MarkSynced},
		{tables.statuses, allKinds, tables.statuses.MarkSynced},
	}
}

// isComplete reports whether everything that feeds a Table is listed: before, what follows from a part of it would
// withdraw what follows from the rest.
func (r *Reconciler) isComplete(table any) bool {
	for _, t := range r.tables.terms {
		if t.table == table {
			return !r.isUnlisted(t)
		}
	}
	return true // its term has ended
}

func (r *Reconciler) isUnlisted(t term) bool {
	return slices.ContainsFunc(t.fedBy, func(k rules.Kind) bool { return r.unlisted[k] })
}

// publishUnlisted publishes which kinds are not listed.
func (r *Reconciler) publishUnlisted() {
	var names []string
	for _, i := range r.inputs {
		if r.unlisted[i.of] {
			names = append(names, i.Resource.GroupResource().String())
		}
	}
	slices.Sort(names)
	r.levels.Unlisted.Store(names)
}

// endTerms ends the terms of Tables all of whose kinds are listed.
func (r *Reconciler) endTerms() {
	r.tables.terms = slices.DeleteFunc(r.tables.terms, func(t term) bool {
		if r.isUnlisted(t) {
			return false
		}
		t.end()
		return true
	})
}

// publishServers publishes what follows for the Servers of a namespace.
func (r *Reconciler) publishServers(of string) {
	if !r.isComplete(r.tables.servers) {
		r.dirty.servers[of] = true
		return
	}

	objects := r.namespaces[of]
	if objects == nil || len(objects.servers) == 0 {
		r.tables.servers.Delete(of)
		return
	}

	domains, _ := r.clusters.TrustDomains()
	routes := map[*rules.Route]bool{}
	for name := range objects.servers {
		server := rules.Reference{Kind: rules.KindServer, Namespace: of, Name: name}
		for _, a := range r.attached[server] {
			routes[a.Route] = true
		}
	}

	now := r.options.Of(&rules.NamespaceObjects{
		Servers: values(objects.servers), ServerAuthorizations: values(objects.authorizations),
		Policies: values(objects.policies), RateLimits: values(objects.limits),
		TrustDomains: domains, Routes: slices.Collect(maps.Keys(routes)),

		MeshTLS:  func(of rules.Reference) *rules.MeshTLSAuthentication { return r.mesh[of] },
		Networks: func(of rules.Reference) *rules.NetworkAuthentication { return r.networks[of] },
	})
	before, _ := r.tables.servers.Get(of)
	r.tables.servers.Set(of, now.Keep(before))
}

// publishTarget publishes a Service or an EgressNetwork, with what attaches to it.
func (r *Reconciler) publishTarget(of rules.Reference) {
	if !r.isComplete(r.tables.targets) {
		r.dirty.targets[of] = true
		return
	}

	target := &rules.Target{}
	switch value := r.values[of].(type) {
	case *ruleobject.Service:
		*target = value.Target
	case *rules.EgressNetwork:
		*target = rules.Target{
			Reference: of, Created: value.Created, Exists: true, Settings: value.Settings, Deny: value.Deny,
		}
	default:
		r.tables.targets.Delete(of)
		return
	}

	target.Attached = r.attached[of]
	target.Found = map[rules.Reference]bool{}
	for _, a := range target.Attached {
		for i := range a.Route.Rules {
			for _, b := range a.Route.Rules[i].Backends {
				if r.exists(b.Reference) {
					target.Found[b.Reference] = true
				}
			}
		}
	}
	r.tables.targets.Set(of, target)
}

func (r *Reconciler) attachedTo(parent rules.Reference) []rules.Attachment { return r.attached[parent] }

// exists reports whether there is a Service.
func (r *Reconciler) exists(of rules.Reference) bool {
	_, is := r.values[of].(*ruleobject.Service)
	return is
}

// find reports whether there is a Service, and why it leads nowhere: those that it stands for are in clusters that are
// not linked, or there are none.
func (r *Reconciler) find(of rules.Reference) (exists bool, nowhere string) {
	service, exists := r.values[of].(*ruleobject.Service)
	if !exists || !service.StandsForOthers() {
		return exists, ""
	}
	if len(service.Clusters) == 0 {
		return true, fmt.Sprintf("Service %s/%s has no members", of.Namespace, of.Name)
	}

	membership, _ := r.clusters.Membership()
	var unlinked []string
	for _, c := range service.Clusters {
		if c == r.cluster || membership.Of(c) != federation.StateUnlinked {
			return true, ""
		}
		unlinked = append(unlinked, string(c))
	}
	return true, fmt.Sprintf("Service %s/%s stands for others, in clusters that are not linked: %s",
		of.Namespace, of.Name, strings.Join(unlinked, ", "))
}

func (r *Reconciler) publishEgress(of string) {
	n := r.namespaces[of]
	switch {
	case !r.isComplete(r.tables.egress):
		r.dirty.egress[of] = true
	case n == nil || len(n.egress) == 0:
		r.tables.egress.Delete(of)
	default:
		all := values(n.egress)
		slices.SortFunc(all, func(a, b *rules.EgressNetwork) int { return rules.CompareAge(&a.Meta, &b.Meta) })
		r.tables.egress.Set(of, &rules.NamespaceEgress{All: all})
	}
}

// publishStatus publishes the status that an object should have.
func (r *Reconciler) publishStatus(of rules.Reference) {
	if !r.isComplete(r.tables.statuses) {
		r.dirty.statuses[of] = true
		return
	}
	if status := r.statusOf(of); status != nil {
		r.tables.statuses.Set(of, status)
	} else {
		r.tables.statuses.Delete(of)
	}
}

func (r *Reconciler) statusOf(of rules.Reference) *rules.WantedStatus {
	switch value := r.values[of].(type) {
	case *rules.Route:
		return &rules.WantedStatus{
			Generation: value.Generation, Partial: value.Partial(),
			Parents: rules.StatusOf(value, r.attachedTo, r.find),
		}
	case *rules.EgressNetwork:
		return &rules.WantedStatus{Generation: value.Generation, Verdict: r.options.StatusOfEgress(value)}
	case *rules.RateLimit:
		limits := values(r.namespaces[of.Namespace].limits)
		verdict, has := rules.StatusOfLimits(limits, func(server rules.Reference) bool {
			return r.values[server] != nil
		})[value]
		if has {
			target := rules.Reference{Kind: rules.KindServer, Namespace: of.Namespace, Name: value.Server}
			return &rules.WantedStatus{Generation: value.Generation, Target: target, Verdict: verdict}
		}
	}
	return nil
}

// setFindings publishes what is wrong with an object, and logs why it cannot be read when that has changed.
func (r *Reconciler) setFindings(of rules.Reference, found record) {
	now := &rules.ObjectFindings{Unreadable: found.unreadable}
	switch value := found.value.(type) {
	case *rules.Workload:
		now.Findings = value.Findings
	case *ruleobject.Service:
		now.Findings = value.Findings
	case interface{ Metadata() *rules.Meta }:
		now.Findings, now.More = value.Metadata().Findings, value.Metadata().MoreFindings
	}

	old, _ := r.tables.findings.Get(of)
	if old == nil {
		old = &rules.ObjectFindings{}
	}
	r.logFindings(of, old, now)
	if now.Unreadable == "" && len(now.Findings) == 0 {
		r.tables.findings.Delete(of)
	} else {
		r.tables.findings.Set(of, now)
	}
}

// logFindings logs what is wrong with an object if that differs, and that it is well again.
func (r *Reconciler) logFindings(of rules.Reference, old, now *rules.ObjectFindings) {
	before, after := old.Problem(), now.Problem()
	log := r.log.WithValues("kind", of.Kind.String(), "group", of.Kind.Group(),
		"object", of.Namespace+"/"+of.Name)
	switch {
	case before == after || of.Kind == rules.KindPod: // each Pod of a template would be a line
	case after != "":
		log.Info("Parts of an object of policy cannot be used", "reason", after)
	default:
		log.Info("An object of policy can be used as a whole again")
	}
}
