// Package facts holds what clusters write besides Views: one [Table] for each kind of fact, as the zones of nodes or
// the ServiceProfiles.
//
// A Table answers two questions: what has this cluster written of this kind, and is that all? Facts follow the laws of
// Views. They stay until a new writer has written everything, so that taking over leaves no gap; a writer that was
// replaced changes nothing; an equal value wakes no reader; a cluster that is unlinked leaves nothing.
//
// Each Table has terms of its own. One ends when its writer states that everything was written, which is when the kinds
// of objects that feed it are listed, or known to be absent. A kind that cannot be listed therefore withdraws nothing:
// what follows from it stays as it was written in the term before, or restored from a checkpoint, and the other Tables
// go on. Example: a cluster has nodes n and m when its credentials change, and the new ones may not list nodes. The new
// writer of the Table of nodes writes nothing and its term does not end, so n and m stay. Once nodes are listed, n is
// written, MarkSynced deletes m.
package facts
