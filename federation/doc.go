// Package federation is the domain: what every cluster publishes about its Services, and what follows
// from it for a client.
//
//	ClusterWriter --Set, Delete, MarkSynced--> Store --Watch--> Snapshot --Select--> Selection
//	Selection --Answer--> Answer --Diff--> what to send
//
// Each cluster has one [ClusterWriter], which writes one [View] per Service. The [Store] keeps the Views
// per cluster. A [Snapshot] is one Service at one version: its [Composition] resolved to members, each
// with its View by pointer. Nothing is merged in it. That is for readers: [Select] applies port and
// hostname, [Selection.Answer] the client's place, and the [Answer] has a [Set] of addresses that [Diff]
// compares with the one that was sent before. A [Division] is each cluster's part of the traffic, before a client's
// bucket, or the rounding of slices, takes endpoints for it.
//
// What clients ask for besides Services is a fact that only the local cluster has, written by the same
// writer: the zone of a node, what is at an IP, a ServiceProfile. Facts are Tables of the Store, one
// level per key, and follow the laws of Views.
//
// Everything that is returned is immutable and shared by pointer. The package uses no clock, no logger,
// no goroutine, no Kubernetes and no gRPC, and imports nothing but the standard library.
//
// The laws, each a property test:
//
//   - replay: applying every Diff that a reader gets, at any pace, gives the newest Set.
//   - purity: the same Views, in whatever order they were written, give an equal Set.
//   - absence: after RemoveCluster(c) the Store equals one to which c was never added.
//   - succession: between NewWriter and MarkSynced nothing disappears.
//   - reference count: an address stays until the last selected claim to it is removed.
//   - silence: a write that changes nothing wakes no reader.
//   - immutability: what was returned never changes.
//   - empty: no Views and no watchers, no records.
//   - one answer: the State and the Set of an Answer follow from one Snapshot.
//   - ignorance: unknown is not empty. A cluster that was added and never synced is unknown; so is every
//     cluster before all linked ones were added ([Store.MarkClustersListed]).
package federation
