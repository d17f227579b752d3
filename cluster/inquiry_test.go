package cluster_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// peer plays another replica, which has one endpoint of cluster east, as of now.
type peer struct {
	http.Handler

	mu    sync.Mutex
	delay time.Duration // of a state
	code  int           // instead of it; 0 for none
	asked []time.Time   // HEAD
	gave  int           // states
}

func newPeer() *peer {
	svc := federation.Service{Namespace: "ns", Name: "web"}
	views := new(federation.Views).With(svc, &federation.View{
		Ports: []federation.ServicePort{{Number: 80, Name: "http"}},
		Slices: []*federation.Slice{{
			Name: "web-1", Ports: []federation.Port{{Name: "http", Number: 8080, Protocol: federation.TCP}},
			Endpoints: []*federation.Endpoint{{Addr: netip.MustParseAddr("10.0.0.9"), Ready: true}},
		}},
	})
	return &peer{Handler: checkpoint.Handler(
		func(_ string, before checkpoint.Checkpoint) (checkpoint.Checkpoint, bool) {
			return checkpoint.Checkpoint{
				Header: checkpoint.Header{Cluster: "east"}, AsOf: time.Now(),
				Published: federation.Published{Views: views},
			}, before.Cluster == "east"
		}, func() []checkpoint.Header { return nil }, func(r *http.Request) string { return r.RemoteAddr },
	)}
}

func (p *peer) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	delay, code := p.delay, p.code
	if r.Method == http.MethodHead {
		p.asked = append(p.asked, time.Now())
		delay = 0
	}
	p.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	recorder := httptest.NewRecorder()
	if code != 0 && (r.Method == http.MethodGet || code == http.StatusNotFound) {
		recorder.WriteHeader(code)
		return recorder.Result(), nil
	}
	p.ServeHTTP(recorder, r)
	if r.Method == http.MethodGet && !strings.HasSuffix(r.URL.Path, "/") { // not the list of clusters
		p.mu.Lock()
		p.gave++
		p.mu.Unlock()
	}
	return recorder.Result(), nil
}

func (p *peer) answerWith(code int, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.code, p.delay = code, delay
}

func (p *peer) counts() (asked, gave int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked), p.gave
}

func besidePeer(t *testing.T, test func(w *world, p *peer)) {
	t.Helper()
	p := newPeer()
	inWorldWith(t, func(o *cluster.Options) {
		o.Peers = &checkpoint.Peers{
			Addr: "peers.test:8087", MaxAge: time.Hour,
			Lookup: func(context.Context, string) ([]string, error) { return []string{"10.0.1.1"}, nil },
			Client: func() (*http.Client, error) { return &http.Client{Transport: p}, nil },
		}
	}, func(w *world) { test(w, p) })
}

// Other replicas are asked ever more rarely, whether there are no credentials or nothing answers, and whether they have
// something or not. What they have is taken over once, and goes on to be as of now.
func TestInquiryBacksOff(t *testing.T) {
	for name, code := range map[string]int{"nothing": http.StatusNotFound, "busy": 503, "the state": 0} {
		for _, credentials := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				besidePeer(t, func(w *world, p *peer) {
					p.answerWith(code, 0)
					w.network.Server("east").Cut(apitest.Refuse)
					spec := cluster.Spec{Name: "east"}
					if credentials {
						spec.Access = []cluster.Access{w.access("east", w.network.Server("east").Token())}
					}
					w.apply(spec)
					w.wait(10*time.Minute + time.Second)
					if asked, gave := p.counts(); asked < 22 || asked > 30 || gave > 1 {
						t.Errorf("asked %d times in 10 minutes, and got %d states", asked, gave)
					}
					s := w.status()
					if busy := code == 503; s.AskingPeers != busy || s.Tried() == busy {
						t.Errorf("asking %t, tried %t", s.AskingPeers, s.Tried())
					}
					if code == 0 && (s.State != federation.Stale || time.Since(s.Checkpoint) > time.Minute) {
						t.Errorf("%s as of %v ago", s.State, time.Since(s.Checkpoint))
					}
					if code != 0 {
						p.answerWith(0, 0)
						w.wait(31 * time.Second)
					}
					w.wants(1)
					w.network.Server("east").Cut(apitest.None)
					w.apply(cluster.Spec{
						Name: "east", Access: []cluster.Access{w.access("east", w.network.Server("east").Token())},
					})
					w.wait(3 * time.Second)
					w.wantsState(federation.Live)
					before, _ := p.counts()
					w.wait(10 * time.Minute)
					if asked, _ := p.counts(); asked != before {
						t.Error("others are asked about a cluster that is Live")
					}
				})
			})
		}
	}
}

