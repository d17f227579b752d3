package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Options are what the operator decides about all clusters.
type Options struct {
	ProbeInterval time.Duration         // between probes of a cluster that is Live; 1 s otherwise
	Thresholds    federation.Thresholds // before a cluster is Suspect, and Stale
	Endpoints     bool                  // read Endpoints instead of EndpointSlices
	Dial          api.DialFunc          // nil for TCP
	Budget        api.Limits            // of each linked cluster
	// DetailedMetrics exports what no dashboard shows: the sizes of caches by Linkerd's names, which
	// fingerpost_objects has, and the lag of every kind.
	DetailedMetrics bool
	// ControllerNamespace is that of Linkerd's control plane in linked clusters, whose trust domain is read
	// there; empty to read none.
	ControllerNamespace string
	Checkpoints         *checkpoint.Dir   // nil: none are kept
	Peers               *checkpoint.Peers // nil: no other replica is asked
}

// A Registry runs one supervisor for each cluster that was applied, and publishes their Statuses.
//
// The Store and the Registry must agree on which clusters there are. If Remove and Apply of one name raced,
// the Store could forget the cluster that was just applied, and a supervisor that was removed a moment ago
// could fence the writer of its successor. Two locks exclude that, always taken in this sequence:
//
//   - order serializes every change of the set of clusters and every call from it into the Store:
//     AddCluster, RemoveCluster, a new writer, a new state. The calls reach the Store in the sequence in
//     which supervisors come and go. A supervisor that was removed and has not noticed yet finds itself
//     replaced (isCurrent), and its call does nothing.
//   - mu guards the fields below it. It is held for a few map operations, never across a call of the Store.
//
// The Store's lock may be held for long when a large cluster is added or removed. A caller that waits for it
// holds order only. Status pages, metrics and Report take mu alone, so none of them waits for the Store.
// Supervisors call into the Registry without holding locks of their own; run goroutines are never awaited
// under either lock.
type Registry struct {
	log     logr.Logger
	store   *federation.Store
	options Options

	statuses watch.Value[map[string]Status] // immutable maps; stored under mu
	names    watch.Value[[]string]          // their keys, sorted; stored under mu

	notSaved atomic.Pointer[NotSaved] // as of the last pass over checkpoints; nil before the first

	trafficChanged *watch.Bell // wakes followTraffic

	order sync.Mutex // taken before mu

	mu          sync.Mutex // guards all below
	ctx         context.Context
	supervisors map[string]*supervisor
	engageFuncs []EngageFunc
	writing     map[string]Writing    // by cluster name, as last reported
	leftOut     map[string]LeftOut    // likewise
	identities  map[string]Identity   // likewise
	own         map[string]ownTraffic // likewise
	traffic     map[string]Traffic    // as followTraffic has computed it
	unlinked    int                   // clusters so far
	forgotten   map[string]bool       // clusters that were unlinked since checkpoints were saved last
	wg          sync.WaitGroup        // all supervisors
}

// ErrUnlinked is the cause for which the context of a removed cluster ends.
var ErrUnlinked = errors.New("the cluster is not linked any more")

// An EngageFunc runs beside each engagement, in a goroutine of its own. spec is the wanted Spec, whose name
// never changes; conn is the connection of the engagement. Informers that are made over it share the
// engagement's watches. It must return soon after ctx has ended; the connection stays open until then.
type EngageFunc func(ctx context.Context, spec *watch.Value[Spec], conn *api.Connection)

// NewRegistry returns a Registry without clusters.
func NewRegistry(log logr.Logger, store *federation.Store, options Options) *Registry {
	r := &Registry{
		log: log, store: store, options: options,
		supervisors: map[string]*supervisor{}, writing: map[string]Writing{}, leftOut: map[string]LeftOut{},
		identities: map[string]Identity{}, own: map[string]ownTraffic{}, traffic: map[string]Traffic{},
		forgotten: map[string]bool{}, trafficChanged: watch.NewBell(),
	}
	r.engageFuncs = []EngageFunc{r.identify, r.followSelfDrain, r.followRegion}
	return r
}

// Engage makes f run beside every engagement. It is called before Start.
func (r *Registry) Engage(f EngageFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engageFuncs = append(r.engageFuncs, f)
}

// Start runs a supervisor for each cluster, those applied later included, until ctx ends. It waits for all
// of them.
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
	r.wg.Go(func() { r.followTraffic(ctx) })
	if r.options.Checkpoints != nil {
		r.wg.Go(func() { r.keepCheckpoints(ctx) })
	}
	r.mu.Unlock()
	<-ctx.Done()
	r.wg.Wait()
	return nil
}

// Apply sets what is wanted of a cluster. It never waits for the network; the Status reports the outcome.
// An equal Spec changes nothing.
func (r *Registry) Apply(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	r.order.Lock()
	defer r.order.Unlock()
	expectation := federation.Expectation{TrustDomain: spec.TrustDomain, Since: time.Now(), Local: spec.Local}
	r.store.AddCluster(federation.Cluster(spec.Name), expectation)
	r.updateTraffic(r.applySpec(spec), time.Now())
	r.trafficChanged.Ring() // for what is due next
	return nil
}

// ApplyTraffic sets how traffic to a cluster is limited, and nothing else of what is wanted of it.
func (r *Registry) ApplyTraffic(name string, asked policy.Link, released string) {
	r.order.Lock()
	defer r.order.Unlock()
	r.mu.Lock()
	s := r.supervisors[name]
	r.mu.Unlock()
	if s == nil {
		return
	}
	if spec, _ := s.spec.Load(); spec.Traffic != asked || spec.Released != released {
		spec.Traffic, spec.Released = asked, released
		s.spec.Store(spec)
		r.updateTraffic(s, time.Now())
		r.trafficChanged.Ring()
	}
}

