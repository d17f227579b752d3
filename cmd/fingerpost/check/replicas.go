package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/federation"
)

// knownReplicas are the replicas that respond, and what they reported last. All checks of what they report read
// the same pages, so that their number costs no requests.
type knownReplicas struct {
	opened   []cli.Replica // those that do not respond among them
	all      []cli.Replica
	pages    []cli.Response[debug.ClustersPage] // empty if no replica responds
	problems debug.ProblemsPage                 // of all of them, each once
}

// refresh reads all of them again, at the same time. What those reported that do not respond stays only if none
// responds.
func (k *knownReplicas) refresh(ctx context.Context) {
	if pages, _ := cli.FetchAll[debug.ClustersPage](ctx, k.all, "/debug/clusters"); len(pages) > 0 {
		k.pages = pages
	}
	if pages, _ := cli.FetchAll[debug.ProblemsPage](ctx, k.all, "/debug/problems"); len(pages) > 0 {
		k.problems = mergeProblems(pages)
	}
}

// A clusterReport is what one of them reports of a cluster.
type clusterReport = cli.Response[debug.Cluster]

// clusters returns what each of them reports of the clusters that match.
func (k *knownReplicas) clusters(match func(debug.Cluster) bool) (all []clusterReport) {
	for _, page := range k.pages {
		for _, c := range page.Page.Clusters {
			if match(c) {
				all = append(all, clusterReport{Replica: page.Replica, Page: c})
			}
		}
	}
	return all
}

// local returns what each of them reports of the local cluster.
func (k *knownReplicas) local() []clusterReport {
	return k.clusters(func(c debug.Cluster) bool { return c.Local })
}

// leaseUse returns what they report of a Lease in the local cluster.
func (k *knownReplicas) leaseUse(name string) leaseUse {
	use := leaseUse{shared: name == linkerd.ExternalWorkloadsLease}
	for _, r := range k.local() {
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

// checkReplicas returns the replicas, and what they report.
func (e *environment) checkReplicas(ctx context.Context, runner *runner) *knownReplicas {
	known := &knownReplicas{}
	open := func(context.Context) error { return e.openReplicas(ctx, known) }
	if !runner.must(ctx, replicaCategory.retried("replicas are ready", "replicas-are-ready", open)) {
		return known
	}

	responds := make([]bool, len(known.opened))
	var checks []check
	for i, replica := range known.opened {
		ask := func(ctx context.Context) error {
			err := replica.Fetch(ctx, "/debug/clusters", &debug.ClustersPage{})
			responds[i] = err == nil
			return err
		}
		checks = append(checks, replicaCategory.decided(replica.Name+" answers", "replicas-are-ready", ask))
	}

	runner.run(ctx, checks...)
	for i, replica := range known.opened {
		if responds[i] {
			known.all = append(known.all, replica)
		}
	}

	if ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, runner.timeout)
		defer cancel()
		known.refresh(once)
	}
	runner.run(ctx, known.replicaChecks()...)
	return known
}

// openReplicas opens the way to every replica.
func (e *environment) openReplicas(ctx context.Context, known *knownReplicas) error {
	opened, err := e.open(ctx)
	if err != nil {
		return err
	}
	for _, replica := range opened {
		if replica.Err != nil {
			cli.CloseAll(opened)
			return replica.Err
		}
	}
	known.opened = opened
	return nil
}

// replicaChecks check each replica that responds, and compare it with the first one.
func (k *knownReplicas) replicaChecks() []check {
	checks := []check{
		replicaCategory.retried("the last state of each cluster can be saved", "state-can-be-saved", k.checkSaved),
	}
	for i := 1; i < len(k.all); i++ {
		pair := []cli.Replica{k.all[0], k.all[i]}
		agrees := replicaCategory.retried(pair[1].Name+" agrees with "+pair[0].Name, "replicas-agree",
			func(ctx context.Context) error { return compareReplicas(ctx, pair) })
		agrees.takes = settle
		checks = append(checks, agrees)
	}
	return checks
}

// checkSaved reports replicas that cannot write their -state-dir. It applies to those that have one.
func (k *knownReplicas) checkSaved(context.Context) error {
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
	all := sets.New[string]()
	for _, page := range k.pages {
		for _, c := range page.Page.Clusters {
			all.Insert(c.Name)
		}
	}
	return sets.List(all)
}

// reported returns a check of what is reported of a cluster. It does not apply to one that was unlinked meanwhile.
func (k *knownReplicas) reported(name string, check func([]clusterReport) error) func(context.Context) error {
	return func(context.Context) error {
		all := k.clusters(func(c debug.Cluster) bool { return c.Name == name })
		if len(all) == 0 {
			return errSkipped
		}
		return check(all)
	}
}

// clusterChecks check what replicas report of each cluster.
func (k *knownReplicas) clusterChecks() (checks []check) {
	for _, name := range k.names() {
		checks = append(checks,
			clusterCategory.retried(name+" is in contact", "a-cluster-is-in-contact", k.reported(name, k.checkContact)),
			clusterCategory.retried("the newest credentials of "+name+" are in use", "credentials-are-in-use",
				k.reported(name, k.checkCredentials)),
			clusterCategory.retried("everything in "+name+" may be read", "everything-may-be-read",
				k.reported(name, checkReadable)),
			clusterCategory.decided(name+" is the cluster that it should be", "a-cluster-is-the-one-that-it-should-be",
				k.reported(name, k.checkConsistent)))
	}
	return checks
}

// writerChecks check what keeps replicas from writing in each cluster.
func (k *knownReplicas) writerChecks() (checks []check) {
	for _, name := range k.names() {
		checks = append(checks, writerCategory.retried("nothing keeps Fingerpost from writing in "+name,
			"nothing-keeps-from-writing", k.reported(name, k.checkWriting)))
	}
	return checks
}

// checkContact returns the worst state of a cluster, which is a warning for Suspect.
func (k *knownReplicas) checkContact(reported []clusterReport) error {
	rank := func(r clusterReport) int { return slices.Index(federation.ClusterStates, r.Page.State) }
	worst := slices.MaxFunc(reported, func(a, b clusterReport) int { return cmp.Compare(rank(a), rank(b)) })
	c := worst.Page
	reason := c.OutOfContact()
	if reason == "" {
		return nil
	}

	err := fmt.Errorf("it is %s%s, last contact %s: %s",
		c.State, k.suffix(worst.Replica), debug.Ago(c.LastContact, time.Now()), reason)
	if c.State == federation.Suspect {
		return warning{err}
	}
	return err
}

func (k *knownReplicas) checkCredentials(reported []clusterReport) error {
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
func checkReadable(reported []clusterReport) error {
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
		return permanentWarningf("what depends on it is left out: grant get, list and watch on %s",
			strings.Join(refused, ", "))
	}
}

// checkWriting returns what keeps replicas from writing in a cluster. It does not apply where nothing is to be
// written.
func (k *knownReplicas) checkWriting(reported []clusterReport) error {
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
func (k *knownReplicas) checkConsistent(reported []clusterReport) error {
	var worst error
	for _, r := range reported {
		var errs []error
		for _, m := range r.Page.Mismatches() {
			err := fmt.Errorf("%s%s", m.Message, k.suffix(r.Replica))
			if m.Reason == cluster.ClockSkew {
				err = warning{err}
			}
			errs = append(errs, err)
		}

		err := joinWarnings(errs...)
		if err != nil && !isWarning(err) {
			return err
		}
		worst = cmp.Or(worst, err)
	}

	return worst
}
