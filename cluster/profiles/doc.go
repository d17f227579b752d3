// Package profiles reads ServiceProfiles (linkerd.io/v1alpha2).
//
//	stored object --> Parse ----.               .--> profile.Profile, and what was left out of it
//	                            +--> translate -+
//	new object -----> Validate -'               '--> nothing, or why it is refused
//	                     ^
//	                  Webhook <-- AdmissionReview
//
// There is one translation. What makes a profile unusable is an error to both [Parse] and [Validate]. What a profile can do
// without (a timeout that is none) is left out of one that is stored already, and refused in one that is about to be.
//
// Objects are untrusted: conditions nest to a depth that proxies can read, numbers are bounded before they are computed, and no
// message quotes more than a line of what it complains about.
package profiles
