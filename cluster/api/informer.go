package api

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
