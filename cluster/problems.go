package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/internal/words"
)

const (
	// patience is how long a cluster may take to be listed for the first time.
	patience = time.Minute
	// minValidity is how long credentials should still be valid.
	minValidity = time.Hour
	// minAnchorValidity is how long trust anchors should: to replace them takes all clusters, one after the other.
	minAnchorValidity = 30 * 24 * time.Hour
)

// requiredKinds are those without which a cluster cannot be synced.
var requiredKinds = []string{"services", "pods", "endpointslices.discovery.k8s.io", "endpoints"}

// Problems returns what is wrong with a cluster, the worst first. It depends on nothing else. kinds are those of
// [Registry.Inspect]; without them it does not have what the cluster refuses to list.
func (s Status) Problems(kinds []KindStatus, now time.Time) []problem.Problem {
	found := statusProblems{Status: s, now: now}
	found.addContact()
	found.addSynced()
	found.addCredentials()
	found.addExpiry()
	found.addMismatches()

	found.addBudget()
	found.addUnusable()
	found.addSlices()
	found.addTraffic()
	found.addRefused(kinds)
	found.addWriting()
	found.addFailing()
	found.addRequests(kinds)

	problem.Sort(found.all)
	return found.all
}

// statusProblems are the Problems of one cluster.
type statusProblems struct {
	Status
	now     time.Time
	all     []problem.Problem
	refused map[string]bool // kinds that it does not let this account read
}

// add adds a Problem, whose other fields may be set.
func (s *statusProblems) add(class problem.Class, severity problem.Severity, text string) *problem.Problem {
	s.all = append(s.all, problem.OfCluster(s.Name, class, severity, text))
	return &s.all[len(s.all)-1]
}

// addContact adds that the cluster is not Live.
func (s *statusProblems) addContact() {
	why := lineOf(s.Contact)
	switch s.State {
	case federation.Connecting:
		severity := problem.Warning
		if s.now.Sub(s.Since) > patience {
			severity = problem.Urgent
		}
		text := "the cluster is not synced yet"
		if reason := cmp.Or(why, lineOf(s.Credentials)); reason != "" {
			text += ": " + reason
		}
		s.add(problem.Connecting, severity, text).Since = s.Since

	case federation.Suspect, federation.Stale:
		class, severity := problem.Suspect, problem.Warning
		restored := !s.Checkpoint.IsZero()
		untried := restored && s.Contact == nil && s.Credentials == nil // since this replica started
		if s.State == federation.Stale {
			class = problem.Stale
			if !untried {
				severity = problem.Urgent
			}
		}

		p := s.add(class, severity, cmp.Or(why, lineOf(s.Credentials), "the cluster does not respond"))
		if s.Contact != nil {
			p.Remedy = api.ReasonFor(s.Contact).Remedy()
		}
		p.Since, p.Affected = s.LastContact, "its last state is kept"
		if restored {
			p.Affected = "its endpoints are those of then, restored when this replica started"
		}
	case federation.Live:
	}
}

// addSynced adds that not all of the cluster was listed yet: its state has whether that is in order.
func (s *statusProblems) addSynced() {
	if s.NotRestored != "" && !s.Synced {
		p := s.add(problem.NotRestored, problem.Warning, s.NotRestored)
		p.Affected = "clients of this replica do not have what it would have of the cluster"
	}

	switch {
	case s.Synced:
	case !s.Checkpoint.IsZero():
		s.add(problem.Restored, problem.Information, "the endpoints of the cluster are those of "+
			clock(s.Checkpoint)+", until every required kind was listed").Repeats = true
	default:
		s.add(problem.Waiting, problem.Information,
			"the endpoints of the cluster are unknown until every required kind was listed").Repeats = true
	}
}

// addCredentials adds that the newest credentials do not work, or were not tried. Where none are in use, or those in
// use are refused, or have another authority than the certificate that is presented, the state of the cluster has the
// same reason.
func (s *statusProblems) addCredentials() {
	failed := s.Credentials
	contact := api.ReasonFor(s.Contact)
	refused := failed == nil && s.Contact != nil && (contact == api.Unauthorized || contact == api.Untrusted)
	if refused {
		failed = s.Contact
	}

	if failed == nil {
		if s.Source == "" {
			s.add(problem.Untried, problem.Information, "the credentials were not tried yet").Repeats = true
		}
		return
	}

	reason := api.ReasonFor(failed)
	severity := problem.Urgent
	if s.Source == "" && !reason.Credentials() {
		severity = problem.Information // they may work
	}

	p := s.add(problem.Credentials, severity, lineOf(failed))
	p.Reason, p.Remedy = string(reason), reason.Remedy()
	p.Repeats = refused || s.Source == ""
	switch {
	case !refused && s.Source != "":
		p.Affected = "the previous credentials, of " + s.Source + ", are still in use" + s.untilExpiry()
	case !refused && !errors.Is(failed, errNoAccess):
		p.Affected = s.InUse()
	case !s.Expires.IsZero() && !s.now.Before(s.Expires):
		p.Remedy = "" // as of those that have expired
	}
}

