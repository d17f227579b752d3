package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// What 'link gen' prints for one real control plane links it to another, what 'link rotate' prints replaces
// the token without a word to clients, and neither changes anything by itself.
func TestLinkGen(t *testing.T) {
	w := newWorld(t, "linkgen", 2)
	west := w.Remotes[0]
	w.serve()
	kubeconfig := admin(t, west.Cluster)
	id := west.Identity
	w.do(west.Apply(t.Context(), []byte(`apiVersion: v1
kind: ConfigMap
metadata: {name: linkerd-config, namespace: linkerd}
data: {values: "identityTrustDomain: west.example\nclusterDomain: west.local"}
`)))
	gen := func(verb string, more ...string) (manifests, stderr string, err error) {
		args := append([]string{
			"link", verb, "west", "--kubeconfig", kubeconfig, "--service-account-name", id.Name,
			"--service-account-namespace", id.Namespace,
			"--link-namespace", w.Namespace, "--api-server-address", west.Proxy.URL(),
		}, more...)
		out, err := exec.CommandContext(t.Context(), binary, args...).Output()
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			stderr = string(exit.Stderr)
		}
		return string(out), stderr, err
	}
	manifests, _, err := gen("gen", "--token-secret", id.Secret)
	w.do(err)
	for _, want := range []string{
		"clusterCredentialsSecret: cluster-credentials-west", "multicluster.linkerd.io/trust-domain: west.example",
		"multicluster.linkerd.io/cluster-domain: west.local",
		"type: mirror.linkerd.io/remote-kubeconfig", "apiVersion: multicluster.linkerd.io/v1alpha3",
		"mirror.linkerd.io/federated: member",
	} {
		if !strings.Contains(manifests, want) {
			t.Errorf("gen prints no %s:\n%s", want, manifests)
		}
	}
	if strings.Contains(manifests, "gateway") {
		t.Errorf("there is no gateway:\n%s", manifests)
	}
	if out, err := w.Local.Kubectl(t.Context(), "-n", w.Namespace, "get", "links", "-o", "name"); err != nil ||
		out != "" {
		t.Errorf("gen has applied something: %s (%v)", out, err)
	}
	path := filepath.Join(t.TempDir(), "manifests.yaml")
	w.do(os.WriteFile(path, []byte(manifests), 0o600))
	_, err = w.Local.Kubectl(t.Context(), "apply", "-f", path)
	w.do(err)
	t.Cleanup(func() { // it would link west in other tests, whose trust domain is another
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(w.Local.Delete(ctx, w.Namespace, "secrets/cluster-credentials-west"),
			west.Delete(ctx, mesh.Linkerd, "configmaps/linkerd-config")); err != nil {
			t.Error(err)
		}
	})
	w.state(west, "Live", 10*time.Second)
	s := w.watch(mesh.Federated)
	w.holds(s, 3*time.Second, "west joins", map[*mesh.Site]int{w.Local: 2, west: 2})
	identities := 0
	for _, a := range s.Holds() {
		if strings.HasSuffix(a.GetTlsIdentity().GetDnsLikeIdentity().GetName(), ".west.example") {
			identities++
		}
	}
	if identities != 2 {
		t.Errorf("%d addresses have an identity of west's trust domain", identities)
	}

	mark := w.mark(s)
	fresh, _, err := gen("rotate", "--token-duration", "1h")
	w.do(err)
	if strings.Contains(fresh, "kind: Link") {
		t.Errorf("rotate prints a Link:\n%s", fresh)
	}
	w.do(w.Local.Apply(t.Context(), []byte(fresh)))
	w.do(west.Revoke(t.Context(), id)) // the old token
	w.knows(west, 10*time.Second, "the new token is in use", func(c fingerpost.Cluster) bool {
		return c.State == "Live" && c.Credentials == "" && c.LastContact != nil &&
			time.Since(*c.LastContact) < 2*time.Second
	})
	w.do(west.Scale(t.Context(), w.Namespace, mesh.Service, 3))
	w.holds(s, 5*time.Second, "a change, received with the new token", map[*mesh.Site]int{w.Local: 2, west: 3})
	if _, removed := w.since(s, mark); len(removed) > 0 {
		t.Errorf("a rotation withdraws %v", removed)
	}

	// The account may create tokens of itself, as chart fingerpost-link lets it: renewal needs nothing else there.
	for _, args := range [][]string{
		{
			"create", "role", "fingerpost-link-renew", "--verb=create", "--resource=serviceaccounts/token",
			"--resource-name=" + id.Name,
		},
		{
			"create", "rolebinding", "fingerpost-link-renew", "--role=fingerpost-link-renew",
			"--serviceaccount=" + id.Namespace + ":" + id.Name,
		},
	} {
		_, err := west.Kubectl(t.Context(), append([]string{"-n", id.Namespace}, args...)...)
		w.do(err)
	}
	for renewed, args := range map[string][]string{"valid until": nil, "renewed": {"--force"}} {
		args = append(args, "-n", w.Namespace, "--kubeconfig", admin(t, w.Local.Cluster))
		args = append([]string{"link", "renew", "west"}, args...)
		if out, err := w.run(args...); err != nil || !strings.Contains(out, "cluster-credentials-west): "+renewed) {
			t.Errorf("link renew: %v\n%s", err, out)
		}
	}
	w.do(west.Scale(t.Context(), w.Namespace, mesh.Service, 2))
	w.holds(s, 5*time.Second, "a change, received with the renewed token", map[*mesh.Site]int{w.Local: 2, west: 2})

	w.do(west.Apply(t.Context(), fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata:
  name: gateway
  namespace: %s
  annotations:
    mirror.linkerd.io/gateway-identity: gw.linkerd-multicluster
    mirror.linkerd.io/probe-path: /ready
    mirror.linkerd.io/probe-period: "7"
spec:
  type: LoadBalancer
  ports: [{name: mc-gateway, port: 4143}, {name: mc-probe, port: 4191}]
`, w.Namespace)))
	gateway := []string{"--gateway-name=gateway", "--gateway-namespace=" + w.Namespace}
	_, stderr, err := gen("gen", gateway...)
	if err == nil || !strings.Contains(stderr, "no address of a load balancer") {
		t.Errorf("a gateway without an address: %v %s", err, stderr)
	}
	_, err = west.Kubectl(t.Context(), "-n", w.Namespace, "patch", "service", "gateway", "--subresource=status",
		"--type=merge", "-p",
		`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"},{"hostname":"gw.example"}]}}}`)
	w.do(err)
	manifests, _, err = gen("gen", gateway...)
	w.do(err)
	for _, want := range []string{
		"gatewayAddress: 192.0.2.1,gw.example", `gatewayPort: "4143"`,
		"gatewayIdentity: gw.linkerd-multicluster", "path: /ready", `port: "4191"`, "period: 7s",
		"mirror.linkerd.io/exported: \"true\"",
	} {
		if !strings.Contains(manifests, want) {
			t.Errorf("gen prints no %s:\n%s", want, manifests)
		}
	}
	w.do(w.Local.Apply(t.Context(), []byte(manifests))) // the schema takes it
	w.within(10*time.Second, "the Link is in use", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			condition, err := w.Condition(ctx, west, "CredentialsValid")
			if err == nil && !strings.HasPrefix(condition, "True") {
				err = errors.New(condition)
			}
			return err
		})
	})

	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"an account that is not there": {
			[]string{"--service-account-name", "nobody"}, "there is no ServiceAccount linkgen-system/nobody",
		},
		"a Secret without a token":    {[]string{"--token-secret", "nothing"}, "--token-secret"},
		"a gateway that is not there": {[]string{"--gateway", "--gateway-name", "nothing"}, "--gateway=false for none"},
		"a server in clear":           {[]string{"--api-server-address", "http://west.example"}, "write https://"},
		"too short":                   {[]string{"--token-duration", "1m"}, "API servers make no token"},
	} {
		if _, stderr, err := gen("gen", c.args...); err == nil || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %v %s", name, err, stderr)
		}
	}
}
