// Package serving is the transport of a process that streams to clients over gRPC, whatever the protocol: how what is
// newest reaches whom, and how much clients can make the process hold.
//
// A [Server] is what all gRPC servers of a process have in common: one admission, one bound on bytes in flight, one
// cache of encoded messages and one drain. A [Stream] is one goroutine and one loop ([Stream.Run]): a step of the
// protocol sends what the client does not have yet, and the loop waits for the Bell. There is no queue: HTTP/2 flow
// control is the back-pressure, and a client that is slow skips versions and ends with the newest one. It is never cut
// off for being slow. A protocol that sends a level whole, such as a policy, is a [Latest].
//
// Every byte that a client can make the process hold is bounded and counted: streams before their
// goroutine exists (admission.go, connection.go), messages that the client does not take (flight.go).
package serving
