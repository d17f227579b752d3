package federation

import "slices"

// A cursor finds the items of a list by their keys. It costs next to nothing while most are asked for
// in the order of the list, whatever was put in or left out between them.
type cursor[K comparable, T any] struct {
	list []T
	key  func(T) K

	next   int       // behind the item that was found last
	misses int       // so far, of items that were not the next
	byKey  map[K]int // the first of each key; nil as long as there were few misses
}

// find returns where an item of a key is, which may be before those found already; -1 for none.
func (c *cursor[K, T]) find(key K) int {
	if c.next < len(c.list) && c.key(c.list[c.next]) == key {
		c.next++
		return c.next - 1
	}
	at := c.search(key)
	if at >= 0 {
		c.next = at + 1
	}
	return at
}

func (c *cursor[K, T]) search(key K) int {
	const few = 4
	c.misses++
	if c.misses <= few || len(c.list) == 0 {
		return slices.IndexFunc(c.list, func(t T) bool { return c.key(t) == key })
	}

	if c.byKey == nil {
		c.byKey = make(map[K]int, len(c.list))
		for i, t := range slices.Backward(c.list) {
			c.byKey[c.key(t)] = i
		}
	}
	if at, found := c.byKey[key]; found {
		return at
	}
	return -1
}
