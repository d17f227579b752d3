package debug

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// pagePeriod is how often a page is computed, at most.
const cachePeriod = time.Second

// A memo is a page that costs much to compute: all who ask within a second get the same one, and who asks while it is computed
// waits for it. The zero memo has none yet.
type cachedValue[T any] struct {
	mu   sync.Mutex // guards all below
	at   time.Time
	page T
}

// get returns the page, computed at most a second ago.
func (m *cachedValue[T]) get(compute func() T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() || time.Since(m.at) >= cachePeriod {
		m.page = compute()
		m.at = time.Now() // so that one that takes long is followed by a pause, too
	}
	return m.page
}

// shared serves a page about everything as JSON.
func serveCached[T any](compute func() T) http.HandlerFunc {
	type encoded struct {
		body []byte
		err  error
	}
	var page cachedValue[encoded]
	return func(w http.ResponseWriter, _ *http.Request) {
		answer := page.get(func() encoded {
			body, err := json.MarshalIndent(compute(), "", "  ")
			return encoded{append(body, '\n'), err}
		})
		if answer.err != nil {
			http.Error(w, answer.err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer.body) // it fails where nobody reads any more
	}
}
