package checkpoint

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fingerpost/fingerpost/federation"
)

// network connects to handlers by the names of their hosts. A host without one does not answer.
type network map[string]http.Handler

func (n network) peers(hosts ...string) *Peers {
	return &Peers{
		Addr: "peers.test:8087", MaxAge: time.Hour,
		Lookup: func(context.Context, string) ([]string, error) { return hosts, nil },
		Client: func() (*http.Client, error) { return &http.Client{Transport: n}, nil },
	}
}

func (n network) RoundTrip(r *http.Request) (*http.Response, error) {
	host, _, err := net.SplitHostPort(r.URL.Host)
	if err != nil {
		return nil, err
	}
	if n[host] == nil {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	recorder := httptest.NewRecorder()
	n[host].ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// holds is a replica that has so many Services of cluster east, as of some time ago.
func holds(services int, age time.Duration) http.Handler {
	var p federation.Published
	for i := range services {
		p.Views = p.Views.With(federation.Service{Name: fmt.Sprint(i)}, &federation.View{})
	}
	return Handler(func(cluster string, before Checkpoint) (Checkpoint, bool) {
		if cluster != "east" {
			return Checkpoint{}, false
		}
		c := east(p)
		c.AsOf = time.Now().Add(-age)
		return c, before.Header == c.Header
	}, nil, remoteAddr)
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.NewTimer(d).C }

func remoteAddr(r *http.Request) string { return r.RemoteAddr }

// load asks peers once.
func load(t *testing.T, p *Peers, after time.Time) (Checkpoint, error) {
	t.Helper()
	answer, err := p.About("east", after).Ask(t.Context())
	return answer.Checkpoint, err
}

// The newest state counts, if it is newer than what is there; peers that have none, or fail, do not matter.
func TestPeers(t *testing.T) {
	n := network{
		"old": holds(1, 10*time.Minute), "new": holds(2, time.Minute), "ancient": holds(3, 2*time.Hour),
		"empty": http.NotFoundHandler(),
		"half": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			if r.Method == http.MethodGet {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}),
		"version": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			_, _ = io.WriteString(w, "of a version that is to come")
		}),
	}
	for name, test := range map[string]struct {
		peers string
		after time.Duration // ago
		want  int           // Services; 0: none
	}{
		"the newest":                  {"old new empty", time.Hour, 2},
		"the only one":                {"empty old", time.Hour, 1},
		"nothing newer":               {"old new", time.Minute - 2*time.Second, 0},
		"too old":                     {"ancient", 24 * time.Hour, 0},
		"none":                        {"empty", time.Hour, 0},
		"the next after a failure":    {"half new", time.Hour, 2},
		"the next after a version":    {"version new", time.Hour, 2},
		"one of them does not answer": {"silent new", time.Hour, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := load(t, n.peers(strings.Fields(test.peers)...), time.Now().Add(-test.after))
			if c.Published.Views.Len() != test.want || (test.want == 0) != errors.Is(err, ErrNone) {
				t.Errorf("%d Services, want %d: %v", c.Published.Views.Len(), test.want, err)
			}
		})
	}
}

// Every peer's clusters are listed, once each; a peer that does not list them is passed over. Why is returned of those
// that list another thing.
func TestClustersOfPeers(t *testing.T) {
	list := func(names ...string) http.Handler {
		return Handler(nil, func() (all []Header) {
			for _, name := range names {
				all = append(all, Header{Cluster: name, ClusterDomain: "cluster.local"})
			}
			return all
		}, remoteAddr)
	}
	text := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		_, _ = io.WriteString(w, "<html>")
	})
	n := network{
		"one": list("west", "east"), "two": list("north", "east"), "none": list(), "text": text,
		"old": http.NotFoundHandler(), "long": list(strings.Repeat("x", maxList)),
	}
	all, err := n.peers("one", "text", "silent", "old", "none", "long", "two").Clusters(t.Context())
	want := []Header{
		{Cluster: "east", ClusterDomain: "cluster.local"},
		{Cluster: "north", ClusterDomain: "cluster.local"},
		{Cluster: "west", ClusterDomain: "cluster.local"},
	}
	if !slices.Equal(all, want) {
		t.Errorf("%v, want %v", all, want)
	}
	const problems = `http://text:8087/clusters/: it is not a list of clusters
another replica does not hand it over: it is too long: at most 262144 bytes are taken over`
	if err == nil || err.Error() != problems {
		t.Errorf("%v, want %s", err, problems)
	}
}

