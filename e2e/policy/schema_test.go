package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
)

// What API servers fill in, and how they convert versions, counts in answers.
func TestDefaultsOfDefinitions(t *testing.T) {
	t.Parallel()
	const namespace = "schemas"
	shared.apply(t, namespace, shop)
	r := shared.serve(t, "schemas-0")
	at := r.inbound(namespace)
	to := r.outbound(namespace, shared.address(t, namespace, "web"))

	shared.apply(t, namespace, `apiVersion: policy.linkerd.io/v1beta1
kind: Server
metadata: {name: old, namespace: $NS}
spec: {podSelector: {}, port: http}
`)
	at.until(time.Second, "a Server of a version without default policy", isServer("server old"))
	at.until(time.Second, "its protocol", func(s *policy.Server) error {
		return sameTexts([]string{string(s.Protocol)}, []string{string(policy.Detect)})
	})
	shared.apply(t, namespace, `apiVersion: policy.linkerd.io/v1alpha1
kind: ServerAuthorization
metadata: {name: old, namespace: $NS}
spec: {server: {name: old}, client: {unauthenticated: true}}
`)
	at.until(time.Second, "its authorization", isServer("server old", "serverauthorization old"))

	// A parent without a kind is a Gateway, in both groups.
	shared.apply(t, namespace, strings.ReplaceAll(policyRoute, "group: core, kind: Service, ", ""))
	shared.apply(t, namespace, gatewayRoute)
	to.until(time.Second, "a route without rules", hasRoutes("HTTPRoute gateway"))
	to.until(time.Second, "its default rule", func(c *policy.Client) error {
		route, rule := c.Route(policy.Request{Authority: "web", Path: "/any"})
		if rule == nil {
			return sameTexts(nil, []string{"a rule for any path"})
		}
		return sameTexts([]string{route.Metadata.Name, rule.Outcomes()[0].To},
			[]string{"gateway", "web." + namespace + ".svc.cluster.local:8080"})
	})

	shared.apply(t, namespace, sql)
	r.outbound(namespace, shared.address(t, namespace, "sql")).until(time.Second, "a TCPRoute",
		sendsTo("web."+namespace+".svc.cluster.local:8080"))
}

// What the schemas refuse never reaches the server, which relies on some of it.
func TestSchemasRefuse(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]string{
		"MeshTLSAuthentication: {identities: [a.b], identityRefs: [{kind: Namespace}]}": "oneOf",
		"MeshTLSAuthentication: {}":                                    "oneOf",
		"MeshTLSAuthentication: {identities: []}":                      "should have at least 1 items",
		"NetworkAuthentication: {}":                                    "spec.networks: Required",
		"AuthorizationPolicy: {targetRef: {kind: Namespace, name: x}}": "requiredAuthenticationRefs: Required",
		"EgressNetwork: {trafficPolicy: Some}":                         "supported values: \"Allow\", \"Deny\"",
		"HTTPLocalRateLimitPolicy: {total: {requestsPerSecond: 1}}":    "spec.targetRef: Required",
	} {
		kind, text, _ := strings.Cut(name, ": ")
		err := shared.Apply(t.Context(), []byte("apiVersion: policy.linkerd.io/v1alpha1\nkind: "+kind+
			"\nmetadata: {name: refused}\nspec: "+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), spec) {
			t.Errorf("%s: %v, want %q", name, err, spec)
		}
	}
}
