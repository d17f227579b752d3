// Package discovery serves the Store over gRPC: Linkerd's Destination API, byte for byte, so that an unmodified linkerd2-proxy
// uses it.
//
//	Store.Watch --Snapshot--> feed (one a Target: newest Set, frames encoded once) --frame--> streams
//
// A stream is one goroutine and one loop: load the newest of everything that its answer depends on, send the difference to what
// this stream was sent last, wait until one of them is superseded. There is no queue: HTTP/2 flow control is the back-pressure,
// and a client that is slow skips versions and ends with the same set. It is never cut off for being slow.
//
// A [Target] is what makes answers equal: the Service, port and hostname that were asked for, and as much of the client's place as
// the answer depends on. All streams of a Target share its feed; each step from one Set to the next is encoded once, and the same
// bytes go to every stream.
//
// GetProfile is the same loop over other levels: who is at an IP, what the Service says of its port, and up to two ServiceProfiles. All of
// them are known here, so that it never waits for another cluster; a message goes out when it differs from the one before. Profiles
// of equal Services, ports and ServiceProfiles are encoded once, and kept with the steps of feeds under one bound.
//
// The rules of the consumer that shape all this (docs/protocol.md has them all): after a (re)connect the first Add replaces
// everything the proxy knows, so the first message is complete or it is not sent; an Add without addresses is a heartbeat;
// silence for 3 seconds at the start or 5 minutes later makes the proxy reconnect; 4 MiB is the largest message.
package discovery
