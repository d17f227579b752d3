// Package multicluster gives the clusters of a Registry to controllers that were not written for it: those of
// sigs.k8s.io/multicluster-runtime.
//
//	Registry --engagements--> Provider --Engage--> mcmanager.Manager --> controllers of others
//	                             |
//	                             '--> one cluster.Cluster a linked cluster: its client, its cache
//	                                     '--requests--> the connection of the engagement in use
//
// A Provider is made before the Registry starts. It costs one goroutine for each engagement, which waits. A
// cluster's client and cache are made when a controller asks for them first.
//
// # A cluster outlives its connections
//
// A cluster is engaged when the Registry has connected to it first, and disengaged when it is unlinked. When its
// credentials or its address change, the Registry replaces the engagement, and what is below the cluster.Cluster is
// replaced with it: the connection. The cluster.Cluster stays, and so do its cache and its handlers. Requests
// take the connection that is in use when they are sent. After a new token watches go on. After any other change each
// kind is listed anew, because the API server may be another one, and the cache gives what differs to its handlers: a
// deletion between two connections is an event as any other. A cluster.Cluster that was replaced could not know of it.
//
// # No cluster delays another
//
// Controllers of multicluster-runtime engage clusters one by one, under a lock, and wait for the cache of each. So
// nothing of a cluster that they do there waits for the network. GetInformer returns at once with an informer that
// takes handlers; one goroutine a kind finds out whether the API server has the kind, again and again, and
// hands the handlers over. A read waits for the first list of its kind, for a few seconds at most.
//
// # Bounds
//
// All requests go over the engagement's connection: to its host only, without redirects, with the bounds on
// responses. The token, the keys and the address are in no configuration that a controller can read. What the cache
// of a linked cluster holds is bounded by the bytes of its budget, once more beside what the Registry holds itself:
// past it a kind is listed no further, and what was cached of it stays.
package multicluster
