// Package linkerd is Linkerd's Destination API over the engine of [discovery], byte for byte, so that
// an unmodified linkerd2-proxy uses it.
//
// Get is one Query of the engine; here is what it sends of an Answer. GetProfile has no Query: it
// watches the Store's tables of the local cluster (who is at an IP, what a Service declares, up to two
// ServiceProfiles), all of which are known here, so that it never waits for another cluster. A message
// goes out when it differs from the one before. Profiles of equal Services, ports and ServiceProfiles
// are encoded once, and kept with the engine's frames under one bound.
//
// The rules of the consumer that shape this (docs/protocol.md has them all): after a (re)connect the
// first Add replaces everything that the proxy holds, so the first message is complete or it is not
// sent; an Add without addresses is a heartbeat; silence for 3 seconds at the start or 5 minutes later
// makes the proxy reconnect; 4 MiB is the largest message.
package linkerd
