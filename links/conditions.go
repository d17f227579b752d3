package links

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
)

// The conditions of a Link. Package mirror computes Mirrors, the Reconciler all others.
const (
	Accepted         = "Accepted"
	CredentialsValid = "CredentialsValid"
	Connected        = "Connected"
	Synced           = "Synced"
	RequestsServed   = "RequestsServed"
	WithinBudget     = "WithinBudget"
	Writable         = "Writable"
	SlicesComplete   = "SlicesComplete"
	Consistent       = "Consistent"
	AnnotationsValid = "AnnotationsValid"
	Drained          = "Drained"
	Guarded          = "Guarded"
	Mirrors          = "Mirroring"
)

// A ConditionInfo is what a condition means, and which Problems it shows.
type ConditionInfo struct {
	Type    string
	Means   string          // if it is True
	Present string          // when; empty for always
	Classes []problem.Class // of the Problems that it shows
}

// conditionInfos are all conditions, in the order in which Links list them.
var conditionInfos = []ConditionInfo{
	{
		Accepted, "the Link names a cluster, and is the oldest to do so", "",
		[]problem.Class{problem.Invalid, problem.LocalName, problem.Conflict},
	},
	{
		CredentialsValid, "the newest credentials are in use; Unknown while the cluster does not answer", "",
		[]problem.Class{problem.Refused, problem.Credentials, problem.Expired, problem.Untried},
	},
	{
		Connected, "the cluster is in contact", "",
		[]problem.Class{problem.Connecting, problem.Suspect, problem.Stale},
	},
	{
		Synced, "every required kind of the cluster was listed once", "",
		[]problem.Class{problem.Restored, problem.Waiting},
	},
	{
		RequestsServed, "the API server does what it is asked for", "from the first time on that it did not",
		[]problem.Class{problem.Requests},
	},
	{
		WithinBudget, "all that the cluster publishes is accepted", "from the first time on that it was not",
		[]problem.Class{problem.OverBudget},
	},
	{
		Writable, "Fingerpost may write into the cluster", "if something is to be written there, or was",
		[]problem.Class{problem.ReadOnly},
	},
	{
		SlicesComplete, "all its endpoints are in slices here; Unknown while another installation writes these",
		"from the first time on that they were not",
		[]problem.Class{problem.LeftTo, problem.TooManySlices},
	},
	{
		Consistent, "the cluster is as the Link describes it", "from the first time on that it was not",
		[]problem.Class{
			problem.SameCluster, problem.OtherDomain, problem.OtherAnchors, problem.AnchorsExpire,
			problem.IssuerExpires,
			problem.Overlapping, problem.ClockSkew,
		},
	},
	{
		AnnotationsValid, "the annotations for Fingerpost on the Link can be read",
		"from the first time on that one could not",
		[]problem.Class{problem.InvalidAnnotation},
	},
	{
		Drained, "no Service gets endpoints of the cluster", "while it is to be drained",
		[]problem.Class{problem.StillNeeded, problem.Draining},
	},
	{
		Guarded, "endpoints that it has withdrawn are held: this one is never False", "while they are",
		[]problem.Class{problem.Unconfirmed, problem.Held},
	},
	{
		Mirrors, "its Services are mirrored as the Link asks", "with mirrors",
		[]problem.Class{problem.Mirroring, problem.Gateway},
	},
}

// Conditions returns all conditions, in their order.
func Conditions() []ConditionInfo { return slices.Clone(conditionInfos) }

// isOwnCondition reports whether a condition of a Link is Fingerpost's.
func isOwnCondition(kind string) bool { return indexOf(kind) >= 0 }

// indexOf returns where conditionInfos has a condition; -1 for one of others.
func indexOf(kind string) int {
	return slices.IndexFunc(conditionInfos, func(info ConditionInfo) bool { return info.Type == kind })
}

// Reasons that others than their writers read.
const (
	LeftToLinkerd = "LeftToLinkerd" // of Mirrors: Linkerd's service mirror does it, or may

	GatewayUnresolved = "GatewayUnresolved" // of Mirrors: names of the gateway lead nowhere, or to nothing of use
	GatewayNotProbed  = "GatewayNotProbed"  // of Mirrors: there is no way to probe the gateway
)

// The reasons of conditions that are not True, and that Guarded is, are the Classes of Problems, or finer ones.
const (
	// ReasonStillNeeded is that of Drained if all traffic is taken away, and some Services have nothing else.
	ReasonStillNeeded = string(problem.StillNeeded)

	reasonNotAccepted = "NotAccepted"
	reasonNeverSynced = string(problem.Waiting)
)

// A reporter collects the conditions of one Link.
type reporter struct {
	link       *Link
	problems   []problem.Problem // of the Link and its cluster, the worst first
	conditions []metav1.Condition
}

func (r *reporter) addCondition(kind string, status metav1.ConditionStatus, reason, message string) {
	r.conditions = append(r.conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: truncate(message),
		ObservedGeneration: r.link.generation,
	})
}

