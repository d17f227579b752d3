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

// inContact reports whether one of them is in contact with a cluster.
func (k *knownReplicas) inContact(name string) bool {
	return slices.ContainsFunc(k.clusters(hasName(name)), func(r cli.Response[debug.Cluster]) bool {
		return r.Page.State == cluster.Live
	})
}

// wantLease reports whether one of them holds a Lease in a cluster, or waits for it.
func (k *knownReplicas) wantLease(lease string, match func(debug.Cluster) bool) bool {
	return slices.ContainsFunc(k.clusters(match), func(r cli.Response[debug.Cluster]) bool {
		return slices.Contains(r.Page.Writing.Wanted, lease)
	})
}

// readsLink reports whether one of them reads a Link, or none responds.
func (k *knownReplicas) readsLink(namespace, name string) bool {
	isThis := func(l links.LinkStatus) bool { return l.Namespace == namespace && l.Name == name }
	return len(k.pages) == 0 || slices.ContainsFunc(k.pages, func(r cli.Response[debug.ClustersPage]) bool {
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
	r.check(ctx, check{description: "replicas are ready", anchor: "replicas-are-ready", retry: true, run: open})
	for _, replica := range all {
		var page debug.ClustersPage
		fetch := func(ctx context.Context) error { return cli.FetchPage(ctx, replica, "/debug/clusters", &page) }
		responds := r.check(ctx, check{
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
		r.check(ctx, check{
			description: other.Name + " agrees with " + first.Name, anchor: "replicas-agree", retry: true,
			run: func(context.Context) error { return compareReplicas(ctx, first, other, r.timeout) },
		})
	}
	return known, done
}

// compareReplicas returns how two replicas differ. It takes longer than the timeout of a response, because
// differences have to last.
func compareReplicas(ctx context.Context, first, other cli.Replica, timeout time.Duration) error {
	const settle = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout+settle)
	defer cancel()
	differences, err := cli.Compare(ctx, [2]cli.Replica{first, other}, settle)
	if err != nil || len(differences) == 0 {
		return err
	}
	d := differences[0]
	return warningf("they differ in %d places, such as %s %s: %s; see 'fingerpost diff'",
		len(differences), d.Cluster, d.Service, d.What)
}

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
		r.check(ctx, check{
			description: name + " is in contact", anchor: "a-cluster-is-in-contact", retry: true,
			run: refreshed(known.checkContact),
		})
		r.check(ctx, check{
			description: "the newest credentials of " + name + " are in use", anchor: "credentials-are-in-use",
			retry: true, run: refreshed(known.checkCredentials),
		})
		r.check(ctx, check{
			description: "everything in " + name + " may be read", anchor: "everything-may-be-read", retry: true,
			run: refreshed(checkReadable),
		})
	}
	for _, name := range names {
		r.check(ctx, check{
			description: "nothing keeps Fingerpost from writing in " + name, anchor: "nothing-keeps-from-writing",
			run: func(context.Context) error { return known.checkWriting(name) },
		})
	}
	acceptedErrs := map[string]error{} // by Link
	for _, page := range known.pages {
		for _, l := range page.Page.Links {
			name := l.Namespace + "/" + l.Name
			acceptedErrs[name] = cmp.Or(acceptedErrs[name], checkAccepted(l))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(acceptedErrs)) {
		r.check(ctx, check{
			description: "Link " + name + " is accepted", anchor: "a-link-is-accepted",
			run: func(context.Context) error { return acceptedErrs[name] },
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
			required = required || slices.ContainsFunc(readPermissions, func(p permission) bool {
				return p.required && kind.Kind == p.String()
			})
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

func checkAccepted(l links.LinkStatus) error {
	for _, c := range l.Conditions {
		if c.Type == links.Accepted && c.Status == metav1.ConditionFalse {
			return fmt.Errorf("%s: %s", c.Reason, c.Message)
		}
	}
	return nil
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
	r.check(ctx, check{
		description: "no mirrored or federated Service is malformed", anchor: "no-service-is-malformed",
		retry: true, run: run,
	})
}