// A cluster that was restored without credentials counts as not tried once its Link has some, and other replicas are
// asked once more: they may have had nothing to give, or no time, for as long as the local cluster was away.
func TestInquiryWithNewAccess(t *testing.T) {
	besidePeer(t, func(w *world, p *peer) {
		p.answerWith(http.StatusNotFound, 0)
		w.network.Server("east").Cut(apitest.Silence)
		w.apply(cluster.Spec{Name: "east"})
		w.wait(5*time.Minute + 10*time.Second) // they are asked each 30 s by now
		if !w.status().Tried() {
			t.Fatal("a cluster without credentials, of which others have nothing, is not tried")
		}

		p.answerWith(0, 0)
		w.apply(cluster.Spec{
			Name: "east", Access: []cluster.Access{w.access("east", w.network.Server("east").Token())},
		})
		for range 20 {
			if s := w.status(); s.Tried() && s.Checkpoint.IsZero() {
				t.Fatal("it is tried, and others were not asked again")
			}
			w.wait(100 * time.Millisecond)
		}
		w.wants(1)
	})
}

// While another replica hands a state over slowly, new credentials are used and a removal ends everything at once.
func TestNewCredentialsWhileAsking(t *testing.T) {
	for name, change := range map[string]func(w *world, p *peer){
		"new credentials": func(w *world, _ *peer) {
			moved := w.network.Server("moved")
			moved.ApplyYAML(service, slice)
			w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("moved", moved.Token())}})
			w.wait(500 * time.Millisecond)
			w.wantsState(federation.Live)
			w.wants(1)
		},
		"removal": func(w *world, p *peer) {
			w.registry.Remove("east")
			w.wait(500 * time.Millisecond)
			p.answerWith(0, 0)
			w.wait(time.Minute)
			if asked, gave := p.counts(); asked != 1 || gave != 0 {
				w.t.Errorf("asked %d times, got %d states", asked, gave)
			}
		},
	} {
		for _, guarded := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				besidePeer(t, func(w *world, p *peer) {
					p.answerWith(0, 15*time.Second)
					w.network.Server("east").Cut(apitest.Refuse)
					spec := cluster.Spec{
						Name: "east", Access: []cluster.Access{w.access("east", w.network.Server("east").Token())},
					}
					if guarded {
						spec.Traffic = policy.Link{
							WithdrawalGuard: policy.WithdrawalGuard{Percent: 50, Hold: time.Hour},
						}
					}
					w.apply(spec)
					w.wait(2 * time.Second)
					if asked, gave := p.counts(); asked != 1 || gave != 0 {
						t.Fatalf("asked %d times, got %d states", asked, gave)
					}
					change(w, p)
				})
			})
		}
	}
}

// A guarded cluster is contacted at once. What it has waits for what others hold of it, and not for longer than they
// may take.
func TestGuardedClusterBesidePeers(t *testing.T) {
	for name, test := range map[string]struct {
		code         int
		delay, until time.Duration
	}{
		"nothing is held": {code: http.StatusNotFound},
		"handed over":     {delay: 3 * time.Second, until: 3 * time.Second},
		"too slow":        {delay: 15 * time.Second, until: 10 * time.Second},
		"busy for ever":   {code: 503, until: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			besidePeer(t, func(w *world, p *peer) {
				p.answerWith(test.code, test.delay)
				east := w.network.Server("east")
				east.ApplyYAML(service, slice)
				w.apply(cluster.Spec{
					Name: "east", Access: []cluster.Access{w.access("east", east.Token())},
					Traffic: policy.Link{WithdrawalGuard: policy.WithdrawalGuard{Percent: 50, Hold: time.Hour}},
				})
				w.wait(300 * time.Millisecond)
				if n := east.Requests("watch", "pods") + east.Requests("list", "pods"); n == 0 {
					t.Error("it was not contacted yet")
				}
				if test.until > 0 {
					w.wait(test.until - 500*time.Millisecond)
					if w.status().Synced {
						t.Error("it is in use before others have told what they hold")
					}
				}
				w.wait(time.Second)
				w.wantsState(federation.Live)
				w.wants(1)
			})
		})
	}
}