// applySpec sets what is wanted of a cluster, and returns its supervisor.
func (r *Registry) applySpec(spec Spec) *supervisor {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, known := r.supervisors[spec.Name]
	if !known {
		s = newSupervisor(r, spec)
		r.supervisors[spec.Name] = s
		r.setStatus(s.status)
		if r.ctx != nil {
			r.startSupervisor(s)
		}
		return s
	}
	if old, _ := s.spec.Load(); !old.equal(spec) {
		s.spec.Store(spec)
	}
	return s
}

// startSupervisor needs mu.
func (r *Registry) startSupervisor(s *supervisor) {
	ctx, cancel := context.WithCancelCause(r.ctx)
	s.cancel = cancel
	r.wg.Go(func() { s.supervise(ctx) })
}

// Remove unlinks a cluster and removes what it published. It does not wait for its goroutines to end.
func (r *Registry) Remove(name string) {
	r.order.Lock()
	defer r.order.Unlock()
	if r.unlink(name) {
		r.store.RemoveCluster(federation.Cluster(name))
	}
}

// unlink cancels a supervisor and reports whether there was one.
func (r *Registry) unlink(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, known := r.supervisors[name]
	if !known {
		return false
	}
	r.unlinked++
	if r.options.Checkpoints != nil {
		r.forgotten[name] = true
	}
	delete(r.supervisors, name)
	delete(r.writing, name)
	delete(r.leftOut, name)
	delete(r.identities, name)
	delete(r.own, name)
	delete(r.traffic, name)
	if s.cancel != nil {
		s.cancel(ErrUnlinked)
	}
	statuses, _ := r.statuses.Load()
	statuses = maps.Clone(statuses)
	delete(statuses, name)
	nameSameClusters(statuses)
	r.statuses.Store(statuses)
	r.names.Store(slices.Sorted(maps.Keys(statuses)))
	return true
}

// Statuses returns the Status of each cluster by name, and a channel that closes with the next change. The
// map must not be written to.
func (r *Registry) Statuses() (map[string]Status, <-chan struct{}) { return r.statuses.Load() }

// Names returns the names of all clusters, sorted, and a channel that closes when there are others.
func (r *Registry) Names() ([]string, <-chan struct{}) { return r.names.Load() }

// updateStatus publishes the Status of a supervisor. Like newWriter and setState it does nothing for a
// supervisor that was removed and has not noticed yet: its successor may have the same name.
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

func (r *Registry) setListing(s *supervisor, listing bool) {
	r.order.Lock()
	defer r.order.Unlock()
	if r.isCurrent(s) {
		r.store.SetListing(federation.Cluster(s.name), listing)
	}
}

// isCurrent reports whether s was not removed. The result holds for as long as the caller holds order.
func (r *Registry) isCurrent(s *supervisor) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.supervisors[s.name] == s
}

// setStatus needs mu.
func (r *Registry) setStatus(s Status) {
	statuses, _ := r.statuses.Load()
	s.Writing, s.LeftOut, s.Identity = r.writing[s.Name], r.leftOut[s.Name], r.identities[s.Name]
	s.Traffic = r.traffic[s.Name]
	old, found := statuses[s.Name]
	s.SameAs = old.SameAs
	if found && old.SameButTimes(s) {
		return
	}
	statuses = maps.Clone(statuses)
	if statuses == nil {
		statuses = map[string]Status{}
	}
	statuses[s.Name] = s
	if s.Identity.UID != old.Identity.UID {
		nameSameClusters(statuses)
	}
	r.statuses.Store(statuses)
	if !found {
		r.names.Store(slices.Sorted(maps.Keys(statuses)))
	}
}

// Report sets in the Status of a cluster how writing into it goes.
func (r *Registry) Report(name string, w Writing) {
	r.setReport(name, func() { r.writing[name] = w })
}

// ReportLeftOut sets in the Status of a cluster how many of its endpoints are in no slice of the local
// cluster.
func (r *Registry) ReportLeftOut(name string, n LeftOut) {
	r.setReport(name, func() { r.leftOut[name] = n })
}

// setReport calls set with mu held and publishes the Status of the cluster, unless the cluster was removed.
func (r *Registry) setReport(name string, set func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.supervisors[name] != nil {
		set()
		statuses, _ := r.statuses.Load()
		r.setStatus(statuses[name])
	}
}

// Inspect returns the state of each informer of a cluster, sorted by kind, and when the cluster was last in
// contact. It returns nothing for a cluster without an engagement.
func (r *Registry) Inspect(name string) (kinds []KindStatus, lastContact time.Time) {
	live := r.engagement(name)
	if live == nil {
		return nil, time.Time{}
	}
	for _, k := range live.kinds {
		kinds = append(kinds, KindStatus{
			Kind: k.Resource.GroupResource().String(), Objects: k.Len(), Malformed: k.Malformed(), Health: k.Health(),
		})
	}
	slices.SortFunc(kinds, func(a, b KindStatus) int { return strings.Compare(a.Kind, b.Kind) })
	h, _ := live.health.Load()
	return kinds, h.lastContact
}

// engagement returns the one of a cluster that is in use; nil for none.
func (r *Registry) engagement(name string) *engagement {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.supervisors[name]; s != nil {
		return s.current.Load()
	}
	return nil
}

// allEngageFuncs returns what runs beside every engagement.
func (r *Registry) allEngageFuncs() []EngageFunc {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engageFuncs
}
