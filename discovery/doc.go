// Package discovery serves the Answers of a Store to clients, whatever the protocol: it holds streams,
// what they share, and the bounds on what clients can make the process hold. A protocol, such as
// [discovery/linkerd], stands on it: it parses requests, and encodes Answers.
//
//	Store --Snapshot--> selection --Selection--> placeAnswers --Answer--> updates --Frame--> Streams
//
// A stream is one goroutine and one loop ([Stream.Run]): load the newest Answer of each of its Feeds, send the
// update from the one that was sent last, wait for the Bell. There is no queue: HTTP/2 flow control is the
// back-pressure, and a client that is slow skips versions and ends with the same set. It is never cut
// off for being slow. Everything that a stream sends follows from one Answer, so no message mixes two
// versions.
//
// Streams with equal Queries share Selections, those at equal places share Answers, and those that go
// from one Answer to another by one encoder share bytes (subscription.go).
//
// Every byte that a client can make the process hold is bounded and counted: streams before their
// goroutine exists (admission.go, connection.go), messages that the client does not take (flight.go).
package discovery
