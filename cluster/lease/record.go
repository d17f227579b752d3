package lease

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// Bounds of what is kept of a Lease. An API server bounds the whole object only, at 1.5 MiB.
const (
	maxText = 253      // bytes of a holder, and of a version
	maxMark = 64 << 10 // bytes of the value of a label or an annotation
)

// Leases is the kind of Leases. What no [Record] has of them is dropped before they are decoded.
var Leases = api.Typed(coordinationv1.SchemeGroupVersion, "leases", "Lease", &coordinationv1.Lease{}).
	Reading(&api.Message{Fields: api.Fields{1: api.MetadataFields, 2: {Fields: api.Fields{1: nil, 2: nil, 4: nil}}}})

// A Record is what is kept of a Lease, by any account: its size is bounded.
type Record struct {
	Created  time.Time
	Version  string            // its resourceVersion
	Holder   string            // who has it; empty if it was released
	Renewed  time.Time         // by the clock of the holder; zero if it does not state it
	Duration time.Duration     // for how long a renewal binds others; 0 if it does not state it
	Marks    map[string]string // of its labels and annotations those that were asked for
}

// NewRecord returns what is kept of a Lease: of its labels and annotations those with these keys, but for values that
// are longer than 64 KiB. A holder is cut to 253 bytes. It returns nil for nil.
func NewRecord(lease *coordinationv1.Lease, marks ...string) *Record {
	if lease == nil {
		return nil
	}
	record := &Record{
		Created: lease.CreationTimestamp.Time, Version: cut(lease.ResourceVersion), Holder: cut(holderOf(lease)),
	}
	if lease.Spec.RenewTime != nil {
		record.Renewed = lease.Spec.RenewTime.Time
	}
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		record.Duration = time.Duration(*seconds) * time.Second
	}

	for _, key := range marks {
		value, found := lease.Labels[key]
		if !found {
			value, found = lease.Annotations[key]
		}
		if !found || len(value) > maxMark {
			continue
		}

		if record.Marks == nil {
			record.Marks = map[string]string{}
		}
		record.Marks[key] = value
	}
	return record
}

// Reduce returns what makes a record of an object, for an [api.Informer].
func Reduce(marks ...string) func(object any) (*Record, bool) {
	return func(object any) (*Record, bool) {
		l, ok := object.(*coordinationv1.Lease)
		return NewRecord(l, marks...), ok
	}
}

// cut returns at most maxText bytes of a text, and "…" after it if that is not all: so cut, it is none that a user
// has given himself.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}
