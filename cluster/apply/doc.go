// Package apply is the engine of everything that writes into a cluster: EndpointSlices, mirror Services, the
// status of Links and of routes. A writer decides what should exist, by a function of what it reads; the engine decides
// when that function is called, and what happens when a request fails.
//
//	Registry --Engage--> Campaign --lease.Elector--> term --> Task --> Loop --> requests
//	                     one cluster                 one at a time
//
// A [Campaign] campaigns for a Lease in each engaged cluster, and runs the [Task]s that share it in each of its
// terms. A task that lacks a permission waits for it without the others. A [Loop] is how a task works: it reads
// its inputs completely, then calls Reconcile for each key, and again whenever something bears on that key. Rights are
// those of [Permissions]; package object writes what Reconcile wants, and package status reports it in the objects of
// others.
//
// # The laws of writing
//
// Each is tested, by scenarios or by the test that is named here.
//
//   - Nothing is sent after the fence of a term (package lease), and nothing of a term outlasts it.
//   - Unknown is not empty: a Loop reconciles nothing before each of its inputs was listed (TestNothingBeforeSync),
//     and what a cluster that was never synced has written for it stays as it is.
//   - Level-triggered: what exists when the queue is empty follows from the inputs alone (TestLoopFollows).
//   - Equal is not written.
//   - What another writer wrote is not touched.
//   - A refused object stops no other (TestFailureStopsNoOtherKey).
//   - What one linked cluster causes has a pace, and what it wants in the end is written ([Pace]).
//   - Removals and updates, which withdraw dead endpoints, go before creations.
//   - What a mass removal would withdraw stays until a second reading confirms it (package federation/policy).
//
// # What need not be written
//
// Because a term begins with complete listings and reconciles every key, there is no code for what happened
// before the term, for what others wrote, or for resuming a write that failed half-way. Because an event carries
// no data, there is none for the order of events. Because Snapshots are levels, there is none for subscribing to
// members. It costs the listings at the beginning of each term.
package apply
