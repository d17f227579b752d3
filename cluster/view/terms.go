package view

import (
	"net/netip"
	"slices"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/profile"
)

// The terms of what is published, and optional kinds that could not be listed.
//
// A cluster is synced without its optional kinds, after some seconds. One that the API server does not serve has no
// objects. Of one that it fails to list, or that we may not read, it is not known which there are; and what was
// published before, by the engagement that this one replaces or from a checkpoint, is better than nothing. So each
// Table of facts has a term, which ends once the kinds that feed it are listed, or known to be absent:
//
//	Views        Services, EndpointSlices, Pods: they are required, so it ends with Begin
//	addresses    Services, Pods, ExternalWorkloads
//	nodes        Nodes
//	profiles     ServiceProfiles
//	externals    ExternalWorkloads
//	servers      Servers
//
// Until then a Table keeps what it had. The last two are published for the Reconciler itself: what endpoints take from
// an ExternalWorkload or a Server stands in Views, whose term does not wait. It begins with what these Tables have, and
// when their terms end it reconciles what was not found again.
//
// Not kept are the owners of Pods, which only labels of metrics name.

// factWriters are those of the Tables that a Reconciler feeds.
type factWriters struct {
	published *federation.Facts

	nodes     *facts.Writer[string, federation.Node]
	addresses *facts.Writer[netip.Addr, *federation.Address]
	profiles  *facts.Writer[federation.Service, *profile.Profile]
	externals *facts.Writer[federation.Service, federation.External]
	servers   *facts.Writer[federation.Service, federation.OpaqueServer]

	terms []term // those that have not ended
}

// A term is that of one Table.
type term struct {
	fedBy []objectKind
	end   func()
}

// beginTerms begins a term of each Table. It precedes what is read.
func (r *Reconciler) beginTerms(published *federation.Facts, unlisted []Input) {
	for _, k := range unlisted {
		r.unlisted[k.of] = true
	}

	writers := &r.facts
	writers.published = published

	writers.externals = published.Externals.NewWriter(r.cluster)
	writers.servers = published.Servers.NewWriter(r.cluster)
	writers.terms = []term{
		{[]objectKind{kindExternal}, func() { endTerm(r, kindExternal, writers.externals) }},
		{[]objectKind{kindServer}, func() { endTerm(r, kindServer, writers.servers) }},
	}

	if r.options.Local {
		writers.nodes = published.Nodes.NewWriter(r.cluster)
		writers.addresses = published.Addresses.NewWriter(r.cluster)
		writers.profiles = published.Profiles.NewWriter(r.cluster)
		writers.terms = append(writers.terms,
			term{[]objectKind{kindNode}, writers.nodes.MarkSynced},
			term{[]objectKind{kindProfile}, writers.profiles.MarkSynced},
			term{[]objectKind{kindService, kindPod, kindExternal}, writers.addresses.MarkSynced},
		)
	}

	if r.unlisted[kindExternal] {
		r.restoreExternals()
	}
	if r.unlisted[kindServer] {
		r.restoreServers()
	}
}

// restoreExternals begins with the ExternalWorkloads that were published before.
func (r *Reconciler) restoreExternals() {
	for name, e := range r.facts.published.Externals.All(r.cluster) {
		r.workloads[kindExternal].Put(key(name), &workloadState{workload: e.Workload, node: e.Node})
	}
}

// restoreServers begins with the Servers that were published before. One that cannot be read is as good as gone.
func (r *Reconciler) restoreServers() {
	for name, f := range r.facts.published.Servers.All(r.cluster) {
		if s, err := publishedServer(f); err == nil {
			r.appliedServers.Put(key(name), s)
		}
	}
}

// endTerms ends the terms of Tables all of whose kinds are listed.
func (r *Reconciler) endTerms() {
	r.facts.terms = slices.DeleteFunc(r.facts.terms, func(t term) bool {
		isUnlisted := func(of objectKind) bool { return r.unlisted[of] }
		if slices.ContainsFunc(t.fedBy, isUnlisted) {
			return false
		}
		t.end()
		return true
	})
}

// endTerm reconciles what was published before and not in this term, which depends on one kind, and ends the term.
func endTerm[V comparable](r *Reconciler, of objectKind, table *facts.Writer[federation.Service, V]) {
	for _, name := range table.Unwritten() {
		r.reconcileObject(objectRef{of, key(name)})
	}
	table.MarkSynced()
}

// Listed ends what Begin has kept for a kind, which is listed by now, or known to be absent.
func (r *Reconciler) Listed(k Input) { r.queue.Add(objectRef{kindListed, key{Name: k.Name}}) }

func (r *Reconciler) reconcileListed(name string) {
	at := slices.IndexFunc(r.inputs, func(k Input) bool { return k.Name == name })
	delete(r.unlisted, r.inputs[at].of)
	r.endTerms()
}
