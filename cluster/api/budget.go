package api

import (
	"cmp"
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
	Endpoints int   // in each store of EndpointSlices
	Objects   int   // in each other store; 0: as many as Endpoints
	Bytes     int64 // of records, in all stores

	// ServiceEndpoints are those of one Service that are published: more are held, and left out. A Budget knows
	// nothing of it.
	ServiceEndpoints int
}

// With returns the limits with those of one cluster, which concern Services and
// endpoints only; nil for as before.
func (l Limits) With(services, endpoints *int) Limits {
	if services != nil {
		l.Services = *services
	}
	if endpoints != nil {
		if l.Objects == 0 {
			l.Objects = cmp.Or(l.Endpoints, math.MaxInt32)
		}
		l.Endpoints = *endpoints
	}
	return l
}

// units returns the most units that a store of a kind may hold; 0 for no limit.
func (l Limits) units(k Kind) int64 {
	if k.countsEndpoints() {
		return int64(l.Endpoints)
	}
	if _, is := k.object.(*corev1.Service); is {
		return int64(l.Services)
	}
	return int64(cmp.Or(l.Objects, l.Endpoints))
}

// objects returns the most objects of a kind that a cluster has which keeps to the limits; 0 for no limit. A
// Service without endpoints has slices, too, as a rule one for each family.
func (l Limits) objects(k Kind) int64 {
	switch {
	case !k.countsEndpoints():
		return l.units(k)
	case l.Services == 0 || l.Endpoints == 0:
		return 0
	}
	return int64(l.Endpoints) + 2*int64(l.Services)
}

// A Budget bounds what all stores of one cluster hold. Past it, what was accepted stays and is updated, and
// new objects are refused. Updates may grow the whole by a quarter more; an update past that leaves the
// object as it was.
//
// Of new objects a listing takes those that come first by name, whichever come first in time, and nothing
// that comes after one that it has refused. While something is refused no event adds an object: once there is
// room everything is listed again. So replicas that start with nothing agree.
type Budget struct {
	mu      sync.Mutex
	limits  Limits
	bytes   int64
	refused map[*share]bool // those from which something is left out
}

// A listing is ended when it brings so many times what the budget allows: of endpoints, of objects, or of
// bytes as they are sent, of which records keep few. A cluster that is a little larger than its budget stays
// below that; a listing beyond may have no end.
const (
	maxTimes      = 2
	maxTimesBytes = 32
)

// An ExcessError is why a listing was not read to its end: it brings many times the Budget.
type ExcessError struct{ message string }

func (e *ExcessError) Error() string { return e.message }

// NewBudget returns a Budget of which nothing is used.
func NewBudget(limits Limits) *Budget { return &Budget{limits: limits, refused: map[*share]bool{}} }

// SetLimits replaces its limits, and reports whether they differ. What was accepted stays; what may fit now
// is to be listed by the caller.
func (b *Budget) SetLimits(limits Limits) (differ bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	differ = b.limits != limits
	b.limits = limits
	return differ
}

// Problem returns what is refused and why; empty if nothing is.
func (b *Budget) Problem() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	if len(b.refused) == 0 {
		return ""
	}
	var what []string
	if kinds := b.kinds(false); len(kinds) > 0 {
		what = append(what, "what was accepted is kept and updated, new objects of kind "+
			strings.Join(kinds, ", ")+" are refused")
	}

	if kinds := b.kinds(true); len(kinds) > 0 {
		what = append(what, "lists of kind "+strings.Join(kinds, ", ")+
			" bring more than twice as much and are not read to their end, "+
			"what was accepted of them before is kept")
	}
	return fmt.Sprintf("the cluster publishes more than %s: %s; "+
		"raise -cluster-max-services, -cluster-max-endpoints or -cluster-max-mib (for one cluster the annotations "+
		"max-services and max-endpoints of its Link), and the memory limit with them",
		b.limits, strings.Join(what, "; "))
}

