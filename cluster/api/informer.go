package api

// An Informer keeps a record of each object of a Kind, at one API server. It is a [Store] with the [Watcher] that fills it.
type Informer[R any] struct {
	*Store[R]
	*Watcher
}

// NewInformer returns an Informer, which Run fills. reduce returns the record of an object, or false if nothing is to be kept of it; changed is
// called with the keys of what has changed, or may have, after the change can be read, and with no lock held.
func NewInformer[R any](conn *Connection, kind Kind, reduce func(object any) (R, bool), changed func(Key)) *Informer[R] {
	store := NewStore(reduce, changed)
	return &Informer[R]{store, NewWatcher(conn, kind, store)}
}
