package rules

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
)

// Why a Network cannot be.
var (
	ErrAddress = errors.New("neither a network nor an address")
	ErrCovers  = errors.New("the exception covers the network")
	ErrOutside = errors.New("the exception lies outside the network")
)

// A Network is a block of addresses of one family without its exceptions. It is immutable. The zero Network contains
// nothing.
type Network struct {
	block  netip.Prefix
	except []netip.Prefix // in order; none overlaps another
}

// ParseNetwork reads a network and its exceptions. An address stands for the network of it alone, and bits behind a
// prefix are ignored. The error wraps ErrAddress, ErrCovers or ErrOutside. Exceptions may cover a network together: it
// then contains nothing.
func ParseNetwork(cidr string, except []string) (Network, error) {
	block, err := parsePrefix(cidr)
	if err != nil {
		return Network{}, err
	}

	exceptions := make([]netip.Prefix, 0, len(except))
	for _, text := range except {
		exception, err := parsePrefix(text)
		switch {
		case err != nil:
			return Network{}, err
		case !exception.Overlaps(block):
			return Network{}, fmt.Errorf("%v except %v: %w", block, exception, ErrOutside)
		case exception.Bits() <= block.Bits():
			return Network{}, fmt.Errorf("%v except %v: %w", block, exception, ErrCovers)
		}
		exceptions = append(exceptions, exception)
	}

	return Network{block: block, except: widest(exceptions)}, nil
}

// parsePrefix reads a network or an address. Its error quotes a bounded part of the text.
func parsePrefix(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%.64q: %w", text, ErrAddress)
		}
		return prefix.Masked(), nil
	}

	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%.64q: %w", text, ErrAddress)
	}
	return netip.PrefixFrom(addr, addr.BitLen()), nil
}

// widest orders prefixes and leaves out those within another. Two prefixes are apart, or one is within the other.
func widest(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})

	kept := prefixes[:0]
	for _, prefix := range prefixes {
		if len(kept) == 0 || !kept[len(kept)-1].Contains(prefix.Addr()) {
			kept = append(kept, prefix)
		}
	}
	return kept
}

// MarshalBinary returns the text of the block, and those of its exceptions after commas; nothing for the zero Network.
func (n Network) MarshalBinary() ([]byte, error) {
	if !n.block.IsValid() {
		return nil, nil
	}
	text := n.block.AppendTo(nil)
	for _, except := range n.except {
		text = except.AppendTo(append(text, ','))
	}
	return text, nil
}

// UnmarshalBinary reads what MarshalBinary returns. Its error is one of ParseNetwork.
func (n *Network) UnmarshalBinary(text []byte) (err error) {
	*n = Network{}
	if len(text) > 0 {
		all := strings.Split(string(text), ",")
		*n, err = ParseNetwork(all[0], all[1:])
	}
	return err
}

// Block returns the network with its exceptions.
func (n Network) Block() netip.Prefix { return n.block }

// Except returns the exceptions in order, without those that lie within another. It must not be modified.
func (n Network) Except() []netip.Prefix { return n.except }

// Contains reports whether the address is in the block and in none of its exceptions. An IPv4 address that is mapped
// to IPv6 is one of IPv6.
func (n Network) Contains(addr netip.Addr) bool {
	if !n.block.Contains(addr) {
		return false
	}

	next, starts := slices.BinarySearchFunc(n.except, addr, func(exception netip.Prefix, addr netip.Addr) int {
		return exception.Addr().Compare(addr)
	})
	return !starts && (next == 0 || !n.except[next-1].Contains(addr))
}

// Size returns how many addresses the Network contains, exactly: up to 2^128.
func (n Network) Size() *big.Int {
	size := new(big.Int)
	if !n.block.IsValid() {
		return size
	}

	size.Set(addresses(n.block))
	for _, exception := range n.except {
		size.Sub(size, addresses(exception))
	}
	return size
}

func addresses(prefix netip.Prefix) *big.Int {
	return new(big.Int).Lsh(big.NewInt(1), uint(prefix.Addr().BitLen()-prefix.Bits()))
}