// InUse describes which credentials are in use, and until when.
func (s Status) InUse() string {
	if s.Source == "" {
		return "no credentials are in use"
	}
	return s.Source + " is in use" + s.untilExpiry()
}

func (s Status) untilExpiry() string {
	if s.Expires.IsZero() {
		return ""
	}
	return " until " + clock(s.Expires)
}

// addExpiry adds that the credentials in use have expired, or will before an operator notices. The kubelet rotates
// those of the local cluster.
func (s *statusProblems) addExpiry() {
	left := s.Expires.Sub(s.now)
	switch {
	case s.Local || s.Expires.IsZero() || left >= minValidity:
	case left > 0:
		s.add(problem.ExpiresSoon, problem.Warning, "the token or certificate expires at "+clock(s.Expires))
	default:
		s.add(problem.Expired, problem.Urgent,
			"the token or certificate has expired at "+clock(s.Expires)).Since = s.Expires
	}
}

// addMismatches adds what is known to differ from what the Link of the cluster describes.
func (s *statusProblems) addMismatches() {
	if s.SameAs != "" {
		s.add(problem.SameCluster, problem.Urgent, fmt.Sprintf(
			"it is the same cluster as %s: their namespaces kube-system have one UID", s.SameAs))
	}
	theirs := s.Identity.TrustDomain
	otherDomain := theirs != "" && s.TrustDomain != "" && theirs != s.TrustDomain
	if otherDomain {
		s.add(problem.OtherDomain, problem.Urgent, fmt.Sprintf(
			"identities there end in %s, and clients get %s, so that mTLS fails", theirs, s.TrustDomain))
	}

	if s.OtherAnchors != "" {
		s.add(problem.OtherAnchors, problem.Urgent, fmt.Sprintf("proxies there trust %s, and those here %s, so that "+
			"mTLS fails", anchorsText(s.Identity.Anchors), s.OtherAnchors)).Repeats = otherDomain
	}
	if s.Untrusted != "" {
		s.add(problem.OtherAnchors, problem.Urgent, s.Untrusted+", so that mTLS fails").Repeats = otherDomain
	}
	s.addAnchorsExpire()
	s.addIssuerExpires()

	if s.Overlap != "" {
		p := s.add(problem.Overlapping, problem.Urgent, "Pods of both clusters have the same address: "+s.Overlap)
		p.Affected = "requests to such an address reach the Pod of the client's own cluster"
	}

	if s.Outside != "" {
		p := s.add(problem.OutsideNetworks, problem.Warning,
			"endpoints are in none of the networks of -cluster-networks: "+s.Outside)
		p.Affected = "a policy for clients of the clusters does not let in those there, and what is sent there by " +
			"address counts as leaving them"
	}

	if s.ClockSkew != "" {
		p := s.add(problem.ClockSkew, problem.Warning, "its clock is "+s.ClockSkew)
		p.Affected = "the lifetimes of tokens and Leases depend on clocks"
	}
}

// addAnchorsExpire adds that trust anchors have expired, or all will before every cluster has others. One that has
// expired beside others may be left from a rotation, or sign what is in use.
func (s *statusProblems) addAnchorsExpire() {
	var last, expired linkerd.Anchor
	for _, anchor := range s.Identity.Anchors {
		if anchor.NotAfter.After(last.NotAfter) {
			last = anchor
		}
		if !anchor.NotAfter.After(s.now) {
			expired = anchor
		}
	}

	switch left := last.NotAfter.Sub(s.now); {
	case len(s.Identity.Anchors) == 0:
	case left <= 0:
		s.add(problem.AnchorsExpire, problem.Urgent,
			"all trust anchors have expired, so that mTLS fails; the last one was "+last.String()).Since = last.NotAfter
	case left <= minAnchorValidity:
		s.add(problem.AnchorsExpire, problem.Warning,
			"all trust anchors expire within 30 days; the last one is "+last.String())
	case expired != linkerd.Anchor{}:
		p := s.add(problem.AnchorsExpire, problem.Warning, "a trust anchor has expired: "+expired.String())
		p.Remedy = "remove it from the bundle if nothing is signed by it any more"
	}
}

