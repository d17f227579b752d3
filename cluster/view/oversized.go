package view

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/fingerpost/fingerpost/federation"
)

// maxOversizedNamed is how many Services with too many endpoints are named in a problem.
const maxOversizedNamed = 3

// oversized are the Services of which not all endpoints are published, with the number that each has. It has
// a lock because pages read it. The zero value has none.
type oversized struct {
	mu       sync.Mutex
	services map[key]int
}

// set records that a Service has n endpoints, which is too many, or with 0 that all of it is published. A number that
// differs by less than a tenth stays as it is: a problem that changes is logged, and written to the Link.
func (o *oversized) set(k key, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.services[k]
	switch {
	case n == 0:
		delete(o.services, k)
	case o.services == nil:
		o.services = map[key]int{k: n}
	case 10*max(n-before, before-n) >= before:
		o.services[k] = n
	}
}

// problem describes the Services, the largest first; empty if there are none.
func (o *oversized) problem(limit int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.services) == 0 {
		return ""
	}

	names := slices.SortedFunc(maps.Keys(o.services), func(a, b key) int {
		return cmp.Or(cmp.Compare(o.services[b], o.services[a]), a.Compare(b))
	})
	var all []string
	for _, k := range names[:min(len(names), maxOversizedNamed)] {
		all = append(all, fmt.Sprintf("%s/%s has %d", k.Namespace, k.Name, o.services[k]))
	}
	if more := len(names) - maxOversizedNamed; more > 0 {
		all = append(all, fmt.Sprintf("%d more Services", more))
	}

	return fmt.Sprintf("a Service may have %d endpoints, and %s: those beyond, in the slices that come last by name, "+
		"are left out; raise -cluster-max-endpoints-per-service if they are meant to be so large",
		limit, strings.Join(all, ", "))
}

// Oversized describes the Services that have more endpoints than Options allow, of which the rest is not
// published; empty if there are none. It may be called from any goroutine.
func (r *Reconciler) Oversized() string { return r.oversized.problem(r.options.MaxEndpoints) }

// slicesWithin appends to a View the slices of a Service, in the order of their names, as long as they have no more
// endpoints than a Service may have. A slice that has some too many is cut, those behind it are left out: so
// all replicas publish the same ones. whole is how many slices are published as they are.
//
//	limit 10, slices of 4, 4, 4, 4 endpoints: 4, 4 and two of the third; whole is 2, and the Service has 16
func (r *Reconciler) slicesWithin(key key, view *federation.View) (whole int) {
	limit, total := cmp.Or(r.options.MaxEndpoints, math.MaxInt), 0
	for _, t := range r.slicesOf.Get(key) {
		for _, resolved := range t.slices {
			room := limit - total
			total += len(resolved.Endpoints)

			switch {
			case total <= limit:
				view.Slices = append(view.Slices, resolved.Slice)
				whole++
			case room > 0:
				cut := *resolved.Slice
				cut.Endpoints = slices.Clone(cut.Endpoints[:room])
				view.Slices = append(view.Slices, &cut)
			}
		}
	}

	switch {
	case r.options.MaxEndpoints == 0:
	case total <= limit:
		r.oversized.set(key, 0)
	default:
		r.oversized.set(key, total)
	}
	return whole
}
