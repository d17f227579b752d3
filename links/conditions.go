package links

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
)

// The conditions of a Link. Package mirror computes Mirrors, the Reconciler all others.
const (
	Accepted         = "Accepted"         // the Link names a cluster, and is the oldest to do so
	CredentialsValid = "CredentialsValid" // the newest credentials are in use
	Connected        = "Connected"        // the cluster is in contact
	Synced           = "Synced"           // every required kind of the cluster was listed once
	WithinBudget     = "WithinBudget"     // all that it publishes is accepted; absent until some was not
	Writable         = "Writable"         // we may write into the cluster; absent if nothing is to be written
	SlicesComplete   = "SlicesComplete"   // all its endpoints are in local slices; absent until one was not
	Consistent       = "Consistent"       // the cluster is as the Link describes it; absent until it was not
	Understood       = "Understood"       // our annotations on the Link can be read; absent until one could not
	Drained          = "Drained"          // no Service gets endpoints of it; absent unless it is to be drained
	Guarded          = "Guarded"          // what it has withdrawn is held; absent unless something is
	Mirrors          = "Mirroring"        // its Services are mirrored as the Link asks; absent without mirrors
)

var ownConditions = []string{
	Accepted, CredentialsValid, Connected, Synced, WithinBudget, Writable, SlicesComplete, Consistent, Understood,
	Drained, Guarded, Mirrors,
}

// Reasons that others than their writers read.
const (
	ReasonRefused = "Refused"       // of CredentialsValid: a kubeconfig that may not be used, or none
	LeftToLinkerd = "LeftToLinkerd" // of Mirrors: Linkerd's service mirror does it, or may

	GatewayUnresolved = "GatewayUnresolved" // of Mirrors: names of the gateway lead nowhere, or to nothing of use
	GatewayNotProbed  = "GatewayNotProbed"  // of Mirrors: there is no way to probe the gateway
)

// Reasons of Drained and Guarded.
const (
	ReasonDraining    = "Draining"    // a part of its traffic is taken away, or is to be
	ReasonStillNeeded = "StillNeeded" // all is, and some Services have nothing else
	ReasonHeld        = "WithdrawalHeld"
	ReasonUnconfirmed = "WithdrawalUnconfirmed"
)

const (
	reasonInvalid     = "Invalid"   // of Accepted: the Link names no cluster
	reasonLocalName   = "LocalName" // likewise: it names the local one
	reasonNotAccepted = "NotAccepted"
	reasonNeverSynced = "Waiting"
)

