package debug

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
)

// A Problem is something that an operator should look at, with a first step.
type Problem struct {
	Severe  bool      `json:"severe"` // an operator must act; otherwise it may pass, or nothing fails yet
	Cluster string    `json:"cluster,omitempty"`
	Title   string    `json:"title"`          // such as "west is Stale"
	Text    string    `json:"text"`           // why; it can be read without the title
	Since   time.Time `json:"since,omitzero"` // zero if that is not known
	Command string    `json:"command"`
	Runbook string    `json:"runbook"` // page and heading, in docs
}

const (
	// patience is how long a cluster may take to be listed for the first time.
	patience = time.Minute
	// minValidity is how long credentials should still be valid.
	minValidity = time.Hour
	// ownLeases begins the names of the Leases that no other program has.
	ownLeases = "fingerpost-"
)

// The headings in docs that a Problem leads to.
const (
	runbookStates      = "operations.md#states-of-a-cluster"
	runbookConditions  = "operations.md#conditions-of-a-link"
	runbookBudget      = "operations.md#bounds-of-clusters"
	runbookClients     = "operations.md#bounds-of-clients"
	runbookStale       = "operations.md#fingerpostclusterstale"
	runbookNeverSynced = "operations.md#fingerpostclusterneversynced"
	runbookCredentials = "operations.md#fingerpostcredentialsfail"
	runbookExpiry      = "operations.md#fingerpostcredentialsexpire"
	runbookForbidden   = "operations.md#fingerpostforbidden"
	runbookWriter      = "operations.md#fingerpostnowriter"
	runbookMirrored    = "checks.md#services-are-mirrored"
	runbookMirroring   = "mirror.md#what-a-link-reports"
	runbookWithoutLink = "checks.md#every-cluster-has-its-link"
	runbookHeld        = "checks.md#no-link-is-held"
	runbookLease       = "checks.md#a-lease-has-a-holder"
	runbookLeftTo      = "operations.md#fingerpostlefttoanotherinstallation"
	runbookSaved       = "operations.md#state-across-restarts"
	runbookMalformed   = "checks.md#no-service-is-malformed"
	runbookEndpoints   = "operations.md#questions"
	runbookDrain       = "operations.md#drains"
	runbookWithdrawal  = "operations.md#fingerpostwithdrawalheld"
	runbookUnconfirmed = "operations.md#fingerpostwithdrawalunconfirmed"
)

// Problems returns what is wrong with clusters and Links, the worst first. It depends on nothing else. That a linked
// cluster is read-only is how it is meant to be, unless its Link asks for slices.
func (p ClustersPage) Problems(now time.Time) (all []Problem) {
	reported := map[string]bool{} // clusters whose credentials or contact are a Problem
	for _, c := range p.Clusters {
		found := c.problems(now)
		all = append(all, found...)
		_, ended := c.ExpiresSoon(now)
		reported[c.Name] = c.Contact != "" || c.Credentials != "" || ended
	}
	for _, l := range p.Links {
		all = append(all, linkProblems(l, reported[l.Cluster])...)
	}

	for _, c := range p.WithoutLink() {
		all = append(all, Problem{
			Cluster: c.Name, Title: "A labelled Secret alone links " + c.Name, Command: "kubectl get links -A",
			Text:    "if the Link was deleted to unlink the cluster, delete the Secret as well (" + c.Source + ")",
			Runbook: runbookWithoutLink,
		})
	}

	if n := p.NotSaved; n.Clusters > 0 {
		all = append(all, Problem{
			Title: "The state of " + CountText(n.Clusters, "cluster") + " cannot be saved", Command: "fingerpost check",
			Text:    n.Reason + "; a replica that starts while a cluster is unreachable will not have its endpoints",
			Runbook: runbookSaved,
		})
	}
	slices.SortStableFunc(all, compareProblems)
	return all
}

func compareProblems(a, b Problem) int { return TrueFirst(a.Severe, b.Severe) }

// TrueFirst orders what is so before what is not.
func TrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

func (c Cluster) problems(now time.Time) []Problem {
	found := clusterProblems{Cluster: c}
	found.addContact(now)
	found.addCredentials(now)
	for _, m := range c.Mismatches() {
		if m.Reason == cluster.ClockSkew {
			found.add(false, runbookConditions, "The clock of "+c.Name+" is off", m.Message)
		} else {
			found.add(true, runbookConditions, c.Name+" is not as its Link describes it", m.Message)
		}
	}

	if problem := c.BudgetProblem(); problem != "" {
		found.add(true, runbookBudget, c.Name+" publishes more than its budget", problem)
	}

	if c.LeftTo != "" {
		found.add(false, runbookLeftTo, "Slices with endpoints of "+c.Name+" are written by another installation",
			"its Lease is older than ours, so that these slices follow what it knows: "+c.LeftTo)
	}

	found.addTraffic()
	if refused := c.Refused(); len(refused) > 0 {
		var kinds []string
		for _, k := range refused {
			kinds = append(kinds, k.Kind+" ("+string(k.Refused)+")")
		}
		found.add(false, runbookForbidden, c.Name+" cannot be read completely",
			"grant get, list and watch on "+strings.Join(kinds, ", "))
	}

	switch problem := c.Writing.Problem; c.Written() {
	case NothingWritten:
		found.add(true, runbookWriter, "Nothing is written into "+c.Name, problem)
	case NoSlicesWritten:
		found.add(false, runbookWriter, "No slices are written into "+c.Name, "its Link asks for them, and "+problem)
	case PartWritten:
		found.add(false, runbookWriter, "Not everything is written into "+c.Name, problem)
	case NotToBeWritten, AllWritten:
	}
	return found.all
}

