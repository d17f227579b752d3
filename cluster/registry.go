package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

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

// A Registry keeps the Store informed of every cluster that was applied.
type Registry struct {
	log     logr.Logger
	store   *federation.Store
	options Options

	statuses watch.Value[map[string]Status] // immutable maps; written under mu

	// order is held while the Store learns which clusters there are, and who speaks for them and how well: it comes there in
	// the order in which members come and go. It is taken before mu, which is never held across the Store's lock, so that
	// who reads statuses or metrics does not wait for the Store.
	order sync.Mutex

	mu          sync.Mutex // guards all below
	ctx         context.Context
	supervisors map[string]*supervisor
	engageFuncs []EngageFunc
	writing     map[string]Writing // by cluster name, as reported last
	leftOut     map[string]LeftOut // the same
	wg          sync.WaitGroup     // every member's run
}

// ErrUnlinked is why the context of a cluster ended that was removed.
var ErrUnlinked = errors.New("the cluster is not linked any more")

// An EngageFunc runs beside each engagement, in a goroutine of its own. spec is the wanted Spec, whose name never changes; conn is the
// connection of the engagement. It returns soon after ctx has ended; the connection stays open until it has returned.
type EngageFunc func(ctx context.Context, spec *watch.Value[Spec], conn *api.Connection)

// NewRegistry returns a Registry without clusters.
func NewRegistry(log logr.Logger, store *federation.Store, options Options) *Registry {
	return &Registry{log: log, store: store, options: options, supervisors: map[string]*supervisor{}, writing: map[string]Writing{}, leftOut: map[string]LeftOut{}}
}

// Engage has f run beside every engagement. It is called before Start.
func (r *Registry) Engage(f EngageFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engageFuncs = append(r.engageFuncs, f)
}

// Start runs the members, those applied already and those to come, until ctx ends, and waits for them.
func (r *Registry) Start(ctx context.Context) error {
	r.mu.Lock()
	if r.ctx != nil {
		r.mu.Unlock()
		return errors.New("the Registry was started before")
	}
	r.ctx = ctx
	for _, s := range r.supervisors {
		r.startSupervisor(s)
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
	s, known := r.supervisors[spec.Name]
	if !known {
		s = &supervisor{registry: r, log: r.log.WithValues("cluster", spec.Name), name: spec.Name, metrics: newClusterMetrics(spec.Name)}
		s.status = Status{Name: spec.Name, Local: spec.Local, TrustDomain: spec.TrustDomain, ClusterDomain: spec.ClusterDomain, State: Connecting, Since: time.Now()}
		s.spec.Store(spec)
		r.supervisors[spec.Name] = s
		r.setStatus(s.status)
		if r.ctx != nil {
			r.startSupervisor(s)
		}
		return nil
	}
	if old, _ := s.spec.Load(); !old.equal(spec) {
		s.spec.Store(spec)
	}
	return nil
}

// start needs r.mu.
func (r *Registry) startSupervisor(s *supervisor) {
	ctx, cancel := context.WithCancelCause(r.ctx)
	s.cancel = cancel
	r.wg.Go(func() { s.supervise(ctx) })
}

// Remove forgets a cluster and everything it said. It does not wait for what is running to end.
func (r *Registry) Remove(name string) {
	r.order.Lock()
	defer r.order.Unlock()
	if r.unlink(name) {
		r.store.RemoveCluster(federation.Cluster(name))
	}
}

// drop ends a member and reports whether there was one.
func (r *Registry) unlink(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, known := r.supervisors[name]
	if !known {
		return false
	}
	delete(r.supervisors, name)
	delete(r.writing, name)
	delete(r.leftOut, name)
	if s.cancel != nil {
		s.cancel(ErrUnlinked)
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
func (r *Registry) updateStatus(s *supervisor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.supervisors[s.name] == s {
		r.setStatus(s.status)
	}
}

func (r *Registry) newWriter(s *supervisor) (*federation.ClusterWriter, error) {
	r.order.Lock()
	defer r.order.Unlock()
	if !r.isCurrent(s) {
		return nil, context.Canceled
	}
	return r.store.NewWriter(federation.Cluster(s.name)), nil
}

func (r *Registry) setState(s *supervisor, state federation.ClusterState) {
	r.order.Lock()
	defer r.order.Unlock()
	if r.isCurrent(s) {
		r.store.SetState(federation.Cluster(s.name), state)
	}
}

// has reports whether s was not removed; while order is held it stays so.
func (r *Registry) isCurrent(s *supervisor) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.supervisors[s.name] == s
}

// show needs r.mu.
func (r *Registry) setStatus(s Status) {
	statuses, _ := r.statuses.Load()
	s.Writing, s.LeftOut = r.writing[s.Name], r.leftOut[s.Name]
	if old, found := statuses[s.Name]; found && old.SameButTimes(s) {
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
	r.setReport(name, func() { r.writing[name] = w })
}

// ReportLeftOut puts what of a cluster is in no slice of the local one into its Status.
func (r *Registry) ReportLeftOut(name string, n LeftOut) {
	r.setReport(name, func() { r.leftOut[name] = n })
}

// report shows the Status of a cluster after set, with mu held, unless the cluster was removed.
func (r *Registry) setReport(name string, set func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.supervisors[name] != nil {
		set()
		statuses, _ := r.statuses.Load()
		r.setStatus(statuses[name])
	}
}

// Inspect returns how each kind of object in a cluster fares, sorted, and when the cluster was last in order; nothing for a cluster
// that is not connected.
func (r *Registry) Inspect(name string) (kinds []KindStatus, lastContact time.Time) {
	r.mu.Lock()
	s := r.supervisors[name]
	r.mu.Unlock()
	if s == nil {
		return nil, time.Time{}
	}
	live := s.current.Load()
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

// engaged returns what runs beside every engagement.
func (r *Registry) allEngageFuncs() []EngageFunc {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engageFuncs
}
