package server

import (
	"net/http"
	"sync"
	"time"
)

// CachePeriod is how long a page is served before it is computed again.
const CachePeriod = time.Second

// A CachedValue is computed at most once in a CachePeriod, however many clients ask: it bounds what pages
// about everything cost. A client that asks while it is computed waits for it. The zero value is empty.
type CachedValue[T any] struct {
	mu       sync.Mutex // guards all below, and is held while the value is computed
	computed time.Time
	value    T
}

// Get returns the value, or computes it if it is too old.
func (c *CachedValue[T]) Get(compute func() T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.computed.IsZero() || time.Since(c.computed) >= CachePeriod {
		c.value = compute()
		c.computed = time.Now() // after it, so that there is a pause after a slow one, too
	}
	return c.value
}

// A RenderedPage is what is served of a page, or why it could not be rendered.
type RenderedPage struct {
	Body []byte
	Err  error
}

// WriteTo sends a page, or the error.
func (p RenderedPage) WriteTo(w http.ResponseWriter, contentType string) {
	if p.Err != nil {
		http.Error(w, p.Err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(p.Body) // it fails when the client is gone
}
