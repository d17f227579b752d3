package links

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/records"
)

// inputs is everything that bears on one cluster name.
type inputs struct {
	name        string
	local       string // the name of the cluster that we run in
	trustDomain string // our own
	hosts       Hosts

	links    []*Link                             // that name the cluster
	labelled []*secret                           // in the controller namespace, that bear its label
	secret   func(records.Key) (*secret, string) // by name; or why it cannot be had
}

// outcome is what follows from inputs.
type outcome struct {
	linked    bool          // somebody links the cluster, well or badly
	spec      *cluster.Spec // nil: there is nothing to go by, and what was applied before goes on
	winner    *Link         // the Link that counts; nil if there is none
	rejection error         // why credentials were refused
	domains   string        // where the domains come from, for people
}

// resolve decides what one cluster name stands for.
func resolve(in inputs) outcome {
	var out outcome
	slices.SortFunc(in.links, func(a, b *Link) int {
		return cmp.Or(a.created.Compare(b.created), strings.Compare(a.key.String(), b.key.String()))
	})
	slices.SortFunc(in.labelled, func(a, b *secret) int {
		return cmp.Or(a.created.Compare(b.created), strings.Compare(a.key.String(), b.key.String()))
	})
	if in.name == in.local && len(in.links)+len(in.labelled) > 0 {
		out.rejection = fmt.Errorf("%q is the name of the cluster that this process runs in (-cluster-name)", in.name)
		return out
	}
	spec := &cluster.Spec{Name: in.name}
	if len(in.links) > 0 {
		out.winner = in.links[0]
	}
	out.linked = len(in.links)+len(in.labelled) > 0
	var problems []error
	if len(in.labelled) > 0 {
		s := in.labelled[0]
		spec.TrustDomain, spec.ClusterDomain = s.trustDomain, s.clusterDomain
		if out.winner == nil && (s.trustDomain == "" || s.clusterDomain == "") {
			problems = append(problems, fmt.Errorf("%s lacks the annotation %s or %s, and there is no Link to say it", s, trustDomainAnnotation, clusterDomainAnnotation))
		} else if access, err := newAccess(s, in.hosts); err != nil {
			problems = append(problems, err)
		} else {
			spec.Access = append(spec.Access, access)
		}
	}
	if l := out.winner; l != nil {
		if l.secret == "" {
			if len(in.labelled) == 0 {
				problems = append(problems, errors.New("spec.clusterCredentialsSecret is empty, and there is no labelled Secret for the cluster: name a Secret with a kubeconfig"))
			}
		} else if s, why := in.secret(records.Key{Namespace: l.key.Namespace, Name: l.secret}); s == nil {
			problems = append(problems, errors.New(why))
		} else if len(in.labelled) == 0 || !bytes.Equal(s.kubeconfig, in.labelled[0].kubeconfig) {
			if access, err := newAccess(s, in.hosts); err != nil {
				problems = append(problems, err)
			} else {
				spec.Access = append(spec.Access, access)
			}
		}
		spec.Slices = l.slicesEnabled
		out.domains = fillDomains(spec, l, in.trustDomain)
	}
	out.rejection = errors.Join(problems...)
	if len(spec.Access) > 0 {
		out.spec = spec
	}
	return out
}

// domains fills in what a labelled Secret did not say, and tells where each domain comes from.
func fillDomains(spec *cluster.Spec, l *Link, ours string) string {
	trust, dns := "the labelled Secret's annotation", "the labelled Secret's annotation"
	if spec.TrustDomain == "" {
		spec.TrustDomain, trust = ours, "our own"
	}
	if spec.ClusterDomain == "" {
		spec.ClusterDomain, dns = l.clusterDomain, "spec.targetClusterDomain"
	}
	return fmt.Sprintf("trust domain %s (%s), cluster domain %s (%s)", spec.TrustDomain, trust, cmp.Or(spec.ClusterDomain, "unknown"), dns)
}

func newAccess(s *secret, hosts Hosts) (cluster.Access, error) {
	if len(s.kubeconfig) == 0 {
		return cluster.Access{}, fmt.Errorf("%s has no data under %q", s, kubeconfigKey)
	}
	config, err := Credentials(s.kubeconfig, hosts)
	if err != nil {
		return cluster.Access{}, fmt.Errorf("%s: %w", s, err)
	}
	return cluster.Access{Source: s.String(), Config: config}, nil
}

// The conditions of a Link.
const (
	Accepted         = "Accepted"         // it says which cluster it links, and nobody else does
	CredentialsValid = "CredentialsValid" // the newest credentials are in use
	Connected        = "Connected"        // the cluster is in contact
	Synced           = "Synced"           // everything in it has been heard once
	WithinBudget     = "WithinBudget"     // all that the cluster publishes is accepted; only where it was not
	Writable         = "Writable"         // we may write into it; only where something is to be written
	SlicesComplete   = "SlicesComplete"   // what it holds is in slices of the local cluster, where that is asked for; only once it was not
)

// reasonWaiting is why a cluster that was never heard is not Synced.
const reasonNeverSynced = "Waiting"