// addIssuerExpires adds that the issuer of a linked cluster ends soon, or has ended. That of the local one is reported
// by what signs with it. One that leads to no anchor of its mesh is not in use.
func (s *statusProblems) addIssuerExpires() {
	issuer := s.Identity.Issuer
	if s.Local || len(issuer.Under) == 0 {
		return
	}

	switch left := issuer.NotAfter.Sub(s.now); {
	case left <= 0:
		s.add(problem.IssuerExpires, problem.Urgent, "its issuer of identities has expired, so that no proxy there "+
			"gets a certificate: "+issuer.String()).Since = issuer.NotAfter
	case left <= issuerSoon(issuer):
		s.add(problem.IssuerExpires, problem.Warning, "its issuer of identities expires soon: "+issuer.String())
	}
}

// issuerSoon is how long before its end an issuer should be replaced: 30 days, or a third of a life below 90 days, as
// programs have it that renew issuers.
func issuerSoon(issuer linkerd.Issuer) time.Duration {
	return min(minAnchorValidity, issuer.NotAfter.Sub(issuer.NotBefore)/3)
}

// Deadlines returns the times at which Problems that conditions show begin, although the Status stays as it is.
func (s Status) Deadlines() (all []time.Time) {
	if !s.Expires.IsZero() {
		all = append(all, s.Expires)
	}
	for _, anchor := range s.Identity.Anchors {
		all = append(all, anchor.NotAfter.Add(-minAnchorValidity), anchor.NotAfter)
	}
	if issuer := s.Identity.Issuer; len(issuer.Under) > 0 {
		all = append(all, issuer.NotAfter.Add(-issuerSoon(issuer)), issuer.NotAfter)
	}
	return all
}

// addBudget adds what of the cluster its budget refuses, and what is not held of it for that.
func (s *statusProblems) addBudget() {
	var texts []string
	if s.OverBudget != "" {
		texts = append(texts, s.OverBudget)
	}
	if letGo := s.Traffic.LetGo; letGo.Endpoints > 0 {
		texts = append(texts, fmt.Sprintf("the cluster has withdrawn most of what it had, and together with what it "+
			"has now that exceeds %s: %s that it withdrew first %s not held any more",
			letGo.Budget, words.Count(letGo.Endpoints, "endpoint"), words.Are(letGo.Endpoints)))
	}
	if len(texts) > 0 {
		s.add(problem.OverBudget, problem.Urgent, strings.Join(texts, "; "))
	}
}

// addUnusable adds objects of policy of which something has no effect. Their authors see that in warnings and in the
// status of routes, and may be meant to repair it.
func (s *statusProblems) addUnusable() {
	if n := s.Unusable.Count; n > 0 {
		p := s.add(problem.PolicyUnusable, problem.Warning, fmt.Sprintf("%s of policy cannot be used completely: %s",
			words.Count(n, "object"), s.Unusable.Examples))
		p.Affected = "these parts have no effect, and requests of rules that need them fail"
	}
}

// addSlices adds what keeps the slices here from having all endpoints of the cluster.
func (s *statusProblems) addSlices() {
	if s.LeftTo != "" {
		p := s.add(problem.LeftTo, problem.Warning,
			"EndpointSlices here with endpoints of "+s.Name+" are written by "+s.LeftTo)
		p.Affected = "that Lease is the older one, so that they follow what that installation knows"
		return
	}
	if n := s.LeftOut.Excess; n > 0 {
		p := s.add(problem.TooManySlices, problem.Warning, fmt.Sprintf("%s %s in no EndpointSlice here, "+
			"because a cluster may have only so many slices in one Service", words.Count(n, "endpoint"), words.Are(n)))
		p.Affected = "existing slices are kept up to date"
	}
}

