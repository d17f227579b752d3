package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Annotations of Links and Services. All values are small, and everything in them is bounded: users who may annotate a
// Service must not make the work for it grow without end. A value that cannot be read is a Problem, which describes
// what would be right. Of a Service it counts as none, so that shares follow from the objects alone and every replica
// computes the same. Of a Link what was in force stays (Keeping): a mistake must not let go what a guard holds.
const (
	// Prefix is that of all annotations for Fingerpost.
	Prefix = "federation.fingerpost.io/"

	PreferKey          = Prefix + "prefer"           // of Services
	CapacityKey        = Prefix + "capacity"         // of Services
	WeightsKey         = Prefix + "weights"          // of Services
	WhenStaleKey       = Prefix + "when-stale"       // of both
	DrainKey           = Prefix + "drain"            // of Links
	WithdrawalGuardKey = Prefix + "withdrawal-guard" // of Links
	MaxEndpointsKey    = Prefix + "max-endpoints"    // of Links
	MaxServicesKey     = Prefix + "max-services"     // of Links
	RegionKey          = Prefix + "region"           // of Links
	IdentitiesKey      = Prefix + "identities"       // of Links
)

// Keys are the annotations that ServiceOf and LinkOf read.
var (
	ServiceKeys = []string{PreferKey, CapacityKey, WeightsKey, WhenStaleKey}
	LinkKeys    = []string{
		WhenStaleKey, DrainKey, WithdrawalGuardKey, MaxEndpointsKey, MaxServicesKey, RegionKey,
		IdentitiesKey,
	}
)

const (
	maxValue = 8 << 10     // bytes of an annotation
	maxTiers = 16          // of a Service
	maxNames = 256         // in an annotation
	maxName  = 253         // bytes of one, as of a Link
	maxCount = 100_000_000 // a capacity, or a limit
	maxQuote = 64          // bytes of a value that a Problem quotes

	// MaxTime is how long a Drain or a hold takes at most.
	MaxTime = 7 * 24 * time.Hour
	// MaxWeight is the highest weight of a cluster.
	MaxWeight = 10_000
)

// A Problem is an annotation whose value cannot be read.
type Problem struct {
	Key, Value string
	Want       string // what would be right
}

// String describes the Problem, for people, in ASCII.
func (p Problem) String() string {
	value := fmt.Sprintf("%+q", p.Value)
	if len(p.Value) > maxQuote {
		value = fmt.Sprintf("%+q... (%d bytes)", p.Value[:maxQuote], len(p.Value))
	}
	return fmt.Sprintf("the annotation %s has the value %s, which cannot be read: %s", p.Key, value, p.Want)
}

// reader reads annotations, and collects the Problems.
type reader struct {
	annotations map[string]string
	problems    []Problem
}

// read returns what parse makes of an annotation; the zero value if there is none, or it cannot be read.
func read[T any](r *reader, key string, parse func(value string) (T, bool), want string) (v T) {
	value, found := r.annotations[key]
	if !found {
		return v
	}
	if len(value) <= maxValue {
		if v, ok := parse(strings.TrimSpace(value)); ok {
			return v
		}
	}
	r.problems = append(r.problems, Problem{key, value, want})
	return v
}

const wantWhenStale = "set keep, last or drop"

// ServiceOf reads the annotations of a Service.
func ServiceOf(annotations map[string]string) (Service, []Problem) {
	wantTiers := fmt.Sprintf("set tiers, the best first, such as local > east,west > *: "+
		"names of clusters, local, region or *, each of them once, in at most %d tiers", maxTiers)
	wantWeights := fmt.Sprintf("set a weight for each cluster, such as east=80,west=20: "+
		"whole numbers up to %d, one of them above 0", MaxWeight)
	r := &reader{annotations: annotations}
	s := Service{
		Prefer:    read(r, PreferKey, parsePrefer, wantTiers),
		Capacity:  read(r, CapacityKey, parseCapacity, "set a number of endpoints, such as 10"),
		Weights:   read(r, WeightsKey, parseWeights, wantWeights),
		WhenStale: read(r, WhenStaleKey, parseWhenStale, wantWhenStale),
	}
	return s, r.problems
}

// Problems returns what cannot be read of those annotations that are known for an object.
func Problems(annotations map[string]string, known []string) []Problem {
	_, all := ServiceOf(annotations)
	_, more := LinkOf(annotations)
	for _, p := range more {
		if !slices.Contains(all, p) { // one of both is read in the same way
			all = append(all, p)
		}
	}
	return slices.DeleteFunc(all, func(p Problem) bool { return !slices.Contains(known, p.Key) })
}

// LinkOf reads the annotations of a Link.
func LinkOf(annotations map[string]string) (Link, []Problem) {
	const wantLimit = "set a number, such as 10000; 0 is no limit"

	reader := &reader{annotations: annotations}
	link := Link{
		WhenStale: read(reader, WhenStaleKey, parseWhenStale, wantWhenStale),
		Drain: read(reader, DrainKey, ParseDrain,
			"set true, or a time and a duration of 7 days at most, such as 2026-01-31T12:00:00Z/5m"),
		WithdrawalGuard: read(reader, WithdrawalGuardKey, parseGuard,
			"set a percentage and a duration of 7 days at most, such as 50%/10m, or off"),
		MaxEndpoints: read(reader, MaxEndpointsKey, parseLimit, wantLimit),
		MaxServices:  read(reader, MaxServicesKey, parseLimit, wantLimit),
		Region: read(reader, RegionKey, parseRegion,
			"set the name of a region, of at most 63 letters, digits, -, _ or ."),
		AcceptIdentities: read(reader, IdentitiesKey, parseIdentities,
			"set accept, so that references to ServiceAccounts mean those of this cluster as well"),
	}

	return link, reader.problems
}

