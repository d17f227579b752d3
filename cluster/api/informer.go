package api

import (
	"context"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// An Informer keeps a record of each object of a Kind, at one API server. It is a [Store] with the
// [Watcher] that fills it.
type Informer[R any] struct {
	*Store[R]
	*Watcher
}

// NewInformer returns an Informer, which Run fills, from the watch that is shared over conn if there is one.
// newRecord and changed are those of [NewStore].
func NewInformer[R any](
	conn *Connection, kind Kind, newRecord func(object any) (R, bool), changed func(Key),
) *Informer[R] {
	store := NewStore(newRecord, changed)
	return &Informer[R]{store, NewWatcher(conn, kind, store)}
}

// HasSynced reports whether the Store holds a complete listing.
func (i *Informer[R]) HasSynced() bool { return watch.IsClosed(i.Synced()) }

// WaitComplete waits until what the Store lacks does not exist: all objects were listed, or the API server
// does not serve the kind. It returns false if ctx ends first.
func (i *Informer[R]) WaitComplete(ctx context.Context) bool {
	return i.WaitListed(ctx, i.Synced())
}
