package discovery

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

// What streams share.
//
// Streams that ask the same thing share three stages, each of which is brought to a newer Snapshot
// once, by the first stream that needs it:
//
//	selection        one for each Service, port and hostname: the newest Snapshot, and what Select made of it
//	  placeAnswers   one for each place that the Selection distinguishes: the newest Answer
//	    updates      of that Answer: the frames that lead to it, one list for each encoder and each Answer before it
//
// So ten thousand streams of one Service cost one Select, one Answer for each zone and one encoding;
// each stream then sends the same bytes. Ports that a Service does not declare, of which clients may
// make up any number, share one selection.
//
// A stage lives as long as a stream is on it: selections.mu guards which streams are on what. An Answer is
// made again in about the time that it takes to write it, so keeping one for clients that may come back
// would cost memory and save little.
//
// Locks are taken in this order: selections.mu, selection.mu, placeAnswers.mu, Cache.mu, updates.mu. Work in
// proportion to a Service is done under selection.mu (Select) and placeAnswers.mu (Answer) only. Frames
// are encoded under none.

// A Query is what a client asks of a Service of this cluster.
type Query struct {
	federation.Service
	Port     uint16
	Hostname string // of one instance; empty for all
}

// selections holds the selection of every Query that a stream has.
type selections struct {
	config  *Config
	cache   *serving.Cache
	leftOut *atomic.Uint64 // addresses that could not be encoded

	mu    sync.Mutex // guards all below, and selection.streams, selection.byPlace, placeAnswers.streams
	byKey map[Query]*selection
}

// selection is the newest Selection for a Query, of which the port is 0 if the Service does not declare it.
type selection struct {
	Query
	all     *selections
	streams int
	byPlace map[federation.Place]*placeAnswers
	sets    atomic.Uint64 // that its placeAnswers were brought to
	shown   shown         // guarded by serviceMetrics.mu
	counted countedShares // likewise

	mu     sync.Mutex // guards all below
	newest *federation.Snapshot
	made   *federation.Selection // of newest
}

// placeAnswers is the newest Answer of a selection for clients at a place.
type placeAnswers struct {
	of      *selection
	place   federation.Place
	streams int

	mu      sync.Mutex // guards all below
	newest  *federation.Answer
	updates *updates // that lead to newest
}

func newSelections(config *Config, cache *serving.Cache, leftOut *atomic.Uint64) *selections {
	return &selections{config: config, cache: cache, leftOut: leftOut, byKey: map[Query]*selection{}}
}

// acquire returns the selection for one more stream, whose end is reported by endStream.
func (all *selections) acquire(q Query) *selection {
	all.mu.Lock()
	defer all.mu.Unlock()
	s := all.byKey[q]
	if s == nil {
		s = &selection{Query: q, all: all, byPlace: map[federation.Place]*placeAnswers{}}
		all.byKey[q] = s
	}
	s.streams++
	return s
}

func (all *selections) len() int {
	all.mu.Lock()
	defer all.mu.Unlock()
	return len(all.byKey)
}

// endStream takes a stream off the selection, and off its answers if it has any.
func (s *selection) endStream(answers *placeAnswers) {
	s.all.mu.Lock()
	s.streams--
	if s.streams == 0 {
		delete(s.all.byKey, s.Query)
	}
	unused := s.releaseAnswers(answers)
	s.all.mu.Unlock()
	unused.drop()
}

// move moves a stream from its answers, nil if it has none, to those for clients at a place.
func (s *selection) move(from *placeAnswers, place federation.Place) *placeAnswers {
	s.all.mu.Lock()
	to := s.byPlace[place]
	if to == nil {
		to = &placeAnswers{of: s, place: place}
		s.byPlace[place] = to
	}
	to.streams++
	unused := s.releaseAnswers(from)
	s.all.mu.Unlock()
	unused.drop()
	return to
}

// releaseAnswers takes a stream off answers and returns them if no other is on them. It needs selections.mu.
func (s *selection) releaseAnswers(answers *placeAnswers) (unused *placeAnswers) {
	if answers == nil {
		return nil
	}
	answers.streams--
	if answers.streams > 0 {
		return nil
	}
	delete(s.byPlace, answers.place)
	return answers
}

