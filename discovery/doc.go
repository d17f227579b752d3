// Package discovery serves the Answers of a Store to clients, whatever the protocol: it holds what the
// streams of [serving] share. A protocol, such as [discovery/linkerd], stands on it: it parses requests,
// and encodes Answers.
//
//	Store --Snapshot--> selection --Selection--> placeAnswers --Answer--> updates --Frame--> Streams
//
// A [Feed] is what one Query adds to a stream, which has any number of them. Whenever the stream's Bell has rung
// it loads the newest Answer, and sends the update from the one that was sent last. Everything that is sent of it
// follows from one Answer, so no message mixes two versions.
//
// Streams with equal Queries share Selections, those at equal places share Answers, and those that go
// from one Answer to another by one encoder share bytes (subscription.go).
package discovery
