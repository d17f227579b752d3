package links

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
)

// problemsFor returns what is wrong with a Link and with the cluster that it links, the worst first. status is the
// cluster's, if a Spec was applied for it. A Link that is not accepted has nothing to do with a cluster.
func problemsFor(link *Link, out outcome, status cluster.Status, applied bool, now time.Time) []problem.Problem {
	object := problem.Object{Kind: "Link", Namespace: link.key.Namespace, Name: link.key.Name}
	var all []problem.Problem
	add := func(class problem.Class, severity problem.Severity, text string) *problem.Problem {
		p := problem.New(object, class, severity, text)
		p.Cluster = cmp.Or(link.clusterName, link.key.Name)
		all = append(all, p)
		return &all[len(all)-1]
	}

	if link.misread != "" {
		add(problem.InvalidAnnotation, problem.Warning, link.misread)
	}
	switch {
	case link.refusal != "":
		add(link.refusal, problem.Urgent, link.refused)
	case out.winner.key != link.key:
		add(problem.Conflict, problem.Urgent, fmt.Sprintf(
			"Link %s links %s already and is older: delete one of the two", out.winner.key, link.clusterName))
	default:
		if out.rejection != nil {
			p := add(problem.Refused, problem.Urgent, oneLine(out.rejection))
			if status.Credentials == nil { // else that Problem has it
				p.Affected = status.InUse()
			}
		}
		if !applied {
			status = cluster.Status{Name: link.clusterName, State: federation.Connecting}
		}
		all = append(all, status.Problems(nil, now)...)
	}

	problem.Sort(all)
	return all
}

// isUrgent reports whether one of the Problems has a reason, and an operator must act on it.
func isUrgent(all []problem.Problem, reason string) bool {
	return slices.ContainsFunc(all, func(p problem.Problem) bool { return p.IsUrgent() && p.Reason == reason })
}

// own returns those of Problems that are a Link's and not its cluster's.
func own(all []problem.Problem) []problem.Problem {
	return slices.DeleteFunc(slices.Clone(all), func(p problem.Problem) bool { return p.Object.Kind != "Link" })
}

// Problems returns what is wrong with the Link itself: what this replica found when it read it, that it was deleted,
// and what the replica that mirrors Services reports. Those of its cluster are the Registry's.
func (s LinkStatus) Problems() []problem.Problem {
	all := slices.Clone(s.Own)
	object := problem.Object{Kind: "Link", Namespace: s.Namespace, Name: s.Name}
	add := func(class problem.Class, severity problem.Severity, text string) *problem.Problem {
		p := problem.New(object, class, severity, text)
		p.Cluster = cmp.Or(s.Cluster, s.Name)
		all = append(all, p)
		return &all[len(all)-1]
	}

	if s.Held != "" {
		p := add(problem.LinkDeleted, problem.Urgent, s.Held)
		p.Since = s.Deleted
		p.Affected = fmt.Sprintf("the cluster stays linked for %s from then on, and then loses its endpoints here, "+
			"mirrors and memberships", DeletionGrace)
	}

	if s.Mirror == nil {
		return all
	}

	missing := s.Mirror.Missing()
	if found := s.Mirror.Condition; found.Status == metav1.ConditionFalse {
		class, severity := problem.Mirroring, problem.Warning

		switch found.Reason {
		case GatewayUnresolved, GatewayNotProbed:
			class = problem.Gateway
		case LeftToLinkerd:
			severity = problem.Information
		}

		p := add(class, severity, found.Message)
		p.Reason, p.Since = found.Reason, found.LastTransitionTime.Time
		p.Repeats = class == problem.Mirroring && missing != ""
	}

	if missing != "" {
		add(problem.NotMirrored, problem.Warning, missing)
	}
	return all
}
