package api

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Limits are what may be held of one cluster; 0 is no limit.
type Limits struct {
	Services  int   // in each store of them
	Endpoints int   // in each store of EndpointSlices, and objects in each other store
	Bytes     int64 // of records, in all stores
}

// A Budget bounds what all stores of one cluster hold. Past it, what was accepted stays and is updated, and
// new objects are refused. Updates may grow the whole by a quarter more; an update past that leaves the
// object as it was. What was refused is listed again once there is room.
type Budget struct {
	limits Limits

	mu      sync.Mutex
	bytes   int64
	refused map[*share]bool // those from which something is left out
}

// A listing is ended when it brings so many times what the budget allows: of objects, or of bytes as they
// are sent, of which records keep few. A cluster that is merely larger than its budget stays below that; a
// listing beyond may have no end.
const (
	maxTimesObjects = 5
	maxTimesBytes   = 32
)

// An ExcessError is why a listing was not read to its end: it brings many times the Budget.
type ExcessError struct{ message string }

func (e *ExcessError) Error() string { return e.message }

// NewBudget returns a Budget of which nothing is used.
func NewBudget(limits Limits) *Budget { return &Budget{limits: limits, refused: map[*share]bool{}} }

// Limits returns its limits.
func (b *Budget) Limits() Limits { return b.limits }

// Bytes returns how much is used.
func (b *Budget) Bytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

// Problem returns what is refused and why; empty if nothing is.
func (b *Budget) Problem() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.refused) == 0 {
		return ""
	}
	refused, ended := map[string]bool{}, map[string]bool{}
	for s := range b.refused {
		if s.ended {
			ended[s.kind] = true
		} else {
			refused[s.kind] = true
		}
	}
	names := func(kinds map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(kinds)), ", ") }
	var what []string
	if len(refused) > 0 {
		what = append(what, "what was accepted is kept and updated, new objects of kind "+names(refused)+" are refused")
	}
	if len(ended) > 0 {
		what = append(what, "lists of kind "+names(ended)+" bring many times as much and are not read to their end, "+
			"what was accepted of them before is kept")
	}
	return fmt.Sprintf("the cluster publishes more than %d Services, %d endpoints or %d MiB: %s; "+
		"raise -cluster-max-services, -cluster-max-endpoints or -cluster-max-mib, and the memory limit with them",
		b.limits.Services, b.limits.Endpoints, b.limits.Bytes>>20, strings.Join(what, "; "))
}

// reserve charges n bytes. The limit is a quarter higher for objects that were accepted before (old).
func (b *Budget) reserve(n int64, old bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && exceeds(b.bytes+n, b.limits.Bytes, old) {
		return false
	}
	b.bytes += n
	return true
}

// markRefused records that something of a share was refused.
func (b *Budget) markRefused(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[s] = true
}

// setRefused records whether something of a share is refused, after everything was listed or when the share
// ends.
func (b *Budget) setRefused(s *share, something bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.ended = false; something {
		b.refused[s] = true
	} else {
		delete(b.refused, s)
	}
}

// endListing records that a listing of a share was not read to its end.
func (b *Budget) endListing(s *share) error {
	b.mu.Lock()
	s.ended, b.refused[s] = true, true
	b.mu.Unlock()
	return &ExcessError{b.Problem()}
}

func exceeds(n, limit int64, old bool) bool {
	if old {
		limit += limit / 4
	}
	return limit > 0 && n > limit
}

// share is what one store uses of a Budget.
type share struct {
	*Budget
	kind         string
	maxUnits     int64 // units
	units        int64
	bytes        int64
	refusedCount int  // objects that were refused since everything was listed
	ended        bool // the last listing was not read to its end; guarded by Budget.mu
}

// usage is what one object uses.
type usage struct{ units, bytes int32 }

// charge replaces the usage before of an object by now, if there is room. known is whether it was accepted
// before.
func (s *share) charge(before, now usage, known bool) bool {
	units, bytes := int64(now.units)-int64(before.units), int64(now.bytes)-int64(before.bytes)
	if units > 0 && exceeds(s.units+units, s.maxUnits, known) || !s.reserve(bytes, known) {
		s.refusedCount++
		s.markRefused(s)
		return false
	}
	s.units += units
	s.bytes += bytes
	return true
}

// checkListing returns an error if a listing that has brought so many objects and bytes must not be read
// further.
func (s *share) checkListing(objects int, bytes int64) error {
	tooMany := exceeds(int64(objects), maxTimesObjects*s.maxUnits, false)
	if tooMany || exceeds(bytes, maxTimesBytes*s.limits.Bytes, false) {
		return s.endListing(s)
	}
	return nil
}

// mayFit reports whether something was refused that may fit now, with a tenth to spare.
func (s *share) mayFit() bool {
	if s.refusedCount == 0 {
		return false
	}
	bytes := s.Bytes()
	return !exceeds(s.units+s.units/10, s.maxUnits, false) && !exceeds(bytes+bytes/10, s.limits.Bytes, false)
}

// usageOf returns what an object with this record uses.
func usageOf(object, record any) usage {
	units := 1
	switch o := object.(type) {
	case *discoveryv1.EndpointSlice:
		units = len(o.Endpoints)
	case *corev1.Endpoints: //nolint:staticcheck // Endpoints are read on request
		units = 0
		for _, subset := range o.Subsets {
			units += len(subset.Addresses) + len(subset.NotReadyAddresses)
		}
	}
	bytes := deepSize(reflect.ValueOf(record), 0) + 64           // and its key
	return usage{int32(units), int32(min(bytes, math.MaxInt32))} // an object is bounded far below that
}

// deepSize returns the bytes of a value and of all that it points to, as if nothing was shared.
func deepSize(v reflect.Value, depth int) uintptr {
	if !v.IsValid() {
		return 0
	}
	return v.Type().Size() + pointedSize(v, depth)
}

func pointedSize(v reflect.Value, depth int) (n uintptr) {
	if depth > 16 {
		return 0
	}
	switch v.Kind() { //nolint:exhaustive // the others point to nothing
	case reflect.String:
		return uintptr(v.Len())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return deepSize(v.Elem(), depth+1)
		}
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice {
			n = uintptr(v.Cap()) * v.Type().Elem().Size()
		}
		if k := v.Type().Elem().Kind(); k >= reflect.Bool && k <= reflect.Complex128 {
			return n
		}
		for i := range v.Len() {
			n += pointedSize(v.Index(i), depth+1)
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			n += deepSize(i.Key(), depth+1) + deepSize(i.Value(), depth+1)
		}
	case reflect.Struct:
		if t := v.Type(); t == reflect.TypeFor[netip.Addr]() || t == reflect.TypeFor[time.Time]() {
			return 0 // what they point to is common
		}
		for _, field := range v.Fields() {
			n += pointedSize(field, depth+1)
		}
	}
	return n
}
