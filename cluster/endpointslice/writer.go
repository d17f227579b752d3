package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/transport"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Options are what the operator decides about writing.
type Options struct {
	Namespace    string // of the control plane, in every cluster: there are the Leases
	Installation string // name of the cluster that we run in
	Replica      string // what tells this replica from others
	Timing       lease.Timing
	Stop         <-chan struct{} // closed when the process is to end; nil: never
	Linked       <-chan struct{} // closed when it is known which clusters are linked; nil: the Store knows
	External     bool            // write the slices of ExternalWorkloads
	Federated    bool            // write what other clusters hold, where that is asked for
	MaxSlices    int             // that one source cluster has in one Service; 0: any number
}

const (
	askAgain  = 5 * time.Minute // after a refusal: whether we may write by now
	lookAgain = time.Minute     // for the kind, where there are no ExternalWorkloads
)

// A Writer writes slices into every cluster that is in use and lets us.
type Writer struct {
	log      logr.Logger
	store    *federation.Store
	registry *cluster.Registry
	options  Options
	metrics  *metrics

	// Also runs under the local cluster's FederatedLease; nil for nothing.
	also func(term context.Context) error

	mu    sync.Mutex // guards conns
	conns map[string]*cluster.Connection
}

// NewWriter returns a Writer, whose Attend is to be given to the registry. also, which may be nil, runs in each term in which this
// replica holds the local cluster's Lease; it returns when the term ends.
func NewWriter(log logr.Logger, store *federation.Store, registry *cluster.Registry, also func(term context.Context) error, options Options) *Writer {
	return &Writer{
		log: log, store: store, registry: registry, options: options, metrics: newMetrics(), also: also, conns: map[string]*cluster.Connection{},
	}
}

// Attend writes into one cluster until ctx ends. It is a [cluster.Attendant].
func (w *Writer) Attend(ctx context.Context, spec *watch.Value[cluster.Spec], conn *cluster.Connection) {
	first, _ := spec.Load()
	name := first.Name
	w.mu.Lock()
	w.conns[name] = conn
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		if w.conns[name] == conn { // or its successor is here already
			delete(w.conns, name)
			w.metrics.forget(name)
		}
		w.mu.Unlock()
	}()
	d, err := w.newDesk(name, conn)
	if err != nil {
		w.log.Error(err, "Nothing is written into the cluster", "cluster", name)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if w.options.External {
		wg.Go(func() { d.pursue(ctx, ExternalLease, d.external, d.externalRights) })
	}
	also := w.also != nil && first.Local
	if w.options.Federated || also {
		wanted := func() (bool, <-chan struct{}) {
			s, changed := spec.Load()
			return s.Local || s.Slices, changed
		}
		wg.Go(func() { d.follow(ctx, wanted) })
	}
}

// connection returns what is in use with a cluster; nil for nothing.
func (w *Writer) connection(name string) *cluster.Connection {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conns[name]
}

// linked reports whether it is known which clusters are linked.
func (w *Writer) linked() bool {
	select {
	case <-w.options.Linked:
		return true
	default:
		return w.options.Linked == nil
	}
}

// A desk is where one cluster is written to, over one connection.
type desk struct {
	writer   *Writer
	log      logr.Logger
	cluster  string
	local    bool
	conn     *cluster.Connection
	identity string // in Leases: two desks of one replica, as while credentials are replaced, are two holders
	client   kubernetes.Interface
	dynamic  dynamic.Interface

	mu     sync.Mutex
	states map[string]leaseState
}

// leaseState is how it goes with one Lease.
type leaseState struct {
	state   cluster.WritingState
	problem string
}

func (w *Writer) newDesk(name string, conn *cluster.Connection) (*desk, error) {
	d := &desk{
		writer: w, log: w.log.WithValues("cluster", name), cluster: name, local: name == w.options.Installation, conn: conn,
		identity: w.options.Replica + "_" + rand.String(8), states: map[string]leaseState{},
	}
	// The API server's audit log tells replicas apart by the agent.
	client := &http.Client{Transport: transport.NewUserAgentRoundTripper("fingerpost/"+d.identity, conn.HTTPClient.Transport)}
	var err error
	if d.client, err = kubernetes.NewForConfigAndClient(conn.Config, client); err != nil {
		return nil, fmt.Errorf("client to write slices: %w", err)
	}
	if d.dynamic, err = dynamic.NewForConfigAndClient(conn.Config, client); err != nil {
		return nil, fmt.Errorf("client to read ExternalWorkloads: %w", err)
	}
	return d, nil
}

