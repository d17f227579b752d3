package mesh

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	destination "github.com/linkerd/linkerd2-proxy-api/go/destination"
	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
)

// callInterval is the pause between two calls of a Hold.
const callInterval = 100 * time.Millisecond

// A Hold is what a Proxy has open while its Pod lives: its streams, each of which it opens again when it ends, and a
// certificate, which it renews when 70 % of its time have passed. It also asks for certificates all the time, which it
// leaves unused.
type Hold struct {
	proxy *Proxy
	token string // a file
	end   context.CancelFunc
	wg    sync.WaitGroup

	mu   sync.Mutex
	kept map[string]*Kept
	errs []error
}

// Kept is what became of one stream, or of calls of one kind.
type Kept struct {
	Answers int           // messages, or calls that were answered
	Retried int           // how often it was opened, or called, again
	Refused int           // how often that failed as well
	Longest time.Duration // without a stream that has answered, or for one call
}

// Hold begins, at a Service and a port, and returns when all streams have answered. The Proxy has a certificate.
func (p *Proxy) Hold(ctx context.Context, leaf *x509.Certificate, token, authority string, port uint32) (*Hold, error) {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	h := &Hold{proxy: p, token: token, end: end, kept: map[string]*Kept{}}
	discovery, err := p.Dial("DESTINATION")
	if err != nil {
		return nil, err
	}
	policy, err := p.Dial("POLICY")
	if err != nil {
		return nil, err
	}
	h.wg.Go(func() {
		<-running.Done()
		_, _ = discovery.Close(), policy.Close()
	})

	to := &destination.GetDestination{Path: authority, ContextToken: p.Setting("DESTINATION_CONTEXT")}
	workload := p.Setting("POLICY_WORKLOAD")
	api := destination.NewDestinationClient(discovery)
	keep(running, h, "Get", func(ctx context.Context) (grpc.ServerStreamingClient[destination.Update], error) {
		return api.Get(ctx, to)
	})
	keep(running, h, "GetProfile",
		func(ctx context.Context) (grpc.ServerStreamingClient[destination.DestinationProfile], error) {
			return api.GetProfile(ctx, to)
		})
	keep(running, h, "WatchPort", func(ctx context.Context) (grpc.ServerStreamingClient[inbound.Server], error) {
		spec := &inbound.PortSpec{Workload: workload, Port: port}
		return inbound.NewInboundServerPoliciesClient(policy).WatchPort(ctx, spec)
	})
	keep(running, h, "Watch", func(ctx context.Context) (grpc.ServerStreamingClient[outbound.OutboundPolicy], error) {
		return outbound.NewOutboundPoliciesClient(policy).Watch(ctx, &outbound.TrafficSpec{
			SourceWorkload: workload, Target: &outbound.TrafficSpec_Authority{Authority: authority},
		})
	})
	h.wg.Go(func() { h.renew(running, leaf) })
	h.wg.Go(func() { h.call(running) })
	return h, Eventually(ctx, h.hasAnswers)
}

func (h *Hold) hasAnswers(context.Context) error {
	for what, kept := range h.Kept() {
		if kept.Answers == 0 && what != "renewal" {
			return fmt.Errorf("%s has not answered: %+v", what, kept)
		}
	}
	return nil
}

// keep has a goroutine keep one stream open.
func keep[M any](
	ctx context.Context, h *Hold, what string, open func(context.Context) (grpc.ServerStreamingClient[M], error),
) {
	h.note(what, func(*Kept) {})
	h.wg.Go(func() {
		for opened := 0; ctx.Err() == nil; opened++ {
			lost, answered := time.Now(), false
			_ = Eventually(ctx, func(ctx context.Context) error {
				stream, err := open(ctx)
				for err == nil {
					if _, err = stream.Recv(); err == nil {
						h.note(what, func(k *Kept) {
							if k.Answers++; !answered {
								k.Longest = max(k.Longest, time.Since(lost))
							}
						})
						answered = true
					}
				}
				if !answered {
					h.note(what, func(k *Kept) { k.Refused++ })
					return err
				}
				return nil
			})
			if ctx.Err() == nil {
				h.note(what, func(k *Kept) { k.Retried++ })
			}
		}
	})
}

// renew gets a new certificate when 70 % of the time of the one before have passed.
func (h *Hold) renew(ctx context.Context, leaf *x509.Certificate) {
	h.note("renewal", func(*Kept) {})
	for {
		due := leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 7 / 10)
		if !pass(ctx, time.Until(due)) {
			return
		}
		next, err := h.certify(ctx, h.proxy, "renewal")
		switch {
		case err == nil:
			leaf = next
		case !time.Now().Before(leaf.NotAfter):
			return // certify has noted why
		}
	}
}

// call certifies the Proxy again and again, and leaves its certificate as it is.
func (h *Hold) call(ctx context.Context) {
	other := h.proxy.At(h.proxy.hosts)
	for pass(ctx, callInterval) {
		_, _ = h.certify(ctx, other, "Certify")
	}
}

// certify makes a call, and another one if it fails.
func (h *Hold) certify(ctx context.Context, p *Proxy, what string) (*x509.Certificate, error) {
	began := time.Now()
	leaf, err := p.Certify(ctx, h.token)
	retried := err != nil && ctx.Err() == nil
	if retried {
		leaf, err = p.Certify(ctx, h.token)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}

	h.note(what, func(k *Kept) {
		if retried {
			k.Retried++
		}
		if err != nil {
			k.Refused++
			h.errs = append(h.errs, fmt.Errorf("%s: %w", what, err))
			return
		}
		k.Answers++
		k.Longest = max(k.Longest, time.Since(began))
	})
	return leaf, err
}

// pass waits, and reports whether ctx has not ended.
func pass(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (h *Hold) note(what string, change func(*Kept)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept[what] == nil {
		h.kept[what] = new(Kept)
	}
	change(h.kept[what])
}

// Kept returns what has become of everything so far.
func (h *Hold) Kept() map[string]Kept {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]Kept{}
	for what, kept := range h.kept {
		all[what] = *kept
	}
	return all
}

// Errs returns why calls were refused, also when they were made again.
func (h *Hold) Errs() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.errs)
}

// String is a line for each stream and each kind of calls.
func (h *Hold) String() string {
	all := h.Kept()
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(all)) {
		k := all[what]
		fmt.Fprintf(&b, "%-10s %4d answers, %d again, %d refused, longest %s\n", what, k.Answers, k.Retried, k.Refused,
			k.Longest.Round(time.Millisecond))
	}
	return b.String()
}

// End ends all streams and calls.
func (h *Hold) End() {
	h.end()
	h.wg.Wait()
}
