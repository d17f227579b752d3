// Package status writes the status of objects whose spec belongs to others: of Links, of routes, and of any kind that a
// writer reports about. One field manager writes its part, under a Lease, and leaves the parts of others as they are.
//
//	objects, and what is to be reported --Enqueue--> Writer: Wanted --> differs from what is shown? --> apply
//	                                       ^                                                              |
//	                                       '-- each minute ---- refused, contested, paced: asked again ---'
//
// # What a Writer keeps true
//
//   - The status of an object is what the holder of the Lease computes: a level. Whatever contradicts it in the API is
//     applied anew: when the watch shows the object, when the computed part changes, and each minute. So what a former
//     holder left, or another client wrote, needs no code of its own.
//   - What is equal is not written. What counts as equal is the business of [Status]: times do not.
//   - Every apply names the resourceVersion that was read, and one that is too late is a conflict. So entries of others
//     in a list that the API server knows as one value are read and applied again, and never lost.
//   - What is not wanted any more is left out, and vanishes: because this field manager applied it, or because all of a
//     list is replaced, where an API server knows lists as one value (Config.Merges).
//   - A field that the schema lacks silences no other one (undeclared.go).
//   - An API server that refuses a status, or stores another one, is not asked again with the same status for 10
//     minutes, or before another version of the API is served.
//   - However fast what is wanted changes, one object is written 10 times in 10 s at most, and the last time with what
//     is wanted then.
//   - Two writers do not fight as fast as the API server answers: what was applied, and another has replaced, is
//     contested, and applied again once a second.
//   - A write of ours causes no work but one comparison of that object.
//
// A failure concerns one object, unless it is for want of a right that all need (Config.Needs). It is retried after
// 200 ms, and ever more rarely, up to a minute apart.
package status
