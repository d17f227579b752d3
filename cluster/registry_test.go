// Thousands of handshakes with API servers in memory: without key exchanges that resist quantum computers.
//go:debug tlsmlkem=0
//go:debug tlssecpmlkem=0

package cluster_test

import (
	"context"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"go.uber.org/goleak"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a Registry with API servers in memory, in a bubble of virtual time.
type world struct {
	t        *testing.T
	network  *apitest.Network
	store    *federation.Store
	registry *cluster.Registry
}

func inWorld(t *testing.T, test func(*world)) {
	t.Helper()
	inWorldWith(t, func(*cluster.Options) {}, test)
}

func inWorldOf(t *testing.T, budget api.Limits, test func(*world)) {
	t.Helper()
	inWorldWith(t, func(o *cluster.Options) { o.Budget = budget }, test)
}

func inWorldWith(t *testing.T, configure func(*cluster.Options), test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, network: apitest.NewNetwork(), store: federation.NewStore()}
		w.store.MarkClustersListed()
		log := logr.Discard()
		if testing.Verbose() {
			log = testr.New(t)
		}
		options := cluster.Options{
			ProbeInterval: 5 * time.Second,
			Thresholds:    federation.Thresholds{Suspect: 10 * time.Second, Stale: 150 * time.Second},
			Dial:          w.network.Dial,

			ControllerNamespace: "linkerd",
		}
		configure(&options)
		w.registry = cluster.NewRegistry(log, w.store, options)
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error)
		go func() { stopped <- w.registry.Start(ctx) }()
		test(w)
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		w.network.Close()
	})
}

// access returns credentials for a cluster, with a token of their own.
func (w *world) access(name, token string) cluster.Access {
	w.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(w.network.Server(name).Kubeconfig(token)))
	if err != nil {
		w.t.Fatal(err)
	}
	return cluster.Access{Source: "Secret of " + token, Config: config}
}

