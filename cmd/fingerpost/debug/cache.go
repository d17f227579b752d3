package debug

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// cachePeriod is how long a page is served before it is computed again.
const cachePeriod = time.Second

// A cachedValue is computed at most once in a cachePeriod, however many clients ask: it bounds what pages
// about everything cost. A client that asks while it is computed waits for it. The zero value is empty.
type cachedValue[T any] struct {
	mu       sync.Mutex // guards all below, and is held while the value is computed
	computed time.Time
	value    T
}

// get returns the value, or computes it if it is too old.
func (c *cachedValue[T]) get(compute func() T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.computed.IsZero() || time.Since(c.computed) >= cachePeriod {
		c.value = compute()
		c.computed = time.Now() // after it, so that there is a pause after a slow one, too
	}
	return c.value
}

// A renderedPage is what is served of a page, or why it could not be rendered.
type renderedPage struct {
	body []byte
	err  error
}

func (p renderedPage) writeTo(w http.ResponseWriter, contentType string) {
	if p.err != nil {
		http.Error(w, p.err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(p.body) // it fails when the client is gone
}

// serveCached serves a page about everything as JSON.
func serveCached[T any](compute func() T) http.HandlerFunc {
	var cached cachedValue[renderedPage]
	return func(w http.ResponseWriter, _ *http.Request) {
		cached.get(func() renderedPage { return renderJSON(compute()) }).writeTo(w, "application/json")
	}
}

func renderJSON(page any) renderedPage {
	body, err := json.MarshalIndent(page, "", "  ")
	return renderedPage{append(body, '\n'), err}
}
