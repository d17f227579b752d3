// Package cluster keeps the Store informed of every linked cluster, the local one included.
//
//	Spec --Apply--> Registry --> member --> engagement --> view.Reconciler --> federation.ClusterWriter
//	                   |            one cluster   one set of credentials in use
//	                   '--> Statuses, metrics
//
// The [Registry] owns one member for each cluster: one context and one wait group hold everything of it. [Registry.Apply] never
// waits for the network. A member makes before it breaks: new credentials are tried beside the old, which go on and are supervised.
// They take over the claims once each required kind was listed with them. Credentials that fail, or whose listing makes no progress
// for a minute, leave the old ones in place; the [Status] reports why, and they are tried again with a growing pause. A token alone is
// swapped in place, once the API server lets it list and watch each required kind. Optional kinds delay a cluster by seconds.
//
// A cluster that is slow, broken, forbidden or gone never delays another, nor readiness, and never ends the process. What it
// said last is kept. A probe of our own tells how long it has been out of contact, because informers do not: [Live], [Suspect]
// after SuspectAfter, [Stale] after StaleAfter; when contact returns, everything that waits or hangs is restarted at once, from
// where it stopped.
//
// What is not here: Links and Secrets (package links makes Specs of them), gRPC, and the merging of clusters (package federation).
package cluster
