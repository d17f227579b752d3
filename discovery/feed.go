package discovery

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// A Protocol is how the Answers of a Query are sent.
type Protocol struct {
	Encoder Encoder
	// Reject returns the error that ends the stream, if the client gets one for an Answer; first is whether
	// it was sent nothing yet. An Answer that is Rejected is not sent where Reject returns no error: the
	// client keeps what it holds.
	Reject func(a *federation.Answer, first bool) error
}

// A Feed is what one Query adds to a Stream: which Answer its client has, and the way from there to the newest one. A
// stream has any number of Feeds, of any protocols. A Feed belongs to the stream's goroutine; what is atomic, any may
// read.
type Feed struct {
	subscription
	id       uint64
	stream   *serving.Stream
	protocol Protocol

	selection atomic.Pointer[selection]         // of the subscription; nil until the Service is known
	answer    atomic.Pointer[federation.Answer] // that was sent, all of it; nil for none
	version   atomic.Uint64                     // of the newest Snapshot of which there is nothing to send
}

// A Step is what a client is sent next of a Feed. Of one without news there is nothing to send.
type Step struct {
	Frames []*serving.Frame
	answer *federation.Answer // that the client has afterwards; nil without news
}

// Serve is the whole life of a stream with one Feed. It returns nil when the stream should end with OK.
func (e *Engine) Serve(s *serving.Stream, q Query, p Protocol) error {
	f := e.Feed(s, q, p)
	defer f.Close()
	return s.Run(f.send)
}

// Feed adds a Feed to a stream, whose Bell rings when there may be a Step. The caller closes it.
func (e *Engine) Feed(s *serving.Stream, q Query, p Protocol) *Feed {
	f := &Feed{subscription: e.subscribe(q, s.About().Client, s.Bell()), stream: s, protocol: p}
	e.feeds.add(f)
	return f
}

// Close ends the Feed.
func (f *Feed) Close() {
	f.engine.feeds.remove(f)
	f.close()
}

// send sends the next Step.
func (f *Feed) send(now time.Time) error {
	step, err := f.launch(now)
	if err != nil {
		return err
	}

	if err := f.stream.Deliver(step.Frames); err != nil {
		return err
	}
	f.Sent(step)
	return nil
}

// launch launches the next Step. The next first answer finds in flight what this one sends.
func (f *Feed) launch(now time.Time) (Step, error) {
	turn := f.stream.Turn(now)
	defer turn.Release() // whatever an Encoder does

	step, err := f.Next(now, &turn)
	if err == nil {
		f.stream.Launch(step.Frames)
	}
	return step, err
}

// Next returns the Step to the newest Answer, or the error that ends the stream. A first answer is made in the turn,
// which may be for those of other Feeds of the stream as well. When its Frames are sent, Sent is called.
func (f *Feed) Next(now time.Time, turn *serving.Turn) (Step, error) {
	last := f.answer.Load()
	answer, err := f.loadInTurn(now, turn)
	if err != nil || answer == nil {
		return Step{}, err
	}

	err = f.protocol.Reject(answer, last == nil)
	if err != nil || answer.State == federation.Rejected {
		f.version.Store(answer.Version)
		return Step{}, err
	}

	frames := f.update(f.protocol.Encoder, last, answer)
	if last == nil {
		f.engine.metrics.firstAnswer.Observe(time.Since(f.stream.About().Opened).Seconds())
	}
	return Step{frames, answer}, nil
}

// Sent notes that the client has the Answer that a Step of this Feed leads to.
func (f *Feed) Sent(step Step) {
	answer := step.answer
	if answer == nil {
		return
	}

	if last := f.answer.Load(); last != nil && answer.State == federation.Unknown {
		same := *answer // no news of the Service: to the client it is as it was
		same.State = last.State
		answer = &same
	}
	f.answer.Store(answer)
	f.version.Store(answer.Version)
	f.engine.metrics.countSent(step.Frames)
}

// loadInTurn is load for a stream: a first answer waits for room, and for its turn. It is nil while there is none.
func (f *Feed) loadInTurn(now time.Time, turn *serving.Turn) (*federation.Answer, error) {
	snapshot, _ := f.watch.Load()
	if due := f.waitUntil(snapshot); due.After(now) {
		f.stream.WakeBy(now, due)
		return nil, nil
	}

	served := snapshot.View != nil && snapshot.Rejection() == federation.NotRejected
	if f.answer.Load() == nil && served { // else it is an error, which needs neither
		size := f.size(snapshot, f.protocol.Encoder)
		f.selection.Store(f.subscription.selection)
		if taken, err := turn.Take(size); err != nil || !taken {
			return nil, err
		}
	}

	answer, due := f.load(now)
	f.selection.Store(f.subscription.selection)
	f.stream.WakeBy(now, due)
	return answer, nil
}

// has returns the addresses that the client has.
func (f *Feed) has() *federation.Set {
	if a := f.answer.Load(); a != nil {
		return a.Set
	}
	return nil
}

// behind adds what the client was not sent yet.
func (f *Feed) behind(lag *Lag) {
	selection := f.selection.Load()
	if selection == nil {
		return
	}
	snapshot, _ := f.watch.Load()
	if snapshot.Version <= f.version.Load() {
		return
	}

	snapshot, made := selection.advance(snapshot)
	node, known := f.engine.nodes.Get(f.client.Node)
	place := placeOf(f.client, node, known)
	next := made.Answer(made.Reduce(place), f.answer.Load())
	add, remove := federation.DiffAt(f.has(), next.Set, f.query.Port)
	if snapshot.Version > f.version.Load() { // it was not sent meanwhile
		lag.Adds += len(add)
		lag.Removes += len(remove)
	}
}

// feeds holds every open Feed.
type feeds struct {
	mu   sync.Mutex // guards all below
	last uint64
	open map[*Feed]struct{}
}

func (all *feeds) add(f *Feed) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.last++
	f.id = all.last
	if all.open == nil {
		all.open = map[*Feed]struct{}{}
	}
	all.open[f] = struct{}{}
}

func (all *feeds) remove(f *Feed) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.open, f)
}

// list returns every open Feed, in no order.
func (all *feeds) list() []*Feed {
	all.mu.Lock()
	defer all.mu.Unlock()
	list := make([]*Feed, 0, len(all.open))
	for f := range all.open {
		list = append(list, f)
	}
	return list
}

// ofStream returns the open Feeds of a stream, in the order in which they were added.
func (all *feeds) ofStream(st *serving.Stream) []*Feed {
	of := slices.DeleteFunc(all.list(), func(f *Feed) bool { return f.stream != st })
	return inOrder(of)
}

// byStream returns the open Feeds of each stream, likewise.
func (all *feeds) byStream() map[*serving.Stream][]*Feed {
	of := map[*serving.Stream][]*Feed{}
	for _, f := range inOrder(all.list()) {
		of[f.stream] = append(of[f.stream], f)
	}
	return of
}

func inOrder(list []*Feed) []*Feed {
	slices.SortFunc(list, func(a, b *Feed) int { return cmp.Compare(a.id, b.id) })
	return list
}
