// Package cluster reads linked clusters, the local one included, and publishes in the Store what they hold.
//
//	Spec --Apply--> Registry --> supervisor --> engagement --> view.Reconciler --> the cluster's writer in the Store
//	                   |         one cluster    one connection
//	                   '--> Statuses, metrics
//
// The [Registry] owns one supervisor for each cluster. One context and one wait group hold everything of
// it. [Registry.Apply] never waits for the network.
//
// A supervisor tries new access beside the working one (supervisor.go). The new engagement replaces the old
// one once it has listed each required kind. Access that fails, or whose listing makes no progress for a
// minute, leaves the old engagement in place; the [Status] reports why, and the supervisor retries with a
// growing pause. A new token alone is swapped in place, once the API server lets it list and watch each
// required kind. Optional kinds delay a cluster by seconds.
//
// A cluster that is slow, broken, forbidden or gone never delays another cluster, delays readiness by seconds
// at most, and never ends the process. What it published last is kept. Informers do not report how long a
// cluster has been out of contact, so a probe does: the cluster is Live, Suspect after some seconds without
// contact, and Stale after more ([federation.Thresholds]). When contact returns, every waiting or hanging
// request is restarted at once, and watches resume where they stopped.
//
// Links and Secrets are not here (package links makes Specs of them), nor gRPC, nor the merging of clusters
// (package federation).
package cluster
