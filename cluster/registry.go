package cluster

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/cluster/view"
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
	// fingerpost_objects has, the lag of every kind, requests under way, and histograms of requests and queues.
	DetailedMetrics bool
	// ControllerNamespace is that of Linkerd's control plane in linked clusters. Their trust domain is read there, and
	// whether they drain themselves; empty to read neither.
	ControllerNamespace string
	Checkpoints         *checkpoint.Dir   // nil: none are kept
	Peers               *checkpoint.Peers // nil: no other replica is asked

	// Rules returns what reads the objects of policy of the local cluster over an engagement; nil: nothing does.
	Rules func(federation.Cluster) Reader
	// Inside reports whether an address is in the networks of the clusters; nil where nothing depends on that.
	Inside func(netip.Addr) bool
}

// A Reader reads kinds of a cluster besides those of Views, and publishes what follows from them. All of its kinds are
// optional.
type Reader interface {
	Inputs() []view.Input         // whose stores informers fill
	Begin(unlisted ...view.Input) // the stores of the others are complete
	Run(ctx context.Context)
	Listed(view.Input) // one of those that were unlisted is listed, or known to be absent

	// Unusable returns how many objects cannot be used, or not completely, and names some of them with the reason.
	// Any goroutine may call it.
	Unusable() (count int, examples string)
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
//     replaced (whileCurrent), and its call does nothing.
//   - mu guards the fields below it. It is held for a few map operations, never across a call of the Store.
//
// The Store's lock may be held for long when a large cluster is added or removed. A caller that waits for it
// holds order only. Status pages, metrics and Report take mu alone, so none of them waits for the Store.
// Supervisors call into the Registry without holding locks of their own; their goroutines are never awaited
// under either lock.
type Registry struct {
	log         logr.Logger
	store       *federation.Store
	options     Options
	engageFuncs []EngageFunc // complete before Start

	statuses watch.Value[map[string]Status] // immutable maps; stored under mu
	names    watch.Value[[]string]          // their keys, sorted; stored under mu

	accepted watch.Value[[]string] // trust domains; stored under order

	notSaved watch.Value[NotSaved] // as of the last pass over checkpoints

	peersRefuse watch.Value[string] // why other replicas hand over nothing; empty if they do
	forgotten   sync.Map            // names of clusters that were unlinked, until their checkpoints are deleted

	trafficChanged *watch.Bell // wakes followTraffic
	diagnosing     sync.Mutex  // of one diagnosis at a time; not taken with others

	order sync.Mutex // taken before mu

	mu          sync.Mutex // guards all below
	ctx         context.Context
	supervisors map[string]*supervisor
	unlinked    int            // clusters that were unlinked so far
	wg          sync.WaitGroup // all supervisors
}

// ErrUnlinked is the cause for which the context of a removed cluster ends.
var ErrUnlinked = errors.New("the cluster is not linked any more")

// ErrReplaced is the cause for which the context of an engagement ends that another one has replaced: what runs beside
// the other one was started before.
var ErrReplaced = errors.New("the connection to the cluster was replaced")

// An EngageFunc runs beside each engagement, in a goroutine of its own. spec is the wanted Spec, whose name
// never changes; conn is the connection of the engagement. Informers that are made over it share the
// engagement's watches. It must return soon after ctx has ended; the connection stays open until then. The cause of
// that end is [ErrUnlinked], [ErrReplaced] or the end of the Registry.
type EngageFunc func(ctx context.Context, spec *watch.Value[Spec], conn *api.Connection)

// NewRegistry returns a Registry without clusters.
func NewRegistry(log logr.Logger, store *federation.Store, options Options) *Registry {
	return &Registry{
		log: log, store: store, options: options, trafficChanged: watch.NewBell(),
		supervisors: map[string]*supervisor{},
	}
}

// Engage makes f run beside every engagement. It is called before Start.
func (r *Registry) Engage(f EngageFunc) { r.engageFuncs = append(r.engageFuncs, f) }

// Start runs a supervisor for each cluster, those applied later included, until ctx ends. It returns nil once all
// of them have ended. It is called once.
func (r *Registry) Start(ctx context.Context) error {
	r.mu.Lock()
	r.ctx = ctx
	for _, s := range r.supervisors {
		r.startSupervisor(s)
	}

	r.wg.Go(func() { r.followTraffic(ctx) })
	if r.options.Checkpoints != nil {
		r.wg.Go(func() { r.keepCheckpoints(ctx) })
	}
	if r.options.Peers != nil {
		r.wg.Go(func() { r.watchPeers(ctx) })
	}
	r.mu.Unlock()

	<-ctx.Done()
	r.wg.Wait()
	return nil
}

// Apply sets what is wanted of a cluster. It never waits for the network; the Status reports the outcome.
// An equal Spec causes no work. A Spec without a name, or with access that names no API server, is an error.
func (r *Registry) Apply(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	r.order.Lock()
	defer r.order.Unlock()
	if old, applied := r.Spec(spec.Name); applied && old.equal(spec) {
		return nil
	}

	expectation := federation.Expectation{TrustDomain: spec.TrustDomain, Since: time.Now(), Local: spec.Local}
	r.store.AddCluster(federation.Cluster(spec.Name), expectation)
	r.updateTraffic(r.applySpec(spec), time.Now())
	r.updateAccepted()
	r.trafficChanged.Ring() // for what is due next, and for clusters that need others now
	return nil
}

// Spec returns what is wanted of a cluster; false for one that was not applied.
func (r *Registry) Spec(name string) (spec Spec, applied bool) {
	s := r.supervisor(name)
	if s == nil {
		return Spec{}, false
	}
	spec, _ = s.spec.Load()
	return spec, true
}

// ApplyTraffic sets how traffic to a cluster is limited, and when what was held of it was let go last: Traffic and
// Released of its Spec. It does nothing for a cluster that was not applied.
func (r *Registry) ApplyTraffic(name string, asked policy.Link, released string) {
	s := r.supervisor(name)
	if s == nil {
		return
	}

	r.whileCurrent(s, func() {
		if spec, _ := s.spec.Load(); spec.Traffic != asked || spec.Released != released {
			spec.Traffic, spec.Released = asked, released
			s.spec.Store(spec)
			r.updateTraffic(s, time.Now())
			r.updateAccepted()
			r.trafficChanged.Ring()
		}
	})
}

// AcceptedTrustDomains returns the trust domains of the linked clusters whose ServiceAccounts policies mean as well,
// sorted, and a channel that closes when there are others.
func (r *Registry) AcceptedTrustDomains() ([]string, <-chan struct{}) { return r.accepted.Load() }

// updateAccepted needs order. A trust domain is what the Link has, or its Secret: no linked cluster decides about it.
func (r *Registry) updateAccepted() {
	own, accepted := "", []string(nil)

	for _, s := range r.allSupervisors() {
		switch spec, _ := s.spec.Load(); {
		case spec.Local:
			own = spec.TrustDomain
		case spec.Traffic.AcceptIdentities && spec.TrustDomain != "":
			accepted = append(accepted, spec.TrustDomain)
		}
	}

	slices.Sort(accepted)
	accepted = slices.DeleteFunc(slices.Compact(accepted), func(d string) bool { return d == own })
	if old, _ := r.accepted.Load(); !slices.Equal(old, accepted) {
		r.accepted.Store(accepted)
	}
}

// applySpec sets what is wanted of a cluster, which differs from before, and returns its supervisor.
func (r *Registry) applySpec(spec Spec) *supervisor {
	r.mu.Lock()
	defer r.mu.Unlock()

	applied, known := r.supervisors[spec.Name]
	if !known {
		applied = newSupervisor(r, spec)
		r.supervisors[spec.Name] = applied
		r.publishStatuses(func(all map[string]Status) { all[spec.Name] = applied.status })
		if r.ctx != nil {
			r.startSupervisor(applied)
		}
		return applied
	}

	old, _ := applied.spec.Load()
	spec.attempt = old.attempt
	if !old.sameAccess(spec) {
		spec.attempt++
		r.publishStatuses(func(all map[string]Status) {
			published := all[spec.Name]
			published.wanted = spec.attempt
			all[spec.Name] = published
		})
	}
	applied.spec.Store(spec)
	return applied
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
		r.updateAccepted()
	}
}

