// Package view turns what one cluster's API server says into what the cluster claims.
//
//	Service ------------------------------> record --.
//	EndpointSlice -> record --.                       +--> federation.View --> Claims.Set
//	Pod -----------> record ---+--> federation.Slice -'
//	ReplicaSet, Job -> owner --+
//	Server --------> record ---'
//
// Objects are reduced to small records of our own as they arrive and are dropped. A change names a record by its key, in one
// deduplicating queue a cluster; the [Reconciler] reads state again by key, so nothing depends on which events arrived, or in
// which order. A slice that did not change is passed on by pointer, so the work follows the change: a Pod rebuilds the slices
// that name it, a slice its Service's list of slices, a Server the Pods of its namespace that it selects or did. When a change of a
// Service is published is the business of pace.go.
//
// The translations are pure functions of the objects. They know nothing of gRPC, Links or other clusters.
package view
