package api

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
)

// One watch of a kind fills several Sinks. The engagement with a cluster watches what makes its Views, and
// shares these Watchers (Connection.Share). Any other Watcher that is made over the same connection joins
// the shared one if that watches all of its kind, so those who make it need not know. It lists its kind by
// itself. Then it opens no watch: the shared Watcher decodes each event once, applies it to its own Sink
// and forwards it to the Sinks of those who joined, each of which reduces it to its own record.
//
// What it keeps true: a Sink that joined holds what it would hold with a watch of its own.
//
//   - Nothing is missed. The joined Watcher becomes a receiver before it requests its listing. Events that
//     are forwarded meanwhile are kept (pending) and applied after it. The listing is at least as new as
//     the event before the first of them, because listings request the newest state.
//   - Nothing goes back. Of the events that are forwarded, those up to the version of the listing are
//     skipped: the shared watch may be behind it. If it still is after maxBehind, the API server went back to
//     an older state after the listing, with versions that are lower: the Watcher that joined lists anew.
//     Where a server's watches are always that late, this is a listing each maxBehind at most.
//   - A Sink whose selector is narrower than that of the shared watch sees an object that its selector
//     does not match as deleted. This is what an API server sends for an object that loses its label.
//
// A relay lives as long as the shared Watcher resumes its watch from the last version. When that has to
// list anew, for whatever reason, the relay ends, and with it every receiver. Each Watcher that joined then
// lists anew, and becomes a receiver of the next relay. So no listing is forwarded, and none of them
// depends on another: a Sink that returns an error, lists too much or is over its budget leaves alone,
// and lists again by the same rules and after the same pauses as if it had not joined; a refusal (403, 404)
// is that of its own request. Budgets charge each Sink for its own records.
//
// Where there is no relay for joinPatience, or the shared kind is refused, or more than maxPending bytes
// came during the listing, the joined Watcher opens a watch of its own. It lists and joins again when there
// is a new relay, or when its watch is closed, which API servers do every few minutes.
//
// What it costs: one listing for each that joins, which the joined Watcher reads beside the shared watch,
// whose events go on meanwhile. The shared Watcher waits for its receivers: a Sink must not block, and
// its own Sink comes first. Sinks see the same object, so none may change it.
//
// relay.mu guards the relay and its receivers. It is held while the Sink of a receiver is called, so that
// no Sink is called after leave has returned. A Sink must therefore not end the Run of its own Watcher
// and wait for that; Relist is allowed. No lock is held when a relay is called.

const (
	joinPatience = 10 * time.Second
	maxBehind    = 30 * time.Second // a shared watch is behind the listing of one that joined it
	maxPending   = 8 << 20          // bytes of objects, as decoded, that wait for the end of a listing
)

var (
	errRelist   = errors.New("a new listing was requested")
	errRejoin   = errors.New("there is a shared watch to join")
	errShared   = errors.New("the shared watch has ended")
	errOverflow = errors.New("too many changes came during the listing")
	errFits     = errors.New("there is room for what was refused")
	errBehind   = errors.New("the shared watch stays behind the listing: " +
		"the API server went back to an older state")
)

// Share lets the other Watchers of this connection join w, if it watches all of their kind, from their next
// Run on.
func (c *Connection) Share(w *Watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shared = append(c.shared, w)
}

// sharedFor returns the Watcher that w is to join; nil if there is none, or if it is shared itself.
func (c *Connection) sharedFor(w *Watcher) *Watcher {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.shared, w) {
		return nil
	}
	for _, shared := range c.shared {
		if shared.kind.covers(w.kind) {
			return shared
		}
	}
	return nil
}

// Relist makes the Watcher list anew, with a listing that begins after the call.
func (w *Watcher) Relist() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, _ := w.relists.Load()
	w.relists.Store(n + 1)
}

