package rules

// A ClientClass is which clients are meant, apart from their networks.
type ClientClass uint8

// Classes of clients.
const (
	ClientsNone       ClientClass = iota // the object grants nothing
	ClientsAny                           // with TLS or without
	ClientsTLS                           // with TLS, whether they have an identity or not
	ClientsIdentified                    // with an identity among those of Identities
)

// Identities are those of clients. They are given as patterns, by ServiceAccounts, and by Namespaces with all of their
// ServiceAccounts.
type Identities struct {
	Patterns []Pattern
	Accounts []Reference // of KindServiceAccount or KindNamespace
}

// A ServerAuthorization lets clients use Servers of its namespace.
type ServerAuthorization struct {
	Meta
	Server   string         // by name; empty: by Selector
	Selector *LabelSelector // of the labels of Servers; nil selects none

	Clients    ClientClass
	Identities Identities // of ClientsIdentified
	Networks   []Network  // nil: those of the cluster; empty: none
}

// An AuthorizationPolicy lets clients use a Server, all Servers of its namespace, or a route. All that it requires must
// hold of a client.
type AuthorizationPolicy struct {
	Meta

	// Target is of KindServer, of KindNamespace, whose name is not compared, of KindPolicyHTTPRoute, KindHTTPRoute or
	// KindGRPCRoute. It is in the namespace of the policy.
	Target Reference

	// Identities is the MeshTLSAuthentication or the ServiceAccount that clients have to match, Networks the
	// NetworkAuthentication. The zero Reference requires nothing.
	Identities, Networks Reference

	// Void is why the policy grants nothing, whatever exists: a target or a requirement of another kind, or too many.
	Void string
}

// A MeshTLSAuthentication is a list of identities.
type MeshTLSAuthentication struct {
	Meta
	Identities Identities
}

// A NetworkAuthentication is a list of networks.
type NetworkAuthentication struct {
	Meta
	Networks []Network // none: it holds of no client
}
