package controlplane

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestPodRangeParts(t *testing.T) {
	var parts []netip.Prefix
	for _, part := range []int{0, 1, podRangeParts - 1} {
		parts = append(parts, podRangePart(netip.MustParsePrefix("10.7.0.0/16"), part))
	}
	want := []netip.Prefix{
		netip.MustParsePrefix("10.7.0.0/20"),
		netip.MustParsePrefix("10.7.16.0/20"),
		netip.MustParsePrefix("10.7.240.0/20"),
	}
	if diff := cmp.Diff(want, parts, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
}

func TestRangesDoNotOverlap(t *testing.T) {
	var r ranges
	first, err := r.take("")
	must(t, err)
	chosen, err := r.take("10.2.0.0/15") // covers what would be next
	must(t, err)
	third, err := r.take("")
	must(t, err)
	if first.Overlaps(third) || chosen.Overlaps(third) {
		t.Errorf("%v overlaps %v or %v", third, first, chosen)
	}
	if again, err := r.take(first.String()); err == nil {
		t.Errorf("%v was given twice", again)
	}
	r.giveBack(first)
	_, err = r.take(first.String())
	must(t, err)
}
