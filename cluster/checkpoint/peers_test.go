package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
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
	return Handler(func(cluster string) (time.Time, func() Checkpoint) {
		if cluster != "east" {
			return time.Time{}, nil
		}
		return time.Now().Add(-age), func() Checkpoint {
			var p federation.Published
			for i := range services {
				p.Views = p.Views.With(federation.Service{Name: fmt.Sprint(i)}, &federation.View{})
			}
			return east(p)
		}
	}, nil)
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
			c, err := n.peers(strings.Fields(test.peers)...).Load(t.Context(), "east", time.Now().Add(-test.after))
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
		})
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
		_, err := peers.Load(t.Context(), "east", time.Time{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "http") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	server.Close()
	if _, err := certificate.Load(t.Context(), "east", time.Time{}); !errors.Is(err, ErrNone) {
		t.Errorf("one that is not there: %v", err)
	}
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
			c, err := n.peers("peer").Load(t.Context(), "east", time.Time{})
			if err == nil || errors.Is(err, ErrNone) || c.Published.Views.Len() > 0 {
				t.Errorf("%d Services: %v", c.Published.Views.Len(), err)
			}
		})
	}
}

// A replica serves two transfers at a time, and reports to any number of others how new its state is.
func TestTransfersAreBounded(t *testing.T) {
	reading, release := make(chan struct{}), make(chan struct{})
	handler := Handler(func(string) (time.Time, func() Checkpoint) {
		return time.Now(), func() Checkpoint {
			reading <- struct{}{}
			<-release
			return Checkpoint{}
		}
	}, nil)
	ask := func(method string) int {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), method, "/clusters/east", http.NoBody))
		return recorder.Code
	}
	codes := make(chan int)
	for range maxTransfers {
		go func() { codes <- ask(http.MethodGet) }()
		<-reading
	}
	get, head := ask(http.MethodGet), ask(http.MethodHead)
	if get != http.StatusServiceUnavailable || head != http.StatusOK {
		t.Errorf("while %d transfers run a GET gets %d, and a HEAD %d", maxTransfers, get, head)
	}
	close(release)
	for range maxTransfers {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("a transfer ends with %d", code)
		}
	}
}

// Where many clusters are away, a replica that starts asks for all of them at once. It gets them one after the other.
func TestBusyPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := network{"peer": Handler(func(cluster string) (time.Time, func() Checkpoint) {
			return time.Now(), func() Checkpoint {
				<-time.NewTimer(time.Second / 5).C
				return Checkpoint{Header: Header{Cluster: cluster}}
			}
		}, nil)}
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				c, err := n.peers("peer").Load(t.Context(), fmt.Sprint("east-", i), time.Time{})
				if err != nil || c.Cluster != fmt.Sprint("east-", i) {
					t.Errorf("%q: %v", c.Cluster, err)
				}
			})
		}
		wg.Wait()
	})
}
