package app_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"
)

// Whatever a linked cluster does to itself, as fast as it likes, few writes into the local cluster follow from it. In
// the end what is written is what it has.
func TestWritesForOneCluster(t *testing.T) {
	t.Parallel()
	const (
		changes, pause = 1000, 20 * time.Millisecond
		most           = 50 // objects that are created and deleted
	)
	limits := map[string]int{
		"links.multicluster.linkerd.io":          20,
		"services":                               most,
		"endpoints":                              most,
		"endpointslices.discovery.k8s.io":        most,
		"events.events.k8s.io":                   most,
		"update endpointslices.discovery.k8s.io": 400,
	}
	service := func(metadata string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop" + metadata + "}\n" +
			"spec: {ports: [{name: http, port: 80, protocol: TCP}]}"
	}
	slice := func(endpoints string) string {
		return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n" +
			"metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}\n" +
			"addressType: IPv4\nports: [{name: http, port: 8080, protocol: TCP}]\nendpoints: [" + endpoints + "]"
	}
	for name, states := range map[string][2]string{
		"drains itself": {
			"{apiVersion: v1, kind: Namespace, metadata: {name: linkerd, " +
				"annotations: {federation.fingerpost.io/drain: \"true\"}}}",
			"{apiVersion: v1, kind: Namespace, metadata: {name: linkerd}}",
		},
		"exports a Service":         {service(", labels: {mirror.linkerd.io/exported: remote-discovery}"), service("")},
		"mirrors by its gateway":    {service(", labels: {mirror.linkerd.io/exported: \"true\"}"), service("")},
		"joins a federated Service": {service(", labels: {mirror.linkerd.io/federated: member}"), service("")},
		"changes an endpoint":       {slice("{addresses: [10.1.0.1]}"), slice("{addresses: [10.1.0.2]}")},
		"withdraws its endpoints":   {slice(""), slice("{addresses: [10.1.0.1]}")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScenario(t, &txtar.Archive{})
				s.flags = []string{"-federated-slices", "-mirror-services=on"}
				defer s.end()
				s.start("replica-1")
				elapse(settle)
				for _, files := range [][]string{
					{"fleet/shop.yaml"}, {"fleet/union.yaml"}, {"fleet/east-link.yaml", "fleet/west-link.yaml"},
				} {
					s.do("apply", append([]string{home}, files...))
				}
				s.do("apply", []string{"east", "fleet/web-east.yaml"})
				s.do("apply", []string{"west", "fleet/web-west.yaml"})
				elapse(time.Minute)

				home := s.network.Server(home)
				written := func() map[string]int {
					all := map[string]int{}
					for what := range limits {
						for _, verb := range []string{"create", "update", "patch", "delete"} {
							key := what
							if verb == "update" && what == "endpointslices.discovery.k8s.io" {
								key = verb + " " + what
							}
							all[key] += home.Requests(verb, what)
						}
					}
					return all
				}
				before := written()
				for i := range changes {
					s.network.Server("east").ApplyYAML(states[i%2])
					elapse(pause)
				}
				now := written()
				elapse(time.Minute)
				s.do("slices", []string{"local", "shop"})
				if now := s.out.String(); !strings.Contains(now, "from east 10.1.0.") {
					t.Errorf("the endpoint of the cluster is not written in the end:\n%s", now)
				}
				for what, limit := range limits {
					n := now[what] - before[what]
					if n > limit {
						t.Errorf("%d changes within %s: %s is written %d times, may be %d",
							changes, changes*pause, what, n, limit)
					}
					t.Logf("%s: %d", what, n)
				}
			})
		})
	}
}
