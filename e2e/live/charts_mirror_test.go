package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fingerpost/fingerpost/links"
)

const linkResource = "links." + links.Group

const (
	byGateway = `mirror.linkerd.io/exported: "true"`
	directly  = `mirror.linkerd.io/exported: remote-discovery`
)

// A step is something that an operator does, with what has to be seen then, and the rights that this takes: verb
// and resource.
type step struct {
	name string
	does func() error
	seen func() error
	take []string
}

// The life of mirrors goes on with the rights of the charts, and each of those that are about mirrors is needed.
func TestChartMirrors(t *testing.T) {
	c := newCharted(t, "chart-mirrors", `mirror: {mode: "on", createNamespaces: true}`, "")
	life := c.mirrorLife()
	c.do(c.run(func(log *logged) error {
		if err := errors.Join(c.selects(), c.condition("Mirroring", "True")); err != nil {
			return err
		}
		for _, s := range life {
			if err := errors.Join(s.does(), s.seen()); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		if log.contains("A permission is missing") == nil {
			return errors.New("a right is missing")
		}
		return c.granted()
	}))

	var rights []right
	for _, r := range c.rights {
		if strings.HasSuffix(r.role.GetName(), "-mirror") {
			rights = append(rights, r)
		}
	}
	if len(rights) < 12 {
		t.Fatalf("%d rights to mirror were found in the charts", len(rights))
	}
	for i := range rights {
		c.do(c.unmirror())
		c.without(&rights[i], func(r *right, log *logged) error {
			if err := c.selects(); err != nil {
				return err
			}
			if r.verb == "list" || r.verb == "watch" {
				return c.missesReading(r, log)
			}
			for _, s := range life {
				if slices.Contains(s.take, r.verb+" "+r.resource) {
					return errors.Join(s.does(),
						c.logs(log, "A permission is missing", fmt.Sprintf("%q", r.verb),
							fmt.Sprintf("%q", r.resource)))
				}
				if err := errors.Join(s.does(), s.seen()); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
			}
			return errors.New("nothing that is done takes it")
		})
	}
	c.do(c.unmirror())
}

// mirrorLife is what becomes of Services of west, each step after the one before.
func (c *charted) mirrorLife() []step {
	api := func(label string, port int) func() error {
		return func() error { return c.export(c.Namespace, "api", label, port) }
	}
	port := func(kind, want string) func() error {
		return func() error { return c.mirrored(c.Namespace, kind, "api-west", want) }
	}
	both := func(want string) func() error {
		return func() error { return errors.Join(port("services", want)(), port("endpoints", want)()) }
	}
	first := func() error { // with endpoints, so that its Endpoints are created whole and not patched
		return errors.Join(c.export(c.Namespace, "api", "app: api", 80), c.answered("api"), api(byGateway, 80)())
	}
	return []step{
		{"mirrored through the gateway", first, both("p80"), []string{"create services", "create endpoints"}},
		{
			"another port", api(byGateway, 81), both("p81"),
			[]string{"patch services", "patch endpoints", "get endpoints"},
		},
		{"mirrored directly", api(directly, 81), port("endpoints", ""), []string{"delete endpoints"}},
		{"not mirrored", api("app: api", 81), port("services", ""), []string{"delete services"}},
		{"a name that is taken", func() error {
			err := c.Local.Apply(c.t.Context(),
				fmt.Appendf(
					nil, "apiVersion: v1\nkind: Endpoints\nmetadata: {name: taken-west, namespace: %s}\nsubsets: [{addresses: [{ip: 192.0.2.7}], ports: [{port: 7}]}]\n", c.Namespace))
			return errors.Join(err, c.export(c.Namespace, "taken", byGateway, 80))
		}, func() error { return c.entry("taken", "delete them") }, []string{"get endpoints"}},
		{
			"a namespace that is missing", func() error { return c.export(c.Namespace+"-far", "far", directly, 80) },
			func() error { return c.mirrored(c.Namespace+"-far", "services", "far-west", "p80") },
			[]string{"create namespaces"},
		},
	}
}

// export lets west have a Service of the shop with a label, in a namespace that is made if need be.
func (c *charted) export(namespace, name, label string, port int) error {
	return c.west.Apply(c.t.Context(), fmt.Appendf(nil, `apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s, labels: {%[3]s}}
spec: {selector: {app: web}, ports: [{name: p%[4]d, port: %[4]d}]}
`, namespace, name, label, port))
}

// answered waits until a Service of west has ready endpoints.
func (c *charted) answered(name string) error {
	return c.eventually("ready endpoints of "+name+" in west", func(ctx context.Context) error {
		ready, err := c.ready(ctx, name)
		if err == nil && !strings.Contains(ready, "true") {
			err = fmt.Errorf("they are ready: %q", ready)
		}
		return err
	})
}

// ready returns which endpoints of a Service of west are ready. kubectl takes a tenth of a second: by then the replica
// has them, too, whose watches of Services and of slices are in no order.
func (c *charted) ready(ctx context.Context, name string) (string, error) {
	return c.west.Kubectl(ctx, "-n", c.Namespace, "get", "endpointslices", "-l", "kubernetes.io/service-name="+name,
		"-o", "jsonpath={.items[*].endpoints[*].conditions.ready}")
}

// selects lets the Link of west ask for mirrors.
func (c *charted) selects() error {
	_, err := c.Local.Kubectl(c.t.Context(), "-n", c.Namespace, "patch", "link/west", "--type=merge", "-p", `{"spec": {
		"selector": {"matchLabels": {"mirror.linkerd.io/exported": "true"}},
		"remoteDiscoverySelector": {"matchLabels": {"mirror.linkerd.io/exported": "remote-discovery"}},
		"gatewayAddress": "192.0.2.143", "gatewayPort": "4143", "gatewayIdentity": "gateway.example"}}`)
	return err
}

// probes lets the Link of west ask for probes of its gateway.
func (c *charted) probes() error {
	_, err := c.Local.Kubectl(c.t.Context(), "-n", c.Namespace, "patch", "link/west", "--type=merge", "-p",
		`{"spec": {"probeSpec": {"path": "/ready", "port": "4191", "period": "1s"}}}`)
	return err
}

// unmirror removes what the life of mirrors has left in both clusters. No server runs.
func (c *charted) unmirror() error {
	ctx := c.t.Context()
	west := c.west.Delete(ctx, c.Namespace, "services/api", "services/taken")
	_, far := c.west.Kubectl(ctx, "delete", "--ignore-not-found", "namespace/"+c.Namespace+"-far")
	here := c.Local.Delete(ctx, c.Namespace, "services/api-west", "services/taken-west", "endpoints/api-west",
		"endpoints/taken-west")
	_, there := c.Local.Kubectl(ctx, "delete", "--ignore-not-found", "namespace/"+c.Namespace+"-far")
	gone := c.eventually("no endpoints of api in west", func(ctx context.Context) error {
		ready, err := c.ready(ctx, "api") // or they would be taken for those of the next Service api
		if err == nil && ready != "" {
			err = fmt.Errorf("they are ready: %q", ready)
		}
		return err
	})
	return errors.Join(west, far, here, there, gone)
}

// mirrored waits until a mirror has a port, by name; empty for no mirror.
func (c *charted) mirrored(namespace, kind, name, port string) error {
	path := map[string]string{
		"services":  "{.spec.ports[*].name}",
		"endpoints": "{.subsets[*].ports[*].name}",
	}[kind]
	return c.eventually(kind+" "+name, func(ctx context.Context) error {
		got, err := c.Local.Print(ctx, namespace, kind, name, path)
		if apierrors.IsNotFound(err) {
			err = nil
		}
		if err == nil && got != port {
			err = fmt.Errorf("it has %q, want %q", got, port)
		}
		return err
	})
}

// entry waits until the Link of west reports something of a Service.
func (c *charted) entry(service, want string) error {
	return c.eventually("what the Link reports of "+service, func(ctx context.Context) error {
		got, err := c.Local.Print(ctx, c.Namespace, linkResource, "west", fmt.Sprintf(
			`{range .status.mirrorServices[?(@.remoteRef.name==%q)]}{.conditions[*].message}{end}`, service))
		if err == nil && !strings.Contains(got, want) {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
}

// missesReading waits for what an operator sees where the right to read something for mirrors is missing.
func (c *charted) missesReading(r *right, log *logged) error {
	if r.resource == "namespaces" {
		return c.logs(log, "Namespaces cannot be listed")
	}
	return errors.Join(c.condition("Mirroring", "False Forbidden: the API server refuses to list endpoints"),
		c.logs(log, "Nothing can be mirrored", "endpoints"))
}
