// Package mirror writes the Services that Links ask for into the local cluster, as Linkerd's service mirror
// does.
//
//	Links, Services of linked clusters, local Services
//	      |
//	      | inputs
//	      v
//	    Plan (pure) ---> one Service and its Endpoints ---> create, apply, delete in the local cluster
//	      |
//	      '-----------> results, one for each Link that asks ---> links.MirrorStatus
//
// The rules:
//
//   - A key is the name of one local object. What it should be follows from the present state, never from
//     the event that enqueued it.
//   - Unknown is not empty: a cluster that was not listed, or is out of contact, keeps its mirrors and
//     memberships. So does a Service that its cluster has withdrawn for as long as clients are given it.
//   - Only objects with Linkerd's label of a mirror are changed or deleted. A user's Service of the same
//     name stays as it is.
//   - Endpoints are deleted before their Service, and like one if they are there without it.
//   - What was written for a Link is deleted with it. A Link that we never saw owns nothing: what it may
//     have asked for stays.
//   - Nothing of a Link is written while Linkerd's service mirror holds the Lease of that Link.
//   - Nothing is written, and no linked cluster's Services are watched for it, except during [Mirror.Run].
//
// What is read and written while Run lasts is a term; see the type of that name for its order of events and
// its locks. What should exist under a name is a plan; see inputs.Plan.
package mirror
