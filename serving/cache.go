package serving

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// A Cache bounds the bytes of all encoded messages that are kept to be shared by streams: those that protocols keep by
// keys of their own, and those that Owners have. What falls out is encoded again on demand.
type Cache struct {
	max int64

	mu    sync.Mutex // guards all below
	bytes int64
	kept  *simplelru.LRU[any, kept] // by Owner, and by the keys of protocols
	made  map[any]*making           // now, by the keys of protocols
}

// An Owner has messages that a Cache counts. It is comparable. The Cache calls it under its lock.
type Owner interface {
	Owns() bool // the messages, still
	Drop()      // them: they exceed the bound, or were released
}

// kept is what is known of a message: the bytes that it holds on to, and itself if it is found by its key.
type kept struct {
	bytes int64
	frame *Frame
}

// making is a message that one stream encodes, and others wait for.
type making struct {
	done  chan struct{} // closed when it is over
	frame *Frame        // nil: it was not made
}

// entryBytes is what an entry of the Cache takes, besides the bytes that it holds on to.
const entryBytes = 256

// NewCache returns a Cache of nothing that keeps so many bytes at most.
func NewCache(limit int64) *Cache {
	c := &Cache{max: limit, made: map[any]*making{}}
	c.kept, _ = simplelru.NewLRU(1<<20, c.removed) // it only fails for a size of 0
	return c
}

// removed follows whatever leaves the Cache. It needs c.mu.
func (c *Cache) removed(key any, k kept) {
	c.bytes -= k.bytes
	if o, is := key.(Owner); is {
		o.Drop()
	}
}

// Get returns the message of a comparable key. If it is not kept it is made, once for all who ask meanwhile, and kept
// unless it refers to 0 bytes: what the key refers to counts, too.
func (c *Cache) Get(key any, encode func() (f *Frame, refers int)) *Frame {
	for {
		f, m, isOurs := c.find(key)
		if isOurs {
			return c.encodeFor(key, m, encode)
		}
		if f != nil {
			return f
		}

		<-m.done
		if m.frame != nil {
			return m.frame
		} // else who made it has panicked: the next one tries
	}
}

// find returns the message that is kept for a key; or that which is made, and whether the caller has to.
func (c *Cache) find(key any) (f *Frame, m *making, isOurs bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, found := c.kept.Get(key); found {
		return k.frame, nil, false
	}
	if m := c.made[key]; m != nil {
		return nil, m, false
	}

	m = &making{done: make(chan struct{})}
	c.made[key] = m
	return nil, m, true
}

// encodeFor makes a message for all who wait for it.
func (c *Cache) encodeFor(key any, waited *making, encode func() (f *Frame, refers int)) *Frame {
	refers := 0
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if waited.frame != nil && refers > 0 {
			c.add(key, kept{entryBytes + int64(refers) + int64(waited.frame.Len()), waited.frame})
		}
		delete(c.made, key)
		close(waited.done)
	}()
	waited.frame, refers = encode()
	return waited.frame
}

// Charge counts what an Owner has until it drops it, unless it owns nothing any more.
func (c *Cache) Charge(o Owner, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.Owns() {
		c.add(o, kept{bytes: entryBytes + int64(bytes)})
	}
}

// Touch makes what an Owner has the newest of all.
func (c *Cache) Touch(o Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.Get(o)
}

// Release takes what an Owner has off the count. Streams that are about to send it have it.
func (c *Cache) Release(o Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.Remove(o)
}

// add needs c.mu.
func (c *Cache) add(key any, k kept) {
	if c.kept.Contains(key) {
		return
	}
	c.bytes += k.bytes
	c.kept.Add(key, k)
	for c.bytes > c.max && c.kept.Len() > 1 {
		c.kept.RemoveOldest()
	}
}

// Bytes returns how many bytes are kept.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}
