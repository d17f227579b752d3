package identity

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/mesh"
)

var (
	soakFor = flag.Duration("soak", 9*time.Second, "how long TestCertifyThroughRotations asks for certificates")
	each    = flag.Duration("each", 2*time.Second,
		"how often it replaces something; with a minute or more, anchors are replaced to the end")
)

// Proxies ask for 50 certificates a second, each over a connection of its own, while issuer and anchors are replaced
// again and again. None is refused, and each certificate is verified by what a Pod made at that moment trusts.
// An hour: go test -C e2e ./identity -run ThroughRotations -soak 1h -each 1m -timeout 70m -v.
func TestCertifyThroughRotations(t *testing.T) {
	const rate = 50
	s := newSite(t)
	s.startAuthority("-identity-issuance-lifetime=1m")
	s.startReplica()
	s.ready(append(s.authorities, s.replica)...)
	turn := rotation{site: s, old: "first", anchor: "first"}
	s.writeToken("web-token", "web", "shop")
	pod := s.pod()

	ctx, cancel := context.WithTimeout(t.Context(), *soakFor)
	defer cancel()
	replace, ask := time.NewTicker(*each), time.NewTicker(time.Second/rate)
	defer replace.Stop()
	defer ask.Stop()
	var calls calls
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-replace.C:
			turn.next()
			s.writeToken("web-token", "web", "shop") // as the kubelet does, long before the one before it ends
		case <-ask.C:
			proxy := pod.At(s.hosts())
			proxy.Trust(s.read("bundle.crt"))
			calls.start(t.Context(), proxy, s.path("web-token"))
		}
	}

	calls.all.Wait()
	calls.report(t)
	metrics, err := s.authorities[0].Metrics(t.Context())
	s.do(err)
	t.Logf("%d replacements\n%s", turn.number, lines(metrics, "fingerpost_token_review_seconds_count",
		"fingerpost_certify_total", "process_cpu_seconds_total", "process_resident_memory_bytes"))
}

// A rotation replaces the issuer at each turn. Of six turns one adds an anchor, the next one uses it, and the last one
// takes the old anchor away: by then the control plane has certificates under the new one, with turns of a minute.
type rotation struct {
	*site
	number      int
	old, anchor string // the anchor of the issuer, and the one beside it, or the same
}

func (r *rotation) next() {
	r.number++
	switch issuer := fmt.Sprintf("issuer-%d", r.number); r.number % 6 {
	case 2:
		added := fmt.Sprintf("anchor-%d", r.number)
		r.newAnchor(added)
		r.newIssuer(issuer, r.anchor)
		r.old, r.anchor = r.anchor, added
		r.use(issuer, r.old, r.anchor)
	case 5:
		r.old = r.anchor
		r.newIssuer(issuer, r.anchor)
		r.use(issuer, r.anchor)
	default:
		r.newIssuer(issuer, r.anchor)
		r.use(issuer, slices.Compact([]string{r.old, r.anchor})...)
	}
}

// calls are those that were made.
type calls struct {
	all    sync.WaitGroup
	mu     sync.Mutex // guards what follows
	took   []time.Duration
	failed []error
}

func (c *calls) start(ctx context.Context, proxy *mesh.Proxy, token string) {
	c.all.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		began := time.Now()
		_, err := proxy.Certify(ctx, token)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.took = append(c.took, time.Since(began))
		if err != nil {
			c.failed = append(c.failed, fmt.Errorf("at %s: %w", began.Format(time.TimeOnly), err))
		}
	})
}

func (c *calls) report(t *testing.T) {
	t.Helper()
	for _, err := range c.failed[:min(len(c.failed), 10)] {
		t.Error(err)
	}
	slices.Sort(c.took)
	at := func(part int) time.Duration { return c.took[(len(c.took)-1)*part/100].Round(100 * time.Microsecond) }
	t.Logf("%d calls, %d refused: p50 %s, p99 %s, longest %s", len(c.took), len(c.failed), at(50), at(99), at(100))
}
