package rules

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// A blockModel is a network as the list of its addresses, each given by its last number.
type blockModel map[int]bool

// TestModelOfEgress compares the EgressNetwork of an address with that of a model, which counts addresses one by one.
func TestModelOfEgress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spaces, blocks := map[string][]*EgressNetwork{}, map[*EgressNetwork][]blockModel{}
		for _, space := range []string{"shop", "linkerd-egress"} {
			for _, name := range drawNames(t, space) {
				e := &EgressNetwork{Meta: named(KindEgressNetwork, name, drawAge(t)), Networks: []Network{}}
				e.Namespace = space
				for range rapid.IntRange(0, 3).Draw(t, "networks") {
					network, block := drawBlock(t)
					e.Networks = append(e.Networks, network)
					blocks[e] = append(blocks[e], block)
				}
				spaces[space] = append(spaces[space], e)
			}
		}

		candidates := spaces["shop"]
		if len(candidates) == 0 {
			candidates = spaces["linkerd-egress"]
		}
		for last := range 16 {
			addr := netip.AddrFrom4([4]byte{203, 0, 113, byte(last)})
			got := testOptions().Egress(addr, spaces["shop"], spaces["linkerd-egress"])
			if want := modelEgress(last, candidates, blocks); got != want {
				t.Fatalf("%s is of %v, and of %v in the model", addr, got, want)
			}
		}
	})
}

func modelEgress(last int, all []*EgressNetwork, blocks map[*EgressNetwork][]blockModel) (found *EgressNetwork) {
	fewest := 0
	for _, e := range all {
		for _, block := range blocks[e] {
			size := len(block)
			if block[last] && (found == nil || size < fewest || size == fewest && older(e.Meta, found.Meta)) {
				found, fewest = e, size
			}
		}
	}
	return found
}

// drawBlock returns a network of at most 16 addresses, the exceptions of which may overlap.
func drawBlock(t *rapid.T) (Network, blockModel) {
	size := 1 << rapid.IntRange(0, 4).Draw(t, "size")
	first := rapid.IntRange(0, 16/size-1).Draw(t, "first") * size
	block := blockModel{}
	for i := range size {
		block[first+i] = true
	}

	var except []string
	for less := size / 2; less > 0; less /= 2 {
		if !rapid.Bool().Draw(t, "excepted") {
			continue
		}
		from := first + rapid.IntRange(0, size/less-1).Draw(t, "from")*less
		except = append(except, modelCIDR(from, less))
		for i := range less {
			delete(block, from+i)
		}
	}

	network, err := ParseNetwork(modelCIDR(first, size), except)
	if err != nil {
		t.Fatal(err)
	}
	return network, block
}

func modelCIDR(first, size int) string {
	bits := 32
	for ; size > 1; size /= 2 {
		bits--
	}
	return fmt.Sprintf("203.0.113.%d/%d", first, bits)
}
