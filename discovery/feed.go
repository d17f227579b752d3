package discovery

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/fingerpost/fingerpost/federation"
)

// A Target is everything that an answer depends on: streams of equal Targets get the same bytes.
type Target struct {
	Question
	federation.Locality
}

// A Question is a Target before the client's place is known to matter.
type Question struct {
	federation.Service
	Port     uint16
	Hostname string // of one instance; empty for all
}

const (
	idleFor    = 10 * time.Minute // how long a Question is kept that no stream asks
	maxIdle    = 1 << 14
	entryBytes = 96 // what an Entry costs in a Selection and a Set, roughly
)

// feeds holds the feed of every Target that a stream asks for, and for a while of those that none asks any more: proxies open
// every stream anew each 5 to 60 minutes.
type feeds struct {
	config *Config
	cache  *frameCache

	mu        sync.Mutex
	questions map[Question]*question
	idle      *simplelru.LRU[Question, time.Time] // since when
	idleBytes int64
}

func newFeeds(config *Config, cache *frameCache) *feeds {
	f := &feeds{config: config, cache: cache, questions: map[Question]*question{}}
	f.idle, _ = simplelru.NewLRU(maxIdle, func(q Question, _ time.Time) { f.idled(q) }) // it only fails for a size of 0
	return f
}

// question holds the newest Selection, shared by the feeds of all localities.
type question struct {
	Question
	feeds   *feeds
	streams int           // guarded by feeds.mu
	size    int64         // when it fell idle, likewise
	sets    atomic.Uint64 // that its feeds were brought to
	shown   shown         // guarded by subscribers.mu

	mu        sync.Mutex // guards all below
	snapshot  *federation.Snapshot
	selection *federation.Selection
	byPlace   map[federation.Locality]*feed
}

// join returns the question for one more stream, which will leave it.
func (f *feeds) join(q Question) *question {
	f.mu.Lock()
	defer f.mu.Unlock()
	have := f.questions[q]
	if have == nil {
		have = &question{Question: q, feeds: f, byPlace: map[federation.Locality]*feed{}}
		f.questions[q] = have
	}
	if have.streams == 0 && f.idle.Contains(q) {
		have.streams = 1 // so that idled lets it live
		f.idle.Remove(q)
		return have
	}
	have.streams++
	return have
}

func (f *feeds) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.questions)
}

func (q *question) leave() {
	f := q.feeds
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.streams--; q.streams > 0 {
		return
	}
	q.size = q.bytes()
	f.idleBytes += q.size
	f.idle.Add(q.Question, time.Now())
	for {
		oldest, since, some := f.idle.GetOldest()
		if !some || f.idleBytes <= f.config.IdleBytes && time.Since(since) < idleFor {
			return
		}
		f.idle.Remove(oldest)
	}
}

// idled is told of every question that leaves the idle ones; it needs f.mu.
func (f *feeds) idled(key Question) {
	q := f.questions[key]
	f.idleBytes -= q.size
	if q.streams == 0 {
		delete(f.questions, key)
		for _, feed := range q.byPlace {
			feed.drop()
		}
	}
}

func (q *question) bytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	var n int64
	for _, f := range q.byPlace {
		f.mu.Lock()
		if f.head != nil {
			n += int64(f.head.set.Len()) * entryBytes
		}
		f.mu.Unlock()
	}
	return n
}

// at brings the question up to s, unless it is further already, and returns where it is then.
func (q *question) at(s *federation.Snapshot) (*federation.Snapshot, *federation.Selection) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.snapshot == nil || s.Version > q.snapshot.Version {
		query := federation.Query{Port: q.Port, Hostname: q.Hostname, IPv6: q.feeds.config.IPv6}
		q.snapshot, q.selection = s, federation.Select(s, query, q.selection)
	}
	return q.snapshot, q.selection
}

// settle returns the feed for clients at a place, for one more stream, which will move from it.
func (q *question) settle(place federation.Locality) *feed {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.byPlace[place]
	if f == nil {
		f = &feed{target: Target{q.Question, place}, encoder: encoder{q.feeds.config, q.Port, place.Zone}, cache: q.feeds.cache, sets: &q.sets}
		q.byPlace[place] = f
	}
	f.streams++
	return f
}

// move takes a stream off a feed. The last one to move drops the feed; if it is the last one to leave the question, the feed idles
// with it.
func (q *question) move(f *feed, leaving bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f.streams--; f.streams == 0 && !leaving {
		delete(q.byPlace, f.target.Locality)
		f.drop()
	}
}

