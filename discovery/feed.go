package discovery

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/fingerpost/fingerpost/federation"
)

// A Target is everything that an answer depends on: streams of equal Targets get the same bytes.
type Target struct {
	Question
	federation.Locality
}

// A Question is a Target before the client's place is known to matter. Streams for ports that the Service does not declare, of which
// clients may make up any number, ask the same one: its Sets are for any port, and only frames are for one.
type Question struct {
	federation.Service
	Port     uint16 // 0: any that the Service does not declare
	Hostname string // of one instance; empty for all
}

// feeds holds the feed of every Target that a stream asks for. Nothing outlives the last stream that asks for it: an answer is made
// again in about the time that it takes to write it, so keeping it for clients that may come back would cost memory and save little.
//
// Locks are taken in this order: feeds.mu, question.mu, feed.mu, frameCache.mu. Work in proportion to a Service is done under
// question.mu (Select) and feed.mu (Near) only, and frames are encoded under none.
type feeds struct {
	config *Config
	cache  *frameCache

	mu        sync.Mutex // guards all below, and who is on what: question.streams, question.byPlace, feed.streams
	questions map[Question]*question
}

func newFeeds(config *Config, cache *frameCache) *feeds {
	return &feeds{config: config, cache: cache, questions: map[Question]*question{}}
}

// question holds the newest Selection, shared by the feeds of all localities.
type question struct {
	Question
	feeds   *feeds
	streams int
	byPlace map[federation.Locality]*feed
	sets    atomic.Uint64 // that its feeds were brought to
	shown   shown         // guarded by subscribers.mu

	mu        sync.Mutex // guards all below
	snapshot  *federation.Snapshot
	selection *federation.Selection
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
	have.streams++
	return have
}

func (f *feeds) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.questions)
}

// leave takes a stream off the question, and off its feed if it has one.
func (q *question) leave(from *feed) {
	q.feeds.mu.Lock()
	if q.streams--; q.streams == 0 {
		delete(q.feeds.questions, q.Question)
	}
	gone := q.unsettle(from)
	q.feeds.mu.Unlock()
	gone.drop()
}

// settle moves a stream from its feed, nil if it has none, to the one for clients at a place.
func (q *question) settle(place federation.Locality, from *feed) *feed {
	q.feeds.mu.Lock()
	to := q.byPlace[place]
	if to == nil {
		to = &feed{target: Target{q.Question, place}, encoder: encoder{config: q.feeds.config, zone: place.Zone}, cache: q.feeds.cache, sets: &q.sets}
		q.byPlace[place] = to
	}
	to.streams++
	gone := q.unsettle(from)
	q.feeds.mu.Unlock()
	gone.drop()
	return to
}

// unsettle takes a stream off a feed and returns the feed if that was its last one. It needs feeds.mu.
func (q *question) unsettle(f *feed) (gone *feed) {
	if f == nil {
		return nil
	}
	if f.streams--; f.streams > 0 {
		return nil
	}
	delete(q.byPlace, f.target.Locality)
	return f
}

// at brings the question up to s, unless it is further already, and returns where it is then.
func (q *question) at(s *federation.Snapshot) (*federation.Snapshot, *federation.Selection) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.snapshot == nil || s.Version > q.snapshot.Version {
		query := federation.Query{Port: q.Port, Hostname: q.Hostname, IPv6: q.feeds.config.IPv6, ControlPlane: q.feeds.config.ControllerNamespace}
		q.snapshot, q.selection = s, federation.Select(s, query, q.selection)
	}
	return q.snapshot, q.selection
}

// A feed holds the newest Set of one Target.
type feed struct {
	target  Target
	encoder encoder // but for the port
	cache   *frameCache
	sets    *atomic.Uint64 // of its question
	streams int

	mu       sync.Mutex           // guards all below
	snapshot *federation.Snapshot // that the head's Set follows from
	head     *head
}

// head is the newest Set with the steps that lead to it.
type head struct {
	set     *federation.Set
	encoder encoder // but for the port
	cache   *frameCache
	steps   map[way]*step // guarded by cache.mu
}

// way is how a stream comes to a head.
type way struct {
	from *federation.Set // that it was sent last; nil for a first answer
	port uint16          // that it asked for
}

// step is one way to a head's Set.
type step struct {
	head *head
	way
	frames func() []*frame // encodes once
	bytes  int64           // that it holds on to; known with the frames
}