// addTraffic adds how far the cluster is drained if that has not ended, and what it has withdrawn and is held.
func (s *statusProblems) addTraffic() {
	switch drain := s.Traffic.Drain; {
	case drain.Percent == 100 && drain.Needed > 0:
		more := ""
		if n := drain.Needed - len(drain.NeededBy); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		s.add(problem.StillNeeded, problem.Warning, fmt.Sprintf(
			"no other cluster has ready endpoints of %s, so that those of this one are used: %s%s",
			words.Count(drain.Needed, "Service"), strings.Join(drain.NeededBy, ", "), more))
	case drain.Percent < 100 && drain.By != "" && (drain.Percent > 0 || !drain.Next.IsZero()):
		s.add(problem.Draining, problem.Information, fmt.Sprintf(
			"%d %% of the cluster's traffic is taken away by %s%s", drain.Percent, drain.By, drain.nextStep()))
	}

	if pending := s.Traffic.Unconfirmed; pending.Endpoints > 0 {
		s.add(problem.Unconfirmed, problem.Urgent, fmt.Sprintf(
			"the cluster has withdrawn most of what it had at once, at %s, and has not listed its Services and "+
				"EndpointSlices since: until it has, %s %s held, for all Services",
			clock(pending.Since), words.Count(pending.Endpoints, "endpoint"), words.Are(pending.Endpoints),
		)).Since = pending.Since
	}
	if w := s.Traffic.Withdrawn; w != nil {
		s.add(problem.Held, problem.Urgent, fmt.Sprintf("the cluster has withdrawn most of what it had at once: %d of "+
			"its endpoints %s held until %s, for Services that have nothing else: %s",
			w.Endpoints, words.Are(w.Endpoints), clock(w.Until), w))
	}
}

// addRefused adds the kinds that the API server serves and does not let us read. Where it does not take the
// credentials, that is reported of them. An account need not have all rights: that of Linkerd's own multicluster
// chart has none to ExternalWorkloads, and an API server that does not serve a kind answers the
// same to who has no right to it.
func (s *statusProblems) addRefused(kinds []KindStatus) {
	var refused, notGranted []string
	required := false

	for _, kind := range kinds {
		switch kind.Refused {
		case "", metav1.StatusReasonNotFound, metav1.StatusReasonUnauthorized:
			continue
		case metav1.StatusReasonForbidden:
			if !s.Local && kind.Kind == linkerd.ExternalWorkloads.String() {
				notGranted = append(notGranted, kind.Kind)
				continue
			}
		default:
		}
		refused = append(refused, kind.Kind+" ("+string(kind.Refused)+")")
		required = required || slices.Contains(requiredKinds, kind.Kind)
	}

	if len(refused) > 0 {
		text := "the API server refuses to list or watch " + strings.Join(refused, ", ")
		if required {
			s.add(problem.Forbidden, problem.Urgent, text)
		} else {
			s.add(problem.Forbidden, problem.Warning, text).Affected = "what depends on that is left out"
		}
	}

	for _, call := range s.Failed {
		if s.isNotGranted(call) && !slices.Contains(notGranted, call.Resource) {
			notGranted = append(notGranted, call.Resource)
		}
	}

	if len(notGranted) > 0 {
		s.add(problem.NotGranted, problem.Information,
			"not read, as the account has no right to them: "+strings.Join(notGranted, ", "))
	}
}

// addWriting adds what keeps this replica from writing into the cluster. That a linked cluster is read-only is how it
// is meant to be, unless its Link asks for slices; nothing can do without what is written into the local one. Of one
// that is out of contact, that is reported.
func (s *statusProblems) addWriting() {
	class, severity, text := problem.Incomplete, problem.Warning, s.Writing.Problem
	var affected string

	switch {
	case s.Writing.State == ReadOnly && s.Local:
		class, severity = problem.ReadOnly, problem.Urgent
		affected = "what Fingerpost writes into the local cluster is not kept up to date"
	case s.Writing.State == ReadOnly && s.Slices:
		class, affected = problem.ReadOnly, "the Link asks for slices in the cluster, and none are written"
	case s.Writing.State == ReadOnly:
		class, severity = problem.ReadOnly, problem.Information
		affected = "discovery is not affected, and nothing is written into the cluster"
	case s.Writing.Problem == "":
		return
	}

	reported := s.State != federation.Live
	if reported || s.Writing.State == NotWriting {
		severity = problem.Information
	}
	p := s.add(class, severity, cmp.Or(text, "permissions are missing"))
	p.Affected, p.Repeats = affected, reported && class == problem.Incomplete
}

// addFailing adds what this replica has tried to write, and could not. What is tried for a minute may pass.
func (s *statusProblems) addFailing() {
	for _, failing := range s.Writing.Failing {
		severity := problem.Warning
		if s.now.Sub(failing.Since) > patience {
			severity = problem.Urgent
		}
		reported := s.State != federation.Live
		if reported {
			severity = problem.Information
		}

		objects := strings.Join(failing.Objects, ", ")
		if more := failing.Count - len(failing.Objects); more > 0 {
			objects += fmt.Sprintf(" and %d more", more)
		}

		p := s.add(problem.NotWritten, severity,
			fmt.Sprintf("%s of %s cannot be written: %s", failing.What, objects, failing.Error))
		p.Reason, p.Since, p.Repeats = string(failing.Reason), failing.Since, reported
		p.Remedy = failing.Reason.Remedy()
		p.Affected = "what is there stays as it is, and is tried again"
	}
}

