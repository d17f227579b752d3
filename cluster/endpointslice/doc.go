// Package endpointslice writes EndpointSlices into clusters: those of ExternalWorkloads, as Linkerd's destination controller does, and
// those of federated and mirrored Services, so that clients without a mesh find what other clusters hold.
//
// In each cluster that lets us, one replica of all writes, under a Lease held in that cluster. It reads what it writes about only while
// it holds the Lease: a term begins with complete listings and a reconciliation of everything, and nothing is carried over to the next.
//
// What a cluster should hold follows from that cluster alone and from what the clusters it names say, so whoever holds the Lease
// writes the same. Unknown is not empty: the slices of a cluster that has not been heard are left as they are.
package endpointslice
