package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/links"
)

// linkReports are what replicas report of one Link.
type linkReports []cli.Response[links.LinkStatus]

// links returns what they report of each Link, by namespace/name.
func (k *knownReplicas) links() map[string]linkReports {
	all := map[string]linkReports{}
	for _, page := range k.pages {
		for _, l := range page.Page.Links {
			name := l.String()
			all[name] = append(all[name], cli.Response[links.LinkStatus]{Replica: page.Replica, Page: l})
		}
	}
	return all
}

// linkChecks check Links: as replicas report them, and as the API server has them.
func (e *environment) linkChecks(known *knownReplicas) (checks []check) {
	checks = append(checks,
		noLinkHeld.decided("no Link was deleted with many others", known.checkHeld),
		hasLink.decided("every cluster has its Link", known.checkWithoutLink),
		linksRead.retried("every Link is read", e.asking(func(ctx context.Context) error {
			shown, err := e.listLinks(ctx)
			if err != nil {
				return err
			}
			return known.checkRead(shown)
		})),
		linksShown.retried("Links show what replicas report",
			e.asking(func(ctx context.Context) error {
				shown, err := e.listLinks(ctx)
				if err != nil {
					return errSkipped // as was reported
				}
				return known.checkShown(shown)
			})))

	all := known.links()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		link := all[name][0].Page
		checks = append(checks,
			linkAsIs.retried("all conditions of Link "+name+" are True",
				func(context.Context) error { return known.checkConditions(link) }),
			areMirrored.retried("the Services that Link "+name+" selects are mirrored",
				func(context.Context) error { return known.checkMirrored(link, known.links()[name]) }))
	}
	return checks
}

// listLinks returns all Links of the local cluster. The error is errSkipped without a CRD, as another check reports.
func (e *environment) listLinks(ctx context.Context) ([]unstructured.Unstructured, error) {
	_, all, err := cli.ListLinks(ctx, e.config, "")
	switch {
	case errors.Is(err, cli.ErrNoLinks):
		return nil, errSkipped
	case apierrors.IsForbidden(err):
		return nil, permanentWarningf("Links cannot be listed with your permissions: %w", err)
	}
	return all, err
}

// checkRead reports the Links that no replica reads.
func (k *knownReplicas) checkRead(shown []unstructured.Unstructured) error {
	read := k.links()
	var unread []string
	for _, link := range shown {
		if name := link.GetNamespace() + "/" + link.GetName(); read[name] == nil {
			unread = append(unread, name)
		}
	}
	if len(unread) == 0 {
		return nil
	}
	return warningf("%s: not in the namespace that -link-namespace names", strings.Join(unread, ", "))
}

// checkHeld reports Links that were deleted and whose clusters stay linked for a grace: most of them at once.
func (k *knownReplicas) checkHeld(context.Context) error {
	all := k.find(noLinkHeld.has)
	if len(all) == 0 {
		return nil
	}

	var names []string
	for _, r := range all {
		names = append(names, r.Page.Object.Namespace+"/"+r.Page.Object.Name)
	}
	slices.Sort(names)
	first := all[0].Page
	return failing{permanentErrorf("%s: deleted %s: %s",
		strings.Join(firstOf(names), ", "), debug.Ago(first.Since, time.Now()), first.Message()), first.Class}
}

// checkWithoutLink reports clusters whose Link was deleted, perhaps, and whose labelled Secret was not.
func (k *knownReplicas) checkWithoutLink(context.Context) error {
	return k.checkProblems(hasLink.has, plainText)
}

// checkShown reports conditions of Links that differ from what all replicas report: no replica writes them. It does not
// apply where none is to.
func (k *knownReplicas) checkShown(shown []unstructured.Unstructured) error {
	writes := func(page cli.Response[debug.ClustersPage]) bool { return !page.Page.ReadOnly }
	if len(k.pages) > 0 && !slices.ContainsFunc(k.pages, writes) {
		return errSkipped
	}

	all := k.links()
	var wrong []string
	for _, link := range shown {
		name := link.GetNamespace() + "/" + link.GetName()
		if text := contradiction(cli.ConditionsOf(&link), all[name]); text != "" {
			wrong = append(wrong, fmt.Sprintf("Link %s shows %s", name, text))
		}
	}

	if len(wrong) == 0 {
		return nil
	}
	return warningf("%s\nthe holder of the Lease fingerpost-<installation> writes them: see the checks of writers",
		strings.Join(firstOf(wrong), "\n"))
}

// comparedConditions do not depend on which replica computes them, as long as they are in contact in the same way.
var comparedConditions = []string{links.Accepted, links.CredentialsValid, links.Connected, links.Synced}

// contradiction describes the first condition that replicas agree on and that is shown otherwise; empty for none.
func contradiction(shown []metav1.Condition, reports linkReports) string {
	for _, kind := range comparedConditions {
		reported := sets.New[metav1.ConditionStatus]()
		for _, r := range reports {
			if r.Page.ConditionsUnsupported {
				return ""
			}
			if c := meta.FindStatusCondition(r.Page.Conditions, kind); c != nil {
				reported.Insert(c.Status)
			} else {
				reported.Insert("")
			}
		}

		if len(reported) != 1 || reported.Has("") {
			continue
		}
		agreed := sets.List(reported)[0]
		if c := meta.FindStatusCondition(shown, kind); c == nil {
			return fmt.Sprintf("no condition %s, and replicas report %s", kind, agreed)
		} else if c.Status != agreed {
			return fmt.Sprintf("%s=%s (%s), and replicas report %s", kind, c.Status, c.Reason, agreed)
		}
	}
	return ""
}

// checkConditions returns what is wrong with a Link, and with its cluster as far as no other check has it. Without
// Accepted and CredentialsValid the Link does not do its work; the others are warnings.
func (k *knownReplicas) checkConditions(link links.LinkStatus) error {
	return k.checkProblems(func(p problem.Problem) bool {
		switch {
		case p.Object.Kind == "Cluster":
			return p.Cluster == link.Cluster && linkAsIs.has(p)
		case noLinkHeld.has(p), areMirrored.has(p), p.Severity == problem.Information:
			return false
		default:
			return p.Object == problem.Object{Kind: "Link", Namespace: link.Namespace, Name: link.Name}
		}
	}, func(p problem.Problem, _ string) string { return p.Reason + ": " + p.Message() })
}

// checkMirrored returns the Services that a Link selects and that are not mirrored, and those that may be meant to be.
func (k *knownReplicas) checkMirrored(link links.LinkStatus, reports linkReports) error {
	mirrors := func(r cli.Response[links.LinkStatus]) bool { return r.Page.Mirror != nil }
	if !slices.ContainsFunc(reports, mirrors) {
		return errSkipped // no replica mirrors Services, which the checks of writers report
	}
	return k.checkProblems(func(p problem.Problem) bool {
		return areMirrored.has(p) &&
			p.Object == problem.Object{Kind: "Link", Namespace: link.Namespace, Name: link.Name}
	}, plainText)
}
