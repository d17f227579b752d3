package mirror

import (
	"maps"
	"slices"
	"sync"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// An index finds names of Services by what they depend on, so that an event of one linked cluster, or Link, costs what
// that has here. The zero value is empty.
type index[V comparable] struct {
	mu       sync.Mutex
	services map[V]map[api.Key]bool
	values   map[api.Key][]V
}

// put replaces what a Service depends on.
func (x *index[V]) put(key api.Key, values ...V) {
	x.mu.Lock()
	defer x.mu.Unlock()

	if x.services == nil {
		x.services, x.values = map[V]map[api.Key]bool{}, map[api.Key][]V{}
	}
	for _, v := range x.values[key] {
		delete(x.services[v], key)
		if len(x.services[v]) == 0 {
			delete(x.services, v)
		}
	}

	x.values[key] = values
	if len(values) == 0 {
		delete(x.values, key)
	}
	for _, v := range values {
		if x.services[v] == nil {
			x.services[v] = map[api.Key]bool{}
		}
		x.services[v][key] = true
	}
}

// dependents returns the Services that depend on a value, in no order.
func (x *index[V]) dependents(v V) []api.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.services[v]))
}