// advance brings the selection to a Snapshot, unless it is at a newer one, and returns where it is then.
func (s *selection) advance(snapshot *federation.Snapshot) (*federation.Snapshot, *federation.Selection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil || snapshot.Version > s.newest.Version {
		s.newest, s.made = snapshot, federation.Select(snapshot, s.all.config.selected(s.Query), s.made)
	}
	return s.newest, s.made
}

// selected returns what is selected for a Query.
func (c *Config) selected(q Query) federation.Query {
	return federation.Query{
		Port: q.Port, Hostname: q.Hostname,
		IPv6: c.IPv6, ControlPlane: c.ControllerNamespace, ZoneWeights: c.ZoneWeights,
	}
}

// current returns the newest Snapshot that a stream was answered from, nil if there was none, and what
// was selected from it.
func (s *selection) current() (*federation.Snapshot, *federation.Selection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest, s.made
}

// hasFirst reports whether the newest Answer for clients at a place was encoded for those that hold nothing.
func (s *selection) hasFirst(place federation.Place, encoder Encoder) bool {
	_, made := s.current()
	if made == nil {
		return false
	}
	s.all.mu.Lock()
	p := s.byPlace[made.Reduce(place)]
	s.all.mu.Unlock()

	if p == nil {
		return false
	}
	p.mu.Lock()
	updates := p.updates
	p.mu.Unlock()
	return updates.has(updateKey{encoder: encoder, first: true})
}

// advance brings the answers to a Selection of a Snapshot, unless they are at a newer one, and returns the
// newest with the updates to it.
func (p *placeAnswers) advance(snapshot *federation.Snapshot, made *federation.Selection) (
	*federation.Answer, *updates,
) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.newest != nil && snapshot.Version <= p.newest.Version {
		return p.newest, p.updates
	}

	next := made.Answer(p.place, p.newest)
	sameSet := p.newest != nil && next.Set == p.newest.Set
	if !sameSet || next.State != p.newest.State {
		p.updates.drop()
		p.updates = newUpdates(p.of.all)
	}

	if !sameSet {
		p.of.sets.Add(1)
	}
	p.newest = next
	return next, p.updates
}

// drop frees the frames of answers that no stream is on any more.
func (p *placeAnswers) drop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updates.drop()
}

// A subscription is one client's interest in one Query. It belongs to one goroutine, but for its watch, which any
// may load.
type subscription struct {
	engine *Engine
	query  Query
	client serving.Client
	opened time.Time // when the client asked

	watch     *federation.Watch
	node      *watch.Watch[string, federation.Node] // the client's; nil if it named none
	selection *selection                            // nil until the Service is known
	answers   *placeAnswers                         // nil until there was an Answer
	updates   *updates                              // to the Answer that was loaded last
	answered  bool                                  // an Answer was loaded that can be sent
}

// subscribe opens a subscription for a client in this cluster. bell is rung whenever there
// may be a newer Answer. The caller closes it.
func (e *Engine) subscribe(q Query, client serving.Client, bell *watch.Bell) subscription {
	s := subscription{engine: e, query: q, client: client, opened: time.Now()}
	s.watch = e.store.Watch(federation.Ref{Cluster: e.config.Cluster, Service: q.Service})
	s.watch.Add(bell)
	if client.Node != "" {
		s.node = e.nodes.Watch(client.Node)
		s.node.Add(bell)
	}
	return s
}

// close ends the subscription.
func (s *subscription) close() {
	if s.selection != nil {
		s.selection.endStream(s.answers)
	}
	if s.node != nil {
		s.node.Close()
	}
	s.watch.Close()
}

