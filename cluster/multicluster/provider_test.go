// Many handshakes with API servers in memory: without key exchanges that resist quantum computers.
//go:debug tlsmlkem=0
//go:debug tlssecpmlkem=0

package multicluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mccontroller "sigs.k8s.io/multicluster-runtime/pkg/controller"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcr "sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/multicluster"
	"github.com/fingerpost/fingerpost/federation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a Registry and its Provider, with API servers in memory, in a bubble of virtual time.
type world struct {
	*testing.T
	log      logr.Logger
	network  *apitest.Network
	registry *cluster.Registry
	provider *multicluster.Provider
}

func inWorld(t *testing.T, options multicluster.Options, budget api.Limits, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, log: logr.Discard(), network: apitest.NewNetwork()}
		if testing.Verbose() {
			w.log = testr.New(t)
		}
		ctrl.SetLogger(logr.Discard())
		w.registry = cluster.NewRegistry(w.log, federation.NewStore(), cluster.Options{
			ProbeInterval: 5 * time.Second, Dial: w.network.Dial, Budget: budget,
			Thresholds: federation.Thresholds{Suspect: 10 * time.Second, Stale: 150 * time.Second},
		})
		var err error
		w.provider, err = multicluster.NewProvider(w.log, w.registry, options)
		w.do(err)

		defer w.network.Close()
		defer w.start(w.registry.Start)()
		test(w)
	})
}

func (w *world) do(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// start runs something until the function that it returns is called.
func (w *world) start(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	}
}

// wait lets time pass until everything has settled.
func (w *world) wait(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

// config returns credentials for a server, by a path to it.
func (w *world) config(server, path, token string) *rest.Config {
	w.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(w.network.Path(server, path).Kubeconfig(token)))
	w.do(err)
	return config
}

// link links a cluster by a path to its server, and lets it connect.
func (w *world) link(name, path string) {
	w.Helper()
	w.linkTo(name, name, path)
}

func (w *world) linkTo(name, server, path string) {
	w.Helper()
	access := cluster.Access{Source: "test", Config: w.config(server, path, w.network.Server(server).Token())}
	w.do(w.registry.Apply(cluster.Spec{Name: name, Access: []cluster.Access{access}}))
	w.wait(time.Second)
}

func (w *world) get(name string) crcluster.Cluster {
	w.Helper()
	c, err := w.provider.Get(w.Context(), mcr.ClusterName(name))
	w.do(err)
	return c
}

func (w *world) notFound(name string) {
	w.Helper()
	c, err := w.provider.Get(w.Context(), mcr.ClusterName(name))
	if !errors.Is(err, mcr.ErrClusterNotFound) || c != nil {
		w.Errorf("Get(%q) = %v, %v", name, c, err)
	}
}

// names reads the ConfigMaps in the cache of a cluster.
func (w *world) names(c crcluster.Cluster, options ...client.ListOption) (names []string) {
	w.Helper()
	var list corev1.ConfigMapList
	w.do(c.GetCache().List(w.Context(), &list, options...))
	for _, m := range list.Items {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

func (w *world) wants(what string, got, want any) {
	w.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		w.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func configMap(name string, lines ...string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: ns}, data: {%s}}",
		name, strings.Join(lines, ", "))
}

// requests returns how often a server was asked about ConfigMaps.
func requests(s *apitest.Server) (n int) {
	for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete"} {
		n += s.Requests(verb, "configmaps")
	}
	return n
}

// The page for authors of controllers has the code of the example.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/controllers.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(example), "// BEGIN controller\n\n")
	code, _, found := strings.Cut(code, "\n// END controller")
	if !found || !strings.Contains(string(page), "```go\n"+code+"```\n") {
		t.Error("docs/controllers.md does not have the code between the marks of example_test.go")
	}
}

// A recorder is an Aware that records what is engaged, and what ends.
type recorder struct {
	mu      sync.Mutex
	events  []string
	refused map[string]int // Engages to refuse, by cluster
}

