package discovery

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// get is one Get stream. It belongs to the stream's goroutine.
type get struct {
	session
	asked authority

	watch    *federation.Watch
	node     *watch.Watch[string, string] // nil if the client did not say where it runs
	question *question                    // nil until the Service is known
	feed     *feed                        // nil until there was something to send

	last    *federation.Set // what the client holds
	zone    string          // where the client was when it was sent that
	version uint64          // of the newest Snapshot of which there is nothing to send
	told    told
}

// told is what a client was told of the Service's existence.
type told uint8

const (
	nothing told = iota // no answer yet
	exists
	absent
)

func newGet(s *Server, path string, asked authority, who client, to sink) *get {
	g := &get{asked: asked}
	g.session = newSession(s, path, who, to, &g.asked)
	g.beat = g.state.opened.Add(firstHeartbeat)
	g.watch = s.store.Watch(federation.Ref{Cluster: s.config.Cluster, Service: asked.service})
	g.state.watch.Store(g.watch)
	if who.Node != "" {
		g.node = s.store.Nodes().Watch(who.Node)
	}
	return g
}

func (g *get) close() {
	if g.question != nil {
		g.question.leave(g.feed)
	}
	if g.node != nil {
		g.node.Close()
	}
	g.watch.Close()
	g.session.close()
}

