package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of linkerd2-proxy as it is deployed, on either kind of stream.
const (
	InitialTimeout = 3 * time.Second // to the first message
	IdleTimeout    = 5 * time.Minute // between messages
	MaxMessage     = 4 << 20         // bytes
)

// ErrLate is among the violations if the first message of a stream came late: after InitialTimeout. A busy machine
// may be to blame.
var ErrLate = errors.New("no message within " + InitialTimeout.String() + " of the request")

// tooLarge is in gRPC's error for a message beyond the limit. A server that admits no more streams uses the
// same code with another text.
const tooLarge = "message larger than max"

// A Request is what a proxy asks for. That of a stream of policy has what it is about as Authority, and neither Scheme
// nor Token.
type Request struct {
	Scheme    string // "k8s" if empty
	Authority string
	Token     string // context token
	Reconnect bool   // come back when the stream ends, unless the code of its end is permanent
}

// An Event is what a stream has seen: a message, or its end.
type Event struct {
	At      time.Time
	Message *Message       // of a Stream
	Profile *Profile       // of a ProfileStream
	Policy  *Policy        // of a PolicyStream
	End     *status.Status // OK, or why
}

// lookup is what every stream of a proxy has in common: how long it waits, how it ends and comes back, and
// what it blames the server for.
type lookup struct {
	request   Request
	observe   func(Event)
	open      opener
	permanent []codes.Code // by which a server ends it for good
	cancel    context.CancelFunc
	done      chan struct{}

	mu         sync.Mutex // guards all below, and what the kind of stream keeps
	violations []error
	gate       chan struct{} // not nil: reading waits until it is closed
}

// An opener begins a stream.
type opener func(ctx context.Context) (receiver, error)

// A receiver waits for the next message of a stream and takes it in. A violation is what the server must not have sent.
// It is not called again after an error.
type receiver func() (event Event, violation, err error)

// permanent are the codes by which every server ends a lookup for good.
var permanent = []codes.Code{codes.InvalidArgument, codes.FailedPrecondition}

// destination returns the message that asks for addresses or a profile.
func (r Request) destination() *pb.GetDestination {
	return &pb.GetDestination{Scheme: cmp.Or(r.Scheme, "k8s"), Path: r.Authority, ContextToken: r.Token}
}

func (l *lookup) start(ctx context.Context, request Request, observe func(Event), open opener) {
	if observe == nil {
		observe = func(Event) {}
	}
	l.request, l.observe, l.open, l.done = request, observe, open, make(chan struct{})
	l.permanent = append(l.permanent, permanent...)
	ctx, l.cancel = context.WithCancel(ctx)
	go l.run(ctx)
}

// Request returns what the lookup asks for.
func (l *lookup) Request() Request { return l.request }

// Close ends the lookup and waits for it.
func (l *lookup) Close() {
	l.Resume()
	l.cancel()
	<-l.done
}

// Done returns a channel that is closed once the lookup has ended.
func (l *lookup) Done() <-chan struct{} { return l.done }

// Violations returns what the server did wrong; nil if nothing.
func (l *lookup) Violations() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.violations...)
}

// Stall stops reading, after one more message at most: the transport fills up and the server has to wait.
func (l *lookup) Stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gate == nil {
		l.gate = make(chan struct{})
	}
}

// Resume goes on reading.
func (l *lookup) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gate != nil {
		close(l.gate)
		l.gate = nil
	}
}

func (l *lookup) run(ctx context.Context) {
	defer close(l.done)

	for backoff := 100 * time.Millisecond; ; backoff = min(2*backoff, 10*time.Second) {
		end, fed := l.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		l.observe(Event{At: time.Now(), End: end})
		if !l.request.Reconnect || slices.Contains(l.permanent, end.Code()) {
			return
		}

		if fed {
			backoff = 100 * time.Millisecond
		}
		timer := time.NewTimer(backoff/2 + rand.N(backoff))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// attempt runs one stream and returns how it ended, and whether it sent anything.
func (l *lookup) attempt(ctx context.Context) (end *status.Status, fed bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	receive, err := l.open(ctx)
	if err != nil {
		return status.Convert(err), false
	}
	limit := time.AfterFunc(InitialTimeout, func() { l.violate(ErrLate) })
	defer func() { limit.Stop() }()

	for {
		if gate := l.stalled(); gate != nil {
			limit.Stop() // it is we who do not read
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}

		event, violation, err := receive()
		limit.Stop()
		if err != nil {
			end = status.Convert(err)
			if errors.Is(err, io.EOF) {
				end = status.New(codes.OK, "")
			}
			if end.Code() == codes.ResourceExhausted && (fed || strings.Contains(end.Message(), tooLarge)) {
				l.violate(fmt.Errorf("a message that cannot be received: %s", end.Message()))
			}
			return end, fed
		}

		fed = true
		limit = time.AfterFunc(IdleTimeout, func() { l.violate(fmt.Errorf("no message for %s", IdleTimeout)) })
		if violation != nil {
			l.violate(violation)
		}
		event.At = time.Now()
		l.observe(event)
	}
}

func (l *lookup) stalled() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gate
}

func (l *lookup) violate(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violations = append(l.violations, fmt.Errorf("%s: %w", l.request.Authority, err))
}