// unlink cancels a supervisor and reports whether there was one.
func (r *Registry) unlink(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	supervisor, known := r.supervisors[name]
	if !known {
		return false
	}

	r.unlinked++
	if r.options.Checkpoints != nil {
		r.forgotten.Store(name, true)
	}
	delete(r.supervisors, name)
	if supervisor.cancel != nil {
		supervisor.cancel(ErrUnlinked)
	}

	r.publishStatuses(func(all map[string]Status) {
		delete(all, name)
		compareIdentities(all)
	})
	return true
}

// Statuses returns the Status of each cluster by name, and a channel that closes with the next change. The
// map must not be written to.
func (r *Registry) Statuses() (map[string]Status, <-chan struct{}) { return r.statuses.Load() }

// Names returns the names of all clusters, sorted, and a channel that closes when there are others.
func (r *Registry) Names() ([]string, <-chan struct{}) { return r.names.Load() }

// whileCurrent calls f with order held, unless s was removed and has not noticed yet: its successor may have the same
// name. While f runs s is not removed.
func (r *Registry) whileCurrent(s *supervisor, f func()) {
	r.order.Lock()
	defer r.order.Unlock()
	if r.supervisor(s.name) == s {
		f()
	}
}

// newWriter returns the newest writer of a cluster; nil if its supervisor was removed.
func (r *Registry) newWriter(s *supervisor) (w *federation.ClusterWriter) {
	r.whileCurrent(s, func() { w = r.store.NewWriter(federation.Cluster(s.name)) })
	return w
}

