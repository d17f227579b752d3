// Package serviceprofile reads ServiceProfiles (linkerd.io/v1alpha2).
//
//	stored object --> Parse ----.               .--> profile.Profile, and warnings about what was left out of it
//	                            +--> translate -+
//	new object -----> Validate -'               '--> nothing, or why it is rejected
//
// There is one translation. What makes a profile unusable is an error to both [Parse] and [Validate]. What
// a profile can do without, such as a timeout that does not parse, [Parse] leaves out of a stored object,
// and [Validate] rejects in a new one.
//
// Objects are untrusted: conditions nest to a depth that proxies can read, numbers are bounded before they
// are computed, and no message quotes more than a line of the object. The size of a new one is bounded by
// what it takes when it is decoded.
package serviceprofile
