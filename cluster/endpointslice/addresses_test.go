package endpointslice

import (
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// What takes endpoints from readers, and gives them none, is written last.
func TestOnlyWithdraws(t *testing.T) {
	endpoints := func(text string) (all []discoveryv1.Endpoint) { // ! is not ready
		for a := range strings.FieldsSeq(text) {
			addr, unready := strings.CutSuffix(a, "!")
			ready := !unready
			all = append(all, discoveryv1.Endpoint{
				Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
		return all
	}
	for _, c := range []struct {
		have, wanted string
		want         bool
	}{
		{"a b", "a", true},
		{"a b", "", true},
		{"a b", "c!", true},
		{"a b", "a b!", true},
		{"a b", "a b", false},
		{"a b", "b c", false},
		{"a b!", "b", false},
		{"a!", "", false},
		{"", "a", false},
	} {
		have := []*discoveryv1.EndpointSlice{{Endpoints: endpoints(c.have)}}
		wanted := []*group{{endpoints: endpoints(c.wanted)}, {endpoints: endpoints(c.wanted)}} // two ports
		if got := onlyWithdraws(have, wanted); got != c.want {
			t.Errorf("from %q to %q: %t, want %t", c.have, c.wanted, got, c.want)
		}
	}
}
