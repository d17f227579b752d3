package mirror_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/links/mirror"
)

// probed is the Service mc/probe-east as kube-proxy serves it: a port of the Service leads to that of its Endpoints of
// the same name. The gateway listens at one port of 192.0.2.1.
type probed struct {
	*fleet
	listens int // the gateway's port

	mu     sync.Mutex
	dialed map[string]bool
}

func (p *probed) dial(_ context.Context, _, address string) (net.Conn, error) {
	p.mu.Lock()
	p.dialed[address] = true
	p.mu.Unlock()
	host, port, _ := net.SplitHostPort(address)
	svc := p.home.Get("services", "mc", "probe-east")
	if host != "probe-east.mc.svc" || svc == nil {
		return nil, fmt.Errorf("dial %s: no such host", address)
	}
	ports, _, _ := unstructured.NestedSlice(svc.Object, "spec", "ports")
	for _, of := range ports {
		if declared := of.(map[string]any); fmt.Sprint(declared["port"]) == port && p.leadsTo(declared["name"]) {
			client, server := net.Pipe()
			go func() {
				_ = http.Serve(&single{server}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			}()
			return client, nil
		}
	}
	return nil, fmt.Errorf("dial %s: connection refused", address)
}

// leadsTo reports whether Endpoints have the gateway's port under a name.
func (p *probed) leadsTo(name any) bool {
	e := p.home.Get("endpoints", "mc", "probe-east")
	if e == nil {
		return false
	}
	subsets, _, _ := unstructured.NestedSlice(e.Object, "subsets")
	for _, s := range subsets {
		ports, _, _ := unstructured.NestedSlice(s.(map[string]any), "ports")
		for _, of := range ports {
			declared := of.(map[string]any)
			if declared["name"] == name && fmt.Sprint(declared["port"]) == strconv.Itoa(p.listens) {
				return true
			}
		}
	}
	return false
}

// single is a listener of one connection.
type single struct{ net.Conn }

func (s *single) Accept() (net.Conn, error) {
	c := s.Conn
	if s.Conn = nil; c == nil {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (s *single) Close() error   { return nil }
func (s *single) Addr() net.Addr { return &net.TCPAddr{} }

// A gateway is probed over the port of the Service probe-<link>, whatever its own port is, and by any creator of that
// Service. Where there is no way to ask it, the Link reports why, and the gateway counts as it did before.
func TestProbePort(t *testing.T) {
	chart := func(ports string) string {
		return `{apiVersion: v1, kind: Service, metadata: {name: probe-east, namespace: mc, labels: {` +
			`linkerd.io/extension: multicluster, mirror.linkerd.io/mirrored-gateway: "true", ` +
			`mirror.linkerd.io/cluster-name: east}}, spec: {ports: [` + ports + `]}}`
	}
	const mcProbe = `{name: mc-probe, port: 4191, protocol: TCP}`
	for name, c := range map[string]struct {
		service string // YAML; empty: the chart has created none
		linked  int    // probeSpec.port of the Link, at which the gateway listens
		refused string // none may be created here
		dialed  string // the port that is asked for
		reports string // the condition Mirroring begins with it
	}{
		"one port everywhere":         {chart(mcProbe), 4191, "", "4191", "True Mirroring"},
		"a gateway behind node ports": {chart(mcProbe), 30101, "", "4191", "True Mirroring"},
		"the port differs from the chart's": {
			chart(`{name: mc-probe, port: 5191, protocol: TCP}`), 4191, "", "5191", "True Mirroring",
		},
		"a load balancer that maps ports": {
			chart(`{name: metrics, port: 9990, protocol: TCP}, ` + mcProbe), 443, "", "4191", "True Mirroring",
		},
		"a port of another name": {
			chart(`{name: probe, port: 4191, protocol: TCP}`), 30101, "", "4191", "True Mirroring",
		},
		"no protocol": {chart(`{name: mc-probe, port: 4191}`), 30101, "", "4191", "True Mirroring"},
		"no Service":  {"", 30101, "", "30101", "True Mirroring"},
		"none allowed": {
			"", 30101, "exceeded quota", "", "False GatewayNotProbed: the Service mc/probe-east, over which",
		},
		"several ports": {
			chart(`{name: a, port: 4191, protocol: TCP}, {name: b, port: 4192, protocol: TCP}`), 30101, "", "",
			"False GatewayNotProbed: the Service mc/probe-east, over which the gateway is probed, has 2 TCP ports",
		},
		"no port": {chart(`{name: mc-probe, port: 4191, protocol: UDP}`), 30101, "", "", "False GatewayNotProbed"},
		"a Service of a user": {
			`{apiVersion: v1, kind: Service, metadata: {name: probe-east, namespace: mc}, spec: {ports: [` +
				mcProbe + `]}}`, 4191, "", "",
			"False GatewayNotProbed: the Service mc/probe-east exists already, and is not one",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &probed{listens: c.linked, dialed: map[string]bool{}}
			inFleet(t, mirror.Options{Probe: true, Dial: p.dial}, func(f *fleet) {
				p.fleet = f
				if c.service != "" {
					f.home.ApplyYAML(c.service)
				}
				l := f.home.Get("links.multicluster.linkerd.io", "mc", "east")
				f.must(unstructured.SetNestedMap(l.Object, map[string]any{
					"path": "/ready", "port": strconv.Itoa(c.linked), "period": "3s",
					"failureThreshold": "3", "timeout": "2s",
				}, "spec", "probeSpec"))
				f.home.Apply(l)
				f.home.Reject("create", "services", "mc", c.refused)
				f.apply("east", "web", exported, 80)
				f.run()
				f.pass(30 * time.Second)

				e := f.home.Get("endpoints", "shop", "web-east")
				if e == nil || strings.Contains(fmt.Sprint(e.Object["subsets"]), "notReadyAddresses") {
					t.Errorf("a living gateway counts as dead: %v", e)
				}
				f.mirroring("east", c.reports)
				want := map[string]bool{}
				if c.dialed != "" {
					want["probe-east.mc.svc:"+c.dialed] = true
				}
				p.mu.Lock()
				defer p.mu.Unlock()
				if fmt.Sprint(p.dialed) != fmt.Sprint(want) {
					t.Errorf("probed %v, want %v", p.dialed, want)
				}
			})
		})
	}
}
