package live

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// serversCRD defines Servers as far as their shape matters, in an older version than the newest.
const serversCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servers.policy.linkerd.io}
spec:
  group: policy.linkerd.io
  scope: Namespaced
  names: {kind: Server, listKind: ServerList, plural: servers, singular: server}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// A Server makes the ports of its own cluster's Pods opaque, and counts although its CRD came after the
// cluster was linked.
func TestServers(t *testing.T) {
	w := newWorld(t, "servers", 2)
	west := w.Remotes[0]
	w.serve()
	w.link(west)
	s := w.watch(mesh.Federated)
	w.holds(s, 3*time.Second, "both clusters", map[*mesh.Site]int{w.Local: 2, west: 2})
	opaque := func(claimed time.Duration, what string, want int) {
		t.Helper()
		w.within(claimed, what, func(ctx context.Context) error {
			return s.Until(ctx, fmt.Sprintf("want %d addresses of west, and no other, to be opaque", want),
				func(s *mesh.Watch) bool {
					inWest, others := 0, 0
					for _, a := range s.Holds() {
						switch {
						case a.GetProtocolHint().GetOpaque() == nil:
						case west.PodCIDR().Contains(a.Addr.Addr()):
							inWest++
						default:
							others++
						}
					}
					return inWest == want && others == 0
				})
		})
	}
	w.do(west.Apply(t.Context(), []byte(serversCRD)))
	w.do(west.Apply(t.Context(), []byte(fmt.Sprintf(`apiVersion: policy.linkerd.io/v1beta1
kind: Server
metadata: {name: web, namespace: %s}
spec: {podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: opaque}
`, w.Namespace))))
	opaque(15*time.Second, "a first Server", 2)
	w.do(west.Scale(t.Context(), w.Namespace, mesh.Service, 3))
	opaque(3*time.Second, "another Pod that it selects", 3)
	_, err := west.Kubectl(t.Context(), "-n", w.Namespace, "delete", "servers.policy.linkerd.io", "web")
	w.do(err)
	opaque(3*time.Second, "no Server any more", 0)
}