// A reporter collects the conditions of one Link.
type reporter struct {
	link       *Link
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

// addProblem adds a condition that begins with a problem, of which there is none if it is empty.
func (r *reporter) addProblem(kind, reason, problem, otherwise string) {
	switch {
	case problem != "":
		r.addCondition(kind, metav1.ConditionFalse, reason, problem)
	case r.reported(kind):
		r.addCondition(kind, metav1.ConditionTrue, kind, otherwise)
	}
}

// conditionsFor computes the conditions of a Link. status is the cluster's, if a Spec was applied for it.
func conditionsFor(link *Link, out outcome, status cluster.Status, applied bool, now time.Time) []metav1.Condition {
	reporter := &reporter{link: link}
	reporter.addProblem(Understood, "Misread", link.misread, "all annotations for Fingerpost can be read")
	if reason, message := notAccepted(link, out); reason != "" {
		reporter.addCondition(Accepted, metav1.ConditionFalse, reason, message)
		for _, kind := range []string{CredentialsValid, Connected, Synced} {
			reporter.addCondition(kind, metav1.ConditionUnknown, reasonNotAccepted, "the Link is not accepted")
		}
		return reporter.conditions
	}

	reporter.addCondition(Accepted, metav1.ConditionTrue, "Accepted", "linked as "+link.clusterName+", "+out.domains)
	reporter.reportCredentials(out.rejection, status, now)
	reporter.reportConnected(status, applied)
	reporter.reportSynced(status)
	reporter.addProblem(
		WithinBudget,
		"OverBudget",
		status.BudgetProblem(),
		"everything that the cluster publishes is accepted",
	)

	reporter.reportWritable(status.Writing)
	reporter.reportSlices(status.LeftOut, status.LeftTo)
	reporter.reportConsistent(status)
	reporter.reportDrained(status.Traffic.Drain)
	reporter.reportGuarded(status.Traffic)
	return reporter.conditions
}

// notAccepted returns why a Link is not accepted; an empty reason if it is.
func notAccepted(l *Link, out outcome) (reason, message string) {
	switch {
	case l.refusal != "":
		return l.refusal, l.refused
	case out.winner != l:
		return "Conflict", fmt.Sprintf("Link %s links %s already and is older: delete one of the two",
			out.winner.key, l.clusterName)
	}
	return "", ""
}

func (r *reporter) reportCredentials(rejection error, status cluster.Status, now time.Time) {
	serving := "no credentials are in use"
	if status.Source != "" {
		serving = status.Source + " is in use" + validity(status.Expires, now)
	}

	problem := oneLine(errors.Join(rejection, status.Credentials)) + "; " + serving

	failed := api.ReasonFor(status.Credentials) // why the newest credentials are not in use
	switch {
	case rejection != nil:
		r.addCondition(CredentialsValid, metav1.ConditionFalse, ReasonRefused, problem)
	case status.Credentials != nil && !failed.Credentials():
		r.addCondition(CredentialsValid, metav1.ConditionUnknown, string(failed), problem)
	case status.Credentials != nil:
		r.addCondition(CredentialsValid, metav1.ConditionFalse, string(failed), problem)
	case api.ReasonFor(status.Contact) == api.Unauthorized:
		r.addCondition(CredentialsValid, metav1.ConditionFalse, string(api.Unauthorized),
			oneLine(status.Contact)+"; put new credentials into the Secret")
	case !status.Expires.IsZero() && !now.Before(status.Expires):
		r.addCondition(CredentialsValid, metav1.ConditionFalse, "Expired", fmt.Sprintf(
			"%s has expired at %s, and API servers accept a token for a minute at most after that: put new "+
				"credentials into the Secret, as 'fingerpost link rotate' prints them",
			status.Source, rfc3339(status.Expires)))
	case status.Source == "":
		r.addCondition(CredentialsValid, metav1.ConditionUnknown, "Untried", "the credentials were not tried yet")
	default:
		r.addCondition(CredentialsValid, metav1.ConditionTrue, "Valid", serving)
	}
}

// validity describes when credentials expire, or have expired; empty if they do not.
func validity(expires, now time.Time) string {
	switch {
	case expires.IsZero():
		return ""
	case now.Before(expires):
		return " until " + rfc3339(expires)
	default:
		return ", and has expired at " + rfc3339(expires)
	}
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (r *reporter) reportConnected(status cluster.Status, applied bool) {
	switch {
	case !applied || status.State == federation.Connecting:
		message := "the cluster was not reached yet"
		if status.Contact != nil {
			message += ": " + oneLine(status.Contact)
		}
		r.addCondition(Connected, metav1.ConditionFalse, string(federation.Connecting), message)
	case status.State == federation.Live:
		r.addCondition(Connected, metav1.ConditionTrue, string(federation.Live), "the cluster is in contact")
	default:
		r.addCondition(Connected, metav1.ConditionFalse, string(status.State),
			"the last state of the cluster is kept: "+oneLine(status.Contact))
	}
}

func (r *reporter) reportSynced(status cluster.Status) {
	switch {
	case status.Synced:
		r.addCondition(Synced, metav1.ConditionTrue, "Synced", "every required kind of the cluster was listed")
	case !status.Checkpoint.IsZero():
		r.addCondition(Synced, metav1.ConditionFalse, "Restored", "the endpoints of the cluster are those of "+
			rfc3339(status.Checkpoint)+", until every required kind was listed")
	default:
		r.addCondition(Synced, metav1.ConditionFalse, reasonNeverSynced,
			"the endpoints of the cluster are unknown until every required kind was listed")
	}
}

// reportWritable does not depend on which replica writes.
func (r *reporter) reportWritable(writing cluster.Writing) {
	switch {
	case writing.State == cluster.ReadOnly:
		r.addCondition(Writable, metav1.ConditionFalse, string(cluster.ReadOnly),
			"discovery goes on, and nothing is written: "+writing.Problem)
	case writing.State != cluster.NotWriting:
		r.addCondition(Writable, metav1.ConditionTrue, "Writable", "one of the replicas writes into the cluster")
	case r.reported(Writable):
		r.addCondition(Writable, metav1.ConditionUnknown, "NotWanted", "nothing is to be written into the cluster")
	}
}

// reportSlices reports whether the slices here have all endpoints of the cluster. Of those that another installation
// writes that is not known.
func (r *reporter) reportSlices(out cluster.LeftOut, leftTo string) {
	switch {
	case leftTo != "":
		r.addCondition(SlicesComplete, metav1.ConditionUnknown, "LeftToInstallation", "EndpointSlices here with its "+
			"endpoints are written by "+leftTo+": that Lease is older than ours; delete it if nobody knows that "+
			"installation")
	case out.Excess > 0:
		r.addCondition(SlicesComplete, metav1.ConditionFalse, "TooManySlices", fmt.Sprintf(
			"%d endpoints are in no EndpointSlice here, because a cluster may have only so many slices in one "+
				"Service: existing slices are kept up to date; raise -max-slices-per-source, or let fewer ports "+
				"and service accounts share a Service", out.Excess))
	case out.Known && r.reported(SlicesComplete):
		r.addCondition(SlicesComplete, metav1.ConditionTrue, "Complete",
			"all endpoints of the cluster are in EndpointSlices here, for Services that ask for them")
	}
}

// reportConsistent reports what the cluster is found not to have in common with its Link. What is not known
// is no Mismatch.
func (r *reporter) reportConsistent(status cluster.Status) {
	reason, messages := "", []string{}
	for _, m := range status.Mismatches() {
		reason = cmp.Or(reason, m.Reason)
		messages = append(messages, m.Message)
	}
	r.addProblem(Consistent, reason, strings.Join(messages, "; "), "the cluster is as the Link describes it")
}

// reportDrained reports how far the cluster is drained.
func (r *reporter) reportDrained(drain cluster.Drain) {
	next := ""
	if !drain.Next.IsZero() {
		next = ", and the next step is at " + rfc3339(drain.Next)
	}

	switch {
	case drain.Percent == 100 && drain.Needed > 0:
		more := ""
		if n := drain.Needed - len(drain.NeededBy); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		r.addCondition(Drained, metav1.ConditionFalse, ReasonStillNeeded, fmt.Sprintf(
			"no other cluster has ready endpoints of %d Services, which get those of this one: %s%s",
			drain.Needed, strings.Join(drain.NeededBy, ", "), more))
	case drain.Percent == 100:
		r.addCondition(
			Drained, metav1.ConditionTrue, Drained, "no Service gets endpoints of the cluster: "+drain.By+next)
	case drain.By != "" && (drain.Percent > 0 || !drain.Next.IsZero()):
		r.addCondition(Drained, metav1.ConditionFalse, ReasonDraining, fmt.Sprintf(
			"%d %% of the cluster's traffic is taken away by %s%s", drain.Percent, drain.By, next))
	}
}

// reportGuarded reports what the cluster has withdrawn, and what is held.
func (r *reporter) reportGuarded(t cluster.Traffic) {
	switch w, pending := t.Withdrawn, t.Unconfirmed; {
	case pending.Endpoints > 0:
		r.addCondition(Guarded, metav1.ConditionTrue, ReasonUnconfirmed, fmt.Sprintf(
			"the cluster has withdrawn most of what it had at once, at %s, and has not listed its Services and "+
				"EndpointSlices since: until it has, %d endpoints are held, for all Services",
			rfc3339(pending.Since), pending.Endpoints))
	case w != nil:
		r.addCondition(Guarded, metav1.ConditionTrue, ReasonHeld, fmt.Sprintf(
			"the cluster has withdrawn most of what it had at once: %d of its endpoints are held until %s, for "+
				"Services that have nothing else: %s; 'fingerpost release %s' lets them go",
			w.Endpoints, rfc3339(w.Until), w, r.link.clusterName))
	}
}

// oneLine renders joined errors on one line.
func oneLine(err error) string {
	if err == nil {
		return "it does not answer"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
