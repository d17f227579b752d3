package federation

import (
	"testing"

	"pgregory.net/rapid"
)

// Equal Views have equal digests, whatever their pointers, and one thing that is different about one
// endpoint shows.
func TestDigest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t, fed)
		templated(v)
		other := clone(v)
		if v.Digest() != other.Digest() {
			t.Fatal("equal Views have different digests")
		}
		touch(t, other)
		templated(other)
		if same := len(other.Slices) == len(v.Slices) && other.sharing(v) == v; same != (v.Digest() == other.Digest()) {
			t.Fatalf("the Views are the same: %t, and their digests are %x and %x", same, v.Digest(), other.Digest())
		}
	})
}

// templated gives workloads what only these tests leave out.
func templated(v *View) {
	for _, s := range v.Slices {
		for _, e := range s.Endpoints {
			if e.Workload != nil {
				e.Workload = podOf(e.Workload.Name, Template{ServiceAccount: "default"})
			}
		}
	}
}