// externalRights asks for everything that the slices of ExternalWorkloads need. Where there are none of these the Lease is left to others.
func (d *desk) externalRights(ctx context.Context) error {
	rights := append(writerRights(d.writer.options.Namespace), right{linkerd.ExternalWorkloads, "", []string{"list", "watch"}})
	if err := ask(ctx, d.client, rights); err != nil {
		return err
	}
	_, err := listWorkloads(ctx, d.dynamic, metav1.NamespaceAll, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return errNoWorkloads
	}
	return err
}

var errNoWorkloads = errors.New("there are no ExternalWorkloads: their CRD is not installed")

func (d *desk) federatedRights(ctx context.Context) error {
	return ask(ctx, d.client, writerRights(d.writer.options.Namespace))
}

// workloads lists and watches ExternalWorkloads at the newest version that is served.
func workloads(client dynamic.Interface, namespace string) cache.ListerWatcher {
	return cluster.NewestLister(client, linkerd.ExternalWorkloads, linkerd.ExternalWorkloadVersions, namespace)
}

// listWorkloads lists ExternalWorkloads once.
func listWorkloads(ctx context.Context, client dynamic.Interface, namespace string, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	list, err := cache.ToListerWatcherWithContext(workloads(client, namespace)).ListWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	return list.(*unstructured.UnstructuredList), nil
}

// follow writes what other clusters hold as long as that is wanted, until ctx ends. When it is not wanted any more it is taken away.
func (d *desk) follow(ctx context.Context, wanted func() (bool, <-chan struct{})) {
	for ctx.Err() == nil {
		want, changed := wanted()
		stint, end := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if want {
			wg.Go(func() { d.pursue(stint, FederatedLease, d.federated, d.federatedRights) })
		} else {
			d.report(FederatedLease, cluster.NotWriting, nil)
		}
		for still := want; still == want && ctx.Err() == nil; {
			select {
			case <-changed:
				still, changed = wanted()
			case <-ctx.Done():
			}
		}
		end()
		wg.Wait()
		if want && (ctx.Err() == nil || errors.Is(context.Cause(ctx), cluster.ErrUnlinked)) {
			d.leave(ctx)
		}
	}
}

// leave deletes what this installation has written and nobody goes on writing: the Lease is free for as long as it would last.
func (d *desk) leave(ctx context.Context) {
	timing := d.writer.options.Timing
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*timing.Duration)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		select {
		case <-d.writer.options.Stop:
			cancel()
		case <-ctx.Done():
		}
	})
	if d.federatedRights(ctx) != nil {
		return
	}
	errLeft := errors.New("everything of ours is deleted")
	err := d.campaign(ctx, FederatedLease, timing.Duration, func(term context.Context) error {
		selected := metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + view.ManagedBy + "," + writerLabel + "=" + d.writer.options.Installation}
		list, err := d.client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(term, selected)
		if err != nil {
			return err
		}
		var failed []error
		for i := range list.Items {
			if term.Err() != nil {
				return term.Err()
			}
			es := &list.Items[i]
			err := d.client.DiscoveryV1().EndpointSlices(es.Namespace).Delete(term, es.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &es.UID, ResourceVersion: &es.ResourceVersion}})
			if err != nil && !apierrors.IsNotFound(err) {
				failed = append(failed, err)
				continue
			}
			d.writer.metrics.writes.WithLabelValues(d.cluster, view.ManagedBy, "delete").Inc()
		}
		if len(failed) > 0 {
			return errors.Join(failed...)
		}
		d.log.Info("What was written into the cluster is deleted: it is not to be written any more", "slices", len(list.Items))
		return errLeft
	})
	switch {
	case errors.Is(err, errLeft):
	case ctx.Err() != nil:
		d.log.Info("What was written into the cluster stays: another replica goes on writing, or the cluster is out of reach")
	default:
		d.log.Info("What was written into the cluster stays", "error", errorText(err))
	}
}

