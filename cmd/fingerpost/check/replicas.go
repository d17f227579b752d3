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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/links"
)

// knownReplicas are the replicas that respond, and what they reported last.
type knownReplicas struct {
	all   []cli.Replica
	pages []cli.Response[debug.ClustersPage] // empty if no replica responds
}

// refresh reads all of them again. If none responds, the pages read before stay.
func (k *knownReplicas) refresh(ctx context.Context) error {
	pages, err := cli.FetchAll[debug.ClustersPage](ctx, k.all, "/debug/clusters")
	if len(pages) > 0 {
		k.pages = pages
	}
	return err
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

// readsLink reports whether one of them reads a Link.
func (k *knownReplicas) readsLink(namespace, name string) bool {
	isThis := func(l links.LinkStatus) bool { return l.Namespace == namespace && l.Name == name }
	return slices.ContainsFunc(k.pages, func(r cli.Response[debug.ClustersPage]) bool {
		return slices.ContainsFunc(r.Page.Links, isThis)
	})
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
	r.beginCategory("fingerpost-replicas")
	known, done = &knownReplicas{}, func() {}
	var all []cli.Replica
	open := func(context.Context) error {
		opened, end, err := e.Open(ctx)
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
	r.runCheck(ctx, check{description: "replicas are ready", anchor: "replicas-are-ready", retry: true, run: open})
	for _, replica := range all {
		var page debug.ClustersPage
		fetch := func(ctx context.Context) error { return cli.FetchPage(ctx, replica, "/debug/clusters", &page) }
		responds := r.runCheck(ctx, check{
			description: replica.Name + " answers", anchor: "replicas-are-ready", retry: true, run: fetch,
		})
		if responds {
			known.all = append(known.all, replica)
			known.pages = append(known.pages, cli.Response[debug.ClustersPage]{Replica: replica.Name, Page: page})
		}
	}
	for i := range known.all {
		if i == 0 {
			continue
		}
		first, other := known.all[0], known.all[i]
		r.runCheck(ctx, check{
			description: other.Name + " agrees with " + first.Name, anchor: "replicas-agree", retry: true,
			run: func(context.Context) error { return compareReplicas(ctx, first, other, r.timeout) },
		})
	}
	return known, done
}

// minExpiry is how long credentials should still be valid.
const minExpiry = time.Hour

// requiredKinds are those without which a cluster cannot be synced.
var requiredKinds = []string{"services", "pods", "endpointslices.discovery.k8s.io", "endpoints"}

// states of clusters, the best first.
var states = []cluster.State{cluster.Live, cluster.Suspect, cluster.Connecting, cluster.Stale}

// checkClusters checks what replicas report of each cluster and Link.
func checkClusters(ctx context.Context, r *runner, known *knownReplicas) {
	r.beginCategory("fingerpost-clusters")
	nameSet := map[string]bool{}
	for _, c := range known.clusters(func(debug.Cluster) bool { return true }) {
		nameSet[c.Page.Name] = true
	}
	names := slices.Sorted(maps.Keys(nameSet))
	for _, name := range names {
		refreshed := func(check func([]cli.Response[debug.Cluster]) error) func(context.Context) error {
			return func(ctx context.Context) error {
				if err := known.refresh(ctx); err != nil {
					return err
				}
				reported := known.clusters(hasName(name))
				if len(reported) == 0 {
					return errSkipped // it was unlinked
				}
				return check(reported)
			}
		}
		r.runCheck(ctx, check{
			description: name + " is in contact", anchor: "a-cluster-is-in-contact", retry: true,
			run: refreshed(known.checkContact),
		})
		r.runCheck(ctx, check{
			description: "the newest credentials of " + name + " are in use", anchor: "credentials-are-in-use",
			retry: true, run: refreshed(known.checkCredentials),
		})
		r.runCheck(ctx, check{
			description: "everything in " + name + " may be read", anchor: "everything-may-be-read", retry: true,
			run: refreshed(checkReadable),
		})
	}
	for _, name := range names {
		r.runCheck(ctx, check{
			description: name + " is the cluster that it should be", anchor: "a-cluster-is-the-one-that-it-should-be",
			run: func(context.Context) error { return known.checkConsistent(name) },
		})
		r.runCheck(ctx, check{
			description: "nothing keeps Fingerpost from writing in " + name, anchor: "nothing-keeps-from-writing",
			run: func(context.Context) error { return known.checkWriting(name) },
		})
	}
	conditionErrs := map[string]error{} // by Link
	for _, page := range known.pages {
		for _, l := range page.Page.Links {
			name := l.Namespace + "/" + l.Name
			conditionErrs[name] = cmp.Or(conditionErrs[name], checkConditions(l))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(conditionErrs)) {
		r.runCheck(ctx, check{
			description: "the conditions of Link " + name + " hold", anchor: "conditions-of-a-link-hold",
			run: func(context.Context) error { return conditionErrs[name] },
		})
	}
}

// checkContact returns the worst state of a cluster, which is a warning for Suspect.
func (k *knownReplicas) checkContact(reported []cli.Response[debug.Cluster]) error {
	rank := func(r cli.Response[debug.Cluster]) int { return slices.Index(states, r.Page.State) }
	worst := slices.MaxFunc(reported, func(a, b cli.Response[debug.Cluster]) int {
		return cmp.Compare(rank(a), rank(b))
	})
	c := worst.Page
	if c.State == cluster.Live {
		return nil
	}
	reason := cmp.Or(c.Contact, c.Credentials, "it was never synced")
	err := fmt.Errorf("it is %s%s, last contact %s: %s",
		c.State, k.suffix(worst.Replica), debug.Ago(c.LastContact, time.Now()), reason)
	if c.State == cluster.Suspect {
		return warning{error: err}
	}
	return err
}

func (k *knownReplicas) checkCredentials(reported []cli.Response[debug.Cluster]) error {
	for _, r := range reported {
		if c := r.Page; c.Credentials != "" {
			return fmt.Errorf("%s; in use%s: %s", c.Credentials, k.suffix(r.Replica), cmp.Or(c.Source, "none"))
		}
	}
	now := time.Now()
	for _, r := range reported { // the local token is rotated by the kubelet
		switch left := r.Page.Expires.Sub(now); {
		case r.Page.Local || r.Page.Expires.IsZero():
		case left <= 0:
			return fmt.Errorf("the token or certificate has expired %s ago: 'fingerpost link rotate' makes new ones",
				debug.Age(r.Page.Expires, now))
		case left < minExpiry:
			return permanentWarningf("the token or certificate expires in %s: 'fingerpost link rotate' makes new ones",
				left.Round(time.Second))
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
		for _, kind := range r.Page.Kinds {
			text := kind.Kind + " (" + string(kind.Refused) + ")"
			if kind.Refused == "" || kind.Refused == metav1.StatusReasonNotFound || slices.Contains(refused, text) {
				continue
			}
			refused = append(refused, text)
			required = required || slices.Contains(requiredKinds, kind.Kind)
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

// checkWriting returns what keeps replicas from writing in a cluster. It does not apply where there is
// nothing to write, or no permission.
func (k *knownReplicas) checkWriting(name string) error {
	err := errSkipped
	for _, r := range k.clusters(hasName(name)) {
		switch w := r.Page.Writing; {
		case w.State == cluster.NotWriting || w.State == cluster.ReadOnly:
		case w.Problem != "":
			return warningf("%s%s", w.Problem, k.suffix(r.Replica))
		default:
			err = nil
		}
	}
	return err
}

// checkConsistent returns how a cluster differs from what its Link describes. That its clock is off is a
// warning. The worst replica counts.
func (k *knownReplicas) checkConsistent(name string) error {
	reported := k.clusters(hasName(name))
	if len(reported) == 0 {
		return errSkipped // it was unlinked
	}
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

// reportedElsewhere are conditions that other checks report, and Writable, which an operator may leave False.
var reportedElsewhere = []string{links.Connected, links.Synced, links.Consistent, links.Writable}

// checkConditions returns the conditions of a Link that are False. Without Accepted and CredentialsValid the
// Link does not do its work; the others are warnings.
func checkConditions(l links.LinkStatus) error {
	var errs []error
	for _, c := range l.Conditions {
		if c.Status != metav1.ConditionFalse || slices.Contains(reportedElsewhere, c.Type) {
			continue
		}
		err := fmt.Errorf("%s: %s", c.Reason, c.Message)
		if c.Type != links.Accepted && c.Type != links.CredentialsValid {
			err = warning{error: err}
		}
		errs = append(errs, err)
	}
	return joinWarnings(errs...)
}

func checkServices(ctx context.Context, r *runner, known *knownReplicas) {
	r.beginCategory("fingerpost-services")
	run := func(ctx context.Context) error {
		pages, err := cli.FetchAll[debug.MalformedPage](ctx, known.all, "/debug/malformed")
		if err != nil {
			return err
		}
		all := debug.MalformedPage{}
		for _, page := range pages {
			maps.Copy(all, page.Page)
		}
		var errs []error
		for _, name := range slices.Sorted(maps.Keys(all)) {
			errs = append(errs, fmt.Errorf("%s: %s", name, all[name]))
		}
		return errors.Join(errs...)
	}
	r.runCheck(ctx, check{
		description: "no mirrored or federated Service is malformed", anchor: "no-service-is-malformed",
		retry: true, run: run,
	})
}