// run is the whole life of the stream: load the newest of everything the answer depends on, send the difference to what was sent
// last, wait until one of them is superseded.
func (g *get) run(ctx context.Context) error {
	for {
		rung := g.state.alarm.rung()
		snapshot, superseded := g.watch.Load()
		var zone string
		var moved <-chan struct{}
		if g.node != nil {
			zone, _, moved = g.node.Load()
		}
		now := time.Now()
		if g.over(now) {
			return nil
		}
		if err := g.tell(ctx, snapshot, zone, now); err != nil {
			return err
		}
		if !now.Before(g.beat) {
			if err := g.send(heartbeatFrame); err != nil {
				return err
			}
			if g.beat = now.Add(firstHeartbeat); g.told != nothing {
				g.beat = now.Add(jitter(idleHeartbeat))
			}
		}
		g.state.alarm.by(now, g.beat)
		select {
		case <-superseded:
		case <-moved:
		case <-rung:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// tell sends what the client does not have yet.
func (g *get) tell(ctx context.Context, snapshot *federation.Snapshot, zone string, now time.Time) error {
	over := func() {}
	if g.told == nothing {
		if admits, err := g.admits(snapshot, now); !admits || !g.room(now) {
			return err
		}
		size, err := g.size(snapshot), error(nil)
		if over, err = g.server.admission.turn(ctx, g.connection, size >= largeAnswer); err != nil {
			return err
		}
		if !g.room(now) { // any more
			over()
			return nil
		}
		g.connection.pay(size)
	}
	frames, err := g.answer(snapshot, zone, now)
	messages := g.launch(frames)
	over() // and the next one finds in flight what this one sends
	if err != nil {
		return err
	}
	if len(frames) > 0 {
		if err := g.deliver(frames, messages); err != nil {
			return err
		}
		g.beat = now.Add(jitter(idleHeartbeat))
	}
	g.state.holds.Store(g.last)
	g.state.version.Store(g.version)
	return nil
}

// size returns how many addresses a first answer has at most, if nobody has it yet.
func (g *get) size(snapshot *federation.Snapshot) (n int) {
	if g.ask(snapshot); g.question.asked() {
		return 0
	}
	for _, m := range snapshot.Members {
		if m.View != nil {
			for _, s := range m.View.Slices {
				n += len(s.Endpoints)
			}
		}
	}
	return n
}

// admits returns whether there is an answer that follows from a Snapshot, or why there never will be. A first answer would replace
// everything that the client holds, so it waits for clusters that were never heard, each for as long as the grace after it was linked.
func (g *get) admits(s *federation.Snapshot, now time.Time) (bool, error) {
	first := g.told == nothing
	if first {
		if wait := g.server.early(s); wait > 0 {
			g.state.alarm.by(now, now.Add(wait))
			return false, nil
		}
	}
	if err := refusal(s, first); err != nil {
		return false, err
	}
	if s.View != nil && s.View.Malformed != "" {
		g.version = s.Version // half-made: what the client holds is better than nothing
		return false, nil
	}
	return true, nil
}

func (s *Server) early(snapshot *federation.Snapshot) (wait time.Duration) {
	for _, m := range snapshot.Unknown() {
		since := m.Since
		if !m.Linked { // not yet: nobody knows which clusters there are
			since = s.started
		}
		wait = max(wait, time.Until(since.Add(s.config.FirstSyncGrace)))
	}
	return wait
}

// answer returns what the client does not have yet, and notes that it has it. All of it follows from one Snapshot: the one that was
// loaded, or a newer one that another stream has brought the feed to.
func (g *get) answer(snapshot *federation.Snapshot, zone string, now time.Time) ([]*frame, error) {
	first := g.told == nothing
	was := g.feed
	var head *head
	for {
		g.ask(snapshot)
		at, selection := g.question.at(snapshot)
		if admits, err := g.admits(at, now); !admits {
			return nil, err
		}
		place := selection.Locality(g.who.Node, zone)
		if g.feed == nil || g.feed.target.Locality != place {
			g.feed = g.question.settle(place, g.feed)
		}
		if head, snapshot = g.feed.at(at, selection); snapshot == at && g.asks(at) {
			break
		} // else another stream was faster, and the place may be another one since
	}
	tell := head.by
	if was != nil && g.zone != zone && was.target.Zone != g.feed.target.Zone {
		tell = head.anew
	}
	frames := tell(way{g.last, g.asked.port})
	before := g.told
	switch {
	case !head.set.Empty():
		g.told = exists
	case len(snapshot.Unknown()) > 0: // unknown is not empty
		if first {
			return nil, nil
		}
	case snapshot.Exists():
		if g.told = exists; before != exists {
			frames = append(slices.Clip(frames), emptyFrame)
		}
	default:
		if g.told = absent; before != absent {
			frames = append(slices.Clip(frames), absentFrame)
		}
	}
	if first && len(frames) == 0 { // no address could be encoded
		frames = []*frame{emptyFrame}
	}
	if first {
		g.server.metrics.firstAnswer.Observe(time.Since(g.state.opened).Seconds())
	}
	g.last, g.zone, g.version = head.set, zone, snapshot.Version
	return frames, nil
}

// ask joins the question that the stream asks of a Snapshot: which one it is depends on the ports that the Service declares.
func (g *get) ask(s *federation.Snapshot) {
	if g.question != nil {
		if g.asks(s) {
			return
		}
		g.question.leave(g.feed)
	}
	g.question, g.feed = g.server.feeds.join(Question{g.asked.service, s.Declared(g.asked.port), g.asked.hostname}), nil
	g.state.asks.Store(g.question)
}

// asks reports whether the stream's question is the one to ask of a Snapshot. While there is no Service, it stays as it is.
func (g *get) asks(s *federation.Snapshot) bool {
	return s.View == nil || g.question.Port == s.Declared(g.asked.port)
}

// refusal returns why a Service cannot be served. What was served once goes on, whatever becomes of it, except as an ExternalName.
func refusal(s *federation.Snapshot, first bool) error {
	v := s.View
	if v == nil {
		if first && len(s.Unknown()) == 0 {
			return status.Errorf(codes.NotFound, "Service %s/%s not found", s.Namespace, s.Name)
		}
		return nil
	}
	target := v
	if v.Composition != nil && !v.Composition.Union {
		m := s.Members[0]
		if first && m.Known && !m.Linked {
			return status.Errorf(codes.NotFound, "Remote cluster not found: %s", m.Origin.Cluster)
		}
		target = m.View
	}
	switch {
	case v.ExternalName || target != nil && target.ExternalName:
		return status.Errorf(codes.InvalidArgument, "Service %s/%s is of type ExternalName, which has no addresses", s.Namespace, s.Name)
	case v.Malformed != "" && first:
		return status.Error(codes.FailedPrecondition, v.Malformed)
	}
	return nil
}