// notNeeded are resources that an account of a linked cluster need not have the right to read, as Linkerd's has not.
// Where something depends on them, that is a Problem of its own.
var notNeeded = []string{linkerd.ExternalWorkloads.String(), "configmaps", "namespaces", "nodes"}

// isNotGranted reports whether a request fails because of such a right.
func (s *statusProblems) isNotGranted(call api.FailedCall) bool {
	return !s.Local && call.IsRead() && call.Reason == api.Forbidden && slices.Contains(notNeeded, call.Resource)
}

// addRequests adds what else the API server does not do of what it is asked for, by reason. Of a cluster that is out of
// contact that is reported, and so are kinds that it refuses, writes of which the objects are, and Leases.
func (s *statusProblems) addRequests(kinds []KindStatus) {
	if s.State != federation.Live {
		return
	}

	s.refused = map[string]bool{}
	for _, kind := range kinds {
		s.refused[kind.Kind] = kind.Refused == metav1.StatusReasonForbidden
	}

	byReason := map[api.Reason][]api.FailedCall{}
	for _, call := range s.Failed {
		if !s.isNotGranted(call) {
			byReason[call.Reason] = append(byReason[call.Reason], call)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		s.addFailedCalls(reason, byReason[reason])
	}
}

// addFailedCalls adds those that fail for one reason. What is read all the time is missed; the rest is tried again.
func (s *statusProblems) addFailedCalls(reason api.Reason, calls []api.FailedCall) {
	severity, reported := problem.Warning, true
	oldest := calls[0]
	var names, affected []string

	for _, call := range calls {
		if call.Since.Before(oldest.Since) {
			oldest = call
		}
		if call.Follows() && s.now.Sub(call.Since) > patience {
			severity = problem.Urgent
		}
		reported = reported && s.reportsObjects(call)
		names = append(names, call.String())
		if what := affectedBy(call.Call); !slices.Contains(affected, what) {
			affected = append(affected, what)
		}
	}

	p := s.add(problem.Requests, severity, words.Some(names, maxNamedCalls)+": "+oldest.Text)
	p.Reason, p.Since, p.Remedy, p.Repeats = string(reason), oldest.Since, reason.Remedy(), reported
	p.Affected = words.Some(affected, maxNamedCalls)
}

// maxNamedCalls is how many of the requests that fail are named.
const maxNamedCalls = 4

// reportsObjects reports whether other Problems have the objects that a request fails for.
func (s *statusProblems) reportsObjects(call api.FailedCall) bool {
	sameReason := func(f Failing) bool { return f.Reason == call.Reason }
	switch {
	case call.IsRead():
		return call.Reason == api.Forbidden && call.Follows() && s.refused[call.Resource]
	case strings.HasPrefix(call.Resource, "leases."):
		return s.Writing.Problem != "" && s.Writing.State != NotWriting
	default:
		return slices.ContainsFunc(s.Writing.Failing, sameReason)
	}
}

// affectedBy returns what follows from requests that fail.
func affectedBy(call api.Call) string {
	resource, _, _ := strings.Cut(call.Resource, ".")
	switch {
	case resource == "links" && call.IsRead():
		return "Links that are created, changed or deleted are not seen"
	case resource == "secrets":
		return "new credentials are not seen"
	case resource == "leases":
		return "which replica writes is not known"
	case resource == "events":
		return "Events are not recorded"
	case resource == "selfsubjectaccessreviews":
		return "permissions count as they were known last"
	case resource == "tokenreviews":
		return "other replicas cannot get the state of clusters from this one"
	case call.IsRead():
		return "what is known of them stays as it is"
	default:
		return "what is there stays as it is, and is tried again"
	}
}

// lineOf returns the text of an error, or of joined ones, on one line; empty for none.
func lineOf(err error) string { return strings.ReplaceAll(ErrorText(err), "\n", "; ") }

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// nextStep describes when more or less of the traffic is taken away; empty if that is not to change.
func (d Drain) nextStep() string {
	if d.Next.IsZero() {
		return ""
	}
	return ", and the next step is at " + clock(d.Next)
}

// Describe describes a drain that has ended, for people.
func (d Drain) Describe() string {
	return "no Service gets endpoints of the cluster: " + d.By + d.nextStep()
}
