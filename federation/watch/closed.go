package watch

import "context"

// IsClosed reports whether a channel is closed on which nothing is sent.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// WaitClosed waits until a channel is closed, and returns false if ctx ends first.
func WaitClosed(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}
