package api

import (
	"context"
	"errors"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// One watch of a kind fills several Sinks. What a cluster is read for is declared before its connection is used: the
// engagement makes a Watcher of each kind that Views are made of, and shares it (Connection.Share). Any other Watcher
// that is made over the same connection leaves its Sink to the shared one if that watches all of its kind, so those who
// make it need not know.
//
// What it keeps true: a Sink holds what it would hold with a watch of its own.
//
//   - A listing is for all Sinks that there are when it begins. Each keeps of it what its selector matches, in its own
//     share of the Budget, and stores that at its end. Changes are for the Sinks that have had a listing.
//   - So one that is added asks for a new listing, and has nothing before. The others are given what they hold, which
//     changes nothing, and what has changed meanwhile.
//   - A Sink whose selector is narrower than that of the watch sees an object that its selector does not match as
//     deleted. This is what an API server sends for an object that loses its label.
//   - A refusal (403, 404) is one of all. It is reported to those Watchers that run: to one that is added after its own
//     request, which is made at once, however long the pause is.
//   - A listing that exceeds the Budget ends for all, because each has the same limits of a kind.
//
// What it costs: a listing for all Sinks when one is added, or when one of them has room again for what it refused.
// While it lists, changes wait, as with any listing. The Watcher waits for all Sinks: none may block. They see the same
// object, so none may change it. No Sink is called after the Run of its Watcher has returned: a Sink must therefore not
// end that and wait for it. Relist is allowed.

var (
	errRelist = errors.New("a new listing was requested")
	errFits   = errors.New("there is room for what was refused")
)

// Share has w, which is to run as long as the connection is used, fill the Sinks of the other Watchers of this
// connection, if it watches all of their kind, from their next Run on. If there is one already that fills the Sink of
// w, and does not run yet, its first listing is for w as well.
func (c *Connection) Share(w *Watcher) {
	if shared := c.sharedFor(w); shared != nil {
		shared.addReader(w)
		w.setVia(shared)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shared = append(c.shared, w)
}

// sharedFor returns the Watcher that fills the Sink of w; nil if there is none, or if it is shared itself.
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

// source returns the Watcher that fills the Sink of w.
func (w *Watcher) source() *Watcher {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.via != nil {
		return w.via
	}
	return w
}

func (w *Watcher) setVia(shared *Watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.via = shared
}

// fill fills the Sink of another Watcher, until ctx ends.
func (w *Watcher) fill(ctx context.Context, reader *Watcher) {
	if reader.source() != w { // else Share has added it
		w.addReader(reader)
		reader.setVia(w)
		w.Relist()
	}
	defer w.removeReader(reader)
	defer reader.setVia(nil)
	<-ctx.Done()
}

func (w *Watcher) addReader(reader *Watcher) {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	if b := w.conn.Budget; b != nil {
		reader.sink.UseBudget(b, reader.kind)
	}
	w.readers = append(w.readers, reader)
}

func (w *Watcher) removeReader(reader *Watcher) {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	w.readers = slices.DeleteFunc(w.readers, func(r *Watcher) bool { return r == reader })
	reader.listing, reader.current = nil, false
	if w.conn.Budget != nil {
		reader.sink.UseBudget(nil, Kind{})
	}
}

// beginListings begins a listing for all Sinks.
func (w *Watcher) beginListings() {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	for _, r := range w.readers {
		r.listing = r.sink.NewListing()
	}
}

// takeListed adds an object to the listing.
func (w *Watcher) takeListed(object metav1.Object) {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	for _, r := range w.readers {
		if r.listing != nil && w.passes(object, r) {
			r.listing.Update(object)
		}
	}
}

// dropListed takes an object out of the listing that was deleted meanwhile.
func (w *Watcher) dropListed(object metav1.Object) {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	for _, r := range w.readers {
		if r.listing != nil {
			r.listing.Delete(object)
		}
	}
}

// checkListings returns an [*ExcessError] if a listing that has brought so many objects, and so many bytes as they were
// sent, must not be read further.
func (w *Watcher) checkListings(objects int, bytes int64) (err error) {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	for _, r := range w.readers {
		if r.listing != nil && err == nil {
			err = r.sink.budgetShare().checkListing(objects, bytes)
		}
	}
	if err == nil {
		return nil
	}

	for _, r := range w.readers {
		r.listing = nil
		r.sink.budgetShare().giveUpListing()
	}
	return err
}

// storeListings has the Sinks store the listing, which is complete.
func (w *Watcher) storeListings() {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	for _, r := range w.readers {
		if r.listing != nil {
			r.sink.Replace(r.listing.Objects())
			r.listing, r.current = nil, true
		}
	}
}

// update stores an object that is new or has changed.
func (w *Watcher) update(object metav1.Object) {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	for _, r := range w.readers {
		switch {
		case !r.current:
		case w.passes(object, r):
			r.sink.Update(object)
		default:
			r.sink.Delete(object)
		}
	}
}

// delete drops an object.
func (w *Watcher) delete(object metav1.Object) {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	for _, r := range w.readers {
		if r.current {
			r.sink.Delete(object)
		}
	}
}

// anyShare reports whether something is so of the share that one of the Sinks has of the Budget.
func (w *Watcher) anyShare(is func(*share) bool) bool {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	return slices.ContainsFunc(w.readers, func(r *Watcher) bool { return is(r.sink.budgetShare()) })
}

// passes reports whether an object is one that a Watcher reads, of which the API server has selected it for w.
func (w *Watcher) passes(object metav1.Object, reader *Watcher) bool {
	return reader == w || reader.selector.Matches(labels.Set(object.GetLabels()))
}

// Relist makes the Watcher list anew, with a listing that begins after the call.
func (w *Watcher) Relist() {
	w = w.source()
	w.mu.Lock()
	defer w.mu.Unlock()
	n, _ := w.relists.Load()
	w.relists.Store(n + 1)
}

// WaitRelisted returns once a complete listing was stored that began after the last call of Relist, or after
// a later one, or once ctx ends.
func (w *Watcher) WaitRelisted(ctx context.Context) error {
	w = w.source()
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
