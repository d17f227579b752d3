package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/multicluster-runtime/pkg/clusters"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Options are what the operator decides about all clusters.
type Options struct {
	ProbeInterval time.Duration         // between probes of a cluster that is Live; 1 s otherwise
	Patience      federation.Thresholds // before a cluster is Suspect, and Stale
	Endpoints     bool                  // read Endpoints instead of EndpointSlices
	Dial          api.DialFunc          // nil: the network's
	Budget        api.Limits            // of each linked cluster
}

// A Registry keeps the Store informed of every cluster that was applied. It is a multicluster-runtime Provider: others may run slow
// controllers against the same clusters.
type Registry struct {
	log     logr.Logger
	store   *federation.Store
	options Options

	statuses watch.Value[map[string]Status] // immutable maps; written under mu

	// order is held while the Store learns which clusters there are, and who speaks for them and how well: it comes there in
	// the order in which members come and go. It is taken before mu, which is never held across the Store's lock, so that
	// who reads statuses or metrics does not wait for the Store.
	order sync.Mutex

	mu         sync.Mutex // guards all below
	ctx        context.Context
	aware      multicluster.Aware
	members    map[string]*supervisor
	indexes    []clusters.Index
	attendants []Attendant
	writing    map[string]Writing // by cluster name, as reported last
	leftOut    map[string]LeftOut // the same
	wg         sync.WaitGroup     // every member's run
}

// ErrUnlinked is why the context of a cluster ended that was removed.
var ErrUnlinked = errors.New("the cluster is not linked any more")

// An Attendant runs beside each engagement, in a goroutine of its own. spec is what is wanted of the cluster, of which the name never
// changes, and conn is what is in use with it. It returns soon after ctx has ended, until when the connection stays open.
type Attendant func(ctx context.Context, spec *watch.Value[Spec], conn *api.Connection)

var (
	_ multicluster.Provider         = &Registry{}
	_ multicluster.ProviderRunnable = &Registry{}
)

// NewRegistry returns a Registry without clusters.
func NewRegistry(log logr.Logger, store *federation.Store, options Options) *Registry {
	return &Registry{log: log, store: store, options: options, members: map[string]*supervisor{}, writing: map[string]Writing{}, leftOut: map[string]LeftOut{}}
}

// Attend has a run beside every engagement. It is called before Start.
func (r *Registry) Attend(a Attendant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attendants = append(r.attendants, a)
}

// Start runs the members, those applied already and those to come, until ctx ends, and waits for them.
func (r *Registry) Start(ctx context.Context, aware multicluster.Aware) error {
	r.mu.Lock()
	if r.ctx != nil {
		r.mu.Unlock()
		return errors.New("the Registry was started before")
	}
	r.ctx, r.aware = ctx, aware
	for _, m := range r.members {
		r.start(m)
	}
	r.mu.Unlock()
	<-ctx.Done()
	r.wg.Wait()
	return nil
}

// Apply makes spec what is wanted of its cluster. It never waits for the network; how it went is told in the Status. An equal Spec
// changes nothing.
func (r *Registry) Apply(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	r.order.Lock()
	defer r.order.Unlock()
	r.store.AddCluster(federation.Cluster(spec.Name), federation.Expectation{TrustDomain: spec.TrustDomain, Since: time.Now(), Local: spec.Local})
	r.mu.Lock()
	defer r.mu.Unlock()
	m, known := r.members[spec.Name]
	if !known {
		m = &supervisor{registry: r, log: r.log.WithValues("cluster", spec.Name), name: spec.Name, meters: newMeters(spec.Name)}
		m.status = Status{Name: spec.Name, Local: spec.Local, TrustDomain: spec.TrustDomain, ClusterDomain: spec.ClusterDomain, State: Connecting, Since: time.Now()}
		m.spec.Store(spec)
		r.members[spec.Name] = m
		r.show(m.status)
		if r.ctx != nil {
			r.start(m)
		}
		return nil
	}
	if old, _ := m.spec.Load(); !old.equal(spec) {
		m.spec.Store(spec)
	}
	return nil
}

// start needs r.mu.
func (r *Registry) start(m *supervisor) {
	ctx, cancel := context.WithCancelCause(r.ctx)
	m.cancel = cancel
	r.wg.Go(func() { m.run(ctx) })
}

// Remove forgets a cluster and everything it said. It does not wait for what is running to end.
func (r *Registry) Remove(name string) {
	r.order.Lock()
	defer r.order.Unlock()
	if r.drop(name) {
		r.store.RemoveCluster(federation.Cluster(name))
	}
}

// drop ends a member and reports whether there was one.
func (r *Registry) drop(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, known := r.members[name]
	if !known {
		return false
	}
	delete(r.members, name)
	delete(r.writing, name)
	delete(r.leftOut, name)
	if m.cancel != nil {
		m.cancel(ErrUnlinked)
	}
	statuses, _ := r.statuses.Load()
	statuses = maps.Clone(statuses)
	delete(statuses, name)
	r.statuses.Store(statuses)
	return true
}

