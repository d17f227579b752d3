package policy

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

const (
	gatewayRoute = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: gateway, namespace: $NS}
spec: {parentRefs: [{group: "", kind: Service, name: web, port: 8080}]}
`
	policyRoute = `apiVersion: policy.linkerd.io/v1beta3
kind: HTTPRoute
metadata: {name: policy, namespace: $NS}
spec: {parentRefs: [{group: core, kind: Service, name: web, port: 8080}]}
`
	server = `apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: http, namespace: $NS}
spec: {podSelector: {}, port: http, accessPolicy: all-unauthenticated}
`
)

// sql is a Service of an opaque port, whose traffic goes elsewhere.
const sql = `apiVersion: v1
kind: Service
metadata: {name: sql, namespace: $NS}
spec: {ports: [{name: sql, port: 3306}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: sql, namespace: $NS}
spec:
  parentRefs: [{group: "", kind: Service, name: sql, port: 3306}]
  rules: [{backendRefs: [{name: web, port: 8080}]}]
`

// A replica works without the definitions of any kind of policy. It reads what comes later without a restart, follows
// the versions that are served, and outlives their end.
func TestDefinitionsComeAndGo(t *testing.T) {
	t.Parallel()
	bare.apply(t, "definitions", shop)
	r := bare.serve(t, "definitions-0")
	web := bare.address(t, "definitions", "web")
	to, at := r.outbound("definitions", web), r.inbound("definitions")
	to.until(time.Second, "the default", hasRoutes("default http"))
	at.until(time.Second, "the default", isServer("default all-unauthenticated", "default all-unauthenticated"))

	// An absent kind is looked for again after 10 s, then ever more rarely.
	bare.define(t, "experimental", "httproutes", "grpcroutes", "tlsroutes", "tcproutes")
	do(t, bare.Apply(t.Context(), mesh.PolicyCRDs))
	bare.apply(t, "definitions", gatewayRoute)
	bare.apply(t, "definitions", policyRoute)
	bare.apply(t, "definitions", server)
	bare.apply(t, "definitions", sql)
	toSQL := r.outbound("definitions", bare.address(t, "definitions", "sql"))
	to.until(20*time.Second, "routes of both groups", hasRoutes("HTTPRoute gateway", "HTTPRoute policy"))
	at.until(20*time.Second, "the Server", isServer("server http", "default all-unauthenticated"))
	toSQL.until(20*time.Second, "the TCPRoute", sendsTo("web.definitions.svc.cluster.local:8080"))

	// A newer server of definitions, or an older one, serves other versions of the same objects.
	do(t, bare.Apply(t.Context(), without(t, "servers.policy.linkerd.io", "v1beta3")))
	do(t, bare.Apply(t.Context(), without(t, "httproutes.policy.linkerd.io", "v1beta3")))
	bare.apply(t, "definitions", strings.NewReplacer("v1beta3", "v1beta2", "name: policy", "name: older").
		Replace(policyRoute))
	bare.apply(t, "definitions", strings.NewReplacer("v1beta3", "v1beta2", "port: http", "port: 9090",
		", accessPolicy: all-unauthenticated", "").Replace(server))
	to.until(20*time.Second, "a route of an older version",
		hasRoutes("HTTPRoute gateway", "HTTPRoute older", "HTTPRoute policy"))
	at.until(20*time.Second, "a Server of an older version has another port",
		isServer("default all-unauthenticated", "default all-unauthenticated"))

	bare.define(t, "standard", "tlsroutes", "tcproutes")
	bare.apply(t, "definitions", strings.Replace(sql, "name: web, port: 8080", "name: api, port: 80", 1))
	toSQL.until(20*time.Second, "the TCPRoute has another backend", sendsTo("api.definitions.svc.cluster.local:80"))

	// Definitions that are deleted take their objects along.
	for _, kind := range []string{
		"httproutes.gateway.networking.k8s.io", "httproutes.policy.linkerd.io", "servers.policy.linkerd.io",
	} {
		do(t, bare.Delete(t.Context(), "", "customresourcedefinitions.apiextensions.k8s.io/"+kind))
	}
	// An API server may leave a watch silent whose definition has changed shortly before. After 150 s of silence
	// everything is listed anew.
	to.until(40*time.Second, "the default again", hasRoutes("default http"))
	if _, _, err := r.ask(t.Context(), "definitions", web); err != nil {
		t.Errorf("a new call: %v", err)
	}
	r.awaitReady()
}

// define applies definitions of the Gateway API.
func (s *site) define(t *testing.T, channel string, kinds ...string) {
	t.Helper()
	definitions, err := gatewayCRDs(t.Context(), channel, kinds...)
	do(t, err)
	do(t, s.Apply(t.Context(), definitions))
}

// sendsTo checks where opaque connections go.
func sendsTo(want string) func(*policy.Client) error {
	return func(c *policy.Client) error {
		var have []string
		for _, route := range c.Routes(policy.Request{Protocol: policy.Opaque}) {
			for _, outcome := range route.Rules[0].Outcomes() {
				have = append(have, route.Metadata.Kind+" "+outcome.To)
			}
		}
		return sameTexts(have, []string{"TCPRoute " + want})
	}
}

// without returns a definition that serves one version less, and stores another one.
func without(t *testing.T, definition, version string) []byte {
	t.Helper()
	all, err := charts.Objects(mesh.PolicyCRDs)
	do(t, err)
	for _, o := range all {
		if o.GetName() != definition {
			continue
		}
		versions, _, err := unstructured.NestedSlice(o.Object, "spec", "versions")
		do(t, err)
		for _, v := range versions {
			fields := v.(map[string]any)
			fields["served"] = fields["name"] != version
		}
		do(t, unstructured.SetNestedSlice(o.Object, versions, "spec", "versions"))
		return charts.Manifest(o)
	}
	t.Fatalf("there is no definition of %s", definition)
	return nil
}
