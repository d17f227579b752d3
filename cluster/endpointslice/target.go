package endpointslice

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/view"
)

const (
	permissionRetry = 5 * time.Minute // until permissions that were missing are reviewed again
	workloadsRetry  = time.Minute     // until a cluster without ExternalWorkloads is asked for them again
)

// A targetCluster is a cluster that is written into, over one connection. It campaigns for up to two Leases
// there, and runs a sliceWriter in each term.
type targetCluster struct {
	writer   *Writer
	log      logr.Logger
	name     string
	local    bool
	conn     *api.Connection
	identity string // in Leases; unique, because two targets of one replica overlap while credentials are replaced
	client   kubernetes.Interface
	dynamic  dynamic.Interface

	mu     sync.Mutex // guards leases, and orders reports
	leases map[string]leaseState
}

// leaseState is what is reported about one Lease.
type leaseState struct {
	state   cluster.WritingState
	problem string
}

var errNoWorkloads = errors.New("there are no ExternalWorkloads: their CRD is not installed")

// externalPermissions returns nil if the slices of ExternalWorkloads can be written. Without
// ExternalWorkloads the Lease is left to other candidates.
func (c *targetCluster) externalPermissions(ctx context.Context) error {
	workloads := apply.Permission{Resource: linkerd.ExternalWorkloads, Verbs: readVerbs}
	needed := append(writerPermissions(c.writer.options.Namespace), workloads)
	if err := apply.Review(ctx, c.client, needed...); err != nil {
		return err
	}
	_, err := listWorkloads(ctx, c.dynamic, metav1.NamespaceAll, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return errNoWorkloads
	}
	return err
}

func (c *targetCluster) federatedPermissions(ctx context.Context) error {
	if !c.writer.options.Federated { // the Lease is campaigned for by onLocalLease alone
		return apply.Review(ctx, c.client, leasePermission(c.writer.options.Namespace))
	}
	return apply.Review(ctx, c.client, writerPermissions(c.writer.options.Namespace)...)
}

// workloadKind is ExternalWorkloads, at the newest version that is served.
var workloadKind = api.Newest(linkerd.ExternalWorkloads, linkerd.ExternalWorkloadVersions, linkerd.ExternalWorkloadKind)

// listWorkloads lists ExternalWorkloads once.
func listWorkloads(
	ctx context.Context, client dynamic.Interface, namespace string, options metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	kind := workloadKind
	kind.Namespace = namespace
	return kind.List(ctx, client, options)
}

// runWhileWanted campaigns for the FederatedLease while that is wanted, until ctx ends. When it is no
// longer wanted, or the cluster was unlinked, it deletes what was written.
func (c *targetCluster) runWhileWanted(ctx context.Context, wanted func() (bool, <-chan struct{})) {
	for ctx.Err() == nil {
		want, changed := wanted()
		run, end := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if want {
			wg.Go(func() { c.runWhilePermitted(run, FederatedLease, c.writeFederated, c.federatedPermissions) })
		} else {
			c.reportLease(FederatedLease, cluster.NotWriting, nil)
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
			c.deleteOwn(ctx)
		}
	}
}

// deleteOwn deletes what this installation wrote, if no other installation goes on writing: if the Lease
// stays free for as long as it would last.
func (c *targetCluster) deleteOwn(ctx context.Context) {
	timing := c.writer.options.Timing
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*timing.Duration)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		select {
		case <-c.writer.options.Stop:
			cancel()
		case <-ctx.Done():
		}
	})
	if c.federatedPermissions(ctx) != nil {
		return
	}
	errDeleted := errors.New("all own slices are deleted")
	err := c.elect(ctx, FederatedLease, timing.Duration, func(term context.Context) error {
		if err := c.deleteSlices(term); err != nil {
			return err
		}
		return errDeleted
	})
	switch {
	case errors.Is(err, errDeleted):
	case ctx.Err() != nil:
		c.log.Info("Slices written into the cluster stay: another replica goes on writing, " +
			"or the cluster is out of reach")
	default:
		c.log.Info("Slices written into the cluster stay: deleting them failed", "error", problemText(err))
	}
}

// deleteSlices deletes all slices that this installation wrote into the cluster.
func (c *targetCluster) deleteSlices(term context.Context) error {
	own := labels.Set{
		discoveryv1.LabelManagedBy: view.ManagedBy, installationLabel: c.writer.options.Installation,
	}
	client := c.client.DiscoveryV1()
	list, err := client.EndpointSlices(metav1.NamespaceAll).List(term, metav1.ListOptions{LabelSelector: own.String()})
	if err != nil {
		return err
	}
	var failed []error
	for i := range list.Items {
		if term.Err() != nil {
			return term.Err()
		}
		es := &list.Items[i]
		err := client.EndpointSlices(es.Namespace).Delete(term, es.Name, deleteExactly(es))
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, err)
			continue
		}
		c.writer.metrics.writes.WithLabelValues(c.name, view.ManagedBy, "delete").Inc()
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	c.log.Info("Deleted all slices written into the cluster: none are wanted any more", "slices", len(list.Items))
	return nil
}

// deleteExactly makes a deletion fail if the slice has changed.
func deleteExactly(es *discoveryv1.EndpointSlice) metav1.DeleteOptions {
	exactly := &metav1.Preconditions{UID: &es.UID, ResourceVersion: &es.ResourceVersion}
	return metav1.DeleteOptions{Preconditions: exactly}
}

