package slices

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// The whole way: Services of west and north are labelled, the server makes mirrors in east, to Pods and to a
// gateway, and the federated Service, serves all three, and writes slices for the one that asks for them.
// When the labels go everything goes.
func TestMirroredByTheServer(t *testing.T) {
	w := newWorld(t, "mirrored")
	east, west, in := clusters[0], clusters[1], w.installations[0]
	// The one that the server is to make.
	_, err := east.Kubectl(t.Context(), "-n", w.ns, "delete", "service", mesh.Federated)
	do(t, err)
	for _, remote := range in.Remotes {
		_, err := east.Kubectl(t.Context(), "-n", w.ns, "patch", "link", remote.Name, "--type=merge", "-p", `{"spec": {
			"remoteDiscoverySelector": {"matchLabels": {"mirror.linkerd.io/exported": "remote-discovery"}},
			"federatedServiceSelector": {"matchLabels": {"mirror.linkerd.io/federated": "member"}},
			"selector": {"matchLabels": {"mirror.linkerd.io/exported": "true"}},
			"gatewayAddress": "192.0.2.143", "gatewayPort": "4143", "gatewayIdentity": "gateway.example"}}`)
		do(t, err)
	}
	server := w.replica(in, "east-0")
	label := func(s *site, labels ...string) {
		_, err := s.Kubectl(t.Context(), append([]string{"-n", w.ns, "label", "service", mesh.Service}, labels...)...)
		do(t, err)
	}
	label(west, "mirror.linkerd.io/exported=remote-discovery", "mirror.linkerd.io/federated=member")
	label(east, "mirror.linkerd.io/federated=member")
	label(clusters[2], "mirror.linkerd.io/exported=true")

	in.Server = server.Server
	for service, of := range map[string]int{mesh.Service + "-west": 2, mesh.Federated: 4, mesh.Service + "-north": 1} {
		eventually(t, 5*time.Second, fmt.Sprintf("%s leads to %d addresses", service, of),
			func(ctx context.Context) error {
				stream, err := in.Watch(ctx, in.Authority(service)) // it ends if there is no such Service yet
				if err != nil {
					return err
				}
				defer stream.Close()
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				return stream.Until(ctx, "all of them", func(s *mesh.Watch) bool { return s.Len() == of })
			})
	}
	_, err = east.Kubectl(t.Context(), "-n", w.ns, "annotate", "service", mesh.Federated,
		"federation.fingerpost.io/endpoint-slices=enabled")
	do(t, err)
	w.union(east, 3*time.Second, "the federated Service has slices", east, west)

	label(west, "mirror.linkerd.io/exported-", "mirror.linkerd.io/federated-")
	eventually(t, 5*time.Second, "the mirror is gone, and west has left the federated Service",
		func(ctx context.Context) error {
			out, err := east.Kubectl(ctx, "-n", w.ns, "get", "services", "-o",
				`jsonpath={range .items[*]}{.metadata.name} {.metadata.annotations.multicluster\.linkerd\.io/remote-discovery};{end}`)
			if err == nil && (strings.Contains(out, mesh.Service+"-west") || strings.Contains(out, "@west")) {
				err = fmt.Errorf("Services %s", out)
			}
			return err
		})
	w.union(east, 3*time.Second, "and its slices hold what is left", east)
}
