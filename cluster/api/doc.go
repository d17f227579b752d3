// Package api reads one API server, and bounds what it can make us hold.
//
//	Connection --list, watch--> Informer --record--> Store, which any goroutine reads
//
// A [Connection] has one address, one set of credentials and the transports of all requests. Its token can
// be replaced, and its requests can be cut. Everything that an API server sends is bounded before it is
// decoded (response.go).
//
// An [Informer] is the only way to read a kind of object. It lists by a stream or by pages, resumes
// watches, notices an API server that went back to an older state, and reduces each object to the few
// fields that its user keeps. Informers of one kind over one Connection share a watch (readers.go). A [Budget]
// bounds what all informers of a cluster keep.
package api
