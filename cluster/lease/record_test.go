package lease

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// Whatever a Lease has, its record is small; what a candidate writes is kept as it is.
func TestRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) string {
			return strings.Repeat("x\xc3", rapid.SampledFrom([]int{0, 1, 126, 127, 40_000, 700_000}).Draw(t, name))
		}
		l := &coordinationv1.Lease{}
		l.ResourceVersion = text("version")
		l.Labels = map[string]string{"asked": text("label"), text("key"): text("value")}
		l.Annotations = map[string]string{"also": text("annotation"), "not": text("other")}
		if rapid.Bool().Draw(t, "held") {
			l.Spec.HolderIdentity = new(text("holder"))
			l.Spec.LeaseDurationSeconds = new(rapid.Int32().Draw(t, "seconds"))
			l.Spec.RenewTime = &metav1.MicroTime{Time: time.Unix(1, 0)}
		}
		r := NewRecord(l, "asked", "also")
		size := len(r.Holder) + len(r.Version)
		for key, value := range r.Marks {
			if size += len(key) + len(value); value != l.Labels[key] && value != l.Annotations[key] {
				t.Errorf("the value of %q is another one", key)
			}
		}
		if size > 2*(maxText+len("…"))+2*(maxMark+len("asked")) {
			t.Errorf("%d bytes are kept", size)
		}
		if r.Duration < 0 || (r.Holder == "") != (holderOf(l) == "") || r.Marks["not"] != "" {
			t.Errorf("got %+.300v", r)
		}
		if short := holderOf(l); len(short) <= maxText && r.Holder != short {
			t.Errorf("the holder is %q, want %q", r.Holder, short)
		}
		if long := holderOf(l); len(long) > maxText && r.Holder == long[:maxText] {
			t.Error("a holder that was cut is one that somebody may have given himself")
		}
	})
	if NewRecord(nil) != nil {
		t.Error("no Lease has a record")
	}
}
