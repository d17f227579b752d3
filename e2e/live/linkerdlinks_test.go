package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// Beside Linkerd's multicluster chart, Links have Linkerd's definition, which knows no conditions of a Link, and the
// credentials that its link-gen makes, which may not list ExternalWorkloads. Every Service that the Link selects has
// its entry; what the definition lacks is left out alone, and reported by name; and nothing else is called a problem.
func TestLinkerdsLinks(t *testing.T) {
	t.Parallel()
	m, err := mesh.New(t.Context(), "linkerdslinks", 0, controlplane.AllForTest(t,
		controlplane.Options{Name: "east", Light: true}, controlplane.Options{Name: "west", Light: true})...)
	w, west := &world{m, t}, m.Remotes[0]
	w.do(err)
	for _, namespace := range []string{mesh.Linkerd, "linkerd-multicluster"} {
		text := fmt.Appendf(nil, "{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace)
		w.do(w.Local.Apply(t.Context(), text))
	}
	// The chart leaves definitions alone.
	in, err := charts.Install(t.Context(), w.Local.Cluster, charts.Server, w.Namespace+"-system", fmt.Sprintf(
		`{cluster: {name: east}, links: {namespace: %s}, controllerNamespace: %s, mirror: {mode: "on"}}`,
		w.Namespace, mesh.Linkerd))
	w.do(err)
	w.Local.Installation, w.Local.Identity, w.Args = in, in.Identity, in.Args
	w.do(w.Local.Apply(t.Context(), apitest.LinkerdLinks))
	west.Identity, err = west.CreateIdentity(t.Context(), w.Namespace, "link-gen", controlplane.ReadRules())
	w.do(err)
	w.linkAsLinkerd(west)
	w.serve()
	w.state(west, "Live", 10*time.Second)
	w.isNoProblem(west)

	const exported, directly = "mirror.linkerd.io/exported: 'true'", "mirror.linkerd.io/exported: remote-discovery"
	const joins = "mirror.linkerd.io/federated: member"
	w.offer(west, "elsewhere", "lost", directly+", "+joins)
	w.status(west, "mirror elsewhere/lost MissingNamespace", "federated elsewhere/lost MissingNamespace")
	w.offer(west, w.Namespace, "flat", directly)
	w.offer(west, w.Namespace, "gated", exported)
	w.offer(west, w.Namespace, "joint", joins)
	all := []string{
		"mirror elsewhere/lost MissingNamespace", "mirror linkerdslinks/flat Mirrored as flat-west",
		"mirror linkerdslinks/gated Mirrored as gated-west", "federated elsewhere/lost MissingNamespace",
		"federated linkerdslinks/joint Mirrored as joint-federated",
	}
	w.status(west, all...)
	w.undeclared("conditions")

	// An entry of another controller stays.
	w.patchStatus(west, `[{"op": "add", "path": "/status/mirrorServices/-", "value": {"controllerName": "example.com/other",
		"remoteRef": {"name": "theirs", "namespace": "elsewhere"}}}]`)
	w.offer(west, w.Namespace, "late", directly)
	all = slices.Insert(all, 3, "mirror linkerdslinks/late Mirrored as late-west", "mirror elsewhere/theirs")
	w.status(west, all...)

	// A definition that lacks more.
	w.do(w.Local.Apply(t.Context(), withoutLocalRefs(t)))
	w.offer(west, w.Namespace, "more", directly)
	for i, entry := range all {
		if before, _, found := strings.Cut(entry, " as "); found && strings.HasPrefix(entry, "mirror") {
			all[i] = before
		}
	}
	w.status(west, slices.Insert(all, 4, "mirror linkerdslinks/more Mirrored")...)
	w.undeclared("conditions", "mirrorServices.conditions.localRef")
}

// linkAsLinkerd applies what 'linkerd multicluster link-gen' prints for a site.
func (w *world) linkAsLinkerd(site *mesh.Site) {
	w.t.Helper()
	ctx := w.t.Context()
	w.do(w.Credentials(ctx, site, site.Kubeconfig(site.Identity, site.Proxy.URL())))
	w.do(w.Local.Apply(ctx, labelledSecret(site, mesh.Linkerd)))
	w.do(w.Local.Apply(ctx, fmt.Appendf(nil, `apiVersion: %s/v1alpha3
kind: Link
metadata: {name: %[2]s, namespace: %[3]s, annotations: {linkerd.io/created-by: linkerd/cli edge}}
spec:
  targetClusterName: %[2]s
  targetClusterDomain: cluster.local
  targetClusterLinkerdNamespace: linkerd
  clusterCredentialsSecret: cluster-credentials-%[2]s
  gatewayAddress: 192.0.2.1
  gatewayIdentity: linkerd-gateway.linkerd-multicluster.serviceaccount.identity.linkerd.cluster.local
  gatewayPort: "4143"
  probeSpec: {path: /ready, period: 3s, port: "4191"}
  selector: {matchLabels: {mirror.linkerd.io/exported: "true"}}
  remoteDiscoverySelector: {matchLabels: {mirror.linkerd.io/exported: remote-discovery}}
  federatedServiceSelector: {matchLabels: {mirror.linkerd.io/federated: member}}
`, links.Group, site.Name, w.Namespace)))
}

// offer puts a Service with labels into a namespace of a site.
func (w *world) offer(site *mesh.Site, namespace, name, labels string) {
	w.t.Helper()
	w.do(site.Apply(w.t.Context(), fmt.Appendf(nil, `apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s, labels: {%[3]s}}
spec: {ports: [{name: http, port: 80}]}
`, namespace, name, labels)))
}

// patchStatus changes the status of a site's Link as another client.
func (w *world) patchStatus(site *mesh.Site, patch string) {
	w.t.Helper()
	_, err := w.Local.Kubectl(w.t.Context(), "-n", w.Namespace, "patch", linkResource, site.Name,
		"--subresource=status", "--type=json", "-p", patch)
	w.do(err)
}

// status waits until the status of a site's Link has these entries and no conditions of the Link.
func (w *world) status(site *mesh.Site, want ...string) {
	w.t.Helper()
	w.within(5*time.Second, "the status has "+want[len(want)-1], func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			text, err := w.Local.Kubectl(ctx, "-n", w.Namespace, "get", linkResource, site.Name, "-o",
				"jsonpath={.status}")
			if err != nil {
				return err
			}
			got, err := statusEntries(text)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("the status has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			return err
		})
	})
}