func (r *Registry) setState(s *supervisor, state federation.ClusterState) {
	r.whileCurrent(s, func() { r.store.SetState(federation.Cluster(s.name), state) })
}

func (r *Registry) setListing(s *supervisor, listing bool) {
	r.whileCurrent(s, func() { r.store.SetListing(federation.Cluster(s.name), listing) })
}

// updateStatus publishes the part of a Status that a supervisor owns.
func (r *Registry) updateStatus(s *supervisor) {
	r.changeStatus(s, func(published *Status) {
		reports := published.Reports
		*published = s.status
		published.Reports = reports
	})
}

// Report sets in the Status of a cluster how writing into it goes.
func (r *Registry) Report(name string, w Writing) {
	r.changeStatus(r.supervisor(name), func(s *Status) { s.Writing = w })
}

// ReportLeftOut sets in the Status of a cluster how many of its endpoints are in no slice of the local
// cluster.
func (r *Registry) ReportLeftOut(name string, n LeftOut) {
	r.changeStatus(r.supervisor(name), func(s *Status) { s.LeftOut = n })
}

// ReportLeftTo sets in the Status of a cluster which other installation writes the slices of the local cluster that
// have its endpoints; empty for none.
func (r *Registry) ReportLeftTo(name, installation string) {
	r.changeStatus(r.supervisor(name), func(s *Status) { s.LeftTo = installation })
}

// changeStatus publishes the Status of a cluster after a change, unless only its times differ or the cluster was
// removed: then the supervisor is nil, or not that of its name any more.
func (r *Registry) changeStatus(supervisor *supervisor, change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if supervisor == nil || r.supervisors[supervisor.name] != supervisor {
		return
	}
	statuses, _ := r.statuses.Load()
	old := statuses[supervisor.name]
	next := old
	change(&next)
	if old.SameButTimes(next) {
		return
	}

	r.publishStatuses(func(all map[string]Status) {
		all[supervisor.name] = next
		if !next.Identity.equal(old.Identity) {
			compareIdentities(all)
		}
	})
}

// publishStatuses publishes all Statuses after a change. It needs mu.
func (r *Registry) publishStatuses(change func(map[string]Status)) {
	old, _ := r.statuses.Load()
	next := make(map[string]Status, len(old)+1)
	maps.Copy(next, old)
	change(next)
	r.statuses.Store(next)
	if len(next) != len(old) {
		r.names.Store(slices.Sorted(maps.Keys(next)))
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
		kind := k.Resource.GroupResource().String()
		isOld := func(old KindStatus) bool { return old.Kind == kind }
		if !slices.ContainsFunc(kinds, isOld) { // of one that has two readers it is that of the first
			kinds = append(kinds, KindStatus{kind, k.Len(), k.Malformed(), k.Health()})
		}
	}

	slices.SortFunc(kinds, func(a, b KindStatus) int { return strings.Compare(a.Kind, b.Kind) })
	h, _ := live.health.Load()
	return kinds, h.lastContact
}

// engagement returns the one of a cluster that is in use; nil for none.
func (r *Registry) engagement(name string) *engagement {
	if s := r.supervisor(name); s != nil {
		return s.current.Load()
	}
	return nil
}

// Connection returns that of the engagement of a cluster that is in use; nil for a cluster without an engagement.
func (r *Registry) Connection(name string) *api.Connection {
	if live := r.engagement(name); live != nil {
		return live.conn
	}
	return nil
}

// AddConnection has what fails over another connection to the API server of a cluster count as the cluster's. The
// connection lasts as long as the Registry.
func (r *Registry) AddConnection(name string, conn *api.Connection) {
	if s := r.supervisor(name); s != nil {
		s.beside.Store(conn)
	}
}

// supervisor returns that of a cluster; nil for one that is not linked.
func (r *Registry) supervisor(name string) *supervisor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.supervisors[name]
}

func (r *Registry) allSupervisors() []*supervisor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.supervisors))
}
