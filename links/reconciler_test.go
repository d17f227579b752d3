package links

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/federation"
)

// fleet is the cluster home, which links others, with API servers in memory and virtual time.
type fleet struct {
	t       *testing.T
	network *apitest.Network
	home    *apitest.Server
	budget  api.Limits             // of each linked cluster
	broken  atomic.Bool            // the API server of home fails to patch
	before  atomic.Pointer[func()] // runs once, before the next patch is sent
	blind   bool                   // new replicas do not reach the linked clusters
	peers   *checkpoint.Peers      // what new replicas ask for clusters; nil for none
	options Options                // of new replicas
	ctx     context.Context
	running sync.WaitGroup

	*replica // the first one
}

// replica is what runs in one process.
type replica struct {
	fleet      *fleet
	registry   *cluster.Registry
	reconciler *Reconciler
	events     *events.FakeRecorder
	log        *recorded
	listed     atomic.Int32
	end        func() // of its term; nil without one
}

// recorded is a log.
type recorded struct {
	mu    sync.Mutex
	lines []string
}

func (l *recorded) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// inFleet runs a test after prepare has set up what exists at the start. The one replica writes the status of
// Links.
func inFleet(t *testing.T, prepare, test func(*fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, network: apitest.NewNetwork(), options: Options{
			ClusterName: "home", ControllerNamespace: "linkerd", Mirrors: true,
		}}
		defer f.network.Close()
		f.home = f.network.Server("home")
		prepare(f)
		var cancel context.CancelFunc
		f.ctx, cancel = context.WithCancel(t.Context())
		f.replica = f.newReplica()
		f.lead()
		f.pass(3 * time.Second)
		test(f)
		f.stop()
		cancel()
		f.running.Wait()
	})
}

// newReplica runs a replica until the test ends.
func (f *fleet) newReplica() *replica {
	f.t.Helper()
	r := &replica{fleet: f, events: events.NewFakeRecorder(1000), log: &recorded{}}
	log := funcr.New(func(_, line string) {
		r.log.mu.Lock()
		defer r.log.mu.Unlock()
		r.log.lines = append(r.log.lines, line)
	}, funcr.Options{})
	dial := f.network.Dial
	if f.blind {
		dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
	}
	r.registry = cluster.NewRegistry(logr.Discard(), federation.NewStore(), cluster.Options{
		ProbeInterval: 5 * time.Second,
		Thresholds:    federation.Thresholds{Suspect: 10 * time.Second, Stale: 150 * time.Second},
		Dial:          dial, Budget: f.budget, Peers: f.peers,
	})
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(f.home.Kubeconfig(f.home.Token())))
	f.must(err)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return patches{f, next} })
	conn, err := api.NewConnection(config, f.network.Dial)
	f.must(err)
	r.reconciler, err = NewReconciler(
		log, conn, r.registry, r.events, func() { r.listed.Add(1) }, f.options)
	f.must(err)
	f.running.Go(func() {
		if err := r.registry.Start(f.ctx); err != nil {
			f.t.Error(err)
		}
	})
	f.running.Go(func() {
		defer conn.Close()
		if err := r.reconciler.Start(f.ctx); err != nil {
			f.t.Error(err)
		}
	})
	return r
}

// lead begins a term of the local cluster's Lease.
func (r *replica) lead() {
	term, cancel := context.WithCancel(r.fleet.ctx)
	ended := make(chan error)
	client, err := kubernetes.NewForConfigAndClient(r.reconciler.conn.Config, r.reconciler.conn.HTTPClient)
	r.fleet.must(err)
	permissions := apply.NewPermissions(logr.Discard(), client)
	go func() { ended <- r.reconciler.WriteStatus(term, permissions, nil) }()
	r.end = func() {
		cancel()
		r.fleet.must(<-ended)
	}
}

// stop ends the term, if there is one.
func (r *replica) stop() {
	if r.end != nil {
		r.end()
		r.end = nil
	}
}

// patches fails PATCH requests while fleet.broken is set.
type patches struct {
	fleet *fleet
	next  http.RoundTripper
}

