// Package lease elects, among all replicas of all installations, the one that may write into a cluster. An
// [Elector] campaigns for one Lease in that cluster and runs a function in each term that it gets.
//
// What it keeps true: no request that changes something is sent after the fence of its term, and no other
// replica starts a term before that fence. The holder renews the Lease each Timing.Renew. A renewal that
// succeeds moves the fence for the holder, and the expiry for all who watch the Lease:
//
//	holder:  send r1 ------ send r2 ------ r3 fails ------ r4 fails ---| fence: cancel, cut
//	         |<-- Renew -->|<--------------- Fence ------------------->|
//
//	others:  ------------- observe r2 ------------------------------------------------| expiry: take the Lease
//	                       |<-------------------- Duration -------------------------->|
//
// The fence counts from when r2 was *sent*, on the holder's clock. The expiry counts from when the state
// that r2 wrote was *observed*, on the observer's clock, which is never earlier. Since Fence is shorter
// than Duration, the fence comes first. Only durations are compared, never two clocks: renewTime in the
// Lease is for people to read. An observer that reconnects and sees the same resourceVersion again does not
// count anew, and a Lease that was deleted counts as held until it would have expired, since its holder may
// not have noticed.
//
// At the fence the term's context ends, which cancels requests, and the connections of writes are closed,
// so that nothing that waits in a socket is sent once the network heals. A process that was stopped
// (SIGSTOP, a frozen VM) runs its timer late; therefore each request that changes something compares the
// clock with the fence just before it is sent ([api.WithFence]).
//
// A fence works on the side of the sender only. What was sent before it may arrive later, when another
// replica has the Lease, and the API server knows nothing of fences. An update or a deletion bears a
// resourceVersion and is then refused if the object has changed; whatever else such a request does, the
// next holder sees in its watch and repairs.
//
// Code that is not needed for all this: there is no polling, because candidates watch the Lease and wait
// for its expiry; no comparison of clocks; no queue of candidates; and no hand-over, because a holder that
// stops releases the Lease, and the others see that.
//
// A candidate without the right to watch polls instead ([Config].Polled). It observes later and so takes the Lease no
// earlier; before it does it reads the Lease once more, as every candidate does.
//
// What it costs: a watch and, while held, one update each Timing.Renew; polled, one request each Timing.Renew. After a
// term that ended early the Lease is left alone for a growing pause, because each term begins with complete listings.
//
// It differs from client-go's leader election in that a term ends before another can begin, even if the API
// server is out of reach, and in that candidates watch the Lease and do not poll it. The Lease object is
// the same, so that candidates of both kinds can share one.
package lease