func (r *recorder) add(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *recorder) Engage(ctx context.Context, name mcr.ClusterName, _ crcluster.Cluster) error {
	r.mu.Lock()
	refuses := r.refused[string(name)] > 0
	if refuses {
		r.refused[string(name)]--
	}
	r.mu.Unlock()
	if refuses {
		return errors.New("refused")
	}
	r.add("+" + string(name))
	context.AfterFunc(ctx, func() { r.add("-" + string(name) + ": " + context.Cause(ctx).Error()) })
	return nil
}

func (r *recorder) take() (events []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	events, r.events = r.events, nil
	slices.Sort(events)
	return events
}

// A cluster is there from its first engagement until it is unlinked, and costs no request until one is asked for.
func TestGet(t *testing.T) {
	inWorld(t, multicluster.Options{}, api.Limits{}, func(w *world) {
		w.notFound("east")
		east := w.network.Server("east")
		east.ApplyYAML(configMap("one"))
		east.Cut(apitest.Refuse)
		w.link("east", "")
		w.notFound("east")

		east.Cut(apitest.None)
		w.wait(5 * time.Second)
		c := w.get("east")
		w.notFound("")
		w.wants("requests before one is asked for", requests(east), 0)
		w.wants("names", w.names(c), []string{"one"})

		w.registry.Remove("east")
		w.wait(time.Second)
		w.notFound("east")
		if err := c.GetClient().Delete(w.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"},
		}); !errors.Is(err, cluster.ErrUnlinked) {
			t.Errorf("a client of an unlinked cluster: %v", err)
		}
		w.link("east", "")
		if again := w.get("east"); again == c {
			t.Error("a cluster that is linked again is the one that was unlinked")
		}
	})
}

// New credentials and a new address leave a cluster engaged, and what it is read by. A deletion while the connection
// is replaced is an event, and what has not changed is none.
func TestRotation(t *testing.T) {
	inWorld(t, multicluster.Options{}, api.Limits{}, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(configMap("one"), configMap("two"))
		aware := &recorder{}
		defer w.start(func(ctx context.Context) error { return w.provider.Start(ctx, aware) })()
		w.link("east", "")
		w.wants("engaged", aware.take(), []string{"+east"})

		c, seen := w.get("east"), &recorder{}
		informer, err := c.GetCache().GetInformer(w.Context(), &corev1.ConfigMap{})
		w.do(err)
		name := func(object any) string { return object.(client.Object).GetName() }
		registered, err := informer.AddEventHandlerWithResyncPeriod(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { seen.add("+" + name(o)) },
			DeleteFunc: func(o any) {
				if gone, is := o.(toolscache.DeletedFinalStateUnknown); is {
					o = gone.Obj
				}
				seen.add("-" + name(o))
			},
			UpdateFunc: func(_, o any) { seen.add("~" + name(o)) },
		}, 0)
		w.do(err)
		<-registered.HasSyncedChecker().Done()
		<-informer.HasSyncedChecker().Done()
		w.wants("listed first", seen.take(), []string{"+one", "+two"})

		lists := requests(east)
		w.link("east", "") // another token
		w.wait(20 * time.Second)
		w.wants("requests after a new token", requests(east), lists)

		for i, path := range []string{"a", "b", "c"} {
			// At the moment of the change nothing can be watched.
			east.Fail("configmaps", http.StatusServiceUnavailable, 1)
			w.linkTo("east", "east", path)
			w.wait(time.Second)
			east.Delete("ConfigMap", "ns", fmt.Sprint("more", i-1))
			east.ApplyYAML(configMap(fmt.Sprint("more", i)))
			w.wants("names while it is replaced", len(w.names(c)), 2+min(i, 1))
			east.Fail("configmaps", 0, 0)
			w.wait(40 * time.Second)
			want := []string{fmt.Sprint("+more", i)}
			if i > 0 {
				want = append(want, fmt.Sprint("-more", i-1))
			}
			w.wants("events by path "+path, seen.take(), want)
		}

		other := w.network.Server("other") // which has counted less far
		other.ApplyYAML("{apiVersion: v1, kind: Secret, metadata: {name: a, namespace: ns}}", configMap("one"))
		w.linkTo("east", "other", "")
		w.wait(40 * time.Second)
		w.wants("names on another server", w.names(c), []string{"one"})
		w.wants("events of another server", seen.take(), []string{"-more2", "-two", "~one"})

		if w.get("east") != c || !cmp.Equal(aware.take(), []string(nil)) {
			t.Error("the cluster was engaged anew")
		}
		w.registry.Remove("east")
		w.wait(time.Second)
		w.wants("at the end", aware.take(), []string{"-east: " + cluster.ErrUnlinked.Error()})
		if !informer.IsStopped() {
			t.Error("the informer of an unlinked cluster goes on")
		}
	})
}

