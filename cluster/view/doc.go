// Package view turns the objects of one cluster into what the cluster publishes: a federation.View for each
// Service, and, of the local cluster, who owns each IP, the zones of nodes and the ServiceProfiles.
//
//	Service ------------------------------> record --.
//	EndpointSlice -> record --.                       +--> federation.View --> ClusterWriter.Set
//	Pod -----------> record ---+--> federation.Slice -'
//	ReplicaSet, Job -> owner --+
//	Server --------> record ---'
//
// Informers reduce objects to small records as they arrive and drop them; border.go checks everything on
// the way. A change enqueues the key of the object; the [Reconciler] reads the records again by key, so
// nothing depends on which events arrived, or in which order. pace.go decides when a changed Service is
// published.
//
// The translations (service.go, slice.go, pod.go, external.go, server.go, ports.go) are pure functions of
// the objects. They know nothing of gRPC, Links or other clusters.
package view
