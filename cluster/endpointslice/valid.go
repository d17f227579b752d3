package endpointslice

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"
)

// What the API server would refuse in an EndpointSlice is left out of an ExternalWorkload before it is written: one address that is none would
// keep all others of its slice from being written, and dead ones from being removed. Of other clusters nothing of the kind passes package view.

// reachable reports whether an address may stand in an EndpointSlice. One that means each node something else, or nobody, must not.
func reachable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

func isLabel(s string) bool { return len(validation.IsDNS1123Label(s)) == 0 }
func isPort(n int32) bool   { return len(validation.IsValidPortNum(int(n))) == 0 }
