// Package object writes objects one by one, for writers that package apply runs: it creates them, applies fields to
// them and deletes them, and knows which fields of an object are ours.
//
//	        none of the name               not as it was applied          not wanted any more
//	want ----------------------> Create ----------------------> Apply ----------------------> Delete
//	                               |                              |                             |
//	                  there is one: ours, or taken      updates are taken over     only as it was read
//
// # Which fields are ours
//
// An [Owner] applies its own fields only, by server-side apply. What others add to an object is theirs, and stays. A
// field that we apply is taken from the manager that owned it.
//
// An object is written if it is not as we have applied it, which follows from two things that are in the object:
//
//   - An annotation is the hash of the configuration that was applied last. So a field that we apply no longer is found
//     as well as one that has another value.
//   - metadata.managedFields lists the fields that we own. A manager that changes one of them takes it from us.
//
// Values are not compared. What an admission webhook makes of a field that we apply leaves that field ours, and is not
// contested; defaults and the order of lists do not matter.
//
// An object is created by Create, which fails if there is one, and not by apply, which would add our fields to
// another's object of that name. Fields that were created, and those that a former writer has updated, are owned by an
// update, and would stay when we apply them no longer. So before the first apply to an object such owners are replaced
// by us: they are found by a label, the Mark.
//
// It costs the annotation, our entry of managedFields in what is kept of each object, and two more requests before the
// first change of each.
//
// # What can fail
//
// Every request is conditional on the version that was read, and on the right to send it ([apply.Permissions]). An
// error concerns the one object: a [apply.MissingPermissions], a conflict, or what the API server has refused.
// [IsRefusal] and [IsResponse] report what that means for this object, and for the next one. Nothing is retried here.
package object
