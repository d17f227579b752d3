package fakeapi

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// floodBase is beyond the versions of objects that are applied; floods counts the events after it.
const floodBase = 1_000_000_000

var floods atomic.Int64

// Flood answers watches of a resource with what is there, and then with events without end, a pause apart: those that
// next returns. It counts them in sent.
func Flood(
	c *Cluster, resource string, pause time.Duration, sent *atomic.Int64, next func(i int) (event string, o Object),
) Fault {
	return func(w http.ResponseWriter, r *Request) bool {
		if r.Resource != resource || r.Verb != "watch" {
			return false
		}
		q := r.URL.Query()
		by, err := labels.Parse(q.Get("labelSelector"))
		if err != nil {
			return false
		}
		c.mu.Lock()
		all, version := c.all(resource), c.version
		c.mu.Unlock()
		stream := startStream(w, r)
		if q.Get("sendInitialEvents") == "true" {
			for i := range all.N {
				if o := all.At(i); r.selected(o, by) {
					stream.send("ADDED", o)
				}
			}
			o := r.form.empty()
			o.SetResourceVersion(strconv.Itoa(version))
			o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
			stream.send("BOOKMARK", o)
		}

		var ticks <-chan time.Time
		if pause > 0 {
			ticker := time.NewTicker(pause)
			defer ticker.Stop()
			ticks = ticker.C
		}
		for i := 0; r.Context().Err() == nil; i++ {
			event, o := next(i)
			o.SetResourceVersion(strconv.FormatInt(floodBase+floods.Add(1), 10))
			stream.send(event, o)
			stream.flush()
			sent.Add(1)
			if ticks != nil {
				select {
				case <-ticks:
				case <-r.Context().Done():
				}
			}
		}
		return true
	}
}
