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
		linkCategory.decided("no Link was deleted with many others", "no-link-is-held", known.checkHeld),
		linkCategory.decided("every cluster has its Link", "every-cluster-has-its-link", known.checkWithoutLink),
		linkCategory.retried("every Link is read", "every-link-is-read", func(ctx context.Context) error {
			shown, err := e.listLinks(ctx)
			if err != nil {
				return err
			}
			return known.checkRead(shown)
		}),
		linkCategory.retried("Links show what replicas report", "links-show-what-replicas-report",
			func(ctx context.Context) error {
				shown, err := e.listLinks(ctx)
				if err != nil {
					return errSkipped // as was reported
				}
				return known.checkShown(shown)
			}))

	for _, name := range slices.Sorted(maps.Keys(known.links())) {
		reported := func(check func(linkReports) error) func(context.Context) error {
			return func(context.Context) error { return check(known.links()[name]) }
		}
		checks = append(checks,
			linkCategory.retried("the conditions of Link "+name+" hold", "conditions-of-a-link-hold",
				reported(checkConditions)),
			linkCategory.retried("the Services that Link "+name+" selects are mirrored", "services-are-mirrored",
				reported(checkMirrored)))
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

// checkHeld reports Links that were deleted and whose clusters stay linked for a grace.
func (k *knownReplicas) checkHeld(context.Context) error {
	var names []string
	var deleted time.Time
	reason := ""
	for name, reports := range k.links() {
		for _, r := range reports {
			if r.Page.Held != "" && !slices.Contains(names, name) {
				names, deleted, reason = append(names, name), r.Page.Deleted, r.Page.Held
			}
		}
	}

	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return permanentErrorf("%s %s: the clusters of %s stay linked for %s from then on, and then lose their endpoints "+
		"here, mirrors and memberships: apply the CRD (links/crd/links.yaml) and the Links again",
		reason, debug.Ago(deleted, time.Now()), strings.Join(names, ", "), links.DeletionGrace)
}

// checkWithoutLink reports clusters whose Link was deleted, perhaps, and whose labelled Secret was not.
func (k *knownReplicas) checkWithoutLink(context.Context) error {
	var left []string
	for _, page := range k.pages {
		for _, c := range page.Page.WithoutLink() {
			if text := fmt.Sprintf("%s (%s)", c.Name, c.Source); !slices.Contains(left, text) {
				left = append(left, text)
			}
		}
	}

	if len(left) == 0 {
		return nil
	}
	return permanentWarningf("a labelled Secret alone links %s: if the Link was deleted to unlink the cluster, delete "+
		"the Secret as well", strings.Join(left, ", "))
}

// checkShown reports conditions of Links that differ from what all replicas report: no replica writes them.
func (k *knownReplicas) checkShown(shown []unstructured.Unstructured) error {
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

// reportedElsewhere are conditions that other checks report, and Writable, which an operator may leave False.
var reportedElsewhere = []string{links.Connected, links.Synced, links.Consistent, links.Writable}

// checkConditions returns the conditions of a Link that are False, in any replica. Without Accepted and
// CredentialsValid the Link does not do its work; the others are warnings.
func checkConditions(reports linkReports) error {
	var errs []error
	seen := map[string]bool{}

	for _, r := range reports {
		all := r.Page.Conditions
		if m := r.Page.Mirror; m != nil && m.Condition.Reason != links.LeftToLinkerd {
			all = append(slices.Clip(all), m.Condition)
		}

		for _, condition := range all {
			text := fmt.Sprintf("%s: %s", condition.Reason, condition.Message)
			// Of credentials, other checks report all that has been tried.
			elsewhere := slices.Contains(reportedElsewhere, condition.Type) ||
				condition.Type == links.CredentialsValid && condition.Reason != links.ReasonRefused
			if condition.Status != metav1.ConditionFalse || elsewhere || seen[text] {
				continue
			}

			seen[text] = true
			err := errors.New(text)
			if condition.Type != links.Accepted && condition.Type != links.CredentialsValid {
				err = warning{err}
			}
			errs = append(errs, err)
		}
	}

	return joinWarnings(errs...)
}

// checkMirrored returns the Services that a Link selects and that are not mirrored, and those that may be meant to
// be.
func checkMirrored(reports linkReports) error {
	for _, r := range reports {
		switch m := r.Page.Mirror; {
		case m == nil:
		case m.Missing() == "":
			return nil
		case len(m.NotMirrored) > 0:
			return warningf("%s", m.Missing())
		default:
			return permanentWarningf("%s", m.Missing())
		}
	}
	return errSkipped // no replica mirrors Services, which the checks of writers report
}
