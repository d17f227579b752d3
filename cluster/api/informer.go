package api

// An Informer keeps a record of each object of a Kind, at one API server. It is a [Store] with the
// [Watcher] that fills it.
type Informer[R any] struct {
	*Store[R]
	*Watcher
}

// NewInformer returns an Informer, which Run fills. newRecord reduces an object to its record, or returns
// false if nothing is to be kept of it. changed is called with the key of each object that has changed, or
// may have: after the change can be read, and with no lock held.
func NewInformer[R any](
	conn *Connection, kind Kind, newRecord func(object any) (R, bool), changed func(Key),
) *Informer[R] {
	store := NewStore(newRecord, changed)
	return &Informer[R]{store, NewWatcher(conn, kind, store)}
}