// load returns the newest Answer, or nil while the client should be sent none: it holds nothing, and a
// cluster was never synced, or it has just asked for a Service that does not exist. due is when it should look
// again if the bell does not ring before; zero for never.
//
// All of an Answer follows from one Snapshot: the one that is newest now, or a newer one that another
// stream has brought the stages to meanwhile.
func (s *subscription) load(now time.Time) (answer *federation.Answer, due time.Time) {
	snapshot, _ := s.watch.Load()
	place := s.place()

	for {
		if due = s.waitUntil(snapshot); due.After(now) {
			return nil, due
		}
		s.acquire(snapshot)
		at, made := s.selection.advance(snapshot)
		if due = s.waitUntil(at); due.After(now) {
			return nil, due
		}

		if reduced := made.Reduce(place); s.answers == nil || s.answers.place != reduced {
			s.answers = s.selection.move(s.answers, reduced)
		}
		answer, s.updates = s.answers.advance(at, made)
		if snapshot = answer.Snapshot; snapshot == at && s.isFor(at) {
			break
		} // else another stream was faster, and the place may be reduced to another one since
	}

	if answer.State == federation.Unknown && !s.answered {
		return nil, time.Time{}
	}
	s.answered = s.answered || answer.State != federation.Rejected
	return answer, time.Time{}
}

// place returns where the client runs.
func (s *subscription) place() federation.Place {
	if s.node == nil {
		return placeOf(s.client, federation.Node{}, false)
	}
	node, known, _ := s.node.Load()
	return placeOf(s.client, node, known)
}

// placeOf returns what answers depend on, for a client on a node. Of one that is not known the name alone decides.
func placeOf(c serving.Client, node federation.Node, known bool) federation.Place {
	bucket := bucketOf(c)
	if !known {
		node.Sixteenth = bucket
	}
	return federation.Place{Node: c.Node, Zone: node.Zone, Bucket: bucket, Sixteenth: node.Sixteenth}
}

// bucketOf returns the bucket that a client is in where traffic is divided: that of its node, or, if that is not known,
// of the Pod.
func bucketOf(c serving.Client) uint8 {
	switch {
	case c.Node != "":
		return policy.BucketOf(c.Node)
	case c.Pod != "":
		return policy.BucketOf(c.Namespace + "/" + c.Pod)
	default:
		return 0
	}
}

// newServiceGrace is how long a client waits for a Service that does not exist: as a rule, a watch delivers one within
// 2 ms of its creation, and clients ask for it that early.
const newServiceGrace = 20 * time.Millisecond

// AwaitsService reports whether a Service that does not exist may be about to, because the client of a stream has asked
// for it within newServiceGrace. If so, the stream is woken when AwaitsService should be called again.
func AwaitsService(s *serving.Stream, now time.Time) bool {
	until := s.About().Opened.Add(newServiceGrace)
	if !now.Before(until) {
		return false
	}
	s.WakeBy(now, until)
	return true
}

// waitUntil returns until when a client that holds nothing waits for clusters that were never synced, and for a Service
// that does not exist.
func (s *subscription) waitUntil(snapshot *federation.Snapshot) time.Time {
	if s.answered {
		return time.Time{}
	}
	until := snapshot.WaitUntil(s.engine.config.FirstSyncGrace, s.engine.started)
	if snapshot.View == nil {
		if grace := s.opened.Add(newServiceGrace); grace.After(until) {
			return grace
		}
	}
	return until
}

// acquire joins the selection for a Snapshot: which one it is depends on the ports that the Service declares.
func (s *subscription) acquire(snapshot *federation.Snapshot) {
	if s.selection != nil {
		if s.isFor(snapshot) {
			return
		}
		s.selection.endStream(s.answers)
	}
	q := s.query
	q.Port = snapshot.Declared(q.Port)
	s.selection, s.answers = s.engine.selections.acquire(q), nil
}

// isFor reports whether the selection is the one for a Snapshot. While there is no Service, it stays as
// it is.
func (s *subscription) isFor(snapshot *federation.Snapshot) bool {
	return snapshot.View == nil || s.selection.Port == snapshot.Declared(s.query.Port)
}

// size returns for how many addresses, at most, there is something to do for a first answer. It is 0 if
// another stream was sent the same bytes. Streams that ask for different undeclared ports share all but
// those.
func (s *subscription) size(snapshot *federation.Snapshot, e Encoder) (n int) {
	s.acquire(snapshot)
	if s.selection.hasFirst(s.place(), e) {
		return 0
	}
	for _, m := range snapshot.Members {
		if m.View != nil {
			for _, slice := range m.View.Slices {
				n += len(slice.Endpoints)
			}
		}
	}
	return n
}

