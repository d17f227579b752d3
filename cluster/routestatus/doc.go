// Package routestatus writes the status of routes, rate limits and EgressNetworks into the local cluster, as Linkerd's
// policy controller does, and under the same Lease: two never write.
//
//	rules.Levels.Statuses --level of an object--> plan --> differs from what is shown? --> merge patch of the status
//	informers, on the watches of package ruleset --'           (package apply/status)
//
// It decides nothing: what a status should have follows from what answers follow from, in package rules. Here is how
// that looks in an object, and beside what others have written there.
//
// What it keeps true, besides the laws of package apply/status:
//
//   - Entries of other controllers, and conditions of other types, stay as they were read, and come first. A patch
//     names the resourceVersion that was read: what another writes meanwhile makes it a conflict, not a loss.
//   - There is one entry of ours for each parent, in their order. One whose parent is gone goes.
//   - A time of transition moves when the status of that condition does, and with nothing else.
//   - Nothing is written that was computed for another generation of the object.
//
// Statuses are untrusted. One that takes too much memory is not kept, nor written, and is reported.
package routestatus