// verdict returns what a Link's conditions should say. status is the cluster's, if it was applied.
func conditionsFor(l *Link, out outcome, status cluster.Status, applied bool) []metav1.Condition {
	var all []metav1.Condition
	say := func(kind string, is metav1.ConditionStatus, reason, message string) {
		all = append(all, metav1.Condition{Type: kind, Status: is, Reason: reason, Message: truncate(message), ObservedGeneration: l.generation})
	}
	give := func(reason, message string) []metav1.Condition {
		say(Accepted, metav1.ConditionFalse, reason, message)
		for _, kind := range []string{CredentialsValid, Connected, Synced} {
			say(kind, metav1.ConditionUnknown, "NotAccepted", "the Link is not accepted")
		}
		return all
	}
	switch {
	case l.invalid != "":
		return give("Invalid", l.invalid)
	case out.winner == nil:
		return give("LocalName", out.rejection.Error()+": choose another spec.targetClusterName, or another -cluster-name for this process")
	case out.winner != l:
		return give("Conflict", fmt.Sprintf("Link %s links %s already and is older: one of the two must go", out.winner.key, l.clusterName))
	}
	say(Accepted, metav1.ConditionTrue, "Accepted", "linked as "+l.clusterName+", "+out.domains)
	serving := "nothing is in use"
	if status.Source != "" {
		serving = status.Source + " is in use"
		if !status.Expires.IsZero() {
			serving += " until " + status.Expires.UTC().Format(time.RFC3339)
		}
	}
	refusal := errors.Join(out.rejection, status.Credentials)
	switch {
	case out.rejection != nil:
		say(CredentialsValid, metav1.ConditionFalse, "Refused", oneLine(refusal)+"; "+serving)
	case status.Credentials != nil && (cluster.ReasonFor(status.Credentials) == cluster.Unreachable || cluster.ReasonFor(status.Credentials) == cluster.NotReady):
		say(CredentialsValid, metav1.ConditionUnknown, string(cluster.ReasonFor(status.Credentials)), oneLine(refusal)+"; "+serving)
	case status.Credentials != nil:
		say(CredentialsValid, metav1.ConditionFalse, string(cluster.ReasonFor(status.Credentials)), oneLine(refusal)+"; "+serving)
	case status.Contact != nil && cluster.ReasonFor(status.Contact) == cluster.Unauthorized:
		say(CredentialsValid, metav1.ConditionFalse, string(cluster.Unauthorized), oneLine(status.Contact)+"; put new credentials into the Secret")
	case status.Source == "":
		say(CredentialsValid, metav1.ConditionUnknown, "Untried", "the credentials were not tried yet")
	default:
		say(CredentialsValid, metav1.ConditionTrue, "Valid", serving)
	}
	switch {
	case !applied || status.State == cluster.Connecting:
		message := "the cluster was not reached yet"
		if status.Contact != nil {
			message += ": " + oneLine(status.Contact)
		}
		say(Connected, metav1.ConditionFalse, string(cluster.Connecting), message)
	case status.State == cluster.Live:
		say(Connected, metav1.ConditionTrue, string(cluster.Live), "the cluster is in contact")
	default:
		say(Connected, metav1.ConditionFalse, string(status.State), "what the cluster said last is kept: "+oneLine(status.Contact))
	}
	if status.Synced {
		say(Synced, metav1.ConditionTrue, "Synced", "everything in the cluster has been heard")
	} else {
		say(Synced, metav1.ConditionFalse, reasonNeverSynced, "nothing is said on behalf of the cluster until it has been heard completely")
	}
	switch {
	case status.OverBudget != "":
		say(WithinBudget, metav1.ConditionFalse, "OverBudget", status.OverBudget)
	case meta.FindStatusCondition(l.conditions, WithinBudget) != nil:
		say(WithinBudget, metav1.ConditionTrue, "WithinBudget", "all that the cluster publishes is accepted")
	}
	switch w := status.Writing; {
	case w.State == cluster.ReadOnly:
		say(Writable, metav1.ConditionFalse, string(cluster.ReadOnly), "discovery goes on, and nothing is written: "+w.Problem)
	case w.State != cluster.NotWriting: // whether this replica writes or another is not the Link's business
		say(Writable, metav1.ConditionTrue, "Writable", "one replica of all writes into the cluster")
	case meta.FindStatusCondition(l.conditions, Writable) != nil:
		say(Writable, metav1.ConditionUnknown, "NotWanted", "nothing is to be written into the cluster")
	}
	switch out := status.LeftOut; {
	case out.Excess > 0:
		say(SlicesComplete, metav1.ConditionFalse, "TooManySlices", fmt.Sprintf("%d endpoints are in no EndpointSlice here, because a cluster may have only so many in one Service: "+
			"those that are there are kept up to date; raise -max-slices-per-source, or let fewer ports and service accounts share a Service", out.Excess))
	case out.Known && meta.FindStatusCondition(l.conditions, SlicesComplete) != nil:
		say(SlicesComplete, metav1.ConditionTrue, "Complete", "what the cluster holds is in EndpointSlices here, where that is asked for")
	}
	return all
}

// messageLimit bounds the message of a condition, in bytes, so that an Event can tell it too. The text may come from a kubeconfig.
const messageLimit = 960

// brief cuts a text that is too long for a message.
func truncate(text string) string {
	const more = "…"
	if len(text) <= messageLimit {
		return text
	}
	return strings.ToValidUTF8(text[:messageLimit-len(more)], "") + more
}

// oneLine writes joined errors on one line.
func oneLine(err error) string {
	if err == nil {
		return "it does not answer"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