// statusEntries renders each entry of a status as a line: which Service, what became of it, and as what it is mirrored.
func statusEntries(text string) (all []string, err error) {
	var status struct {
		Conditions                        []any
		MirrorServices, FederatedServices []links.ServiceStatus
	}
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return nil, err
	}
	if len(status.Conditions) > 0 {
		return nil, errors.New("the status has conditions of the Link, which its definition lacks")
	}
	add := func(list string, entries []links.ServiceStatus) {
		for _, s := range entries {
			line := fmt.Sprintf("%s %s/%s", list, s.RemoteRef.Namespace, s.RemoteRef.Name)
			for _, c := range s.Conditions {
				if line += " " + c.Reason; c.LocalRef != nil {
					line += " as " + c.LocalRef.Name
				}
			}
			all = append(all, line)
		}
	}
	add("mirror", status.MirrorServices)
	add("federated", status.FederatedServices)
	return all, nil
}

// undeclared waits until the server reports that the definition of Links lacks these fields, and no others.
func (w *world) undeclared(fields ...string) {
	w.t.Helper()
	const metric = "fingerpost_link_status_undeclared_field"
	w.within(5*time.Second, "reported by name: "+strings.Join(fields, ", "), func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			page, err := w.Server.Metrics(ctx)
			if err != nil {
				return err
			}
			var got, want []string
			for line := range strings.Lines(page) {
				if strings.HasPrefix(line, metric+"{") {
					got = append(got, strings.TrimSpace(line))
				}
			}
			for _, field := range fields {
				want = append(want, fmt.Sprintf("%s{field=%q} 1", metric, field))
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("metrics %q, want %q", got, want)
			}
			return nil
		})
	})
	for _, field := range fields {
		logged := func(line string) bool {
			return strings.Contains(line, "lacks fields of their status") && strings.Contains(line, field)
		}
		if !slices.ContainsFunc(strings.Split(w.Server.Tail(), "\n"), logged) {
			w.t.Errorf("the log does not name %s", field)
		}
	}
}

// isNoProblem waits until check succeeds without a warning, and all clusters are shown without a problem, although
// ExternalWorkloads may not be listed in that of a site.
func (w *world) isNoProblem(site *mesh.Site) {
	w.t.Helper()
	kubeconfig := admin(w.t, w.Local.Cluster)
	w.within(5*time.Second, "nothing is a problem", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			c, err := w.Server.Cluster(ctx, site.Name)
			if err != nil {
				return err
			}
			refused := ""
			for _, kind := range c.Kinds {
				if strings.HasPrefix(kind.Resource, "externalworkloads") {
					refused = kind.Refused
				}
			}
			if refused != "Forbidden" {
				return fmt.Errorf("ExternalWorkloads are %q", refused)
			}
			lines := checked(w.t, kubeconfig, "--debug-addr="+w.Server.Debug).lines("")
			if len(lines) > 0 {
				return errors.New(strings.Join(lines, "\n"))
			}
			return nil
		})
	})
	out, err := w.run("clusters", "--debug-addr", w.Server.Debug)
	if err != nil || !strings.Contains(out, "All 2 clusters are Live.") || strings.Contains(out, "with a problem") {
		w.t.Errorf("clusters: %v\n%s", err, out)
	}
}

// withoutLocalRefs is Linkerd's definition of Links without the field of mirrored Services that names the mirror.
func withoutLocalRefs(t *testing.T) []byte {
	t.Helper()
	var crd unstructured.Unstructured
	if err := yaml.Unmarshal(apitest.LinkerdLinks, &crd.Object); err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		unstructured.RemoveNestedField(v.(map[string]any), "schema", "openAPIV3Schema", "properties", "status",
			"properties", "mirrorServices", "items", "properties", "conditions", "items", "properties", "localRef")
	}
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(crd.Object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
