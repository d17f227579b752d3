// Package api is one API server: how it is reached, what it is asked, and what is kept of what it has.
//
//	Connection --list, watch--> Informer --record--> Store, which any goroutine reads
//
// A [Connection] has one address, one set of credentials and the transports that requests take; its token can be replaced, its requests can be
// cut. Everything that an API server sends is bounded before it is decoded (response.go).
//
// An [Informer] is the only way to read a kind of object: it lists by a stream or by pages, resumes watches, notices a server that went back to
// an older state, and reduces each object to the few fields that its user keeps. A [Budget] bounds what all informers of a cluster keep.
package api