// at brings the feed up to a Snapshot and what was selected from it, unless the feed is further already. It returns the Snapshot that
// the head follows from: everything else that a stream sends with the head follows from that one, too.
func (f *feed) at(s *federation.Snapshot, x *federation.Selection) (*head, *federation.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.head != nil && s.Version <= f.snapshot.Version {
		return f.head, f.snapshot
	}
	var old *federation.Set
	if f.head != nil {
		old = f.head.set
	}
	f.snapshot = s
	if set := x.Near(f.target.Locality, old); f.head == nil || set != old {
		if f.head != nil {
			f.cache.drop(f.head)
		}
		f.sets.Add(1)
		f.head = &head{set: set, encoder: f.encoder, cache: f.cache, steps: map[way]*step{}}
	}
	return f.head, f.snapshot
}

// drop frees the frames of a feed that no stream is on any more.
func (f *feed) drop() {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.head != nil {
		f.cache.drop(f.head)
	}
}

// by returns the frames that bring a stream to the head's Set; none if it is there.
func (h *head) by(w way) []*frame {
	if w.from == h.set {
		return nil
	}
	s, counted := h.cache.step(h, w)
	frames := s.frames() // outside of the lock
	if !counted {
		h.cache.count(s)
	}
	return frames
}

func newStep(h *head, w way) *step {
	s := &step{head: h, way: w}
	s.frames = sync.OnceValue(func() []*frame {
		e := h.encoder
		e.port = w.port
		frames, leftOut := e.encode(w.from, h.set)
		h.cache.leftOut.Add(uint64(leftOut))
		s.bytes = 256 + int64(w.from.Len())*16 // itself, and the Set that it holds on to
		for _, f := range frames {
			s.bytes += int64(f.bytes.Len())
		}
		return frames
	})
	return s
}

// anew is by for a client that has moved to another zone: what it was told of the addresses that it keeps is no longer so.
func (h *head) anew(w way) []*frame {
	_, gone := federation.DiffAt(w.from, h.set, w.port)
	return append(slices.Clip(h.by(way{port: w.port})), removes(gone)...)
}

// A frameCache bounds the bytes of all encoded messages that are kept: the steps of feeds, and the profiles of Services. What falls out
// is encoded again on demand.
//
// Its lock guards the steps of every head as well, so that the two agree: a step that is counted is one that its head has, and a head
// that is dropped has none and gets none. Only while it is encoded for the first time has a head a step that is not counted.
type frameCache struct {
	max     int64
	leftOut atomic.Uint64 // addresses and profiles that could not be encoded

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
	c.kept, _ = simplelru.NewLRU(1<<20, c.removed) // it only fails for a size of 0
	return c
}

// removed follows whatever leaves the cache. It needs c.mu.
func (c *frameCache) removed(key any, k kept) {
	c.bytes -= k.bytes
	if s, is := key.(*step); is {
		delete(s.head.steps, s.way)
	}
}

// profile encodes a profile, which stays empty if it is not valid: if a text in it is no UTF-8, or it is larger than a message may be.
func (c *frameCache) profile(m *pb.DestinationProfile) (f *frame, valid bool) {
	b, err := marshal(m)
	if err != nil || len(b) > maxFrame {
		c.leftOut.Add(1)
		return undeclaredFrame, false
	}
	return &frame{bytes: b, what: toProfile}, true
}

// find returns the frame that is kept under a key, if it is.
func (c *frameCache) find(key any) (*frame, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, known := c.kept.Get(key)
	return k.frame, known
}

// keep counts a message under its key.
func (c *frameCache) keep(key any, k kept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(key, k)
}

// add needs c.mu.
func (c *frameCache) add(key any, k kept) {
	if c.kept.Contains(key) {
		return
	}
	c.bytes += k.bytes
	c.kept.Add(key, k)
	for c.bytes > c.max && c.kept.Len() > 1 {
		c.kept.RemoveOldest()
	}
}

// step returns the step from a Set to a head's, and whether it is counted already. A head that was dropped, whose last streams are
// about to send it, has a step for each of them.
func (c *frameCache) step(h *head, w way) (s *step, counted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s = h.steps[w]; s == nil {
		if s = newStep(h, w); h.steps != nil {
			h.steps[w] = s
		}
		return s, false
	}
	_, counted = c.kept.Get(s)
	return s, counted
}

// count counts a step that has been encoded, if its head still has it.
func (c *frameCache) count(s *step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.head.steps[s.way] == s {
		c.add(s, kept{bytes: s.bytes})
	}
}

// drop frees the frames of a head that is none any more. Streams that are about to send some have them.
func (c *frameCache) drop(h *head) {
	c.mu.Lock()
	defer c.mu.Unlock()
	steps := h.steps
	h.steps = nil
	for _, s := range steps {
		c.kept.Remove(s)
	}
}

func (c *frameCache) size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}