// Statuses returns the Status of every cluster by name, which must not be written to, and a channel that closes once one has changed.
func (r *Registry) Statuses() (map[string]Status, <-chan struct{}) { return r.statuses.Load() }

// publish shows a member's Status. Like claim and stand it does nothing for a member that was removed and has not noticed yet:
// its successor may have the same name.
func (r *Registry) publish(m *supervisor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.members[m.name] == m {
		r.show(m.status)
	}
}

func (r *Registry) claim(m *supervisor) (*federation.ClusterWriter, error) {
	r.order.Lock()
	defer r.order.Unlock()
	if !r.has(m) {
		return nil, context.Canceled
	}
	return r.store.NewWriter(federation.Cluster(m.name)), nil
}

func (r *Registry) stand(m *supervisor, s federation.ClusterState) {
	r.order.Lock()
	defer r.order.Unlock()
	if r.has(m) {
		r.store.SetState(federation.Cluster(m.name), s)
	}
}

// has reports whether m was not removed; while order is held it stays so.
func (r *Registry) has(m *supervisor) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members[m.name] == m
}

// show needs r.mu.
func (r *Registry) show(s Status) {
	statuses, _ := r.statuses.Load()
	s.Writing, s.LeftOut = r.writing[s.Name], r.leftOut[s.Name]
	if old, found := statuses[s.Name]; found && old.Same(s) {
		return
	}
	statuses = maps.Clone(statuses)
	if statuses == nil {
		statuses = map[string]Status{}
	}
	statuses[s.Name] = s
	r.statuses.Store(statuses)
}

// Report puts how writing into a cluster goes into its Status.
func (r *Registry) Report(name string, w Writing) {
	r.report(name, func() { r.writing[name] = w })
}

// ReportLeftOut puts what of a cluster is in no slice of the local one into its Status.
func (r *Registry) ReportLeftOut(name string, n LeftOut) {
	r.report(name, func() { r.leftOut[name] = n })
}

// report shows the Status of a cluster after set, with mu held, unless the cluster was removed.
func (r *Registry) report(name string, set func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.members[name] != nil {
		set()
		statuses, _ := r.statuses.Load()
		r.show(statuses[name])
	}
}

// Inspect returns how each kind of object in a cluster fares, sorted, and when the cluster was last in order; nothing for a cluster
// that is not connected.
func (r *Registry) Inspect(name string) (kinds []KindStatus, lastContact time.Time) {
	r.mu.Lock()
	m := r.members[name]
	r.mu.Unlock()
	if m == nil {
		return nil, time.Time{}
	}
	live := m.current.Load()
	if live == nil {
		return nil, time.Time{}
	}
	for _, k := range live.kinds {
		kinds = append(kinds, KindStatus{Kind: k.Resource.GroupResource().String(), Objects: k.Len(), Malformed: k.Malformed(), Health: k.Health()})
	}
	slices.SortFunc(kinds, func(a, b KindStatus) int { return strings.Compare(a.Kind, b.Kind) })
	h, _ := live.health.Load()
	return kinds, h.lastContact
}

// Get returns a cluster as controller-runtime knows one, for slow controllers.
func (r *Registry) Get(_ context.Context, name multicluster.ClusterName) (ctrlcluster.Cluster, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m, known := r.members[string(name)]; known {
		if live := m.current.Load(); live != nil {
			return live.facade, nil
		}
	}
	return nil, fmt.Errorf("cluster %s: %w", name, multicluster.ErrClusterNotFound)
}

// IndexField adds an index to the caches of all clusters, those to come included.
func (r *Registry) IndexField(ctx context.Context, obj client.Object, field string, extract client.IndexerFunc) error {
	r.mu.Lock()
	r.indexes = append(r.indexes, clusters.Index{Object: obj, Field: field, Extractor: extract})
	members := maps.Clone(r.members)
	r.mu.Unlock()
	for name, m := range members {
		if live := m.current.Load(); live != nil {
			if err := live.facade.GetFieldIndexer().IndexField(ctx, obj, field, extract); err != nil {
				return fmt.Errorf("index %s of cluster %s: %w", field, name, err)
			}
		}
	}
	return nil
}

// engage hands a new engagement to those who run controllers against the cluster. They let go of the one before when its context
// ends.
func (r *Registry) engage(m *supervisor, e *engagement) {
	r.mu.Lock()
	aware, indexes, attendants := r.aware, slices.Clone(r.indexes), r.attendants
	r.mu.Unlock()
	for _, a := range attendants {
		e.wg.Go(func() { a(e.ctx, &m.spec, e.conn) })
	}
	for _, i := range indexes {
		if err := e.facade.GetFieldIndexer().IndexField(e.ctx, i.Object, i.Field, i.Extractor); err != nil {
			e.log.Error(err, "Index for controllers", "field", i.Field)
		}
	}
	if aware == nil {
		return
	}
	if err := aware.Engage(e.ctx, multicluster.ClusterName(m.name), e.facade); err != nil {
		e.log.Error(err, "Controllers could not be started; discovery goes on")
	}
}