// An Engage that fails is made again. What was engaged ends with the manager; another one may follow, and not two
// run at once.
func TestStart(t *testing.T) {
	inWorld(t, multicluster.Options{}, api.Limits{}, func(w *world) {
		aware := &recorder{refused: map[string]int{"east": 3}}
		stop := w.start(func(ctx context.Context) error { return w.provider.Start(ctx, aware) })
		w.link("east", "")
		w.link("west", "")
		w.wants("those that do not fail", aware.take(), []string{"+west"})
		w.wait(10 * time.Second)
		w.wants("what failed", aware.take(), []string{"+east"})
		if err := w.provider.Start(w.Context(), aware); err == nil {
			t.Error("two managers run")
		}
		stop()
		synctest.Wait()
		w.wants("at the end", aware.take(), []string{"-east: context canceled", "-west: context canceled"})

		stop = w.start(func(ctx context.Context) error { return w.provider.Start(ctx, aware) })
		w.wait(time.Second)
		w.wants("another one", aware.take(), []string{"+east", "+west"})
		stop()
	})
}

// Indexes are those of clusters that are linked before and after, and of kinds that are cached before and after.
func TestIndexField(t *testing.T) {
	inWorld(t, multicluster.Options{}, api.Limits{}, func(w *world) {
		w.network.Server("east").ApplyYAML(configMap("one", "color: red"), configMap("two", "color: blue"))
		w.network.Server("west").ApplyYAML(configMap("three", "color: red", "size: big"))
		by := func(field string) client.IndexerFunc {
			return func(o client.Object) []string { return []string{o.(*corev1.ConfigMap).Data[field]} }
		}
		w.link("east", "")
		w.do(w.provider.IndexField(w.Context(), &corev1.ConfigMap{}, "color", by("color")))
		w.wants("east", w.names(w.get("east"), client.MatchingFields{"color": "red"}), []string{"one"})
		w.link("west", "")
		w.wants("west", w.names(w.get("west"), client.MatchingFields{"color": "red"}), []string{"three"})

		west := w.get("west").GetFieldIndexer()
		w.do(west.IndexField(w.Context(), &corev1.ConfigMap{}, "size", by("size")))
		w.wants("its own", w.names(w.get("west"), client.MatchingFields{"size": "big"}), []string{"three"})
		if err := w.get("east").GetCache().List(
			w.Context(), &corev1.ConfigMapList{}, client.MatchingFields{"size": "big"}); err == nil {
			t.Error("east has an index of west")
		}
		for _, again := range []client.FieldIndexer{w.provider, west} {
			if err := again.IndexField(w.Context(), &corev1.ConfigMap{}, "color", by("color")); err == nil {
				t.Error("a field has two indexes")
			}
		}
		if err := w.provider.IndexField(w.Context(), &metav1.PartialObjectMetadata{}, "x", by("x")); err == nil {
			t.Error("a kind without a name has an index")
		}
	})
}