// WaitRelisted returns once a complete listing was stored that began after the last call of Relist, or after
// a later one, or once ctx ends.
func (w *Watcher) WaitRelisted(ctx context.Context) error {
	for after, _ := w.relists.Load(); ; {
		listed, changed := w.listed.Load()
		if listed >= after {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// covers reports whether a watch of k has every event that one of o has.
func (k Kind) covers(o Kind) bool {
	return k.Resource == o.Resource && k.Namespace == o.Namespace && k.Fields == o.Fields &&
		k.read == o.read && slices.Equal(k.versions, o.versions) &&
		reflect.TypeOf(k.object) == reflect.TypeOf(o.object) && selectorCovers(k.Labels, o.Labels)
}

// selectorCovers reports whether it is plain that a selects every object that b selects: each requirement
// of a is one of b, or met by a value that b requires.
func selectorCovers(a, b string) bool {
	outer, err := labels.ParseToRequirements(a)
	if err != nil {
		return false
	}
	inner, err := labels.ParseToRequirements(b)
	if err != nil {
		return false
	}

	for _, required := range outer {
		met := func(r labels.Requirement) bool {
			exact := r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals
			if exact && r.Key() == required.Key() {
				return required.Matches(labels.Set{r.Key(): r.Values().UnsortedList()[0]})
			}
			return r.Equal(required)
		}
		if !slices.ContainsFunc(inner, met) {
			return false
		}
	}
	return true
}

// A relay forwards the events of a watch.
type relay struct {
	mu        sync.Mutex
	version   string                 // up to which events were forwarded
	receivers map[*receiver]struct{} // nil once it has ended
}

// A receiver is what a joined Watcher has of a relay, from before its listing on.
type receiver struct {
	relay    *relay
	sink     Sink
	selector labels.Selector
	since    string        // the version of the relay when it became a receiver
	ended    chan struct{} // closed when nothing is forwarded to it any more

	// Guarded by relay.mu.
	err     error         // why it has ended
	version string        // of its listing
	listed  time.Time     // when that ended
	live    bool          // events are applied as they are forwarded
	pending []watch.Event // those that are not applied yet, until it is live
	size    int           // bytes of those that were pending so far
}

// startRelay lets Watchers join from a version on.
func (w *Watcher) startRelay(version string) *relay {
	r := &relay{version: version, receivers: map[*receiver]struct{}{}}
	w.relay.Store(r)
	return r
}

// endRelay ends a relay and all its receivers.
func (w *Watcher) endRelay(r *relay) {
	w.relay.Store(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.receivers {
		c.end(errShared)
	}
	r.receivers = nil
}

// add returns a new receiver; nil if the relay has ended.
func (r *relay) add(kind Kind, sink Sink) *receiver {
	selector, err := labels.Parse(kind.Labels)
	if err != nil {
		return nil // it covers nothing
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.receivers == nil {
		return nil
	}
	c := &receiver{relay: r, sink: sink, selector: selector, since: r.version, ended: make(chan struct{})}
	r.receivers[c] = struct{}{}
	return c
}

// forward passes an event on. Whatever a receiver makes of it concerns no other.
func (r *relay) forward(event watch.Event, object metav1.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if version := object.GetResourceVersion(); version != "" {
		r.version = version
	}

	for receiver := range r.receivers {
		var err error
		switch {
		case receiver.live:
			err = receiver.applyEvent(event, object)
		case event.Type == watch.Bookmark:
		default:
			err = receiver.keep(event)
		}

		if err != nil {
			receiver.end(err)
		}
	}
}

// keep keeps an event for the end of the listing; it needs relay.mu.
func (c *receiver) keep(e watch.Event) error {
	if c.size += int(deepSize(reflect.ValueOf(e.Object), 0)); c.size > maxPending {
		return errOverflow
	}
	c.pending = append(c.pending, e)
	return nil
}

// end ends a receiver; it needs relay.mu.
func (c *receiver) end(err error) {
	delete(c.relay.receivers, c)
	c.err, c.live, c.pending = err, false, nil
	close(c.ended)
}

// leave ends a receiver, which may be nil, unless it has ended.
func (c *receiver) leave() {
	if c == nil {
		return
	}
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	if _, is := c.relay.receivers[c]; is {
		c.end(nil)
	}
}

// goLive applies what was forwarded during the listing, which has this version, and has events applied from
// then on. It returns false if the receiver, which may be nil, has ended. A listing that is older than the
// relay ends it: the API server went back to an older state, which the shared Watcher has not noticed yet.
func (c *receiver) goLive(version string) (bool, error) {
	if c == nil || older(version, c.since) {
		c.leave() // what is forwarded from now on would be kept, and never applied
		return false, nil
	}

	c.version, c.listed = version, time.Now() // no other goroutine reads them before the receiver is live
	for {
		pending, ok := c.takePending()
		if len(pending) == 0 {
			return ok, nil
		}
		for _, e := range pending {
			if err := c.applyEvent(e, e.Object.(metav1.Object)); err != nil {
				return false, err
			}
		}
	}
}

// takePending returns the events that are not applied yet. If there are none the receiver is live from now
// on, or it has ended (false).
func (c *receiver) takePending() (pending []watch.Event, ok bool) {
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	if _, is := c.relay.receivers[c]; !is {
		return nil, false
	}
	pending, c.pending = c.pending, nil
	c.live = len(pending) == 0
	return pending, true
}

// applyEvent stores a change.
func (c *receiver) applyEvent(event watch.Event, object metav1.Object) error {
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), c.version)
	switch {
	case err == nil && order < 0 && time.Since(c.listed) > maxBehind:
		return errBehind
	case event.Type == watch.Bookmark:
		return checkRefused(c.sink)
	case err == nil && order <= 0:
		return nil // the listing has it
	case event.Type == watch.Deleted, !c.selector.Matches(labels.Set(object.GetLabels())):
		return c.sink.Delete(event.Object)
	default:
		return c.sink.Update(event.Object)
	}
}

// join makes the reflector's Watcher a receiver of the shared one. It returns nil if there is none to join,
// or none that watches or is about to.
func (r *reflector) join(ctx context.Context) *receiver {
	if r.shared == nil {
		return nil
	}
	patience := time.NewTimer(joinPatience)
	defer patience.Stop()

	for {
		relay, changed := r.shared.relay.Load()
		if relay != nil {
			if c := relay.add(r.kind, r.sink); c != nil {
				return c
			}
		}
		if r.shared.Health().Refused != "" {
			return nil
		}

		select {
		case <-changed:
		case <-patience.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// canJoin reports whether there is a relay other than that of c, which may be nil, and returns a channel
// that closes when that may have changed.
func (r *reflector) canJoin(c *receiver) (can bool, changed <-chan struct{}) {
	if r.shared == nil {
		return false, nil
	}
	relay, changed := r.shared.relay.Load()
	return relay != nil && (c == nil || c.relay != relay), changed
}

// receive waits until nothing is forwarded any more, a listing is requested, or ctx ends.
func (r *reflector) receive(ctx context.Context, c *receiver) error {
	r.setVia(r.shared)
	defer r.setVia(nil)
	select {
	case <-c.ended:
		return c.err
	case <-r.relist:
		return errRelist
	case <-ctx.Done():
		return nil
	}
}

func (w *Watcher) setVia(shared *Watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.via = shared
	if shared != nil {
		w.health.Refused = ""
	}
}
