package multicluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// requestTimeout is how long a request may take until its response was read, unless it is a watch. A cluster that is
// silent would keep a worker for as long.
const requestTimeout = 30 * time.Second

// route sends the requests of a cluster over the connection of its engagement that is in use.
type route struct{ *linked }

// RoundTrip sends a request.
func (r route) RoundTrip(request *http.Request) (*http.Response, error) {
	conn, err := r.connection()
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}

	cancel := func() {}
	if !request.URL.Query().Has("watch") {
		var ctx context.Context
		ctx, cancel = context.WithTimeout(request.Context(), requestTimeout)
		request = request.WithContext(ctx)
	}

	response, err := conn.Send(request)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cluster %s: %w", r.name, err)
	}
	response.Body = &timedBody{response.Body, cancel}
	return response, nil
}

// timedBody is the body of a response, whose time ends when it is closed.
type timedBody struct {
	io.ReadCloser
	end context.CancelFunc
}

// Close closes it.
func (b *timedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
