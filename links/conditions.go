package links

import (
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
	Accepted         = "Accepted"         // the Link names a cluster, and is the oldest to do so
	CredentialsValid = "CredentialsValid" // the newest credentials are in use
	Connected        = "Connected"        // the cluster is in contact
	Synced           = "Synced"           // every required kind of the cluster was listed once
	RequestsServed   = "RequestsServed"   // the API server does what it is asked for; absent until it did not
	WithinBudget     = "WithinBudget"     // all that it publishes is accepted; absent until some was not
	Writable         = "Writable"         // Fingerpost may write into the cluster; absent if nothing is to be written
	SlicesComplete   = "SlicesComplete"   // all its endpoints are in local slices; absent until one was not
	Consistent       = "Consistent"       // the cluster is as the Link describes it; absent until it was not
	AnnotationsValid = "AnnotationsValid" // those for Fingerpost on the Link can be read; absent until one could not
	Drained          = "Drained"          // no Service gets endpoints of it; absent unless it is to be drained
	Guarded          = "Guarded"          // what it has withdrawn is held; absent unless something is
	Mirrors          = "Mirroring"        // its Services are mirrored as the Link asks; absent without mirrors
)

var ownConditions = []string{
	Accepted, CredentialsValid, Connected, Synced, RequestsServed, WithinBudget, Writable, SlicesComplete, Consistent,
	AnnotationsValid,
	Drained, Guarded, Mirrors,
}

// Reasons that others than their writers read.
const (
	LeftToLinkerd = "LeftToLinkerd" // of Mirrors: Linkerd's service mirror does it, or may

	GatewayUnresolved = "GatewayUnresolved" // of Mirrors: names of the gateway lead nowhere, or to nothing of use
	GatewayNotProbed  = "GatewayNotProbed"  // of Mirrors: there is no way to probe the gateway
)

// The reasons of conditions that are not True, and that Guarded is, are the Classes of Problems, or finer ones.
const (
	invalid     = problem.Class("Invalid")   // of Accepted: the Link names no cluster
	localLink   = problem.Class("LocalName") // likewise: it names the local one
	conflicting = problem.Class("Conflict")  // likewise: an older Link has

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

// addProblems adds a condition that is not True because of Problems: all of some classes. The first one is its reason.
// It reports whether there is one.
func (r *reporter) addProblems(kind string, status metav1.ConditionStatus, classes ...problem.Class) bool {
	found := problem.Of(r.problems, classes...)
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

// addOptional adds a condition that begins with a Problem.
func (r *reporter) addOptional(kind, otherwise string, classes ...problem.Class) {
	if !r.addProblems(kind, metav1.ConditionFalse, classes...) && r.reported(kind) {
		r.addCondition(kind, metav1.ConditionTrue, kind, otherwise)
	}
}

// conditionsFor renders the Problems of a Link as its conditions. What those that are True report is in out and in
// status, the cluster's, if a Spec was applied for it.
func conditionsFor(link *Link, out outcome, status cluster.Status, problems []problem.Problem) []metav1.Condition {
	reporter := &reporter{link: link, problems: problems}
	reporter.addOptional(AnnotationsValid, "all annotations for Fingerpost can be read", problem.InvalidAnnotation)
	if reporter.addProblems(Accepted, metav1.ConditionFalse, invalid, localLink, conflicting) {
		for _, kind := range []string{CredentialsValid, Connected, Synced} {
			reporter.addCondition(kind, metav1.ConditionUnknown, reasonNotAccepted, "the Link is not accepted")
		}
		return reporter.conditions
	}

	reporter.addCondition(Accepted, metav1.ConditionTrue, "Accepted", "linked as "+link.clusterName+", "+out.domains)
	reporter.addCredentials(status)
	if !reporter.addProblems(Connected, metav1.ConditionFalse, problem.Connecting, problem.Suspect, problem.Stale) {
		reporter.addCondition(Connected, metav1.ConditionTrue, string(federation.Live), "the cluster is in contact")
	}
	if !reporter.addProblems(Synced, metav1.ConditionFalse, problem.Restored, problem.Waiting) {
		reporter.addCondition(Synced, metav1.ConditionTrue, "Synced", "every required kind of the cluster was listed")
	}

	reporter.addOptional(RequestsServed, "the API server does what it is asked for", problem.Requests)
	reporter.addOptional(WithinBudget, "everything that the cluster publishes is accepted", problem.OverBudget)
	reporter.addWritable(status.Writing)
	reporter.addSlices(status.LeftOut)
	reporter.addOptional(Consistent, "the cluster is as the Link describes it",
		problem.SameCluster, problem.OtherDomain, problem.OtherAnchors, problem.AnchorsExpire, problem.Overlapping,
		problem.ClockSkew)

	drain := status.Traffic.Drain
	if !reporter.addProblems(Drained, metav1.ConditionFalse, problem.StillNeeded, problem.Draining) &&
		drain.Percent == 100 {
		reporter.addCondition(Drained, metav1.ConditionTrue, Drained, drain.Describe())
	}
	reporter.addProblems(Guarded, metav1.ConditionTrue, problem.Unconfirmed, problem.Held)
	return reporter.conditions
}

// addCredentials adds whether the newest credentials are in use. That is not known while the cluster does not answer.
func (r *reporter) addCredentials(status cluster.Status) {
	classes := []problem.Class{problem.Refused, problem.Credentials, problem.Expired, problem.Untried}
	valid := metav1.ConditionFalse
	if found := problem.Of(r.problems, classes...); len(found) > 0 {
		first := found[0]
		isUnknown := first.Class == problem.Credentials && !api.Reason(first.Reason).Credentials()
		if isUnknown || first.Class == problem.Untried {
			valid = metav1.ConditionUnknown
		}
	}

	if !r.addProblems(CredentialsValid, valid, classes...) {
		r.addCondition(CredentialsValid, metav1.ConditionTrue, "Valid", status.InUse())
	}
}

// addWritable does not depend on which replica writes.
func (r *reporter) addWritable(writing cluster.Writing) {
	switch {
	case r.addProblems(Writable, metav1.ConditionFalse, problem.ReadOnly):
	case writing.State != cluster.NotWriting:
		r.addCondition(Writable, metav1.ConditionTrue, "Writable", "one of the replicas writes into the cluster")
	case r.reported(Writable):
		r.addCondition(Writable, metav1.ConditionUnknown, "NotWanted", "nothing is to be written into the cluster")
	}
}

// addSlices adds whether the slices here have all endpoints of the cluster. Of those that another installation writes
// that is not known.
func (r *reporter) addSlices(out cluster.LeftOut) {
	switch {
	case r.addProblems(SlicesComplete, metav1.ConditionUnknown, problem.LeftTo):
	case r.addProblems(SlicesComplete, metav1.ConditionFalse, problem.TooManySlices):
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