// A kind that the API server does not have, or does not let us read, is an error of reads of it, soon, and of nothing
// else; once it can be read those who watch it get it.
func TestKindsThatCannotBeRead(t *testing.T) {
	inWorld(t, multicluster.Options{}, api.Limits{}, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(configMap("one"))
		east.Serve("configmaps")
		east.Forbid("secrets", true)
		w.link("east", "")
		c := w.get("east").GetCache()
		var seen recorder
		informer, err := c.GetInformer(w.Context(), &corev1.ConfigMap{})
		w.do(err)
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { seen.add("+") }})
		w.do(err)
		w.do(informer.AddIndexers(toolscache.Indexers{"all": func(any) ([]string, error) { return nil, nil }}))
		if !c.WaitForCacheSync(w.Context()) {
			t.Error("a controller would wait")
		}

		began := time.Now()
		if err := c.List(w.Context(), &corev1.ConfigMapList{}); err == nil || time.Since(began) > time.Second {
			t.Errorf("a kind that is absent: %v after %s", err, time.Since(began))
		}
		err = c.Get(w.Context(), client.ObjectKey{Namespace: "ns", Name: "x"}, &corev1.Secret{})
		if took := time.Since(began); !apierrors.IsTimeout(err) || took > 6*time.Second {
			t.Errorf("a kind that may not be read: %v after %s", err, took)
		}

		east.Serve("configmaps", "v1")
		east.Forbid("secrets", false)
		w.wait(2 * time.Minute)
		w.wants("what it got", seen.take(), []string{"+"})
		w.do(c.List(w.Context(), &corev1.SecretList{}))
		w.do(c.RemoveInformer(w.Context(), &corev1.Secret{}))
		w.do(c.RemoveInformer(w.Context(), &corev1.Secret{}))
		w.do(c.List(w.Context(), &corev1.SecretList{}))
	})
}

// What a cache holds is bounded by the budget of its cluster, in lists and in watches; what it had stays. Selectors
// leave out, and transforms take off, what is then not held.
func TestBounds(t *testing.T) {
	big := "text: " + strings.Repeat("x", 40<<10)
	limits := api.Limits{Bytes: 140 << 10}
	inWorld(t, multicluster.Options{}, limits, func(w *world) {
		east := w.network.Server("east")
		w.link("east", "")
		c := w.get("east")
		for i := range 3 {
			east.ApplyYAML(configMap(fmt.Sprint("big", i), big))
		}
		w.wants("within", len(w.names(c)), 3)
		east.ApplyYAML(configMap("big3", big))
		w.wait(time.Minute)
		w.wants("past it", len(w.names(c)), 3)
		east.Delete("ConfigMap", "ns", "big0")
		w.wait(2 * time.Minute)
		w.wants("within again", w.names(c), []string{"big1", "big2", "big3"})
	})

	slim := multicluster.Options{
		Transform: cache.TransformStripManagedFields(),
		Select: func(kind schema.GroupVersionKind) (labels, fields string) {
			if kind.Kind == "ConfigMap" {
				return "", "metadata.name=one"
			}
			return "app=web", ""
		},
	}
	inWorld(t, slim, limits, func(w *world) {
		w.network.Server("east").ApplyYAML(configMap("one"), configMap("two"),
			"{apiVersion: v1, kind: Secret, metadata: {name: a, namespace: ns, labels: {app: web}}}",
			"{apiVersion: v1, kind: Secret, metadata: {name: b, namespace: ns}}")
		w.link("east", "")
		w.wants("selected", w.names(w.get("east")), []string{"one"})
		var secrets corev1.SecretList
		w.do(w.get("east").GetCache().List(w.Context(), &secrets))
		w.wants("Secrets", len(secrets.Items), 1)
	})
}

// The configuration of a cluster has no credentials, and goes nowhere but to its API server; redirects end there.
func TestConfig(t *testing.T) {
	inWorld(t, multicluster.Options{}, api.Limits{}, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(configMap("one"))
		w.link("east", "")
		c := w.get("east")
		config := c.GetConfig()
		if config.BearerToken != "" || len(config.CertData)+len(config.KeyData) > 0 || strings.Contains(config.Host, "east") {
			t.Errorf("controllers can read %+v", config)
		}

		direct, err := client.New(config, client.Options{})
		w.do(err)
		w.linkTo("east", "east", "other") // it follows
		var one corev1.ConfigMap
		w.do(direct.Get(w.Context(), client.ObjectKey{Namespace: "ns", Name: "one"}, &one))
		one.Data = map[string]string{"a": "b"}
		w.do(c.GetClient().Update(w.Context(), &one))
		w.do(c.GetAPIReader().Get(w.Context(), client.ObjectKeyFromObject(&one), &one))
		w.wants("written", one.Data, map[string]string{"a": "b"})

		east.Answer("configmaps", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.test/", http.StatusFound)
		})
		err = direct.Get(w.Context(), client.ObjectKeyFromObject(&one), &one)
		if err == nil || !strings.Contains(err.Error(), "redirects are not followed") {
			t.Errorf("a redirect: %v", err)
		}
		for url, want := range map[string]bool{"https://evil.test/readyz": true, "http://10.0.0.1/readyz?x=y": true} {
			request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, url, http.NoBody)
			w.do(err)
			response, err := c.GetHTTPClient().Do(request)
			w.do(err)
			if reached := response.StatusCode == http.StatusOK; reached != want {
				t.Errorf("%s is answered with %d", url, response.StatusCode)
			}
			_ = response.Body.Close()
		}
	})
}