// clusterProblems are the Problems of one cluster.
type clusterProblems struct {
	Cluster
	all []Problem
}

// add adds a Problem, whose other fields may be set.
func (c *clusterProblems) add(severe bool, runbook, title, text string) *Problem {
	c.all = append(c.all, Problem{
		Severe: severe, Cluster: c.Name, Title: title, Text: text,
		Command: "fingerpost clusters " + quote(c.Name), Runbook: runbook,
	})
	return &c.all[len(c.all)-1]
}

// addContact adds that the cluster is not Live.
func (c *clusterProblems) addContact(now time.Time) {
	title := fmt.Sprintf("%s is %s", c.Name, c.State)
	switch reason := c.OutOfContact(); c.State {
	case federation.Stale:
		restored := !c.Checkpoint.IsZero()
		if restored {
			reason += "; its endpoints are those of then, restored when this replica started"
		}
		trying := restored && c.Contact == "" && c.Credentials == "" // since this replica started
		c.add(!trying, runbookStale, title, reason).Since = c.LastContact
	case federation.Connecting:
		severe := now.Sub(c.Since) > patience
		c.add(severe, runbookNeverSynced, title, neverSynced+": "+reason).Since = c.Since
	case federation.Suspect:
		c.add(false, runbookStates, title, reason).Since = c.LastContact
	case federation.Live:
	}
}

// addCredentials adds that new credentials do not work, and that those in use expire.
func (c *clusterProblems) addCredentials(now time.Time) {
	if c.Credentials != "" && c.Source != "" {
		c.add(true, runbookCredentials, "New credentials of "+c.Name+" do not work",
			c.Credentials+"; "+c.Source+" stays in use")
	}

	end, ended := c.ExpiresSoon(now)
	if end == "" {
		return
	}
	p := c.add(ended, runbookExpiry, "The credentials of "+c.Name+" expire soon", end)
	p.Command = "fingerpost link rotate " + quote(c.Name)
	if ended {
		p.Title, p.Since = "The credentials of "+c.Name+" have expired", c.Expires
	}
}

// addTraffic adds that a drain does not end, and that a withdrawal is held.
func (c *clusterProblems) addTraffic() {
	if d := c.Traffic.Drain; d.Needed > 0 {
		c.add(false, runbookDrain, c.Name+" is drained and still needed", fmt.Sprintf(
			"no other cluster has ready endpoints of %d Services: %s", d.Needed, strings.Join(d.NeededBy, ", ")))
	}

	if pending := c.Traffic.Unconfirmed; pending.Endpoints > 0 {
		p := c.add(true, runbookUnconfirmed, fmt.Sprintf("%s has not confirmed a withdrawal", c.Name), fmt.Sprintf(
			"it has withdrawn most of what it had at once, and has not listed its Services and EndpointSlices since: "+
				"until it has, %d endpoints are held, for all Services",
			pending.Endpoints,
		))
		p.Since = pending.Since
	}

	if w := c.Traffic.Withdrawn; w != nil {
		p := c.add(true, runbookWithdrawal, fmt.Sprintf("%d endpoints of %s are held", w.Endpoints, c.Name),
			fmt.Sprintf("the cluster has withdrawn most of what it had at once; for Services that have nothing else, "+
				"%s, that is held until %s", w, w.Until.UTC().Format(time.RFC3339)))
		p.Command = "fingerpost release " + quote(c.Name)
	}
}

const neverSynced = "it was never synced"

// OutOfContact returns why a cluster is not Live; empty if it is.
func (c Cluster) OutOfContact() string {
	switch c.State {
	case federation.Live:
		return ""
	case federation.Connecting:
		return cmp.Or(c.Contact, c.Credentials, neverSynced)
	default:
		return cmp.Or(c.Contact, c.Credentials, "it does not respond")
	}
}

// ExpiresSoon returns that the credentials of a linked cluster have expired, or will before an operator notices; empty
// otherwise. The kubelet rotates those of the local cluster.
func (c Cluster) ExpiresSoon(now time.Time) (text string, ended bool) {
	left := c.Expires.Sub(now)
	if c.Local || c.Expires.IsZero() || left >= minValidity {
		return "", false
	}
	end := "expires in " + Age(now, c.Expires)
	if ended = left <= 0; ended {
		end = "has expired " + Ago(c.Expires, now)
	}
	return "the token or certificate " + end + ": 'fingerpost link rotate' makes new ones", ended
}

// Written is how much of what should be is written into a cluster.
type Written int

