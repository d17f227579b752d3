package rules

import "strings"

// A Pattern stands for identities or hostnames: for one, or for all that end in some labels. An empty suffix stands for
// every one. It compares with ==.
type Pattern struct {
	Text   string // without a leading "*." if it is a suffix
	Suffix bool
}

// ParseIdentity reads a pattern of identities: "*" is every authenticated client, "*.x.y" all that end in x.y. Anything
// else is exact, a SPIFFE ID too; another asterisk is a character like others.
func ParseIdentity(text string) Pattern {
	if text == "*" {
		return Pattern{Suffix: true}
	}
	return ParseHostname(text)
}

// ParseHostname reads a pattern of hostnames: "*.x.y" is all that end in x.y, anything else is exact (GEP-1016).
func ParseHostname(text string) Pattern {
	name, suffix := strings.CutPrefix(text, "*.")
	return Pattern{name, suffix}
}

// Labels returns the labels of the text, the leftmost first; none if it is empty.
func (p Pattern) Labels() []string {
	if p.Text == "" {
		return nil
	}
	return strings.Split(p.Text, ".")
}

// String returns the text that the Pattern was read from.
func (p Pattern) String() string {
	switch {
	case !p.Suffix:
		return p.Text
	case p.Text == "":
		return "*"
	}
	return "*." + p.Text
}

// An IdentityDomain is what the identities of ServiceAccounts end in.
type IdentityDomain struct {
	ControlPlane string // namespace of the control plane
	Domain       string // trust domain
}

// In returns the identities of another trust domain.
func (d IdentityDomain) In(trustDomain string) IdentityDomain {
	d.Domain = trustDomain
	return d
}

// Of returns the identity of a ServiceAccount, or those of all ServiceAccounts in a Namespace. It returns false for
// other Kinds.
func (d IdentityDomain) Of(account Reference) (Pattern, bool) {
	end := "serviceaccount.identity." + d.ControlPlane + "." + d.Domain
	switch account.Kind {
	case KindServiceAccount:
		return Pattern{Text: account.Name + "." + account.Namespace + "." + end}, true
	case KindNamespace:
		return Pattern{Text: account.Name + "." + end, Suffix: true}, true
	default:
		return Pattern{}, false
	}
}
