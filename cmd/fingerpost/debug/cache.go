package debug

import (
	"encoding/json"
	"net/http"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
)

// serveCached serves a page about everything as JSON.
func serveCached[T any](compute func() T) http.HandlerFunc {
	var cached server.CachedValue[server.RenderedPage]
	return func(w http.ResponseWriter, _ *http.Request) {
		cached.Get(func() server.RenderedPage { return renderJSON(compute()) }).WriteTo(w, "application/json")
	}
}

func renderJSON(page any) server.RenderedPage {
	body, err := json.MarshalIndent(page, "", "  ")
	return server.RenderedPage{Body: append(body, '\n'), Err: err}
}
