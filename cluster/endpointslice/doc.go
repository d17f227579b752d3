// Package endpointslice writes EndpointSlices into clusters: those of ExternalWorkloads, as Linkerd's
// destination controller does, and those of federated and mirrored Services, so that clients without a mesh
// find what other clusters hold.
//
//	apply.Campaign --a task in a term--> sliceWriter, on an apply.Loop --> API server
//
//	Services, ExternalWorkloads --.
//	                              +--> groups of endpoints --> plan --> confirm --> create, update, delete
//	federation.Snapshot ----------'    external.go, federated.go, plan.go are pure
//
// Into each cluster that permits it one replica writes, under a Lease held in that cluster. It reads what
// it writes about only while it holds the Lease: a term begins with complete listings and reconciles every
// Service, and nothing is carried over to the next.
//
// The slices that a cluster should have follow from its own Services and from the Views of the clusters
// that these name. So every holder of the Lease writes the same. Unknown is not empty: slices of a cluster
// that was never synced are left as they are.
package endpointslice