func (p patches) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch && p.fleet.broken.Load() {
		return &http.Response{
			StatusCode: http.StatusInternalServerError, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader("no space")), Request: r,
		}, nil
	}
	if r.Method == http.MethodPatch {
		if before := p.fleet.before.Swap(nil); before != nil {
			(*before)()
		}
	}
	return p.next.RoundTrip(r)
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

// link applies objects that link a cluster: a Link with its Secret, or a labelled Secret alone.
func (f *fleet) link(name string, withLink bool) {
	s := f.network.Server(name)
	text := fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {name: %[1]s, namespace: linkerd, labels: {multicluster.linkerd.io/cluster-name: %[1]s},
  annotations: {multicluster.linkerd.io/trust-domain: d, multicluster.linkerd.io/cluster-domain: d}}, type: mirror.linkerd.io/remote-kubeconfig, data: {kubeconfig: %[2]s}}`,
		name, base64.StdEncoding.EncodeToString([]byte(s.Kubeconfig(s.Token()))))
	if withLink {
		text += fmt.Sprintf(`
---
{apiVersion: multicluster.linkerd.io/v1alpha3, kind: Link, metadata: {name: %[1]s, namespace: linkerd}, spec: {targetClusterName: %[1]s, clusterCredentialsSecret: %[1]s}}`, name)
	}
	f.home.ApplyYAML(strings.Split(text, "\n---\n")...)
}

func (f *fleet) conditions(link string) int {
	return len(readStatus(f.home.Get("links.multicluster.linkerd.io", "linkerd", link)).conditions)
}

// A replica applies every linked cluster although it cannot patch conditions. It patches them later.
func TestConditionsCannotBeWritten(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.broken.Store(true)
		f.link("east", true)
		f.link("west", true)
	}, func(f *fleet) {
		if n := f.listed.Load(); n != 1 {
			t.Errorf("onListed was called %d times", n)
		}
		if statuses, _ := f.registry.Statuses(); statuses["east"].State != federation.Live ||
			statuses["west"].State != federation.Live {
			t.Errorf("statuses %+v", statuses)
		}
		f.broken.Store(false)
		f.pass(time.Minute)
		if f.conditions("east") == 0 || f.conditions("west") == 0 {
			t.Error("the conditions are not written")
		}
	})
}

// A Link shows in its status that its cluster publishes more than is held of one, and that it does not any more.
func TestBudgetIsReported(t *testing.T) {
	pod := func(i int) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"namespace": "ns", "name": fmt.Sprint("web-", i)},
		}}
	}
	inFleet(t, func(f *fleet) {
		f.budget = api.Limits{Endpoints: 10}
		f.link("east", true)
		for i := range 20 {
			f.network.Server("east").Apply(pod(i))
		}
	}, func(f *fleet) {
		f.pass(10 * time.Second)
		c := f.condition(WithinBudget)
		if c["status"] != "False" || c["reason"] != "OverBudget" ||
			!strings.Contains(fmt.Sprint(c["message"]), "-cluster-max-endpoints") {
			t.Errorf("condition %v", c)
		}
		for i := range 15 {
			f.network.Server("east").Delete("Pod", "ns", fmt.Sprint("web-", i))
		}
		f.pass(3 * time.Minute)
		if c := f.condition(WithinBudget); c["status"] != "True" {
			t.Errorf("condition %v", c)
		}
	})
}

// Of the clusters that another replica lists, those that nothing links are held like those of Links that were deleted
// at once. One that a Secret links which cannot be used is linked, as the Secret has it. A list cannot replace the
// local cluster or a Link, nor bring in a name that no Link may have.
func TestListOfPeer(t *testing.T) {
	listed := []string{"home", "", "../east", "a b", strings.Repeat("x", 64), "east", "west", "north", "south"}
	handler := checkpoint.Handler(
		func(string, checkpoint.Checkpoint) (checkpoint.Checkpoint, bool) {
			return checkpoint.Checkpoint{}, false
		},
		func() (all []checkpoint.Header) {
			for _, name := range listed {
				all = append(all, checkpoint.Header{Cluster: name, TrustDomain: "evil"})
			}
			return all
		},
		func(r *http.Request) string { return r.RemoteAddr },
	)
	inFleet(t, func(f *fleet) {
		f.link("east", true)
		f.home.ApplyYAML(`{apiVersion: v1, kind: Secret, type: mirror.linkerd.io/remote-kubeconfig,
			metadata: {name: west, namespace: linkerd, labels: {multicluster.linkerd.io/cluster-name: west},
			annotations: {multicluster.linkerd.io/trust-domain: west.trust, multicluster.linkerd.io/cluster-domain: west.dns}}}`)
		f.peers = &checkpoint.Peers{
			Addr: "peers:8087", MaxAge: time.Hour,
			Lookup: func(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, nil },
			Client: func() (*http.Client, error) { return &http.Client{Transport: served{handler}}, nil },
		}
	}, func(f *fleet) {
		names := func() []string {
			statuses, _ := f.registry.Statuses()
			return slices.Sorted(maps.Keys(statuses))
		}
		f.pass(DeletionGrace / 2)
		if got := names(); !slices.Equal(got, []string{"east", "north", "south", "west"}) {
			t.Errorf("clusters %q, want east, north, south and west", got)
		}
		if f.log.count(heldMass) != 1 || f.log.count(`"links"=2`) != 1 {
			t.Error("not two deletions are held: other names count as well")
		}
		statuses, _ := f.registry.Statuses()
		if statuses["east"].TrustDomain == "evil" || statuses["west"].TrustDomain != "west.trust" {
			t.Error("a peer has replaced the trust domain of a Link or a Secret")
		}
		f.pass(DeletionGrace)
		if got := names(); !slices.Equal(got, []string{"east", "west"}) {
			t.Errorf("clusters %q, want east and west", got)
		}
	})
}

// served sends requests to a handler.
type served struct{ http.Handler }

func (s served) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	s.ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// condition returns a condition of the Link east; nil if it has none of the type.
func (f *fleet) condition(of string) map[string]any {
	all, _, err := unstructured.NestedSlice(
		f.home.Get("links.multicluster.linkerd.io", "linkerd", "east").Object, "status", "conditions",
	)
	f.must(err)
	for _, c := range all {
		if c := c.(map[string]any); c["type"] == of {
			return c
		}
	}
	return nil
}

// A kind that may not be listed does not keep a replica from serving. But the Membership is not complete: a cluster may
// be linked by what cannot be read.
func TestCompleteMembership(t *testing.T) {
	for name, c := range map[string]struct {
		fault, mend func(*fleet)
		known       bool
	}{
		"all can be read": {func(*fleet) {}, func(*fleet) {}, true},
		"no CRD": {
			func(f *fleet) { f.home.Serve("links.multicluster.linkerd.io") },
			func(f *fleet) { f.pass(DeletionGrace) }, false, // it may have been deleted a moment ago
		},
		"Links are forbidden": {
			func(f *fleet) { f.home.Forbid("links.multicluster.linkerd.io", true) },
			func(f *fleet) { f.home.Forbid("links.multicluster.linkerd.io", false) }, false,
		},
		"Links are forbidden, and then no CRD": {
			func(f *fleet) { f.home.Forbid("links.multicluster.linkerd.io", true) },
			func(f *fleet) {
				f.home.Serve("links.multicluster.linkerd.io")
				f.home.Forbid("links.multicluster.linkerd.io", false)
				f.pass(DeletionGrace)
			}, false,
		},
		"Secrets are forbidden": {
			func(f *fleet) { f.home.Forbid("secrets", true) },
			func(f *fleet) { f.home.Forbid("secrets", false) }, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(f *fleet) {
				f.link("east", true)
				f.link("west", false)
				c.fault(f)
			}, func(f *fleet) {
				isComplete := func() bool {
					membership, _ := f.reconciler.Membership()
					return membership.IsComplete()
				}
				if n, known := f.listed.Load(), isComplete(); n != 1 || known != c.known {
					t.Errorf("onListed was called %d times, the Membership is complete: %t", n, known)
				}
				c.mend(f)
				f.pass(30 * time.Second)
				statuses, _ := f.registry.Statuses()
				if n, known := f.listed.Load(), isComplete(); n != 1 || !known || len(statuses) != 2 {
					t.Errorf("in the end onListed was called %d times, the Membership is complete: %t, with %d clusters",
						n, known, len(statuses))
				}
			})
		})
	}
}

// Where labelled Secrets are not read none links a cluster, and the Membership is complete without the right to them:
// what was written for a cluster that is not linked any more is deleted. A Link reads the Secret that it names, also
// where labelled ones would be, and one that names none asks for one.
func TestNoLabelledSecrets(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.options.ControllerNamespace = ""
		f.link("east", true)
		f.link("west", false)
	}, func(f *fleet) {
		statuses, _ := f.registry.Statuses()
		if _, is := statuses["east"]; len(statuses) != 1 || !is {
			t.Errorf("linked are %v, want east alone", slices.Sorted(maps.Keys(statuses)))
		}
		membership, _ := f.reconciler.Membership()
		if !membership.IsComplete() || f.listed.Load() != 1 {
			t.Errorf("the Membership is complete: %t, listed %d times", membership.IsComplete(), f.listed.Load())
		}
		if n := f.log.count("Secrets in the controller namespace"); n != 0 {
			t.Errorf("the log asks %d times for a right that nothing needs", n)
		}

		f.home.ApplyYAML(`{apiVersion: multicluster.linkerd.io/v1alpha3, kind: Link,
			metadata: {name: west, namespace: linkerd}, spec: {targetClusterName: west}}`)
		f.pass(10 * time.Second)
		status := readStatus(f.home.Get("links.multicluster.linkerd.io", "linkerd", "west"))
		c := meta.FindStatusCondition(status.conditions, CredentialsValid)
		const want = "spec.clusterCredentialsSecret is empty, and labelled Secrets are not read"
		if c == nil || !strings.HasPrefix(c.Message, want) {
			t.Errorf("condition %+v, want %q", c, want)
		}
	})

	inFleet(t, func(f *fleet) {
		f.options.ControllerNamespace = ""
		f.home.Forbid("secrets", true)
	}, func(f *fleet) {
		if membership, _ := f.reconciler.Membership(); !membership.IsComplete() {
			t.Error("without a right that it does not need the Membership is not complete")
		}
	})
}

// A Link whose Secret is missing shows that, and not that Secrets cannot be read, once they can.
func TestSecretsBecomeReadable(t *testing.T) {
	inFleet(t, func(*fleet) {}, func(f *fleet) {
		f.home.Forbid("secrets", true)
		f.home.ApplyYAML(`{apiVersion: multicluster.linkerd.io/v1alpha3, kind: Link,
			metadata: {name: east, namespace: other}, spec: {targetClusterName: east, clusterCredentialsSecret: none}}`)
		for _, want := range []string{"Secrets in namespace other cannot be read", "there is no Secret other/none"} {
			f.pass(10 * time.Minute)
			status := readStatus(f.home.Get("links.multicluster.linkerd.io", "other", "east"))
			c := meta.FindStatusCondition(status.conditions, CredentialsValid)
			if c == nil || !strings.HasPrefix(c.Message, want) {
				t.Errorf("condition %+v, want %q", c, want)
			}
			f.home.Forbid("secrets", false)
		}
	})
}

// Links that are deleted at once, and held, give way to Links of their clusters in another namespace: those are
// accepted at once, and the clusters stay linked.
func TestHeldLinksAreReplaced(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east", true)
		f.link("west", true)
	}, func(f *fleet) {
		f.home.Delete("Link", "linkerd", "east")
		f.home.Delete("Link", "linkerd", "west")
		f.pass(time.Second)
		if f.log.count(heldMass) != 1 {
			t.Fatal("the deletions are not held")
		}
		f.home.ApplyYAML(`{apiVersion: multicluster.linkerd.io/v1alpha3, kind: Link,
			metadata: {name: east, namespace: other}, spec: {targetClusterName: east}}`)
		f.pass(time.Second)
		status := readStatus(f.home.Get(linkKind, "other", "east"))
		if !meta.IsStatusConditionTrue(status.conditions, Accepted) {
			t.Errorf("conditions %+v", status.conditions)
		}
		var held []string
		for _, l := range f.reconciler.Links() {
			if l.Held != "" {
				held = append(held, l.String())
			}
		}
		if statuses, _ := f.registry.Statuses(); len(statuses) != 2 || !slices.Equal(held, []string{"linkerd/west"}) {
			t.Errorf("%d clusters, and %q are held", len(statuses), held)
		}
		if f.log.count("Cluster is unlinked") != 0 {
			t.Error("a cluster was unlinked")
		}
	})
}