// String lists the limits by which a cluster is reported, such as 5 Services, 7 endpoints or 1 MiB.
func (l Limits) String() string {
	var all []string
	for _, limit := range []struct {
		most int64
		of   string
	}{{int64(l.Services), "Services"}, {int64(l.Endpoints), "endpoints"}, {l.Bytes >> 20, "MiB"}} {
		if limit.most > 0 {
			all = append(all, fmt.Sprintf("%d %s", limit.most, limit.of))
		}
	}

	text := strings.Join(all, ", ")
	if last := strings.LastIndexByte(text, ','); last >= 0 {
		text = text[:last] + " or" + text[last+1:]
	}
	return text
}

// Refused returns the names of the kinds of which something is refused, some of them twice.
func (b *Budget) Refused() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append(b.kinds(false), b.kinds(true)...)
}

// kinds returns those of which something is refused, sorted, and of which the last listing was, or was not,
// read to its end. It needs mu.
func (b *Budget) kinds(ended bool) []string {
	kinds := map[string]bool{}
	for s := range b.refused {
		if s.ended == ended {
			kinds[s.kind.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}

// exceeds reports whether n is more than a limit, of which 0 is none.
func exceeds(n, limit int64) bool { return limit > 0 && n > limit }

// share is what one store uses of a Budget; nil where there are no limits. The informer that fills the store
// is the only one that uses it. What a listing brings is charged as it comes, beside what the store holds,
// and given back if the listing is not stored.
type share struct {
	*Budget
	kind Kind
	used totals

	listed int64   // units that the last listing has brought, those that were refused included
	before *totals // what was used when it began; nil once it was stored or given up

	refusedCount int   // objects that were refused since everything was listed
	next         usage // of the first of them by name, which is to be taken next
	nextKey      Key
	gone         bool // an object that may have been refused was deleted
	ended        bool // the last listing was not read to its end; guarded by Budget.mu
}

// totals is what all objects use together.
type totals struct{ units, bytes int64 }

func (t *totals) add(u usage) { t.units, t.bytes = t.units+int64(u.units), t.bytes+int64(u.bytes) }

// usage is what one object uses.
type usage struct{ units, bytes int32 }

// charge replaces the usage before of an object by now, if there is room. known is whether it was accepted
// before.
func (s *share) charge(before, now usage, known bool) bool {
	units, bytes := int64(now.units)-int64(before.units), int64(now.bytes)-int64(before.bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	maxUnits, maxBytes := s.limits.units(s.kind), s.limits.Bytes
	if known {
		maxUnits += maxUnits / 4
		maxBytes += maxBytes / 4
	}

	if units > 0 && exceeds(s.used.units+units, maxUnits) ||
		bytes > 0 && exceeds(s.bytes+bytes, maxBytes) {
		return false
	}
	s.used.units += units
	s.used.bytes += bytes
	s.bytes += bytes
	return true
}

// use sets what is used, which needs no room.
func (s *share) use(all totals) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += all.bytes - s.used.bytes
	s.used = all
}

// recordRefusal records that an object of a key was refused, or that an update of it was.
func (s *share) recordRefusal(k Key, u usage, known bool) {
	if !known && (s.nextKey == (Key{}) || k.Compare(s.nextKey) < 0) {
		s.nextKey, s.next = k, u
	}
	s.refusedCount++
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[s] = true
}

// setRefused records whether something is refused, after everything was listed or when the share ends.
func (s *share) setRefused(something bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = false
	if something {
		s.refused[s] = true
	} else {
		delete(s.refused, s)
	}
}

// beginListing forgets what was refused: everything is about to be listed.
func (s *share) beginListing() {
	if s == nil {
		return
	}
	s.giveUpListing()
	s.listed, s.before = 0, new(s.used)
	s.refusedCount, s.nextKey, s.next, s.gone = 0, Key{}, usage{}, false
}

// giveUpListing returns to the Budget what a listing used that was not stored.
func (s *share) giveUpListing() {
	if s != nil && s.before != nil {
		s.use(*s.before)
		s.before = nil
	}
}

// storeListing records what a listing uses that was stored.
func (s *share) storeListing(all totals) {
	if s != nil {
		s.use(all)
		s.before = nil
		s.setRefused(s.refusedCount > 0)
	}
}

// checkListing returns an [*ExcessError] if a listing that has brought so many objects, and so many bytes as
// they were sent, must not be read further. What was gathered of it does not count any more.
func (s *share) checkListing(objects int, bytes int64) error {
	if s == nil || !s.endsListing(objects, bytes) {
		return nil
	}
	s.giveUpListing()
	return &ExcessError{s.Problem()}
}

func (s *share) endsListing(objects int, bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ends := exceeds(s.listed, maxTimes*s.limits.units(s.kind)) ||
		exceeds(int64(objects), maxTimes*s.limits.objects(s.kind)) ||
		exceeds(bytes, maxTimesBytes*s.limits.Bytes)
	if ends {
		s.ended, s.refused[s] = true, true
	}
	return ends
}

// isPartial reports whether an object that was not accepted before was refused since everything was listed.
func (s *share) isPartial() bool { return s != nil && s.nextKey != (Key{}) }

// mayFit reports whether something was refused that may fit now, with a tenth to spare.
func (s *share) mayFit() bool {
	if s == nil || s.refusedCount == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fits := func(used, next, most int64) bool { return !exceeds(used+max(used/10, next), most) }
	return fits(s.used.units, int64(s.next.units), s.limits.units(s.kind)) &&
		fits(s.bytes, int64(s.next.bytes), s.limits.Bytes)
}

// refusedGone reports whether something was deleted that may have been refused.
func (s *share) refusedGone() bool { return s != nil && s.gone }

// usageOf returns what an object of a kind with this record uses.
func usageOf(kind Kind, key Key, object, record any) usage {
	units := 1
	if kind.countsEndpoints() {
		switch o := object.(type) {
		case *discoveryv1.EndpointSlice:
			units = len(o.Endpoints)
		case *corev1.Endpoints: //nolint:staticcheck // Endpoints are read on request
			units = 0
			for _, subset := range o.Subsets {
				units += len(subset.Addresses) + len(subset.NotReadyAddresses)
			}
		}
	}

	bytes := deepSize(reflect.ValueOf(record), 0) + uintptr(len(key.Namespace)+len(key.Name)) + 64
	return usage{int32(units), int32(min(bytes, math.MaxInt32))} // an object is bounded far below that
}

// SizeOf returns the bytes that an object takes, with all that it points to.
func SizeOf(object any) int64 { return int64(deepSize(reflect.ValueOf(object), 0)) } //nolint:gosec // far below

// maxLevels is how deep a value is looked into. What is deeper takes more than there may be of anything.
const maxLevels = 1000

// deepSize returns the bytes of a value and of all that it points to, as if nothing was shared.
func deepSize(v reflect.Value, depth int) uintptr {
	if !v.IsValid() {
		return 0
	}
	return v.Type().Size() + pointedSize(v, depth)
}

func pointedSize(value reflect.Value, depth int) (n uintptr) {
	if depth > maxLevels {
		return math.MaxInt32
	}

	switch value.Kind() { //nolint:exhaustive // the others point to nothing
	case reflect.String:
		return uintptr(value.Len())
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			return deepSize(value.Elem(), depth+1)
		}
	case reflect.Slice, reflect.Array:
		if value.Kind() == reflect.Slice {
			n = uintptr(value.Cap()) * value.Type().Elem().Size()
		}
		if k := value.Type().Elem().Kind(); k >= reflect.Bool && k <= reflect.Complex128 {
			return n
		}
		for i := range value.Len() {
			n += pointedSize(value.Index(i), depth+1)
		}
	case reflect.Map:
		for i := value.MapRange(); i.Next(); {
			n += deepSize(i.Key(), depth+1) + deepSize(i.Value(), depth+1)
		}
	case reflect.Struct:
		if t := value.Type(); t == reflect.TypeFor[netip.Addr]() || t == reflect.TypeFor[time.Time]() {
			return 0 // what they point to is common
		}
		for i := range value.NumField() { //nolint:modernize // Value.Fields makes garbage of each
			n += pointedSize(value.Field(i), depth+1)
		}
	}
	return n
}
