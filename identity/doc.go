// Package identity is the certificate authority of a mesh: its certificates state who a workload is.
//
//	token --Reviewer--> account --Domain--> name   \
//	                                                 equal? --> Issuer --sign, verify--> Leaf
//	identity, signing request --parse--> name, key /
//
// A caller sends the name that it wants to have, a token of its ServiceAccount, and a signing request with that name
// and its key. It gets a leaf for the name that follows from the token, or a [Refusal]. [Authority] has the checks in
// the order in which they are made; what is wrong with a request alone costs no review.
//
// What it keeps true, each a test:
//
//   - A leaf names nothing but what the review of the token gives: no field of the request gets into it that was not
//     compared with that name before, except the key.
//   - Who gets a leaf holds its key: the signature of the request is verified.
//   - A leaf is verified before it is returned, for servers and for clients, against the anchors in use.
//   - A leaf does not outlast the chain above it. It verifies at every moment of its life at which that chain does.
//   - No call waits for the review of another, unless as many are under way as may be. An [Issuer] is never changed:
//     who takes a new one into use stops no call, and calls under way end with the one that they began with.
//   - Nothing of a token is kept.
//
// Every replica signs by itself. Serial numbers are random, so that no two need to agree on one, and nothing is stored.
//
// The package imports the standard library only: no gRPC, no Kubernetes. Its clock is time.Now.
package identity
