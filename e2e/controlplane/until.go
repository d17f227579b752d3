package controlplane

import (
	"context"
	"fmt"
	"time"
)

// interval is how long until waits between two looks.
const interval = 50 * time.Millisecond

// until looks again and again until look returns nil or ctx ends; then the
// error holds why ctx ended and what look saw last. Each look gets 5 s, so that
// one request into a void does not use up all the time.
func until(ctx context.Context, look func(context.Context) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var seen error
	for {
		err := lookOnce(ctx, look)
		if err == nil {
			return nil
		}
		if seen == nil || ctx.Err() == nil {
			seen = err // not that the last look was cut short
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last seen: %w", context.Cause(ctx), seen)
		case <-ticker.C:
		}
	}
}

func lookOnce(ctx context.Context, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return look(ctx)
}