// A peer that was reached and hands over nothing is no peer without state: why is returned, for the log.
func TestPeersThatRefuse(t *testing.T) {
	server := httptest.NewTLSServer(holds(1, time.Minute))
	defer server.Close()
	port := server.Listener.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	n := network{"undated": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	certificate := n.peers("127.0.0.1")
	certificate.Addr, certificate.Secure = fmt.Sprintf("peers.test:%d", port), true
	certificate.Client = func() (*http.Client, error) {
		client := server.Client()
		client.Transport.(*http.Transport).TLSClientConfig.ServerName = "other.test" //nolint:forcetypeassert // it is
		return client, nil
	}
	for want, peers := range map[string]*Peers{"not other.test": certificate, "parsing time": n.peers("undated")} {
		_, err := load(t, peers, time.Time{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "http") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	server.Close()
	if _, err := load(t, certificate, time.Time{}); !errors.Is(err, ErrNone) {
		t.Errorf("one that is not there: %v", err)
	}
}

// A peer that was reached and does not answer in time may have a state: it is to be asked again. One that is not
// reached has none to give.
func TestPeerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept []net.Conn
		defer func() {
			for _, conn := range kept {
				_ = conn.Close()
			}
		}()
		accept := func(ctx context.Context, _, _ string) (net.Conn, error) {
			client, server := net.Pipe()
			kept = append(kept, server)
			httptrace.ContextClientTrace(ctx).ConnectDone("tcp", "", nil) // as a net.Dialer does
			return client, nil
		}
		drop := func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		for want, dial := range map[error]func(context.Context, string, string) (net.Conn, error){
			ErrBusy: accept, ErrNone: drop,
		} {
			peers := network{}.peers("peer")
			peers.Client = func() (*http.Client, error) {
				return &http.Client{Transport: &http.Transport{DialContext: dial}}, nil
			}
			if _, err := load(t, peers, time.Time{}); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
	})
}

// What a peer sends is checked like a file.
func TestHostilePeer(t *testing.T) {
	for name, body := range map[string]io.Reader{
		"nothing": strings.NewReader(""), "text": strings.NewReader(strings.Repeat("<html>", 1000)),
	} {
		t.Run(name, func(t *testing.T) {
			n := network{"peer": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
				if r.Method == http.MethodGet {
					_, _ = io.Copy(w, body)
				}
			})}
			c, err := load(t, n.peers("peer"), time.Time{})
			if err == nil || errors.Is(err, ErrNone) || c.Published.Views.Len() > 0 {
				t.Errorf("%d Services: %v", c.Published.Views.Len(), err)
			}
		})
	}
}

// Where many clusters are away, a replica that starts asks for all of them at once. It gets them one after the other.
func TestManyClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := Handler(func(cluster string, _ Checkpoint) (Checkpoint, bool) {
			return Checkpoint{Header: Header{Cluster: cluster}, AsOf: time.Now()}, false
		}, nil, remoteAddr)
		peers := network{"peer": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				pass(time.Second / 5)
			}
			handler.ServeHTTP(w, r)
		})}.peers("peer")
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				name := fmt.Sprint("east-", i)
				answer, err := peers.About(name, time.Time{}).Ask(t.Context())
				if err != nil || answer.Cluster != name {
					t.Errorf("%q: %v", answer.Cluster, err)
				}
			})
		}
		wg.Wait()
	})
}

// In a partition peers are asked for hours. What each of them has is transferred once, and again when it has changed,
// whichever of them was in contact last.
func TestNothingNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := east(large(100))
		var gets, unchanged int
		var mu sync.Mutex
		peer := func(offset time.Duration) http.Handler {
			began := time.Now()
			handler := Handler(func(_ string, before Checkpoint) (Checkpoint, bool) {
				mu.Lock()
				defer mu.Unlock()
				now := state // it was in contact each ten seconds
				now.AsOf = began.Add(time.Since(began).Truncate(10 * time.Second)).Add(offset)
				return now, before.Published.Views == now.Published.Views
			}, nil, remoteAddr)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				recorder := httptest.NewRecorder()
				handler.ServeHTTP(recorder, r)
				mu.Lock()
				defer mu.Unlock()
				if r.Method == http.MethodGet {
					gets++
				}
				if recorder.Code == http.StatusNotModified {
					unchanged++
				}
				maps.Copy(w.Header(), recorder.Header())
				w.WriteHeader(recorder.Code)
				_, _ = w.Write(recorder.Body.Bytes())
			})
		}
		peers := network{"one": peer(0), "two": peer(5 * time.Second)}.peers("one", "two")
		inquiry := peers.About("east", time.Time{})
		last := time.Time{}
		ask := func(rounds int, same bool) {
			t.Helper()
			for range rounds {
				pass(7 * time.Second)
				answer, err := inquiry.Ask(t.Context())
				if errors.Is(err, ErrNone) {
					continue
				}
				if err != nil || answer.Same != same || !answer.AsOf.After(last) ||
					(answer.Published.Views == nil) != same {
					t.Fatalf("same: %t as of %s: %v", answer.Same, answer.AsOf, err)
				}
				last, same = answer.AsOf, true
			}
		}
		ask(50, false)
		if gets != 2 || unchanged < 50 {
			t.Errorf("%d transfers, and %d answers that nothing has changed", gets, unchanged)
		}
		mu.Lock()
		state = east(large(200))
		mu.Unlock()
		ask(50, false)
		if gets != 4 {
			t.Errorf("%d transfers after the change", gets-2)
		}
	})
}

