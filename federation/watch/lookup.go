package watch

// A Lookup watches one key of a Reader, the one that was asked for last, and rings a Bell when its value changes. It
// belongs to one goroutine, which closes it.
type Lookup[K comparable, V any] struct {
	reader Reader[K, V]
	bell   *Bell
	key    K
	watch  *Watch[K, V] // nil: of none
}

// NewLookup returns a Lookup that watches nothing yet.
func NewLookup[K comparable, V any](reader Reader[K, V], bell *Bell) Lookup[K, V] {
	return Lookup[K, V]{reader: reader, bell: bell}
}

// Of returns the value of a key, the zero V if it has none, and watches it from then on.
func (l *Lookup[K, V]) Of(k K) V {
	if !l.Watches(k) {
		l.Close()
		l.key, l.watch = k, l.reader.Watch(k)
		l.watch.Add(l.bell)
	}
	v, _, _ := l.watch.Load()
	return v
}

// Watches reports whether a key is watched.
func (l *Lookup[K, V]) Watches(k K) bool { return l.watch != nil && l.key == k }

// Key returns the key that is watched, if one is.
func (l *Lookup[K, V]) Key() (k K, is bool) { return l.key, l.watch != nil }

// Close ends the watch, if there is one. Of begins another one.
func (l *Lookup[K, V]) Close() {
	if l.watch != nil {
		l.watch.Close()
		l.watch = nil
	}
}
