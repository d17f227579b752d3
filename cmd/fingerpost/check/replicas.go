package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/federation"
)

// knownReplicas are the replicas that respond, and what they reported last. All checks of what they report read
// the same pages, so that their number costs no requests.
type knownReplicas struct {
	all      []cli.Replica
	fetch    cli.FetchFunc
	pages    []cli.Response[debug.ClustersPage] // empty if no replica responds
	problems debug.ProblemsPage                 // of all of them, each once
}

// refresh reads all of them again, at the same time. What those reported that do not respond stays only if none
// responds.
func (k *knownReplicas) refresh(ctx context.Context) {
	if pages, _ := cli.FetchAll[debug.ClustersPage](ctx, k.fetch, k.all, "/debug/clusters"); len(pages) > 0 {
		k.pages = pages
	}
	if pages, _ := cli.FetchAll[debug.ProblemsPage](ctx, k.fetch, k.all, "/debug/problems"); len(pages) > 0 {
		k.problems = mergeProblems(pages)
	}
}

// clusters returns what each of them reports of the clusters that match.
func (k *knownReplicas) clusters(match func(debug.Cluster) bool) (all []cli.Response[debug.Cluster]) {
	for _, page := range k.pages {
		for _, c := range page.Page.Clusters {
			if match(c) {
				all = append(all, cli.Response[debug.Cluster]{Replica: page.Replica, Page: c})
			}
		}
	}
	return all
}

func hasName(name string) func(debug.Cluster) bool {
	return func(c debug.Cluster) bool { return c.Name == name }
}