// reported reports whether the Link has a condition already. Conditions that most Links never need begin
// with a problem; from then on they are kept up to date.
func (r *reporter) reported(kind string) bool {
	return meta.FindStatusCondition(r.link.status.conditions, kind) != nil
}

// addProblems adds a condition that is not True because of the Problems that it shows. The first one is its reason. It
// reports whether there is one.
func (r *reporter) addProblems(kind string, status metav1.ConditionStatus) bool {
	found := r.shownBy(kind)
	if len(found) == 0 {
		return false
	}

	var messages []string
	for _, p := range found {
		messages = append(messages, p.Message())
	}
	r.addCondition(kind, status, found[0].Reason, strings.Join(messages, "; "))
	return true
}

// shownBy returns the Problems that a condition shows.
func (r *reporter) shownBy(kind string) []problem.Problem {
	return problem.Of(r.problems, conditionInfos[indexOf(kind)].Classes...)
}

// addOptional adds a condition that begins with a Problem.
func (r *reporter) addOptional(kind, otherwise string) {
	if !r.addProblems(kind, metav1.ConditionFalse) && r.reported(kind) {
		r.addCondition(kind, metav1.ConditionTrue, kind, otherwise)
	}
}

// conditionsFor renders the Problems of a Link as its conditions. What those that are True report is in out and in
// status, the cluster's, if a Spec was applied for it.
func conditionsFor(link *Link, out outcome, status cluster.Status, problems []problem.Problem) []metav1.Condition {
	reporter := &reporter{link: link, problems: problems}
	reporter.addOptional(AnnotationsValid, "all annotations for Fingerpost can be read")
	if reporter.addProblems(Accepted, metav1.ConditionFalse) {
		for _, kind := range []string{CredentialsValid, Connected, Synced} {
			reporter.addCondition(kind, metav1.ConditionUnknown, reasonNotAccepted, "the Link is not accepted")
		}
		return reporter.conditions
	}

	reporter.addCondition(Accepted, metav1.ConditionTrue, "Accepted", "linked as "+link.clusterName+", "+out.domains)
	reporter.addCredentials(status)
	if !reporter.addProblems(Connected, metav1.ConditionFalse) {
		reporter.addCondition(Connected, metav1.ConditionTrue, string(federation.Live), "the cluster is in contact")
	}
	if !reporter.addProblems(Synced, metav1.ConditionFalse) {
		reporter.addCondition(Synced, metav1.ConditionTrue, "Synced", "every required kind of the cluster was listed")
	}

	reporter.addOptional(RequestsServed, "the API server does what it is asked for")
	reporter.addOptional(WithinBudget, "everything that the cluster publishes is accepted")
	reporter.addWritable(status.Writing)
	reporter.addSlices(status.LeftOut)
	reporter.addOptional(Consistent, "the cluster is as the Link describes it")

	drain := status.Traffic.Drain
	if !reporter.addProblems(Drained, metav1.ConditionFalse) &&
		drain.Percent == 100 {
		reporter.addCondition(Drained, metav1.ConditionTrue, Drained, drain.Describe())
	}
	reporter.addProblems(Guarded, metav1.ConditionTrue)
	return reporter.conditions
}

// addCredentials adds whether the newest credentials are in use. That is not known while the cluster does not answer.
func (r *reporter) addCredentials(status cluster.Status) {
	valid := metav1.ConditionFalse
	if found := r.shownBy(CredentialsValid); len(found) > 0 {
		first := found[0]
		isUnknown := first.Class == problem.Credentials && !api.Reason(first.Reason).Credentials()
		if isUnknown || first.Class == problem.Untried {
			valid = metav1.ConditionUnknown
		}
	}

	if !r.addProblems(CredentialsValid, valid) {
		r.addCondition(CredentialsValid, metav1.ConditionTrue, "Valid", status.InUse())
	}
}

// addWritable does not depend on which replica writes.
func (r *reporter) addWritable(writing cluster.Writing) {
	switch {
	case r.addProblems(Writable, metav1.ConditionFalse):
	case writing.State.IsWritable():
		r.addCondition(Writable, metav1.ConditionTrue, "Writable", "one of the replicas writes into the cluster")
	case !r.reported(Writable):
	case writing.State == cluster.Reviewing:
		r.addCondition(Writable, metav1.ConditionUnknown, "Reviewing", "the permissions are not known yet")
	default:
		r.addCondition(Writable, metav1.ConditionUnknown, "NotWanted", "nothing is to be written into the cluster")
	}
}

// addSlices adds whether the slices here have all endpoints of the cluster. Of those that another installation writes
// that is not known.
func (r *reporter) addSlices(out cluster.LeftOut) {
	complete := metav1.ConditionFalse
	if problem.Has(r.problems, problem.LeftTo) {
		complete = metav1.ConditionUnknown
	}

	switch {
	case r.addProblems(SlicesComplete, complete):
	case out.Known && r.reported(SlicesComplete):
		r.addCondition(SlicesComplete, metav1.ConditionTrue, "Complete",
			"all endpoints of the cluster are in EndpointSlices here, for Services that ask for them")
	}
}

// oneLine renders joined errors on one line.
func oneLine(err error) string {
	if err == nil {
		return "it does not answer"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