// Keeping returns l with what was in force before in place of what cannot be read. That identities are accepted grants
// rights, so it is not kept.
func (l Link) Keeping(before Link, problems []Problem) Link {
	for _, p := range problems {
		switch p.Key {
		case WhenStaleKey:
			l.WhenStale = before.WhenStale
		case DrainKey:
			l.Drain = before.Drain
		case WithdrawalGuardKey:
			l.WithdrawalGuard = before.WithdrawalGuard
		case MaxEndpointsKey:
			l.MaxEndpoints = before.MaxEndpoints
		case MaxServicesKey:
			l.MaxServices = before.MaxServices
		case RegionKey:
			l.Region = before.Region
		}
	}
	return l
}

// parsePrefer reads tiers such as "local > east,west > *".
func parsePrefer(value string) (tiers []Tier, ok bool) {
	seen := map[string]bool{}
	for text := range strings.SplitSeq(value, ">") {
		var next Tier
		for name := range strings.SplitSeq(text, ",") {
			name = strings.TrimSpace(name)
			if seen[name] || len(seen) == maxNames {
				return nil, false
			}

			seen[name] = true
			switch {
			case name == "local":
				next.Local = true
			case name == "region":
				next.Region = true
			case name == "*":
				next.Others = true
			case isName(name, maxName):
				next.Clusters = append(next.Clusters, strings.Clone(name)) // not the whole annotation
			default:
				return nil, false
			}
		}

		slices.Sort(next.Clusters)
		tiers = append(tiers, next)
	}

	return tiers, len(tiers) <= maxTiers
}

func parseCapacity(value string) (uint32, bool) {
	n, ok := parseNumber(value, maxCount)
	return uint32(n), ok && n > 0
}

// parseWeights reads weights such as "east=80,west=20".
func parseWeights(value string) ([]Weight, bool) {
	weights, total := map[string]uint32{}, 0
	for item := range strings.SplitSeq(value, ",") {
		name, text, _ := strings.Cut(item, "=")
		name = strings.TrimSpace(name)
		n, ok := parseNumber(strings.TrimSpace(text), MaxWeight)
		if _, twice := weights[name]; twice || !ok || !isName(name, maxName) || len(weights) == maxNames {
			return nil, false
		}
		weights[strings.Clone(name)] = uint32(n) // not the whole annotation
		total += n
	}

	var all []Weight
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		all = append(all, Weight{name, weights[name]})
	}
	return all, total > 0
}

func parseWhenStale(value string) (WhenStale, bool) {
	for _, w := range []WhenStale{Keep, Last, Drop} {
		if value == w.String() {
			return w, true
		}
	}
	return Unset, false
}

// ParseDrain reads the value of a drain annotation: true, or a time and a duration, and whether it goes up.
func ParseDrain(value string) (Drain, bool) {
	if value == "true" {
		return Drain{From: atOnce}, true
	}
	from, rest, _ := strings.Cut(value, "/")
	over, up := strings.CutSuffix(rest, "/up")
	at, err := time.Parse(time.RFC3339, from)
	d, ok := parseDuration(over)
	if err != nil || !ok || at.Year() < 1970 || at.Year() > 2500 {
		return Drain{}, false
	}
	return Drain{From: at.UTC(), Over: d, Up: up}, true
}

// String returns the value of the annotation that ParseDrain reads; empty for none.
func (d Drain) String() string {
	up := ""
	switch {
	case d.From.IsZero():
		return ""
	case d == Drain{From: atOnce}:
		return "true"
	case d.Up:
		up = "/up"
	}
	return d.From.Format(time.RFC3339Nano) + "/" + d.Over.String() + up
}

// parseGuard reads a value such as "50%/10m".
func parseGuard(value string) (WithdrawalGuard, bool) {
	if value == "off" {
		return WithdrawalGuard{Off: true}, true
	}
	percent, hold, _ := strings.Cut(value, "/")
	number, is := strings.CutSuffix(percent, "%")
	n, ok := parseNumber(number, 100)
	d, valid := parseDuration(hold)
	if !is || !ok || n == 0 || !valid || d == 0 {
		return WithdrawalGuard{}, false
	}
	return WithdrawalGuard{Percent: uint8(n), Hold: d}, true
}

func parseLimit(value string) (Limit, bool) {
	n, ok := parseNumber(value, maxCount)
	return Limit{ok, n}, ok
}

func parseRegion(value string) (string, bool) { return value, IsRegion(value) }

func parseIdentities(value string) (accept, ok bool) { return value == "accept", value == "accept" }

// IsRegion reports whether a string may be the name of a region.
func IsRegion(s string) bool { return isName(s, 63) }

func parseDuration(value string) (time.Duration, bool) {
	d, err := time.ParseDuration(value)
	return d, err == nil && d >= 0 && d <= MaxTime
}

// parseNumber reads a number from 0 to limit.
func parseNumber(value string, limit int) (int, bool) {
	n, err := strconv.ParseUint(value, 10, 32)
	return int(n), err == nil && len(value) <= 10 && n <= uint64(limit)
}

// isName reports whether a string may be the name of a cluster or a region.
func isName(s string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for _, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}
