// Package federation is the domain: what every cluster says about its Services, and what follows from it for a client.
//
//	Claims --Set, Delete, Complete--> Store --Watch--> Snapshot --Select--> Selection --Answer--> Answer --Diff--> what to send
//
// A cluster speaks for itself only, through one [Claims] handle, and says one [View] per Service. The [Store] keeps the Views
// per cluster. A [Snapshot] is one Service at one version: its [Composition] resolved to members, each with its View by
// pointer. Nothing is merged in it; that is the reader's business: [Select] applies port and hostname, [Selection.Answer] the
// client's place, and the [Answer] has a [Set] of addresses that [Diff] compares with the one sent before.
//
// What clients ask besides Services is a fact that only the local cluster states, through the same handle: the zone of a node, who is at an
// IP, a ServiceProfile. Facts are Tables of the Store, one level a key, and follow the laws of claims.
//
// Everything handed out is immutable and shared by pointer. The package knows no clock, no logger, no goroutine, no Kubernetes
// and no gRPC, and imports nothing but the standard library.
//
// The laws, each a property test:
//
//   - replay: applying every Diff a reader gets, at any pace, gives the newest Set.
//   - purity: the same claims, in whatever order they arrived, give an equal Set.
//   - absence: after Forget(c) the Store equals one that never heard of c.
//   - succession: between Claim and Complete nothing disappears.
//   - reference count: an address stays until the last selected claim to it is withdrawn.
//   - silence: a write that changes nothing wakes nobody.
//   - immutability: what was handed out never changes.
//   - empty: no claims and no watchers, no records.
//   - one answer: the State and the Set of an Answer follow from one Snapshot.
//   - ignorance: unknown is never told as empty. A cluster that is expected and has not been heard is unknown; so is every
//     cluster before the list of clusters is known ([Store.Listed]).
package federation
