// Package proxy is a model of linkerd2-proxy as a client of the Destination API and the Policy API: what it keeps of
// the messages that it receives, and what a server must not send it. The scenarios, the end-to-end tests and the
// demo read every stream through it and fail on a violation; the command line shows endpoints through it.
//
// What it models: the first Add after each connect replaces everything, later ones are merged by socket
// address; a Remove before an Add is an error; an Add without addresses is a heartbeat; NoEndpoints empties
// the set; 3 seconds to the first message, 5 minutes between messages, 4 MiB for one; a URI identity needs a
// server name; InvalidArgument and FailedPrecondition end a lookup, every other end of a stream, OK included,
// is tried again. Profiles are held to the same limits; each replaces the one before it, and a heartbeat
// among them can only be the same profile again. So does each policy of a port or a target, which package policy has to
// accept. A Balancer spreads requests over what is held. It has no TLS.
package proxy
