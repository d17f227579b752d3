package ruleobject

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// ServerAuthorization reads a ServerAuthorization. One that cannot be read grants nothing.
func ServerAuthorization(u *unstructured.Unstructured) (*rules.ServerAuthorization, error) {
	return stored(rules.KindServerAuthorization, u, (*reader).serverAuthorization)
}

// A clientSpec is which clients a ServerAuthorization lets in.
type clientSpec struct {
	Networks        []networkSpec `json:"networks"`
	Unauthenticated bool          `json:"unauthenticated"`
	MeshTLS         *struct {
		UnauthenticatedTLS bool        `json:"unauthenticatedTLS"`
		Identities         []string    `json:"identities"`
		ServiceAccounts    []reference `json:"serviceAccounts"`
	} `json:"meshTLS"`
}

func (r *reader) serverAuthorization() (*rules.ServerAuthorization, error) {
	var spec struct {
		Server *struct {
			Name     string                `json:"name"`
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"server"`
		Client *clientSpec `json:"client"`
	}
	if err := decode(r.spec, &spec); err != nil {
		return nil, err
	}

	server := spec.Server
	switch {
	case server == nil || (server.Name == "") == (server.Selector == nil):
		return nil, errors.New("it needs either the name or the selector of Servers")
	case server.Name != "" && !isPlain(server.Name, maxName):
		return nil, fmt.Errorf("no Server has the name %.64q", server.Name)
	case spec.Client == nil:
		return nil, errors.New("it has no client")
	}

	to := &rules.ServerAuthorization{Server: server.Name, Selector: r.selector(server.Selector)}
	var err error
	if to.Networks, err = r.networks(spec.Client.Networks); err != nil {
		return nil, err
	}
	to.Clients, to.Identities = r.clients(spec.Client)

	to.Meta = r.meta()
	return to, nil
}

// clients reads which clients are meant, apart from their networks. Of several that contradict each other the widest
// counts, and a new object is denied.
func (r *reader) clients(from *clientSpec) (rules.ClientClass, rules.Identities) {
	tls := from.MeshTLS
	named := tls != nil && len(tls.Identities)+len(tls.ServiceAccounts) > 0
	switch {
	case from.Unauthenticated && tls != nil:
		r.deny(r.note(rules.PartSpec, "unauthenticated clients are let in, so that meshTLS has no effect"))
	case tls != nil && tls.UnauthenticatedTLS && named:
		r.deny(r.note(rules.PartSpec, "clients without identity are let in, so that identities have no effect"))
	}

	switch {
	case from.Unauthenticated:
		return rules.ClientsAny, rules.Identities{}
	case tls != nil && tls.UnauthenticatedTLS:
		return rules.ClientsTLS, rules.Identities{}
	case !named:
		r.note(rules.PartSpec, "it names no clients, and grants nothing")
		return rules.ClientsNone, rules.Identities{}
	}

	for i := range tls.ServiceAccounts { // they have no kind
		tls.ServiceAccounts[i].Group, tls.ServiceAccounts[i].Kind = "", rules.KindServiceAccount.String()
	}
	return rules.ClientsIdentified, rules.Identities{
		Patterns: r.patterns(tls.Identities), Accounts: r.accounts(tls.ServiceAccounts, false),
	}
}

// AuthorizationPolicy reads an AuthorizationPolicy. One that cannot be read grants nothing.
func AuthorizationPolicy(u *unstructured.Unstructured) (*rules.AuthorizationPolicy, error) {
	return stored(rules.KindAuthorizationPolicy, u, (*reader).authorizationPolicy)
}

func (r *reader) authorizationPolicy() (*rules.AuthorizationPolicy, error) {
	var spec struct {
		TargetRef *reference  `json:"targetRef"`
		Required  []reference `json:"requiredAuthenticationRefs"`
	}
	if err := decode(r.spec, &spec); err != nil {
		return nil, err
	}
	if spec.TargetRef == nil || spec.Required == nil {
		return nil, errors.New("it needs targetRef and requiredAuthenticationRefs")
	}

	target, err := r.referent(*spec.TargetRef)
	if err != nil {
		return nil, err
	}
	to := &rules.AuthorizationPolicy{Target: target}
	to.Target.Namespace = r.object.Namespace

	switch target.Kind {
	case rules.KindServer, rules.KindPolicyHTTPRoute, rules.KindHTTPRoute, rules.KindGRPCRoute:
	case rules.KindNamespace:
		if target.Name != r.object.Namespace {
			r.deny(r.note(rules.PartReference, "targetRef is Namespace %s; the policy counts for its own", target.Name))
		}
		to.Target.Namespace = ""
	default:
		r.void(to, "nothing of the kind "+spec.TargetRef.kindText()+" can be the target")
	}

	for _, required := range spec.Required {
		if err := r.require(to, required); err != nil {
			return nil, err
		}
	}

	for _, of := range []rules.Reference{to.Target, to.Identities, to.Networks} {
		if of != (rules.Reference{}) {
			r.referents = append(r.referents, of)
		}
	}
	to.Meta = r.meta()
	return to, nil
}

// require adds a requirement to a policy.
func (r *reader) require(to *rules.AuthorizationPolicy, from reference) error {
	required, err := r.referent(from)
	if err != nil {
		return err
	}

	var kept *rules.Reference
	switch required.Kind {
	case rules.KindMeshTLSAuthentication, rules.KindServiceAccount:
		kept = &to.Identities
	case rules.KindNetworkAuthentication:
		kept = &to.Networks
	default:
		r.void(to, "nothing of the kind "+from.kindText()+" can be required")
		return nil
	}

	if *kept != (rules.Reference{}) {
		kinds := kept.Kind.String()
		if required.Kind != kept.Kind {
			kinds += " or " + required.Kind.String()
		}
		r.void(to, "more than one "+kinds+" is required")
		return nil
	}
	*kept = required
	return nil
}

// void has a policy grant nothing.
func (r *reader) void(policy *rules.AuthorizationPolicy, reason string) {
	if policy.Void == "" {
		policy.Void = r.leaveOut(rules.PartReference, "%s", reason)
		r.deny(policy.Void)
	}
}

// MeshTLSAuthentication reads a MeshTLSAuthentication. One that cannot be read holds of no client.
func MeshTLSAuthentication(u *unstructured.Unstructured) (*rules.MeshTLSAuthentication, error) {
	return stored(rules.KindMeshTLSAuthentication, u, (*reader).meshTLSAuthentication)
}

func (r *reader) meshTLSAuthentication() (*rules.MeshTLSAuthentication, error) {
	var spec struct {
		Identities   []string    `json:"identities"`
		IdentityRefs []reference `json:"identityRefs"`
	}
	if err := decode(r.spec, &spec); err != nil {
		return nil, err
	}
	if (len(spec.Identities) == 0) == (len(spec.IdentityRefs) == 0) {
		return nil, errors.New("it needs either identities or identityRefs")
	}

	spec.Identities = firstOf(r, rules.PartIdentity, spec.Identities, maxIdentities)
	for _, identity := range spec.Identities {
		if !isIdentity(identity) {
			r.deny(r.note(rules.PartIdentity, "%.64q is no identity that a client can have", identity))
		}
	}

	to := &rules.MeshTLSAuthentication{Identities: rules.Identities{
		Patterns: r.patterns(spec.Identities), Accounts: r.accounts(spec.IdentityRefs, true),
	}}
	to.Meta = r.meta()
	return to, nil
}

// NetworkAuthentication reads a NetworkAuthentication. One that cannot be read holds of no client.
func NetworkAuthentication(u *unstructured.Unstructured) (*rules.NetworkAuthentication, error) {
	return stored(rules.KindNetworkAuthentication, u, (*reader).networkAuthentication)
}

func (r *reader) networkAuthentication() (*rules.NetworkAuthentication, error) {
	var spec struct {
		Networks []networkSpec `json:"networks"`
	}
	if err := decode(r.spec, &spec); err != nil {
		return nil, err
	}
	if spec.Networks == nil {
		return nil, errors.New("it has no networks")
	}

	networks, err := r.networks(spec.Networks)
	if err != nil {
		return nil, err
	}
	to := &rules.NetworkAuthentication{Networks: networks}
	to.Meta = r.meta()
	return to, nil
}