// A feed holds the newest Set of one Target.
type feed struct {
	target  Target
	encoder encoder
	cache   *frameCache
	sets    *atomic.Uint64 // of its question
	streams int            // guarded by question.mu

	mu        sync.Mutex // guards all below
	version   uint64
	selection *federation.Selection
	head      *head
}

// head is the newest Set with the steps that lead to it.
type head struct {
	set     *federation.Set
	encoder encoder
	cache   *frameCache

	mu    sync.Mutex
	steps map[*federation.Set]*step // by the Set that a stream was sent last, nil for a first answer; a nil map once dropped
}

// step is one way to a head's Set.
type step struct {
	head   *head
	from   *federation.Set
	frames func() []*frame // encodes once
	bytes  int64           // that it holds on to; known with the frames
}

// leave makes the head forget the step, so that it is encoded again.
func (s *step) leave() {
	s.head.mu.Lock()
	defer s.head.mu.Unlock()
	if s.head.steps[s.from] == s {
		delete(s.head.steps, s.from)
	}
}

// at brings the feed up to a Selection, unless it is further already.
func (f *feed) at(version uint64, x *federation.Selection) *head {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.head != nil && (f.selection == x || version < f.version) {
		return f.head
	}
	var old *federation.Set
	if f.head != nil {
		old = f.head.set
	}
	f.version, f.selection = version, x
	if set := x.Near(f.target.Locality, old); f.head == nil || set != old {
		if f.head != nil {
			f.head.drop()
		}
		f.sets.Add(1)
		f.head = &head{set: set, encoder: f.encoder, cache: f.cache, steps: map[*federation.Set]*step{}}
	}
	return f.head
}

func (f *feed) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.head != nil {
		f.head.drop()
	}
}

// from returns the frames that turn from into the head's Set; none if they are the same.
func (h *head) from(from *federation.Set) []*frame {
	if from == h.set {
		return nil
	}
	h.mu.Lock()
	s, live := h.steps[from], h.steps != nil
	if s == nil {
		s = &step{head: h, from: from}
		s.frames = sync.OnceValue(func() []*frame {
			frames := h.encoder.encode(from, h.set)
			s.bytes = 256 + int64(from.Len())*16 // itself, and the Set that it holds on to
			for _, f := range frames {
				s.bytes += int64(f.bytes.Len())
			}
			return frames
		})
		if live {
			h.steps[from] = s
		}
	}
	h.mu.Unlock()
	frames := s.frames() // outside of the lock
	if live {
		h.cache.keep(s, kept{bytes: s.bytes})
	}
	return frames
}

// anew is from for a client that has moved to another zone: what it was told of the addresses that it keeps is no longer so.
func (h *head) anew(from *federation.Set) []*frame {
	_, gone := federation.Diff(from, h.set)
	return append(slices.Clip(h.from(nil)), removes(gone)...)
}

// drop frees the frames of a head that is none any more. Streams that are about to send some have them.
func (h *head) drop() {
	h.mu.Lock()
	steps := h.steps
	h.steps = nil
	h.mu.Unlock()
	for _, s := range steps {
		h.cache.forget(s)
	}
}

// A frameCache bounds the bytes of all encoded messages that are kept: the steps of feeds, and the profiles of Services. What falls out
// is encoded again on demand.
type frameCache struct {
	max int64

	mu    sync.Mutex
	bytes int64
	kept  *simplelru.LRU[any, kept] // by *step, and by profileKey
}

// kept is what is known of a message: the bytes that it holds on to, and itself if it is found by its key.
type kept struct {
	bytes int64
	frame *frame
}

func newFrameCache(max int64) *frameCache {
	c := &frameCache{max: max}
	c.kept, _ = simplelru.NewLRU(1<<20, func(_ any, k kept) { c.bytes -= k.bytes }) // it only fails for a size of 0
	return c
}

// find returns the frame that is kept under a key, if it is.
func (c *frameCache) find(key any) (*frame, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, known := c.kept.Get(key)
	return k.frame, known
}

// keep counts what was just used.
func (c *frameCache) keep(key any, k kept) {
	c.mu.Lock()
	var evicted []any
	if _, known := c.kept.Get(key); !known {
		c.bytes += k.bytes
		c.kept.Add(key, k)
		for c.bytes > c.max && c.kept.Len() > 1 {
			oldest, _, _ := c.kept.RemoveOldest()
			evicted = append(evicted, oldest)
		}
	}
	c.mu.Unlock()
	for _, key := range evicted {
		if s, is := key.(*step); is {
			s.leave()
		}
	}
}

func (c *frameCache) forget(key any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.Remove(key)
}

func (c *frameCache) size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}