// A request to a cluster that is silent ends, and a worker with it; a watch goes on after the silence.
func TestSilence(t *testing.T) {
	inWorld(t, multicluster.Options{}, api.Limits{}, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(configMap("one"))
		east.Multiplex() // so that requests go over a connection that is open
		w.link("east", "")
		c := w.get("east")
		w.wants("before", w.names(c), []string{"one"})
		east.Cut(apitest.Silence)
		began := time.Now()
		err := c.GetAPIReader().List(w.Context(), &corev1.ConfigMapList{})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 31*time.Second {
			t.Errorf("a request ends after %s with %v", took, err)
		}

		east.ApplyYAML(configMap("two"))
		w.wait(10 * time.Minute)
		w.wants("meanwhile", w.names(c), []string{"one"})
		east.Cut(apitest.None)
		w.wait(3 * time.Second)
		w.wants("afterwards", w.names(c), []string{"one", "two"})
	})
}

// manager returns a manager over all clusters, whose controller records the ConfigMaps that it reads.
func (w *world) manager() (run func(context.Context) error, seen *readings) {
	w.Helper()
	hub := w.network.Server("hub")
	config := w.config("hub", "", hub.Token())
	config.Dial = w.network.Dial
	seen = &readings{of: map[string]string{}}
	mgr, err := mcmanager.New(config, w.provider, newManagerOptions())
	w.do(err)
	builder := mcbuilder.ControllerManagedBy(mgr).Named("configmaps").For(&corev1.ConfigMap{})
	builder.WithOptions(mccontroller.Options{SkipNameValidation: new(true)}) // that of the manager is not read
	w.do(builder.Complete(
		mcreconcile.Func(func(ctx context.Context, request mcreconcile.Request) (ctrl.Result, error) {
			c, err := mgr.GetCluster(ctx, request.ClusterName)
			if err != nil {
				return ctrl.Result{}, err
			}
			var m corev1.ConfigMap
			err = c.GetClient().Get(ctx, request.NamespacedName, &m)
			if client.IgnoreNotFound(err) != nil {
				return ctrl.Result{}, err
			}
			seen.set(string(request.ClusterName)+"/"+request.Name, m.Data["v"], err == nil)
			return ctrl.Result{}, nil
		})))
	return mgr.Start, seen
}

func newManagerOptions() mcmanager.Options {
	return mcmanager.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, Logger: logr.Discard(),
	}
}

// readings are what a controller has read last of each object, and how often it has read any.
type readings struct {
	mu    sync.Mutex
	of    map[string]string
	count int
}

func (r *readings) set(key, value string, exists bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if exists {
		r.of[key] = value
	} else {
		delete(r.of, key)
	}
}

func (r *readings) all() (of map[string]string, count int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.of), r.count
}

