package controlplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
)

// ranges hands out address ranges so that no two clusters of this process
// share one. Nothing routes these addresses; different ranges make it visible
// which cluster an address came from.
type ranges struct {
	mu sync.Mutex
	// used holds two entries per running cluster.
	used []netip.Prefix
}

var addressRanges ranges

// take reserves the wanted range, or a free /16 of 10.0.0.0/8 if wanted is
// empty. 10.0.0.0/16 itself is left alone: too many real networks have it.
func (r *ranges) take(wanted string) (netip.Prefix, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if wanted != "" {
		prefix, err := netip.ParsePrefix(wanted)
		if err != nil || !prefix.Addr().Is4() || prefix.Bits() > 20 {
			return netip.Prefix{}, fmt.Errorf("the pod range %q: want an IPv4 prefix of /20 or shorter", wanted)
		}
		prefix = prefix.Masked()
		if !r.freeLocked(prefix) {
			return netip.Prefix{}, fmt.Errorf("the pod range %v overlaps that of another cluster: give each its own",
				prefix)
		}
		r.used = append(r.used, prefix)
		return prefix, nil
	}
	for second := range 255 {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second + 1), 0, 0}), 16)
		if r.freeLocked(prefix) {
			r.used = append(r.used, prefix)
			return prefix, nil
		}
	}
	return netip.Prefix{}, errors.New("no address range is free: too many clusters in one process")
}

// podRangeParts is into how many parts a pod range is divided.
const podRangeParts = 16

// podRangePart returns one of the parts of the range, counted from 0.
func podRangePart(whole netip.Prefix, part int) netip.Prefix {
	bits := whole.Bits() + 4
	first := whole.Addr().As4()
	offset := uint32(part) << (32 - bits)
	binary.BigEndian.PutUint32(first[:], binary.BigEndian.Uint32(first[:])+offset)
	return netip.PrefixFrom(netip.AddrFrom4(first), bits)
}

func (r *ranges) freeLocked(prefix netip.Prefix) bool {
	return !slices.ContainsFunc(r.used, prefix.Overlaps)
}

func (r *ranges) giveBack(prefix netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = slices.DeleteFunc(r.used, func(used netip.Prefix) bool { return used == prefix })
}
