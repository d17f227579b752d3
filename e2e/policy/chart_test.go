package policy

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

// With the arguments and the rights of the chart a server of its own process serves policy.
func TestChart(t *testing.T) {
	t.Parallel()
	const namespace = "charted"
	shared.apply(t, namespace, shop)
	shared.apply(t, namespace, server)
	shared.apply(t, namespace, gatewayRoute)
	in, err := charts.Install(t.Context(), shared.Cluster, charts.Server, namespace+"-system",
		"{policy: {enabled: true, status: false}, links: {namespace: "+namespace+"}}")
	do(t, err)

	s, err := fingerpost.Start(context.WithoutCancel(t.Context()), fingerpost.Options{
		Binary: binary, Dir: t.TempDir(), Kubeconfig: shared.Kubeconfig(in.Identity, ""),
		Args: append(in.Args, "-policy-addr=127.0.0.1:0"),
	})
	do(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the log:\n%s", s.Tail())
		}
	})
	conn, err := grpc.NewClient(s.Policy, grpc.WithTransportCredentials(insecure.NewCredentials()))
	do(t, err)
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})

	r := &replica{t: t, admin: s.Admin, conn: conn}
	r.awaitReady()
	r.inbound(namespace).until(time.Second, "the Server",
		isServer("server http", "default all-unauthenticated"))
	r.outbound(namespace, shared.address(t, namespace, "web")).until(time.Second, "the route",
		hasRoutes("HTTPRoute gateway"))
}
