package identity

import (
	"errors"
	"strings"
)

const (
	maxLabel = 63  // bytes of a label of a DNS name (RFC 1035, 2.3.4)
	maxName  = 253 // bytes of a DNS name, written with dots and without the last one
)

// A Domain is what all identities of a mesh end with.
type Domain struct {
	Namespace   string // of the control plane
	TrustDomain string
}

// Validate reports parts of which no identity can be made.
func (d Domain) Validate() error {
	switch {
	case !isLabel(d.Namespace):
		return errors.New("the namespace of the control plane must be a DNS label")
	case !isSubdomain(d.TrustDomain):
		return errors.New("the trust domain must be a DNS name")
	}
	return nil
}

// Name returns the identity of a ServiceAccount. A name of an account may have dots, and that of a namespace has none:
// no two accounts have one identity.
func (d Domain) Name(namespace, account string) string {
	return account + "." + namespace + ".serviceaccount.identity." + d.Namespace + "." + d.TrustDomain
}

// userPrefix is what Kubernetes has before the namespace and the name of a ServiceAccount as a user.
const userPrefix = "system:serviceaccount:"

// parseUser returns which ServiceAccount a user is, if it is one.
func parseUser(user string) (namespace, account string, is bool) {
	rest, is := strings.CutPrefix(user, userPrefix)
	if !is {
		return "", "", false
	}
	namespace, account, _ = strings.Cut(rest, ":")
	return namespace, account, isLabel(namespace) && isSubdomain(account)
}

// isSubdomain reports whether a name is what Kubernetes calls a DNS-1123 subdomain: labels with dots between them.
func isSubdomain(name string) bool {
	if len(name) > maxName {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !isLabelOf(label, maxName) {
			return false
		}
	}
	return true
}

// isLabel reports whether a name is what Kubernetes calls a DNS-1123 label.
func isLabel(name string) bool { return isLabelOf(name, maxLabel) }

// isLabelOf reports whether a name has small letters, digits and inner dashes, and one to so many bytes. Kubernetes
// bounds no single label of a subdomain.
func isLabelOf(name string, most int) bool {
	if name == "" || len(name) > most || name[0] == '-' || name[len(name)-1] == '-' {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