// update returns the frames that bring a client from an Answer of this subscription, nil for a client
// that holds nothing, to the one that was loaded last. They are encoded once for all clients that go
// the same way.
func (s *subscription) update(e Encoder, from, to *federation.Answer) []*serving.Frame {
	if from != nil && from.Set == to.Set && from.State == to.State {
		return nil
	}
	return s.updates.get(e, from, to)
}

// An Encoder turns the way from one Answer to another into the messages of a protocol. It is
// comparable: equal Encoders return equal messages, and share them.
type Encoder interface {
	// Update returns the messages that bring a client from one Answer, nil if it holds nothing, to another. Of
	// from it reads the Set and the State only. The State of from is never Unknown; in to Unknown means that the
	// state stays as it was. leftOut is how many addresses could not be encoded.
	Update(from, to *federation.Answer) (frames []*serving.Frame, leftOut int)
}

// updates are the ways to one Answer that were encoded.
//
// Their bytes are counted by the Cache. An update that is counted is one that its Answer has, and an Answer that is
// superseded has none and gets none. Only while it is encoded for the first time has an Answer an update that is not
// counted.
type updates struct {
	all *selections

	mu    sync.Mutex            // guards all below
	byKey map[updateKey]*update // nil once the Answer is superseded
}

// updateKey is everything that the frames of an update depend on, besides the Answer that it leads to.
type updateKey struct {
	encoder Encoder
	first   bool // the client holds nothing
	state   federation.State
	set     *federation.Set
}

// update is one way to an Answer. It is what the Cache counts.
type update struct {
	of     *updates
	key    updateKey
	frames func() []*serving.Frame // encodes once
}

func newUpdates(all *selections) *updates { return &updates{all: all, byKey: map[updateKey]*update{}} }

// get returns the frames of an update.
func (u *updates) get(e Encoder, from, to *federation.Answer) []*serving.Frame {
	key := updateKey{encoder: e, first: from == nil}
	if from != nil {
		key.state, key.set = from.State, from.Set
	}

	way, made := u.find(key, from, to)
	if made {
		u.all.cache.Touch(way)
	}
	return way.frames()
}

// find returns an update, and whether it was made before. An Answer that is superseded, whose last streams are about to
// send it, has an update for each of them.
func (u *updates) find(key updateKey, from, to *federation.Answer) (way *update, made bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if way := u.byKey[key]; way != nil {
		return way, true
	}

	way = newUpdate(u, key, from, to)
	if u.byKey != nil {
		u.byKey[key] = way
	}
	return way, false
}

// has reports whether an update is encoded, or about to be. nil has none.
func (u *updates) has(key updateKey) bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.byKey[key] != nil
}

// drop frees the updates of an Answer that is superseded; nil has none. Streams that are about to send some have them.
func (u *updates) drop() {
	if u == nil {
		return
	}
	u.mu.Lock()
	byKey := u.byKey
	u.byKey = nil
	u.mu.Unlock()

	for _, way := range byKey {
		u.all.cache.Release(way)
	}
}

func newUpdate(of *updates, key updateKey, from, to *federation.Answer) *update {
	way := &update{of: of, key: key}
	way.frames = sync.OnceValue(func() []*serving.Frame {
		frames, leftOut := way.key.encoder.Update(from, to)
		all := way.of.all
		all.leftOut.Add(uint64(leftOut))

		bytes := way.key.set.Len() * 16 // of the Set that it holds on to
		for _, f := range frames {
			bytes += f.Len()
		}
		all.cache.Charge(way, bytes)
		return slices.Clip(frames)
	})

	return way
}

// Owns reports whether the Answer still has the update.
func (way *update) Owns() bool {
	way.of.mu.Lock()
	defer way.of.mu.Unlock()
	return way.of.byKey[way.key] == way
}

// Drop takes the update from the Answer.
func (way *update) Drop() {
	way.of.mu.Lock()
	defer way.of.mu.Unlock()
	if way.of.byKey[way.key] == way {
		delete(way.of.byKey, way.key)
	}
}
