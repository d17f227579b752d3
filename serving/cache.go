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

// entryBytes is what an entry of the Cache takes, besides the bytes that it holds on to.
const entryBytes = 256

// NewCache returns a Cache of nothing that keeps so many bytes at most.
func NewCache(limit int64) *Cache {
	c := &Cache{max: limit}
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

// Get returns the message of a comparable key. If it is not kept it is made, and kept unless it refers to 0 bytes: what
// the key refers to counts, too.
func (c *Cache) Get(key any, encode func() (f *Frame, refers int)) *Frame {
	if f := c.find(key); f != nil {
		return f
	}
	f, refers := encode()
	if refers > 0 {
		c.keep(key, f, refers)
	}
	return f
}

// find returns the message that is kept for a key; nil for none.
func (c *Cache) find(key any) *Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, _ := c.kept.Get(key)
	return k.frame
}

func (c *Cache) keep(key any, f *Frame, refers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(key, kept{entryBytes + int64(refers) + int64(f.bytes.Len()), f})
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
