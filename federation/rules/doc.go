// Package rules holds what objects of policy ask for, as plain values: Servers, authorizations, rate limits, routes and
// EgressNetworks. It knows nothing of Kubernetes, of gRPC, or of the object's YAML.
//
//	object --> cluster/ruleobject --> value of this package, with its Findings
//
// Values are immutable once they were handed out, and shared by pointer. They are as near to the object as they can be
// while everything in them is valid: what an object refers to is a [Reference], and looked up by who uses the value.
// What of an object does not convert is not in the value, or marked there, and each such part is a [Finding].
//
// Texts are valid UTF-8 and bounded. Names of objects, groups and ports, hostnames and identities are plain
// (federation.IsPlain), because proxies write them into labels of metrics.
package rules