// runWhilePermitted campaigns for a Lease while the cluster permits writing, until ctx ends. lead runs in
// each term, permissions reviews what it needs.
func (c *targetCluster) runWhilePermitted(
	ctx context.Context, name string, lead, permissions func(context.Context) error,
) {
	for ctx.Err() == nil {
		err := permissions(ctx)
		if err == nil {
			err = c.elect(ctx, name, c.acquireDelay(), lead)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNoWorkloads):
			c.reportLease(name, cluster.NotWriting, nil)
		case apply.IsMissingPermissions(err), apierrors.IsForbidden(err):
			c.reportLease(name, cluster.ReadOnly, err)
		default:
			c.reportLease(name, cluster.Standby, err)
		}
		c.waitBeforeRetry(ctx, err)
	}
}

// acquireDelay is how long a free Lease is left to the installation in the cluster itself, if there is one.
// It is nearest, and so Leases are spread over installations.
func (c *targetCluster) acquireDelay() time.Duration {
	if c.local {
		return 0
	}
	return c.writer.options.Timing.Renew / 4
}

// waitBeforeRetry waits for minutes if permissions are missing, for seconds after another failure, and no
// longer than until the connection has new credentials.
func (c *targetCluster) waitBeforeRetry(ctx context.Context, err error) {
	wait := c.writer.options.Timing.Duration
	switch {
	case apply.IsMissingPermissions(err) || apierrors.IsForbidden(err):
		wait = permissionRetry
	case errors.Is(err, errNoWorkloads):
		wait = workloadsRetry
	}
	timer := time.NewTimer(wait/2 + time.Duration(rand.Int63nRange(0, int64(wait))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.conn.Changed():
	case <-ctx.Done():
	}
}

// elect runs lead in each term of a Lease, until ctx ends or an error makes campaigning useless. A free
// Lease is left to other candidates for delay.
func (c *targetCluster) elect(
	ctx context.Context, name string, delay time.Duration, lead func(term context.Context) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	namespace := c.writer.options.Namespace
	elector := lease.NewElector(c.log, c.client, c.conn, lease.Config{
		Namespace: namespace, Name: name, Identity: c.identity, Timing: c.writer.options.Timing, AcquireDelay: delay,
	})
	wg.Go(func() { c.reportHolder(ctx, name, elector) })
	err := elector.Run(ctx, lead)
	if errors.Is(err, lease.ErrUnreadable) {
		missing := apply.Permission{Resource: leaseResource, Namespace: namespace, Verbs: readVerbs}
		return &apply.MissingPermissions{All: []apply.Permission{missing}}
	}
	return err
}

// reportHolder reports whether this replica holds a Lease, whenever that changes, and whenever the Lease
// does: while credentials are replaced the target before this one reports as well, and its last report must
// not stay.
func (c *targetCluster) reportHolder(ctx context.Context, name string, elector *lease.Elector) {
	for {
		held, changed := elector.Held()
		observed := elector.Observed()
		if held {
			c.reportLease(name, cluster.Holding, nil)
		} else {
			c.reportLease(name, cluster.Standby, nil)
		}
		select {
		case <-changed:
		case <-observed:
		case <-ctx.Done():
			return
		}
	}
}

// reportLease records the state of one Lease, and reports that of all to the Registry.
func (c *targetCluster) reportLease(name string, state cluster.WritingState, problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.leases[name]
	c.leases[name] = leaseState{state, problemText(problem)}
	if state == cluster.ReadOnly && before != c.leases[name] {
		c.log.Info("This cluster is read-only for us: discovery goes on, and nothing is written",
			"lease", name, "reason", problemText(problem))
	}
	c.writer.registry.Report(c.name, writingOf(c.leases))
}

// writingOf sums up the states of all Leases: Holding if one is held, else Standby if one is waited for.
func writingOf(leases map[string]leaseState) cluster.Writing {
	var w cluster.Writing
	var held, wanted, problems []string
	for _, name := range slices.Sorted(maps.Keys(leases)) {
		s := leases[name]
		switch {
		case s.state == cluster.Holding:
			held = append(held, name)
			w.State = cluster.Holding
		case w.State != cluster.Holding && s.state != cluster.NotWriting && w.State != cluster.Standby:
			w.State = s.state
		}
		if s.state == cluster.Holding || s.state == cluster.Standby {
			wanted = append(wanted, name)
		}
		if s.problem != "" && !slices.Contains(problems, s.problem) {
			problems = append(problems, s.problem)
		}
	}
	w.Leases, w.Wanted, w.Problem = strings.Join(held, ","), strings.Join(wanted, ","), strings.Join(problems, "; ")
	return w
}

// writeFederated runs in each term of the FederatedLease.
func (c *targetCluster) writeFederated(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // if slices lack a permission, the Lease is given up for onLocalLease, too
	if c.local {
		for _, run := range c.writer.onLocalLease {
			wg.Go(func() {
				if err := run(ctx); err != nil && ctx.Err() == nil {
					c.log.Error(err, "A task of the term of the Lease failed: what it writes is not written")
				}
			})
		}
	}
	if !c.writer.options.Federated {
		<-ctx.Done()
		return nil
	}
	return newFederatedSlices(c).run(ctx)
}

// writeExternal runs in each term of the ExternalLease.
func (c *targetCluster) writeExternal(ctx context.Context) error {
	return newExternalSlices(c).loop.Run(ctx)
}

func problemText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