func (w *world) apply(spec cluster.Spec) {
	w.t.Helper()
	if err := w.registry.Apply(spec); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status() cluster.Status {
	statuses, _ := w.registry.Statuses()
	return statuses["east"]
}

// wait lets time pass until everything has settled.
func (w *world) wait(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

func (w *world) addresses(name string) int {
	watch := w.store.Watch(federation.Ref{
		Cluster: federation.Cluster(name),
		Service: federation.Service{Namespace: "ns", Name: "web"},
	})
	defer watch.Close()
	snapshot, _ := watch.Load()
	return federation.Select(snapshot, federation.Query{Port: 80, IPv6: true}, nil).At(federation.Place{}, nil).Len()
}

const (
	service = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: ns},
  spec: {ports: [{port: 80, name: http}]}}`
	slice = `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
  metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.1]}]}`
)

// linked starts with cluster east in use and one endpoint in it.
func linked(t *testing.T, test func(w *world, east *apitest.Server, token string)) {
	t.Helper()
	linkedWith(t, func(*cluster.Options) {}, test)
}

func linkedWith(
	t *testing.T, configure func(*cluster.Options), test func(w *world, east *apitest.Server, token string),
) {
	t.Helper()
	inWorldWith(t, configure, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(service, slice)
		token := east.Token()
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", token)}})
		w.wait(time.Second)
		if s := w.status(); s.State != federation.Live || !s.Synced || s.Credentials != nil {
			t.Fatalf("status %+v", s)
		}
		w.wants(1)
		test(w, east, token)
	})
}

func (w *world) wants(addresses int) {
	w.t.Helper()
	if n := w.addresses("east"); n != addresses {
		w.t.Errorf("%d addresses, want %d", n, addresses)
	}
}

func (w *world) wantsState(state federation.ClusterState) {
	w.t.Helper()
	if s := w.status(); s.State != state {
		w.t.Errorf("the cluster is %s (%v), want %s", s.State, s.Contact, state)
	}
}

// neverEmpty fails if a snapshot of web in east is ever without addresses until the test ends.
func (w *world) neverEmpty() (stop func()) {
	watch := w.store.Watch(federation.Ref{Cluster: "east", Service: federation.Service{Namespace: "ns", Name: "web"}})
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer watch.Close()
		for {
			snapshot, superseded := watch.Load()
			if federation.Select(snapshot, federation.Query{Port: 80}, nil).At(federation.Place{}, nil).Len() == 0 {
				w.t.Error("the endpoints were gone for a moment")
			}
			select {
			case <-superseded:
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

const more = `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
  metadata: {name: web-2, namespace: ns, labels: {kubernetes.io/service-name: web}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.2]}]}`

func TestRemove(t *testing.T) {
	linked(t, func(w *world, _ *apitest.Server, _ string) {
		w.registry.Remove("east")
		w.wait(time.Second)
		w.wants(0)
		if s := w.status(); s.Name != "" {
			t.Errorf("a removed cluster has the status %+v", s)
		}
	})
}

// A new token is swapped in place once it was tried: nothing else is listed or watched again, and what
// comes later is seen although the old one is revoked.
func TestTokenIsSwapped(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, old string) {
		defer w.neverEmpty()()
		before := east.Requests("watch", "pods") + east.Requests("list", "pods") + 2 // one each, to try the token
		token := east.Token()
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", token)}})
		w.wait(5 * time.Second)
		east.Revoke(old)
		w.wait(time.Minute)
		if n := east.Requests("watch", "pods") + east.Requests("list", "pods"); n != before {
			t.Errorf("pods were asked for %d times more", n-before)
		}
		east.ApplyYAML(more)
		w.wait(time.Second)
		w.wants(2)
		if s := w.status(); s.State != federation.Live || s.Source != "Secret of "+token {
			t.Errorf("status %+v", s)
		}
		w.wait(20 * time.Minute) // every watch is opened anew meanwhile
		w.wantsState(federation.Live)
	})
}

// The API server moves, with a certificate of its own: the new one is listed before the old one is let go.
func TestServerMoves(t *testing.T) {
	linked(t, func(w *world, _ *apitest.Server, _ string) {
		defer w.neverEmpty()()
		moved := w.network.Server("moved")
		moved.ApplyYAML(service, slice)
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("moved", moved.Token())}})
		w.wait(time.Second)
		moved.ApplyYAML(more)
		w.wait(time.Second)
		w.wants(2)
		w.wantsState(federation.Live)
	})
}

// Credentials that fail leave the old ones in use, whatever is wrong with them, and the Status reports why.
func TestBadCredentialsChangeNothing(t *testing.T) {
	for name, bad := range map[string]func(w *world) cluster.Access{
		string(api.Unauthorized): func(w *world) cluster.Access { return w.access("east", "no such token") },
		string(api.Untrusted): func(w *world) cluster.Access {
			a := w.access("east", w.network.Server("east").Token())
			a.Config.CAData = w.access("other", "").Config.CAData
			return a
		},
		string(api.Unreachable): func(w *world) cluster.Access {
			a := w.access("east", w.network.Server("east").Token())
			a.Config.Host = "https://nowhere.test:6443"
			return a
		},
		string(api.Forbidden): func(w *world) cluster.Access {
			w.network.Server("poor").Forbid("pods", true)
			return w.access("poor", w.network.Server("poor").Token())
		},
	} {
		t.Run(name, func(t *testing.T) {
			linked(t, func(w *world, east *apitest.Server, token string) {
				defer w.neverEmpty()()
				w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{bad(w)}})
				w.wait(time.Minute)
				s := w.status()
				if s.State != federation.Live || s.Source != "Secret of "+token {
					t.Errorf("status %+v", s)
				}
				if s.Credentials == nil || string(api.ReasonFor(s.Credentials)) != name {
					t.Errorf("the new credentials fail with %v, want reason %s", s.Credentials, name)
				}
				east.ApplyYAML(more)
				w.wait(time.Second)
				w.wants(2)
				w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", token)}})
				w.wait(time.Minute)
				if s := w.status(); s.Credentials != nil {
					t.Errorf("the credentials that were good before fail with %v", s.Credentials)
				}
			})
		})
	}
}

// A cluster that is cut off keeps what it published, is Suspect and then Stale, and goes on where it was within
// 2 s of its return.
func TestPartition(t *testing.T) {
	for name, cut := range map[string]apitest.Cut{"silence": apitest.Silence, "refuse": apitest.Refuse} {
		for _, outage := range []time.Duration{4 * time.Second, time.Minute, 10 * time.Minute} {
			t.Run(name+"/"+outage.String(), func(t *testing.T) {
				linked(t, func(w *world, east *apitest.Server, _ string) {
					defer w.neverEmpty()()
					lists := east.Requests("list", "pods")
					w.wait(3 * time.Second) // somewhere between two probes
					east.Cut(cut)
					w.wait(outage)
					switch {
					case outage > 3*time.Minute:
						w.wantsState(federation.Stale)
					case outage > 15*time.Second:
						w.wantsState(federation.Suspect)
					default:
						w.wantsState(federation.Live)
					}
					w.wants(1)
					east.ApplyYAML(more)
					w.wait(time.Second)
					east.Cut(apitest.None)
					w.wait(2 * time.Second)
					w.wants(2)
					w.wait(time.Second)
					w.wantsState(federation.Live)
					if n := east.Requests("list", "pods"); n != lists {
						t.Errorf("pods were listed %d times more: a watch goes on where it was", n-lists)
					}
				})
			})
		}
	}
}

// A cluster whose token is revoked is out of contact for that reason, and keeps what it published.
func TestRevokedToken(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, token string) {
		east.Revoke(token)
		w.wait(20 * time.Second)
		w.wantsState(federation.Suspect)
		w.wants(1)
		if s := w.status(); api.ReasonFor(s.Contact) != api.Unauthorized {
			t.Errorf("out of contact because of %v", s.Contact)
		}
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		w.wait(3 * time.Second)
		w.wantsState(federation.Live)
	})
}

// A kind that is needed and refused keeps the cluster unknown; one that is not needed is left out until it
// is served.
func TestForbiddenKinds(t *testing.T) {
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(service, slice)
		east.Forbid("pods", true)
		east.Forbid("jobs.batch", true)
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		w.wait(time.Minute)
		w.wantsState(federation.Connecting)
		if s := w.status(); api.ReasonFor(s.Contact) != api.Forbidden {
			t.Errorf("out of contact because of %v, want Forbidden", s.Contact)
		}
		east.Forbid("pods", false)
		w.wait(time.Minute)
		w.wantsState(federation.Live)
		w.wants(1)
		east.Forbid("jobs.batch", false)
		w.wait(5 * time.Minute)
		kinds, _ := w.registry.Inspect("east")
		for _, k := range kinds {
			if !k.Open || k.Refused != "" {
				t.Errorf("%s is refused for %q although it is served again", k.Kind, k.Refused)
			}
		}
	})
}

// The second access is used while the first does not work, and the Status reports it.
func TestSecondAccess(t *testing.T) {
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(service, slice)
		good := w.access("east", east.Token())
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("unreachable", "home"), good}})
		w.wait(10 * time.Second)
		w.wantsState(federation.Live)
		if s := w.status(); s.Source != good.Source || s.Credentials == nil {
			t.Errorf("status %+v", s)
		}
	})
}

// A cluster that never answers is Connecting, and neither Apply nor Remove waits for it.
func TestBlackHole(t *testing.T) {
	inWorld(t, func(w *world) {
		hole := w.network.Server("east")
		hole.Cut(apitest.Silence)
		began := time.Now()
		for range 10 {
			w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", hole.Token())}})
			w.registry.Remove("east")
		}
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", hole.Token())}})
		if took := time.Since(began); took > 0 {
			t.Errorf("Apply and Remove took %s", took)
		}
		w.wait(10 * time.Minute)
		w.wantsState(federation.Connecting)
		hole.ApplyYAML(service, slice)
		hole.Cut(apitest.None)
		w.wait(5 * time.Second)
		w.wantsState(federation.Live)
		w.wants(1)
	})
}

// Linking and unlinking leaves nothing behind, however often, and whatever happens meanwhile: goroutines
// and live heap are back where they were.
func TestCycles(t *testing.T) {
	const warm = 20
	cycles := 1000
	if testing.Short() {
		cycles = 30
	}
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(service, slice)
		link := func() {
			w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
			w.wait(time.Second)
			w.wants(1)
		}
		cycle := func(i int) {
			link()
			if i%3 == 0 { // rotation
				link()
			}
			cut := []apitest.Cut{apitest.None, apitest.Silence, apitest.None, apitest.Refuse, apitest.None}[i%5]
			if east.Cut(cut); cut != apitest.None {
				w.wait(20 * time.Second)
				w.wants(1) // stale beats gone
			}
			w.registry.Remove("east")
			w.wait(10 * time.Second)
			w.wants(0)
			east.Cut(apitest.None)
		}
		footprint := func() (goroutines int, heap uint64) {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return runtime.NumGoroutine(), m.HeapAlloc
		}
		for i := range warm {
			cycle(i)
		}
		goroutines, heap := footprint()
		for i := range cycles {
			cycle(i)
		}
		goroutinesAfter, heapAfter := footprint()
		t.Logf("%d cycles: %d goroutines and %d kB of heap before, %d and %d kB after", cycles, goroutines,
			heap/1000, goroutinesAfter, heapAfter/1000)
		if goroutinesAfter > goroutines+2 {
			t.Errorf("%d goroutines are left behind", goroutinesAfter-goroutines)
		}
		if heapAfter > heap+1<<20 {
			t.Errorf("%d kB of heap are left behind", (heapAfter-heap)/1000)
		}
	})
}

// While the API server answers and is listed, first answers wait for the cluster; while it does not they hardly do.
func TestListing(t *testing.T) {
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		east.Answer(endpointSlices, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		web := w.store.Watch(federation.Ref{Cluster: "east", Service: federation.Service{Namespace: "ns", Name: "web"}})
		defer web.Close()
		wants := func(listing, known bool) {
			t.Helper()
			w.wait(5 * time.Second)
			snapshot, _ := web.Load()
			if m := snapshot.Members[0]; m.Listing != listing || m.Known != known {
				t.Errorf("listing %t, want %t; known %t, want %t", m.Listing, listing, m.Known, known)
			}
		}
		wants(true, false)
		east.Cut(apitest.Silence)
		w.wait(5 * time.Minute)
		wants(false, false)
		east.Answer(endpointSlices, nil)
		east.Cut(apitest.None)
		wants(false, true)
	})
}
