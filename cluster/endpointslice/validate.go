package endpointslice

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"
)

// What the API server would reject in an EndpointSlice is left out of an ExternalWorkload before it is
// written: one malformed address would keep all others of its slice from being written, and dead ones from
// being removed. From other clusters nothing of the kind passes the border of package view.

// isUsableAddress reports whether an EndpointSlice may hold an address. Loopback and link-local addresses
// mean something else on each node.
func isUsableAddress(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" &&
		!a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

func isLabel(s string) bool { return len(validation.IsDNS1123Label(s)) == 0 }
func isPort(n int32) bool   { return len(validation.IsValidPortNum(int(n))) == 0 }