// A controller that was not written for it reconciles over all clusters: one that is out of reach, one that lacks the
// right and one without the kind delay no other, through a rotation, a cut and an unlinking.
func TestController(t *testing.T) {
	inWorld(t, multicluster.Options{}, api.Limits{}, func(w *world) {
		run, seen := w.manager()
		names := []string{"dead", "east", "forbidden", "silent", "without"}
		for _, name := range names {
			w.network.Server(name).ApplyYAML(configMap("m", "v: '1'"))
			w.link(name, "")
		}
		w.network.Server("dead").Cut(apitest.Refuse)
		w.network.Server("silent").Cut(apitest.Silence)
		w.network.Server("forbidden").Forbid("configmaps", true)
		w.network.Server("without").Serve("configmaps")
		defer w.start(run)()
		w.wait(time.Second)
		wants := func(what string, want map[string]string) {
			t.Helper()
			got, _ := seen.all()
			w.wants(what, got, want)
		}
		wants("beside others", map[string]string{"east/m": "1"})
		w.link("west", "")
		w.network.Server("west").ApplyYAML(configMap("m", "v: '1'"))
		w.wait(time.Second)
		wants("later", map[string]string{"east/m": "1", "west/m": "1"})

		for _, name := range []string{"dead", "silent"} {
			w.network.Server(name).Cut(apitest.None)
		}
		w.network.Server("forbidden").Forbid("configmaps", false)
		w.network.Server("without").Serve("configmaps", "v1")
		w.wait(2 * time.Minute)
		all := map[string]string{"west/m": "1"}
		for _, name := range names {
			all[name+"/m"] = "1"
		}
		wants("once they are back", all)

		_, before := seen.all()
		w.link("east", "other")
		w.wait(time.Minute)
		if _, after := seen.all(); after != before {
			t.Errorf("a rotation alone is no reason for %d reconciles", after-before)
		}
		w.network.Server("east").ApplyYAML(configMap("m", "v: '2'"))
		w.network.Server("west").Cut(apitest.Silence)
		w.wait(time.Minute)
		all["east/m"] = "2"
		wants("after a rotation", all)
		w.network.Server("west").ApplyYAML(configMap("m", "v: '2'"))
		w.network.Server("west").Cut(apitest.None)
		w.wait(time.Minute)
		all["west/m"] = "2"
		wants("after a cut", all)

		w.registry.Remove("west")
		w.wait(time.Second)
		w.network.Server("west").ApplyYAML(configMap("m", "v: '3'"))
		w.network.Server("east").ApplyYAML(configMap("m", "v: '3'"))
		w.wait(time.Minute)
		all["east/m"] = "3"
		wants("after an unlinking", all)
		if watches := w.network.Server("west").Watches(); len(watches) > 0 {
			t.Errorf("an unlinked cluster is watched: %v", watches)
		}
	})
}

// Calls of all kinds at once: nothing races, waits for ever or is left.
func TestCallsAtOnce(t *testing.T) {
	inWorld(t, multicluster.Options{}, api.Limits{}, func(w *world) {
		aware := &recorder{}
		defer w.start(func(ctx context.Context) error { return w.provider.Start(ctx, aware) })()
		w.network.Server("east").ApplyYAML(configMap("one"))
		tokens := []string{w.network.Server("east").Token(), w.network.Server("east").Token()}

		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for n := range 20 {
					config := w.config("east", string(rune('a'+n%3)), tokens[n%2])
					access := []cluster.Access{{Source: "test", Config: config}}
					if err := w.registry.Apply(cluster.Spec{Name: "east", Access: access}); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(n*i) * 100 * time.Millisecond) //nolint:forbidigo // virtual time
					if n%5 == i {
						w.registry.Remove("east")
					}
				}
			})
			wg.Go(func() {
				for n := range 100 {
					time.Sleep(time.Duration(i+1) * 50 * time.Millisecond) //nolint:forbidigo // virtual time
					c, err := w.provider.Get(w.Context(), "east")
					if err != nil {
						continue
					}
					var list corev1.ConfigMapList
					if err := c.GetCache().List(w.Context(), &list); err == nil && len(list.Items) != 1 {
						t.Errorf("a cluster with one object has %d", len(list.Items))
					}
					_ = c.GetClient().List(w.Context(), &list)
					_, _ = c.GetCache().GetInformerForKind(w.Context(), corev1.SchemeGroupVersion.WithKind("Secret"))
					_ = c.GetCache().RemoveInformer(w.Context(), &corev1.Secret{})
					field := fmt.Sprint(i, n)
					_ = w.provider.IndexField(w.Context(), &corev1.ConfigMap{}, field,
						func(client.Object) []string { return nil })
					_, _, _ = c.GetScheme(), c.GetRESTMapper(), c.GetEventRecorder("test")
				}
			})
		}
		wg.Wait()
	})
}