// wantedLeases returns the Leases that one of them holds in the local cluster, or waits for, sorted.
func (k *knownReplicas) wantedLeases() (names []string) {
	for _, r := range k.clusters(func(c debug.Cluster) bool { return c.Local }) {
		names = append(names, r.Page.Writing.Wanted...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// leaseUse returns what they report of a Lease in the local cluster.
func (k *knownReplicas) leaseUse(name string) leaseUse {
	use := leaseUse{shared: name == linkerd.ExternalWorkloadsLease}
	for _, r := range k.clusters(func(c debug.Cluster) bool { return c.Local }) {
		use.wanted = use.wanted || slices.Contains(r.Page.Writing.Wanted, name)
		use.held = use.held || slices.Contains(r.Page.Writing.Leases, name)
	}
	return use
}

// suffix names a replica at the end of a message, if there are several.
func (k *knownReplicas) suffix(replica string) string {
	if len(k.all) < 2 {
		return ""
	}
	return " in " + replica
}

// checkReplicas returns the replicas, and a function that closes the ways to them.
func (e *environment) checkReplicas(ctx context.Context, r *runner) (known *knownReplicas, done func()) {
	const category = "fingerpost-replicas"
	known, done = &knownReplicas{fetch: e.fetch}, func() {}
	var all []cli.Replica
	open := func(context.Context) error {
		opened, end, err := e.open(ctx)
		if err != nil {
			return err
		}
		for _, replica := range opened {
			if replica.Err != nil {
				end()
				return replica.Err
			}
		}
		all, done = opened, end
		return nil
	}
	if !r.must(ctx, check{
		category: category, description: "replicas are ready", anchor: "replicas-are-ready", retry: true, run: open,
	}) {
		return known, done
	}
	responds := make([]bool, len(all))
	var checks []check
	for i, replica := range all {
		checks = append(checks, check{
			category: category, description: replica.Name + " answers", anchor: "replicas-are-ready",
			run: func(ctx context.Context) error {
				err := e.fetch(ctx, replica, "/debug/clusters", &debug.ClustersPage{})
				responds[i] = err == nil
				return err
			},
		})
	}
	r.run(ctx, checks...)
	for i, replica := range all {
		if responds[i] {
			known.all = append(known.all, replica)
		}
	}
	if ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, r.timeout)
		defer cancel()
		known.refresh(once)
	}
	checks = []check{{
		category: category, description: "the last state of each cluster can be saved", anchor: "state-can-be-saved",
		retry: true, run: func(context.Context) error { return known.checkSaved() },
	}}
	for i := range known.all {
		if i == 0 {
			continue
		}
		first, other := known.all[0], known.all[i]
		checks = append(checks, check{
			category: category, description: other.Name + " agrees with " + first.Name, anchor: "replicas-agree",
			retry: true, takes: settle,
			run: func(ctx context.Context) error { return e.compareReplicas(ctx, first, other) },
		})
	}
	r.run(ctx, checks...)
	return known, done
}

// checkSaved reports replicas that cannot write their -state-dir. It applies to those that have one.
func (k *knownReplicas) checkSaved() error {
	for _, page := range k.pages {
		if n := page.Page.NotSaved; n.Clusters > 0 {
			return warningf("that of %d clusters cannot be saved%s: %s", n.Clusters, k.suffix(page.Replica), n.Reason)
		}
	}
	return nil
}

// requiredKinds are those without which a cluster cannot be synced.
var requiredKinds = []string{"services", "pods", "endpointslices.discovery.k8s.io", "endpoints"}

// names returns the names of all clusters, sorted.
func (k *knownReplicas) names() []string {
	all := map[string]bool{}
	for _, c := range k.clusters(func(debug.Cluster) bool { return true }) {
		all[c.Page.Name] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// reported returns a check of what is reported of a cluster. It does not apply to one that was unlinked meanwhile.
func (k *knownReplicas) reported(
	name string, check func([]cli.Response[debug.Cluster]) error,
) func(context.Context) error {
	return func(context.Context) error {
		all := k.clusters(hasName(name))
		if len(all) == 0 {
			return errSkipped
		}
		return check(all)
	}
}

// clusterChecks check what replicas report of each cluster.
func (k *knownReplicas) clusterChecks() (checks []check) {
	const category = "fingerpost-clusters"
	for _, name := range k.names() {
		checks = append(checks,
			check{
				category: category, description: name + " is in contact", anchor: "a-cluster-is-in-contact",
				retry: true, run: k.reported(name, k.checkContact),
			},
			check{
				category: category, description: "the newest credentials of " + name + " are in use",
				anchor: "credentials-are-in-use", retry: true, run: k.reported(name, k.checkCredentials),
			},
			check{
				category: category, description: "everything in " + name + " may be read",
				anchor: "everything-may-be-read", retry: true, run: k.reported(name, checkReadable),
			},
			check{
				category: category, description: name + " is the cluster that it should be",
				anchor: "a-cluster-is-the-one-that-it-should-be", run: k.reported(name, k.checkConsistent),
			})
	}
	return checks
}

// writerChecks check what keeps replicas from writing in each cluster.
func (k *knownReplicas) writerChecks() (checks []check) {
	for _, name := range k.names() {
		checks = append(checks, check{
			category: "fingerpost-writers", description: "nothing keeps Fingerpost from writing in " + name,
			anchor: "nothing-keeps-from-writing", retry: true, run: k.reported(name, k.checkWriting),
		})
	}
	return checks
}

// checkContact returns the worst state of a cluster, which is a warning for Suspect.
func (k *knownReplicas) checkContact(reported []cli.Response[debug.Cluster]) error {
	rank := func(r cli.Response[debug.Cluster]) int { return slices.Index(federation.ClusterStates, r.Page.State) }
	worst := slices.MaxFunc(reported, func(a, b cli.Response[debug.Cluster]) int {
		return cmp.Compare(rank(a), rank(b))
	})
	c := worst.Page
	reason := c.OutOfContact()
	if reason == "" {
		return nil
	}
	err := fmt.Errorf("it is %s%s, last contact %s: %s",
		c.State, k.suffix(worst.Replica), debug.Ago(c.LastContact, time.Now()), reason)
	if c.State == federation.Suspect {
		return warning{error: err}
	}
	return err
}

func (k *knownReplicas) checkCredentials(reported []cli.Response[debug.Cluster]) error {
	for _, r := range reported {
		if c := r.Page; c.Credentials != "" {
			if c.Source == "" {
				return fmt.Errorf("%s; none are in use%s", c.Credentials, k.suffix(r.Replica))
			}
			return fmt.Errorf("%s; those before them stay in use%s (%s): correct the Secret",
				c.Credentials, k.suffix(r.Replica), c.Source)
		}
	}
	now := time.Now()
	for _, r := range reported {
		switch text, ended := r.Page.ExpiresSoon(now); {
		case ended:
			return permanentErrorf("%s", text)
		case text != "":
			return permanentWarningf("%s", text)
		}
	}
	return nil
}

// checkReadable returns the kinds that replicas may not read in a cluster. A kind without a CRD has no
// objects.
func checkReadable(reported []cli.Response[debug.Cluster]) error {
	var refused []string
	required := false
	for _, r := range reported {
		for _, kind := range r.Page.Refused() {
			if text := kind.Kind + " (" + string(kind.Refused) + ")"; !slices.Contains(refused, text) {
				refused = append(refused, text)
				required = required || slices.Contains(requiredKinds, kind.Kind)
			}
		}
	}
	switch {
	case len(refused) == 0:
		return nil
	case required:
		return fmt.Errorf("grant get, list and watch on %s", strings.Join(refused, ", "))
	default:
		return permanentWarningf(
			"what depends on it is left out: grant get, list and watch on %s",
			strings.Join(refused, ", "),
		)
	}
}

// checkWriting returns what keeps replicas from writing in a cluster. It does not apply where nothing is to be
// written.
func (k *knownReplicas) checkWriting(reported []cli.Response[debug.Cluster]) error {
	result := errSkipped
	for _, r := range reported {
		problem, in := r.Page.Writing.Problem, k.suffix(r.Replica)
		switch r.Page.Written() {
		case debug.NothingWritten:
			return permanentErrorf("what Fingerpost writes into the local cluster is not kept up to date%s: %s",
				in, problem)
		case debug.NoSlicesWritten:
			return permanentWarningf("the Link asks for slices in it, and %s%s", problem, in)
		case debug.PartWritten:
			return warningf("%s%s", problem, in)
		case debug.AllWritten:
			result = nil
		case debug.NotToBeWritten:
		}
	}
	return result
}

// checkConsistent returns how a cluster differs from what its Link describes. That its clock is off is a
// warning. The worst replica counts.
func (k *knownReplicas) checkConsistent(reported []cli.Response[debug.Cluster]) error {
	var worst error
	for _, r := range reported {
		var errs []error
		for _, m := range r.Page.Mismatches() {
			err := fmt.Errorf("%s%s", m.Message, k.suffix(r.Replica))
			if m.Reason == cluster.ClockSkew {
				err = warning{error: err}
			}
			errs = append(errs, err)
		}
		err := joinWarnings(errs...)
		if _, is := errors.AsType[warning](err); err != nil && !is {
			return err
		}
		worst = cmp.Or(worst, err)
	}
	return worst
}
