// Package ruleobject reads objects of policy: the kinds of policy.linkerd.io, and the routes of the Gateway API.
//
//	stored object --> Server, Route, ... ----.             .--> value of federation/rules, with its Findings
//	                                         +--> reader --+
//	new object -----> Review ----------------'             '--> why it is denied, or warnings
//
// There is one reader. It goes through an object part by part, so that a bad part is a bad part: a match that no proxy
// understands is left out, a filter fails its rule, and the rest of the route is in force. Each such part leaves a
// Finding. An error means that nothing of an object can be used, and why.
//
// A stored object is used as far as it can be, as Linkerd's policy controller uses it. A new one is denied if that
// controller denies it, and for nothing else: what is left out of an object that is allowed is a warning.
// [Review] looks up what objects refer to only where its caller can.
//
// Objects are untrusted. Texts are bounded, and plain where they become labels of metrics; lists are bounded, and what
// follows the last element that is read is a Finding; no message quotes more than a line; a regular expression is
// measured before it is compiled.
package ruleobject
