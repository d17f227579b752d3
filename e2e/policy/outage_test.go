package policy

import (
	"context"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
)

// The API server is away for a minute, at first silent, then refusing: the Leases that the replica holds end
// meanwhile. Streams stay open, and new calls are answered from what is known. What has changed arrives once it is
// back, once.
func TestOutage(t *testing.T) {
	t.Parallel()
	const namespace = "outage"
	shared.apply(t, namespace, shop)
	shared.apply(t, namespace, server)
	shared.apply(t, namespace, policyRoute)
	proxy, err := shared.NewProxy()
	do(t, err)
	r := shared.serve(t, "outage-0", func(o *app.Options) { o.Config = shared.Config(shared.Admin(), proxy.URL()) })
	web := shared.address(t, namespace, "web")
	to, at := r.outbound(namespace, web), r.inbound(namespace)
	to.until(time.Second, "the route", hasRoutes("HTTPRoute policy"))
	at.until(time.Second, "the Server", isServer("server http", "default all-unauthenticated"))
	messages, ofServer := to.count(), at.count()

	do(t, proxy.Silence())
	shared.apply(t, namespace, gatewayRoute)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for second := range 60 {
		select {
		case <-ticker.C:
		case <-r.ended:
			t.Fatalf("the replica has ended after %d s", second)
		}
		if second == 30 {
			proxy.Refuse()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		client, port, err := r.ask(ctx, namespace, web)
		cancel()
		if err != nil {
			t.Fatalf("a call after %d s: %v", second, err)
		}
		do(t, hasRoutes("HTTPRoute policy")(client))
		do(t, isServer("server http", "default all-unauthenticated")(port))
		if to.count() != messages || at.count() != ofServer {
			t.Fatalf("there are messages after %d s", second)
		}
	}

	eventually(t, time.Second, "the cluster is Stale", func(ctx context.Context) error {
		return r.measures(ctx, `fingerpost_cluster_state{state="Stale",target_cluster="local"} 1`)
	})
	do(t, proxy.Pass())
	to.until(10*time.Second, "the route that came meanwhile", hasRoutes("HTTPRoute gateway", "HTTPRoute policy"))
	do(t, shared.Delete(t.Context(), namespace, "httproutes.policy.linkerd.io/policy"))
	to.until(time.Second, "the next change", hasRoutes("HTTPRoute gateway"))
	if have := to.count() - messages; have != 2 {
		t.Errorf("two changes were %d messages", have)
	}
	if have := at.count() - ofServer; have != 0 {
		t.Errorf("no change was %d messages", have)
	}
	eventually(t, 5*time.Second, "the cluster is Live", func(ctx context.Context) error {
		return r.measures(ctx, `fingerpost_cluster_state{state="Live",target_cluster="local"} 1`)
	})
}