// NotToBeWritten is that of a cluster into which nothing is to be written, of one that is out of contact, which is
// reported of that, and of one that is read-only and whose Link does not ask for slices.
const (
	NotToBeWritten Written = iota
	AllWritten
	PartWritten     // of the rest Writing.Problem has the reason, and so for those below
	NoSlicesWritten // although the Link asks for them: the cluster is read-only
	NothingWritten  // the local cluster is read-only, and nothing can do without it
)

// Written returns how much is written into a cluster.
func (c Cluster) Written() Written {
	readOnly := c.Writing.State == cluster.ReadOnly
	switch {
	case c.Writing.State == cluster.NotWriting, c.State != federation.Live, readOnly && !c.Local && !c.Slices:
		return NotToBeWritten
	case readOnly && c.Local:
		return NothingWritten
	case readOnly:
		return NoSlicesWritten
	case c.Writing.Problem != "":
		return PartWritten
	default:
		return AllWritten
	}
}

// WithoutLink returns the clusters that only a labelled Secret links although others have a Link: perhaps the Link was
// deleted, and the Secret was not. Links that were deleted and whose clusters stay linked are not meant.
func (p ClustersPage) WithoutLink() (all []Cluster) {
	others := false
	for _, c := range p.Clusters {
		held := slices.ContainsFunc(p.Links, func(l links.LinkStatus) bool {
			return l.Cluster == c.Name && l.Held != ""
		})
		others = others || c.Link != ""
		if !c.Local && c.Link == "" && c.Source != "" && !held {
			all = append(all, c)
		}
	}

	if !others {
		return nil
	}
	return all
}

// Refused returns the kinds that the API server serves and does not let us read. Where it does not take the
// credentials, that is reported of them, and what a cluster need not grant is in NotGranted.
func (c Cluster) Refused() (all []cluster.KindStatus) {
	for _, k := range c.Kinds {
		switch k.Refused {
		case "", metav1.StatusReasonNotFound, metav1.StatusReasonUnauthorized:
		default:
			if !c.mayRefuse(k) {
				all = append(all, k)
			}
		}
	}
	return all
}

// NotGranted returns the kinds that a linked cluster does not let us read and that are no problem: the account of
// Linkerd's own multicluster chart has no right to ExternalWorkloads, and an API server that does not serve a kind
// answers the same to who has no right to it.
func (c Cluster) NotGranted() (all []string) {
	for _, k := range c.Kinds {
		if c.mayRefuse(k) {
			all = append(all, k.Kind)
		}
	}
	return all
}

func (c Cluster) mayRefuse(k cluster.KindStatus) bool {
	return !c.Local && k.Kind == linkerd.ExternalWorkloads.String() && k.Refused == metav1.StatusReasonForbidden
}

// reportedByCluster are the conditions that a Problem of the cluster reports, and those that may be False.
var reportedByCluster = []string{
	links.Connected, links.Synced, links.Consistent, links.WithinBudget, links.Writable, links.Drained,
}

// linkProblems returns the conditions of a Link that are False, and that it was deleted. reported is whether
// the cluster's credentials are a Problem already.
func linkProblems(link links.LinkStatus, reported bool) (all []Problem) {
	of := cmp.Or(link.Cluster, link.Name)
	if link.Held != "" {
		all = append(all, Problem{
			Severe: true, Cluster: of, Since: link.Deleted, Command: "fingerpost check", Runbook: runbookHeld,
			Title: fmt.Sprintf("Link %s was deleted", link),
			Text: fmt.Sprintf("%s: the cluster stays linked for %s, so that the Link can be applied again",
				link.Held, links.DeletionGrace),
		})
	}

	for _, c := range link.Conditions {
		if c.Status != metav1.ConditionFalse || slices.Contains(reportedByCluster, c.Type) ||
			c.Type == links.CredentialsValid && reported {
			continue
		}

		all = append(all, Problem{
			Severe: c.Type == links.Accepted || c.Type == links.CredentialsValid, Cluster: of,
			Title: fmt.Sprintf("Link %s: %s is False", link, c.Type), Text: c.Message,
			Since:   c.LastTransitionTime.Time,
			Command: fmt.Sprintf("kubectl -n %s describe link %s", quote(link.Namespace), quote(link.Name)),
			Runbook: runbookConditions,
		})
	}

	if link.Mirror != nil && link.Mirror.HasGatewayProblem() {
		all = append(all, Problem{
			Cluster: of, Title: "The gateway of " + of + " is not usable as its Link names it",
			Text: link.Mirror.Condition.Message, Since: link.Mirror.Condition.LastTransitionTime.Time,
			Command: fmt.Sprintf("kubectl -n %s describe link %s", quote(link.Namespace), quote(link.Name)),
			Runbook: runbookMirroring,
		})
	}

	if missing := link.Mirror.Missing(); missing != "" {
		all = append(all, Problem{
			Cluster: of, Title: "Not every exported Service of " + of + " is mirrored", Text: missing,
			Command: "fingerpost check", Runbook: runbookMirrored,
		})
	}
	return all
}

var plainWord = regexp.MustCompile(`^[\w.:/][\w.:/-]*$`)

// quote returns a word as a shell takes it.
func quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
