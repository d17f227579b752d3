package rules

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Levels are what the local cluster has for answers to follow from. Each value is everything of its key that answers
// depend on, and immutable: an answer about a port of a Pod follows from its Workload and the Servers of its namespace,
// one about a Service from its Target. So a change wakes those whose answer it may change, and no others.
//
// An answer is not known before all of them were written once.
type Levels struct {
	Workloads *facts.Table[WorkloadRef, *Workload] // equal ones are one pointer
	Servers   *facts.Table[string, *NamespaceServers]
	Targets   *facts.Table[Reference, *Target] // Services that exist, and EgressNetworks
	Egress    *facts.Table[string, *NamespaceEgress]

	// Findings are of objects that cannot be read, or of which a part has not the effect that it seems to have. People
	// look at them; answers do not depend on them, nor on the next ones.
	Findings *facts.Table[Reference, *ObjectFindings]

	// Statuses are those of routes, rate limits and EgressNetworks.
	Statuses *facts.Table[Reference, *WantedStatus]

	// Unlisted are the resources of which it is not known yet which objects there are, sorted.
	Unlisted watch.Value[[]string]
}

// A WorkloadRef names a Pod or an ExternalWorkload.
type WorkloadRef struct {
	External        bool
	Namespace, Name string
}

// Compare orders WorkloadRefs.
func (r WorkloadRef) Compare(o WorkloadRef) int {
	if r.External != o.External {
		if r.External {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name))
}

// NamespaceServers are the Servers of a namespace, as Of returns them.
type NamespaceServers struct {
	All     []*ServerRules
	Refused []Refused // objects without an effect, in order: for people, and of no answer
}

// Keep has n share with an earlier one what is equal in both, and returns that one if everything is. So a change of a
// Server is none for streams of others, which compare pointers.
func (n *NamespaceServers) Keep(earlier *NamespaceServers) *NamespaceServers {
	if earlier == nil {
		return n
	}

	known := make(map[Reference]*ServerRules, len(earlier.All))
	for _, server := range earlier.All {
		known[server.Reference] = server
	}
	for i, server := range n.All {
		if old := known[server.Reference]; old != nil && reflect.DeepEqual(old, server) {
			n.All[i] = old
		}
	}

	if slices.Equal(n.All, earlier.All) && reflect.DeepEqual(n.Refused, earlier.Refused) {
		return earlier
	}
	return n
}

// NamespaceEgress are the EgressNetworks of a namespace, the oldest first.
type NamespaceEgress struct{ All []*EgressNetwork }

// NewLevels returns Levels of the clusters of a store. It is called before the first cluster is added.
func NewLevels(store *federation.Store) *Levels {
	levels := &Levels{
		Workloads: facts.NewTable("workloads", facts.Options[WorkloadRef, *Workload]{}),
		Servers:   facts.NewTable("server rules", facts.Options[string, *NamespaceServers]{}),
		Targets:   facts.NewTable("targets", facts.Options[Reference, *Target]{}),
		Egress:    facts.NewTable("egress", facts.Options[string, *NamespaceEgress]{}),

		Findings: facts.NewTable("rule findings", facts.Options[Reference, *ObjectFindings]{
			Derived: true,

			Equal: func(a, b *ObjectFindings) bool { return reflect.DeepEqual(a, b) },
		}),
		Statuses: facts.NewTable("rule statuses", facts.Options[Reference, *WantedStatus]{
			Derived: true,

			Equal: func(a, b *WantedStatus) bool { return reflect.DeepEqual(a, b) },
		}),
	}

	for _, table := range []facts.Any{
		levels.Workloads, levels.Servers, levels.Targets, levels.Egress, levels.Findings, levels.Statuses,
	} {
		store.AddTable(table)
	}
	return levels
}

// A LevelsReader reads what one cluster has.
type LevelsReader struct {
	Store     *federation.Store
	Cluster   federation.Cluster
	Workloads *facts.Part[WorkloadRef, *Workload]
	Servers   *facts.Part[string, *NamespaceServers]
	Targets   *facts.Part[Reference, *Target]
	Egress    *facts.Part[string, *NamespaceEgress]
	Addresses *facts.Part[netip.Addr, *federation.Address] // of the Store

	// Findings are of what people ask about: no answer waits for them, or depends on them.
	Findings *facts.Part[Reference, *ObjectFindings]
}

// In returns a reader of what a cluster has. It may be linked later.
func (l *Levels) In(store *federation.Store, c federation.Cluster) LevelsReader {
	return LevelsReader{
		store, c, l.Workloads.In(c), l.Servers.In(c), l.Targets.In(c), l.Egress.In(c), store.Addresses.In(c),
		l.Findings.In(c),
	}
}

// Completeness returns whether everything was written once. What was restored is the last state that was saved.
func (r *LevelsReader) Completeness() facts.Completeness {
	return min(r.Workloads.Completeness(), r.Servers.Completeness(), r.Targets.Completeness(), r.Egress.Completeness(),
		r.Addresses.Completeness())
}

// AllSynced returns whether each kind of fact was written once, as of [facts.Part.Synced].
func (r *LevelsReader) AllSynced() []func() (bool, <-chan struct{}) {
	return []func() (bool, <-chan struct{}){
		r.Workloads.Synced, r.Servers.Synced, r.Targets.Synced, r.Egress.Synced, r.Addresses.Synced,
	}
}

// AddToCompleteness rings a bell when Completeness may have changed, until remove is called.
func (r *LevelsReader) AddToCompleteness(bell *watch.Bell) (remove func()) {
	removes := []func(){
		r.Workloads.AddToSynced(bell), r.Servers.AddToSynced(bell), r.Targets.AddToSynced(bell),
		r.Egress.AddToSynced(bell), r.Addresses.AddToSynced(bell),
	}
	return func() {
		for _, remove := range removes {
			remove()
		}
	}
}

// HasConsumers reports whether clients of a namespace get routes that others do not.
func (t *Target) HasConsumers(namespace string) bool {
	return namespace != t.Namespace && slices.ContainsFunc(t.Attached, func(a Attachment) bool {
		return a.Accepted() && a.Route.Namespace == namespace
	})
}

// Oldest returns the Service that an address stands for if several have it as their cluster IP, as while one takes the
// place of another; nil if there is none.
func Oldest(all []*Target) (oldest *Target) {
	for _, t := range all {
		if t != nil && (oldest == nil || compareCreated(t, oldest) < 0) {
			oldest = t
		}
	}
	return oldest
}

func compareCreated(a, b *Target) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
