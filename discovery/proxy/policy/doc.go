// Package policy is a model of what linkerd2-proxy does with the messages of the Policy API. It decides whether the
// proxy takes a message, which rule a request gets, where that leads, and which authorization lets a client in. Tests
// of a control plane read its answers through it. The source is the behavior of linkerd2-proxy at 29637b6 (August
// 2026), with the messages of linkerd2-proxy-api v0.20.0.
//
// A message is read whole, and what is found in it belongs to one of four classes:
//
//   - ErrInvalid: the proxy refuses the whole policy, and each request of the target, or of the port, fails.
//   - ErrPanic: the proxy takes the policy, and panics as soon as traffic makes it build the routes.
//   - ErrFailsAtOnce: the policy works, but a timeout of zero fails each request of a rule.
//   - ErrOdd: the proxy does something else than the message appears to ask for, such as dropping a field.
//
// The proxy refuses before it builds. Therefore an error has only the findings of the worst class, and those that are
// odd are no error.
//
// A request gets the best match of all rules of all routes, and the first of equal ones. What counts, in this order:
//
//   - the host: an exact one is better than a suffix, a suffix is better than none, and a longer one is better;
//   - with HTTP the number of characters of the path that match, then headers, query parameters, and a method;
//   - with gRPC the length of the service, then that of the method, and headers.
//
// How a path is matched does not count: a regular expression matches whole paths, and equals an exact match of the
// same path. TLS has the host alone, which is its server name. Opaque connections have one rule.
//
// Go's regexp stands in for Rust's regex: Go alone accepts \Q, octal escapes, \p{^x} and a bare { or [, and lacks
// operators on classes, some Unicode classes, and the limit of 10 MiB for a compiled expression.
//
// Not modelled:
//
//   - how streams of policies begin and end; package proxy does so for the Destination API;
//   - that a client of HTTP/1 cannot use a port of HTTP/2, and the reverse;
//   - which backend a distribution chooses; balancers, breakers, retries and rate limits at work;
//   - that a redirect to where the request already is has no effect, and headers that control retries;
//   - durations of more than 292 years.
package policy