// Clusters that change all the time are transferred again at a pace, and each in its turn. A first state does not wait.
func TestRenewalsHaveAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clusters, period = 10, 30 * time.Second
		state := large(1000)
		handler := Handler(func(name string, _ Checkpoint) (Checkpoint, bool) {
			h := Header{Cluster: name, TrustDomain: time.Now().String()}
			return Checkpoint{Header: h, Published: state, AsOf: time.Now()}, false
		}, nil, remoteAddr)
		peers := network{"one": handler}.peers("one")
		size := len(encoded(t, east(state)))

		ctx, cancel := context.WithTimeout(t.Context(), period)
		defer cancel()
		var wg sync.WaitGroup
		var renewals atomic.Int64
		for i := range clusters {
			wg.Go(func() {
				inquiry, last, isFirst := peers.About(fmt.Sprint("cluster-", i), time.Time{}), time.Now(), true
				for ctx.Err() == nil {
					answer, err := inquiry.Ask(ctx)
					age := time.Since(last)
					if age > 10*time.Second || isFirst && age > time.Second {
						t.Errorf("the state of cluster %d is %s old; it is the first: %t", i, age, isFirst)
					}
					if err == nil && !answer.Same {
						if !isFirst {
							renewals.Add(1)
						}
						last, isFirst = time.Now(), false
					}
					pass(time.Second)
				}
			})
		}
		wg.Wait()

		most := int64(period.Seconds()*renewRate)/int64(size) + 1
		if n := renewals.Load(); n > most || n < most/2 {
			t.Errorf("%d states of %d bytes were transferred in place of others in %s, want %d", n, size, period, most)
		}
	})
}

// A peer whose clock is off is accepted as much as the others: its state ages, and is the newest only if it is.
func TestClockOfPeer(t *testing.T) {
	for name, test := range map[string]struct {
		ahead    time.Duration
		dateless bool
	}{
		"right": {}, "an hour ahead": {ahead: time.Hour}, "an hour behind": {ahead: -time.Hour},
		"a second ahead": {ahead: time.Second}, "years ahead, and no date": {ahead: 1e5 * time.Hour, dateless: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				off := Handler(func(string, Checkpoint) (Checkpoint, bool) {
					c := east(federation.Published{})
					c.AsOf = began.Add(test.ahead)
					return c, false
				}, nil, remoteAddr)
				n := network{"off": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if !test.dateless {
						w.Header().Set("Date", time.Now().Add(test.ahead).UTC().Format(http.TimeFormat))
					}
					off.ServeHTTP(w, r)
				}), "right": holds(3, time.Minute)}
				pass(90*time.Second + 300*time.Millisecond)
				c, err := load(t, n.peers("off"), time.Time{})
				if late := c.AsOf.Sub(began); err != nil || late > 0 && !test.dateless || late < -3*time.Second {
					t.Errorf("it holds as of %v after it did: %v", late, err)
				}
				if c.AsOf.After(time.Now()) {
					t.Errorf("it holds as of %v from now", time.Until(c.AsOf))
				}
				c, err = load(t, n.peers("off", "right"), time.Time{})
				if err != nil || c.Published.Views.Len() != 3 && !test.dateless {
					t.Errorf("the older one counts: %v", err)
				}
			})
		})
	}
}

// A state that is longer than what is taken over is refused, however short it is compressed, and costs as much as one
// that is not.
func TestEndlessPeer(t *testing.T) {
	const zeros = 1 << 20
	var part bytes.Buffer
	z := gzip.NewWriter(&part)
	_, err := z.Write(make([]byte, zeros))
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		if r.Method == http.MethodHead {
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		for range 2 * maxTransfer / zeros {
			if _, err := w.Write(part.Bytes()); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peers := network{}.peers("127.0.0.1")
	peers.Addr = "peers.test:" + port
	peers.Client = func() (*http.Client, error) { return &http.Client{Transport: &http.Transport{}}, nil }
	if _, err := load(t, peers, time.Time{}); !errors.Is(err, errTooLong) {
		t.Errorf("%v", err)
	}
}
