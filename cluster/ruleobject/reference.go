package ruleobject

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// A reference is one in an object of policy.linkerd.io.
type reference struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// referent returns what a reference names. Its namespace is that of the object if none is given.
func (r *reader) referent(from reference) (rules.Reference, error) {
	to := rules.Reference{Kind: rules.KindOf(from.Group, from.Kind), Namespace: from.Namespace, Name: from.Name}
	if to.Namespace == "" {
		to.Namespace = r.object.Namespace
	}
	if !isPlain(from.Name, maxName) || from.Namespace != "" && !isPlain(from.Namespace, maxLabel) {
		return to, fmt.Errorf("no object has the name %.64q in namespace %.64q", from.Name, from.Namespace)
	}
	return to, nil
}

// kindText returns the kind of a reference for messages.
func (r reference) kindText() string {
	if r.Group == "" {
		return fmt.Sprintf("%.64q", r.Kind)
	}
	return fmt.Sprintf("%.64q of %.64q", r.Kind, r.Group)
}

// accounts reads references to ServiceAccounts, and to Namespaces where they stand for all of theirs.
func (r *reader) accounts(all []reference, namespaces bool) (accounts []rules.Reference) {
	for _, from := range firstOf(r, rules.PartIdentity, all, maxIdentities) {
		to, err := r.referent(from)
		switch {
		case err != nil:
			r.leaveOut(rules.PartIdentity, "%v", err)
		case to.Kind == rules.KindServiceAccount:
			accounts = append(accounts, to)
		case to.Kind == rules.KindNamespace && namespaces:
			if from.Namespace != "" {
				r.deny(r.note(rules.PartIdentity, "Namespace %s is referred to with a namespace", to.Name))
			}
			accounts = append(accounts, rules.Reference{Kind: to.Kind, Name: to.Name})
		default:
			r.deny(r.leaveOut(rules.PartIdentity, "a reference to the kind %s gives no identity", from.kindText()))
		}
	}
	return accounts
}

// patterns reads identities as they are written.
func (r *reader) patterns(all []string) (patterns []rules.Pattern) {
	for _, text := range firstOf(r, rules.PartIdentity, all, maxIdentities) {
		if !isPlain(text, maxIdentity) {
			r.deny(r.leaveOut(rules.PartIdentity, "%.64q is no identity", text))
			continue
		}
		patterns = append(patterns, rules.ParseIdentity(text))
	}
	return patterns
}

var labelOperators = map[metav1.LabelSelectorOperator]rules.LabelOperator{
	metav1.LabelSelectorOpIn: rules.LabelIn, metav1.LabelSelectorOpNotIn: rules.LabelNotIn,
	metav1.LabelSelectorOpExists: rules.LabelExists, metav1.LabelSelectorOpDoesNotExist: rules.LabelDoesNotExist,
}
