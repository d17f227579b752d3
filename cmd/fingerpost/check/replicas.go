package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/federation"
)

// knownReplicas are the replicas that respond, and what they reported last. All checks of what they report read
// the same pages, so that their number costs no requests.
type knownReplicas struct {
	opened   []cli.Replica // those that do not respond among them
	ways     []cli.Way     // to the gRPC servers of those opened
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
type clusterReport = cli.Response[debug.ClusterEntry]

// clusters returns what each of them reports of the clusters that match.
func (k *knownReplicas) clusters(match func(debug.ClusterEntry) bool) (all []clusterReport) {
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
	return k.clusters(func(c debug.ClusterEntry) bool { return c.Local })
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
	if !runner.must(ctx, replicasReady.retried("replicas are ready", open)) {
		return known
	}

	responds := make([]bool, len(known.opened))
	var checks []check

	for i, replica := range known.opened {
		ask := func(ctx context.Context) error {
			var page debug.ClustersPage
			err := replica.Fetch(ctx, "/debug/clusters", &page)
			responds[i] = err == nil

			if err == nil && page.Problems == nil {
				return warningf("its version reports no problems: most of them are not found, use its own command")
			}
			return err
		}
		checks = append(checks, replicasReady.decided(replica.Name+" answers", ask))
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
	runner.run(ctx, slices.Concat(e.versionChecks(known), e.wayChecks(known), known.replicaChecks())...)
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

	ways, err := e.ways(opened)
	if err != nil {
		cli.CloseAll(opened)
		return permanent{err}
	}
	known.opened, known.ways = opened, ways
	return nil
}

// versionChecks compare the versions of the replicas that respond, and that of this command.
func (e *environment) versionChecks(known *knownReplicas) []check {
	return []check{
		versionsAgree.decided("replicas have one version", func(ctx context.Context) error {
			pages, _ := cli.FetchAll[debug.VersionPage](ctx, known.all, "/debug/version")
			if len(pages) == 0 {
				return errSkipped // which other checks report, or the version is too old to report itself
			}
			return checkVersions(pages, e.version)
		}),
	}
}

// checkVersions reports replicas of several versions, or a command of another one.
func checkVersions(pages []cli.Response[debug.VersionPage], own string) error {
	all := sets.New[string]()
	var texts []string
	for _, r := range pages {
		all.Insert(r.Page.Version)
		texts = append(texts, r.Page.Version+" in "+r.Replica)
	}

	version := pages[0].Page.Version
	switch {
	case all.Len() > 1:
		return warningf("%s: if no rollout is under way, let all replicas have one image",
			strings.Join(firstOf(texts), ", "))
	case own != "" && own != version:
		return warningf("they have %s, and this command %s: one of their version knows all that they report",
			version, own)
	}
	return detail(version)
}

// replicaChecks check each replica that responds, and compare it with the first one.
func (k *knownReplicas) replicaChecks() []check {
	checks := []check{
		stateSaved.retried("the last state of each cluster can be saved", k.ofReplica(stateSaved)),
		handOver.retried("other replicas hand over what they know", k.ofReplica(handOver)),
		filesRead.retried("all files can be read", k.ofReplica(filesRead)),
	}

	for i := 1; i < len(k.all); i++ {
		pair := []cli.Replica{k.all[0], k.all[i]}
		agrees := replicasAgree.retried(pair[1].Name+" agrees with "+pair[0].Name,
			func(ctx context.Context) error { return compareReplicas(ctx, pair) })
		agrees.takes = settle
		checks = append(checks, agrees)
	}
	return checks
}

// ofReplica returns a check of a subject, in what replicas report of themselves.
func (k *knownReplicas) ofReplica(s subject) func(context.Context) error {
	return func(context.Context) error { return k.checkProblems(s.has, replicaText) }
}

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

// lasting are the classes that do not pass by themselves.
var lasting = []problem.Class{
	problem.Expired, problem.ExpiresSoon, problem.Forbidden, problem.ReadOnly, problem.LeftTo, problem.SecretAlone,
	problem.LinkDeleted,
}

// A match decides which Problems a check reports.
type match func(problem.Problem) bool

// find returns the Problems that match, each once, with the words of one replica that reports it, the worst first.
func (k *knownReplicas) find(matches match) (all []cli.Response[problem.Problem]) {
	for _, severity := range []problem.Severity{problem.Urgent, problem.Warning, problem.Information} {
		for _, page := range k.pages {
			for _, p := range page.Page.Problems {
				same := func(o cli.Response[problem.Problem]) bool {
					return o.Page.Class == p.Class && o.Page.Reason == p.Reason && o.Page.Object == p.Object
				}
				if p.Severity == severity && matches(p) && !slices.ContainsFunc(all, same) {
					all = append(all, cli.Response[problem.Problem]{Replica: page.Replica, Page: p})
				}
			}
		}
	}
	return all
}

// checkProblems returns the Problems that match as text renders them. suffix names the replica. The error is a warning
// if none is urgent.
func (k *knownReplicas) checkProblems(matches match, text func(p problem.Problem, suffix string) string) error {
	var lines []string
	urgent, lasts := false, true
	found := k.find(matches)
	for _, r := range found {
		lines = append(lines, text(r.Page, k.suffix(r.Replica)))
		urgent = urgent || r.Page.IsUrgent()
		lasts = lasts && slices.Contains(lasting, r.Page.Class)
	}
	if len(lines) == 0 {
		return nil
	}

	err := errors.New(strings.Join(firstOf(lines), "\n"))
	if !urgent {
		err = warning{err}
	}
	if lasts {
		err = permanent{err}
	}
	return failing{err, found[0].Page.Class}
}

// replicaText renders a Problem with the replica that reports it.
func replicaText(p problem.Problem, suffix string) string {
	p.Text += suffix
	return p.Message()
}

// plainText renders a Problem of which it does not matter which replica reports it.
func plainText(p problem.Problem, _ string) string { return p.Message() }

// contactText renders that a cluster is out of contact.
func contactText(p problem.Problem, suffix string) string {
	last := "never"
	if p.Class != problem.Connecting {
		last = debug.Ago(p.Since, time.Now())
	}
	return fmt.Sprintf("it is %s%s, last contact %s: %s", p.Class, suffix, last, p.Message())
}

// ofCluster returns a check of a subject, in what is reported of a cluster. It does not apply to one that was unlinked
// meanwhile.
func (k *knownReplicas) ofCluster(name string, about subject) func(context.Context) error {
	return func(context.Context) error {
		if !slices.Contains(k.names(), name) {
			return errSkipped
		}

		text := func(p problem.Problem, suffix string) string {
			if problem.IsContact(p.Class) {
				return contactText(p, suffix)
			}
			return replicaText(p, suffix)
		}
		return k.checkProblems(func(p problem.Problem) bool {
			isReported := p.Class == problem.Requests && p.Repeats // with the objects that they are about
			return p.Object.Kind == "Cluster" && p.Cluster == name && about.has(p) && !isReported
		}, text)
	}
}

// identityOf reports what replicas find of the identity of a cluster. That they cannot know whether it shares a trust
// anchor with the local one is no fault: its credentials need not read that.
func (k *knownReplicas) identityOf(name string) func(context.Context) error {
	found := k.ofCluster(name, hasIdentity)
	return func(ctx context.Context) error {
		if err := found(ctx); err != nil {
			return err
		}

		for _, page := range k.pages {
			ours, theirs := anchorsIn(page.Page, name)
			switch {
			case theirs == nil || (len(ours) == 0) == (len(*theirs) == 0):
			case len(ours) == 0:
				return detail("unknown whether it shares a trust anchor with this cluster, whose own cannot be read" +
					k.suffix(page.Replica))
			default:
				return detail("unknown whether it shares a trust anchor with this cluster: ConfigMap " +
					linkerd.AnchorsName + " cannot be read there" + k.suffix(page.Replica))
			}
		}
		return nil
	}
}

// anchorsIn returns the trust anchors of the local cluster, and of another one; nil if that is the local one, or is not
// known to the replica.
func anchorsIn(page debug.ClustersPage, name string) (ours []linkerd.Anchor, theirs *[]linkerd.Anchor) {
	for _, c := range page.Clusters {
		switch {
		case c.Local:
			ours = c.Identity.Anchors
		case c.Name == name:
			theirs = &c.Identity.Anchors
		}
	}
	return ours, theirs
}

// clusterChecks check what replicas report of each cluster.
func (k *knownReplicas) clusterChecks() (checks []check) {
	for _, name := range k.names() {
		checks = append(checks,
			inContact.retried(name+" is in contact"+k.drainText(name), k.ofCluster(name, inContact)),
			credentialsWork.retried("the newest credentials of "+name+" work", k.ofCluster(name, credentialsWork)),
			kindsReadable.retried("all required resources in "+name+" are readable", k.ofCluster(name, kindsReadable)),
			requestsServed.retried(name+" does what it is asked for", k.ofCluster(name, requestsServed)),
			hasIdentity.decided(name+" has the expected identity", k.identityOf(name)))
	}
	return append(checks, k.policyChecks()...)
}

// policyChecks check what replicas report of policy, if one of them serves it.
func (k *knownReplicas) policyChecks() (checks []check) {
	isServed := slices.ContainsFunc(k.pages, func(r cli.Response[debug.ClustersPage]) bool { return r.Page.Policy })
	if !isServed {
		return nil
	}

	for _, local := range k.local()[:min(len(k.local()), 1)] {
		name := local.Page.Name
		checks = append(checks,
			policyUsable.decided("all objects of policy can be used", k.ofCluster(name, policyUsable)))
	}
	checks = append(checks, policyFits.retried("policy fits into messages", k.ofReplica(policyFits)))
	for _, name := range k.names() {
		checks = append(checks, insideNetworks.decided("endpoints of "+name+" are inside of -cluster-networks",
			k.ofCluster(name, insideNetworks)))
	}
	return checks
}

// drainText returns what stands beside a cluster that is drained, which is no problem; empty for any other.
func (k *knownReplicas) drainText(name string) string {
	for _, found := range k.clusters(func(c debug.ClusterEntry) bool { return c.Name == name }) {
		if text := debug.DrainText(found.Page.Traffic.Drain); text != "" {
			return ", and " + text
		}
	}
	return ""
}

// writerChecks check what keeps replicas from writing in each cluster.
func (k *knownReplicas) writerChecks() (checks []check) {
	for _, name := range k.names() {
		checks = append(checks, canWrite.retried("Fingerpost can write to "+name, k.checkWriting(name)))
	}
	return checks
}

func isLive(name string) func(debug.ClusterEntry) bool {
	return func(c debug.ClusterEntry) bool { return c.Name == name && c.State == federation.Live }
}

// checkWriting returns what keeps replicas from writing in a cluster. It does not apply where nothing is to be written,
// nor to one that is out of contact, which is reported of that.
func (k *knownReplicas) checkWriting(name string) func(context.Context) error {
	return func(context.Context) error {
		err := k.checkProblems(func(p problem.Problem) bool {
			return p.Cluster == name && p.Severity != problem.Information && canWrite.has(p)
		}, replicaText)
		if err != nil {
			return err
		}

		isWritable := false
		for _, c := range k.clusters(isLive(name)) {
			if c.Page.Writing.State == cluster.Reviewing {
				return warningf("the permissions are not known yet")
			}
			isWritable = isWritable || c.Page.Writing.State.IsWritable()
		}
		if !isWritable {
			return errSkipped
		}
		return nil
	}
}