// pursue campaigns for a Lease whenever the rights are there, and lets lead run in each term.
func (d *desk) pursue(ctx context.Context, name string, lead, rights func(context.Context) error) {
	for ctx.Err() == nil {
		err := rights(ctx)
		if err == nil {
			err = d.campaign(ctx, name, d.courtesy(), lead)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNoWorkloads):
			d.report(name, cluster.NotWriting, nil)
		case isRefusal(err), apierrors.IsForbidden(err):
			d.report(name, cluster.ReadOnly, err)
		default:
			d.report(name, cluster.Standby, err)
		}
		d.pause(ctx, err)
	}
}

// courtesy is for how long a free Lease is left to the cluster's own installation, if there is one: it has the shortest way, and so the
// Leases spread over installations.
func (d *desk) courtesy() time.Duration {
	if d.local {
		return 0
	}
	return d.writer.options.Timing.Renew / 4
}

// pause waits until it makes sense to try again: long after a refusal, and a few seconds after a failure.
func (d *desk) pause(ctx context.Context, err error) {
	wait := d.writer.options.Timing.Duration
	switch {
	case isRefusal(err) || apierrors.IsForbidden(err):
		wait = askAgain
	case errors.Is(err, errNoWorkloads):
		wait = lookAgain
	}
	timer := time.NewTimer(wait/2 + time.Duration(rand.Int63nRange(0, int64(wait))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.conn.Renewed():
	case <-ctx.Done():
	}
}

// campaign lets lead run in each term of a Lease, until ctx ends. It returns an error that keeps us from doing so.
// A Lease that is free is left to others for the time of courtesy.
func (d *desk) campaign(ctx context.Context, name string, courtesy time.Duration, lead func(term context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	namespace := d.writer.options.Namespace
	elector := lease.NewElector(d.log, d.client, d.conn, lease.Config{
		Namespace: namespace, Name: name, Identity: d.identity, Timing: d.writer.options.Timing, AcquireDelay: courtesy,
	})
	wg.Go(func() { d.tell(ctx, name, elector) })
	err := elector.Run(ctx, lead)
	if errors.Is(err, lease.ErrUnreadable) {
		return &Refusal{[]right{{leaseResource, namespace, []string{"list", "watch"}}}}
	}
	return err
}

// tell reports who has a Lease.
func (d *desk) tell(ctx context.Context, name string, elector *lease.Elector) {
	for {
		held, changed := elector.Held()
		observed := elector.Observed()
		if held {
			d.report(name, cluster.Holding, nil)
		} else {
			d.report(name, cluster.Standby, nil)
		}
		select {
		case <-changed:
		case <-observed: // while credentials are replaced the predecessor reports, too
		case <-ctx.Done():
			return
		}
	}
}

// report makes the cluster's Status tell how it goes with all of its Leases.
func (d *desk) report(name string, state cluster.WritingState, problem error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.states[name]
	d.states[name] = leaseState{state, errorText(problem)}
	if state == cluster.ReadOnly && before != d.states[name] {
		d.log.Info("This cluster is read-only for us: discovery goes on, and nothing is written", "lease", name, "reason", errorText(problem))
	}
	var w cluster.Writing
	var held, wanted, problems []string
	for _, other := range slices.Sorted(maps.Keys(d.states)) {
		s := d.states[other]
		switch {
		case s.state == cluster.Holding:
			held = append(held, other)
			w.State = cluster.Holding
		case w.State != cluster.Holding && s.state != cluster.NotWriting && w.State != cluster.Standby:
			w.State = s.state
		}
		if s.state == cluster.Holding || s.state == cluster.Standby {
			wanted = append(wanted, other)
		}
		if s.problem != "" && !slices.Contains(problems, s.problem) {
			problems = append(problems, s.problem)
		}
	}
	w.Leases, w.Wanted, w.Problem = strings.Join(held, ","), strings.Join(wanted, ","), strings.Join(problems, "; ")
	d.writer.registry.Report(d.cluster, w)
}

// federated runs in each term in which this replica holds the FederatedLease.
func (d *desk) federated(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // where a right is missing, the Lease is of no use to what runs beside either
	if also := d.writer.also; also != nil && d.local {
		wg.Go(func() {
			if err := also(ctx); err != nil && ctx.Err() == nil {
				d.log.Error(err, "Mirror Services are not written")
			}
		})
	}
	if !d.writer.options.Federated {
		<-ctx.Done()
		return nil
	}
	return newFederatedTerm(d).run(ctx)
}

// external runs in each term in which this replica holds the ExternalLease.
func (d *desk) external(ctx context.Context) error { return newExternalTerm(d).run(ctx) }

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
