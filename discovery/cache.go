package discovery

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/fingerpost/fingerpost/federation"
)

// An updateCache bounds the bytes of all encoded messages that are kept: updates, and what protocols
// keep by keys of their own. What falls out is encoded again on demand.
//
// Its lock guards the updates of every Answer as well, so that the two agree: an update that is counted
// is one that its Answer has, and an Answer that is superseded has none and gets none. Only while it is
// encoded for the first time has an Answer an update that is not counted.
type updateCache struct {
	max     int64
	leftOut atomic.Uint64 // addresses and other things that could not be encoded

	mu    sync.Mutex
	bytes int64
	kept  *simplelru.LRU[any, kept] // by *update, and by the keys of protocols
}

// kept is what is known of a message: the bytes that it holds on to, and itself if it is found by its key.
type kept struct {
	bytes int64
	frame *Frame
}

// entryBytes is what an entry of the cache takes, besides the bytes that it holds on to.
const entryBytes = 256

func newUpdateCache(limit int64) *updateCache {
	c := &updateCache{max: limit}
	c.kept, _ = simplelru.NewLRU(1<<20, c.removed) // it only fails for a size of 0
	return c
}

// removed follows whatever leaves the cache. It needs c.mu.
func (c *updateCache) removed(key any, k kept) {
	c.bytes -= k.bytes
	if u, is := key.(*update); is {
		delete(u.of.byKey, u.key)
	}
}

// find returns the frame that is kept under a key, if it is.
func (c *updateCache) find(key any) (*Frame, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, known := c.kept.Get(key)
	return k.frame, known
}

// put counts a message under its key.
func (c *updateCache) put(key any, k kept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(key, k)
}

// add needs c.mu.
func (c *updateCache) add(key any, k kept) {
	if c.kept.Contains(key) {
		return
	}
	c.bytes += k.bytes
	c.kept.Add(key, k)
	for c.bytes > c.max && c.kept.Len() > 1 {
		c.kept.RemoveOldest()
	}
}

// update returns an update, which may be encoded already. An Answer that is superseded, whose last
// streams are about to send it, has an update for each of them.
func (c *updateCache) update(of *updates, key updateKey, from, to *federation.Answer) *update {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u := of.byKey[key]; u != nil {
		c.kept.Get(u) // it is not the oldest any more
		return u
	}
	u := newUpdate(of, key, from, to)
	if of.byKey != nil {
		of.byKey[key] = u
	}
	return u
}

// has reports whether an update is encoded, or about to be.
func (c *updateCache) has(of *updates, key updateKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return of.byKey[key] != nil
}

// keepUpdate counts an update that has been encoded, if its Answer still has it.
func (c *updateCache) keepUpdate(u *update, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u.of.byKey[u.key] == u {
		c.add(u, kept{bytes: bytes})
	}
}

// drop frees the updates of an Answer that is superseded; nil for none. Streams that are about to send
// some have them.
func (c *updateCache) drop(of *updates) {
	if of == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	byKey := of.byKey
	of.byKey = nil
	for _, u := range byKey {
		c.kept.Remove(u)
	}
}

func (c *updateCache) size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}
