package live

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// What a proxy receives for an address: a Service by its cluster IP, with its ServiceProfile as soon as there
// is one, even if the kind appears after the server has started; a Pod by its IP, and none once it is gone;
// an IP outside.
func TestProfiles(t *testing.T) {
	w := newWorld(t, "profiles", 1)
	w.serve()
	ask := func(authority string) (newest func() *proxy.Profile, changed func() <-chan struct{}) {
		t.Helper()
		conn, err := grpc.NewClient(w.Server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		w.do(err)
		var seen watch.Value[*proxy.Profile]
		s := proxy.OpenProfile(t.Context(), conn, proxy.Request{Authority: authority},
			func(e proxy.Event) { seen.Store(e.Profile) })
		t.Cleanup(func() {
			s.Close()
			conn.Close()
			if err := s.Violations(); err != nil {
				t.Error(err)
			}
		})
		return s.Newest, func() <-chan struct{} { _, c := seen.Load(); return c }
	}
	until := func(claimed time.Duration, what string, newest func() *proxy.Profile,
		changed func() <-chan struct{}, right func(*proxy.Profile) bool,
	) {
		t.Helper()
		w.within(claimed, what, func(ctx context.Context) error {
			for {
				more := changed()
				if p := newest(); p != nil && right(p) {
					return nil
				}
				select {
				case <-more:
				case <-ctx.Done():
					return fmt.Errorf("the profile is %v: %w", newest(), context.Cause(ctx))
				}
			}
		})
	}
	get := func(args ...string) []string {
		t.Helper()
		out, err := w.Local.Kubectl(t.Context(), append([]string{"-n", w.Namespace, "get"}, args...)...)
		w.do(err)
		return strings.Fields(out)
	}
	name := mesh.Service + "." + w.Namespace + ".svc.cluster.local"

	clusterIP := get("service", mesh.Service, "-o", "jsonpath={.spec.clusterIP}")[0]
	service, serviceChanged := ask(fmt.Sprintf("%s:%d", clusterIP, mesh.Port))
	until(time.Second, "a Service by its cluster IP", service, serviceChanged, func(p *proxy.Profile) bool {
		return p.GetFullyQualifiedName() == name && len(p.GetRoutes()) == 0
	})
	outside, outsideChanged := ask("192.0.2.77:1234")
	until(time.Second, "an IP outside", outside, outsideChanged, func(p *proxy.Profile) bool {
		return p.Address.Addr.String() == "192.0.2.77:1234" && len(p.Address.Labels) == 0
	})
	pods := get("pods", "-l", "app="+mesh.Service, "-o",
		"jsonpath={range .items[*]}{.metadata.name}={.status.podIP} {end}")
	pod, ip, _ := strings.Cut(pods[0], "=")
	instance, instanceChanged := ask(fmt.Sprintf("%s:%d", ip, mesh.Port))
	until(time.Second, "a Pod by its IP", instance, instanceChanged, func(p *proxy.Profile) bool {
		return p.Address.Labels["pod"] == pod && p.Address.Labels["namespace"] == w.Namespace &&
			p.Address.Labels["deployment"] == mesh.Service
	})

	w.do(w.Local.Apply(t.Context(), mesh.LinkerdCRDs))
	w.do(w.Local.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: %s, namespace: %s}
spec: {routes: [{name: pay, isRetryable: true, condition: {method: POST, pathRegex: /pay}}]}
`, name, w.Namespace)))
	until(time.Minute, "a ServiceProfile of a kind that has just appeared", service, serviceChanged,
		func(p *proxy.Profile) bool {
			return len(p.GetRoutes()) == 1 && p.GetRoutes()[0].GetIsRetryable() &&
				p.GetProfileRef().GetResource().GetName() == name
		})
	_, err := w.Local.Kubectl(t.Context(), "-n", w.Namespace, "delete", "serviceprofile", name)
	w.do(err)
	until(time.Second, "the ServiceProfile is deleted", service, serviceChanged, func(p *proxy.Profile) bool {
		return len(p.GetRoutes()) == 0 && p.GetProfileRef() == nil
	})
	_, err = w.Local.Kubectl(t.Context(), "-n", w.Namespace, "delete", "pod", pod)
	w.do(err)
	until(5*time.Second, "the Pod is gone", instance, instanceChanged,
		func(p *proxy.Profile) bool { return p.Address.Labels["pod"] != pod })
	if now := get("pods", "-l", "app="+mesh.Service, "-o", "name"); slices.Contains(now, "pod/"+pod) {
		t.Errorf("it is still there: %v", now)
	}
}
