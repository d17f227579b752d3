// Package mesh puts a shop into several clusters, links them, and watches what a proxy receives: the common
// part of the live tests and the demo.
package mesh

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/links"
)

// Service is the Service of the shop, and Port where it listens.
const (
	Service   = "web"
	Federated = Service + "-federated"
	Port      = 8080
	optIn     = view.OptIn + ": " + view.Enabled

	linkResource = "links." + links.Group
)

// Names are those of the clusters of a mesh, the local one first, whatever their control planes are called.
var Names = []string{"east", "west", "north", "south"}

// Linkerd is the namespace of the mesh's control plane, as the Pods of the shop name it.
const Linkerd = "linkerd"

// LinkerdCRDs are the definitions of the kinds of Linkerd that the server reads, as far as it needs them: any
// content is taken.
//
//go:embed linkerd-crds.yaml
var LinkerdCRDs []byte

// PolicyCRDs are the definitions of the kinds of policy.linkerd.io, with schemas, as the chart has them. That of
// Servers takes the place of the one in LinkerdCRDs.
var PolicyCRDs = charts.Definitions("policy.linkerd.io")

// A Site is one cluster of the mesh as the server reaches it: over a proxy that can be cut, with an identity
// that can be revoked.
type Site struct {
	*controlplane.Cluster
	Name         string // under which it is linked, one of Names
	Proxy        *controlplane.Proxy
	Identity     *controlplane.Identity
	Installation *charts.Installation // if a chart gave it
}

// A Mesh is some clusters with the shop in one namespace of each, and the server in the first.
type Mesh struct {
	Namespace string // of the shop, of the Links, and of their Secrets
	Local     *Site
	Remotes   []*Site
	Slices    bool     // the federated Service, and every cluster that is linked, ask for EndpointSlices
	Args      []string // of the server, besides Options.Args
	Server    *fingerpost.Server
}

// New puts the shop into the clusters, with so many replicas each. The first is the local one; its Service
// federates all of them, linked or not. The server has no rights yet: Grant or Install.
func New(ctx context.Context, namespace string, replicas int, clusters ...*controlplane.Cluster) (*Mesh, error) {
	m := &Mesh{Namespace: namespace}
	var members []string
	for i, c := range clusters {
		proxy, err := c.NewProxy()
		if err != nil {
			return nil, err
		}
		site := &Site{Cluster: c, Name: Names[i], Proxy: proxy}
		if i == 0 {
			m.Local = site
		} else {
			m.Remotes = append(m.Remotes, site)
			members = append(members, Service+"@"+site.Name)
		}
		err = errors.Join(
			c.Apply(ctx, fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", namespace)),
			c.Apply(ctx, Shop(namespace, replicas)),
		)
		if err != nil {
			return nil, err
		}
	}
	if err := m.Local.Apply(ctx, links.CRD); err != nil {
		return nil, err
	}
	if err := m.Federate(ctx, true, members...); err != nil {
		return nil, err
	}
	for _, c := range clusters {
		if _, err := c.WaitEndpoints(ctx, namespace, Service, replicas); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Grant gives the server the rights of Linkerd's own roles, in each cluster: enough to read and to serve; and in its
// own cluster those to write the status of Links, and more.
func (m *Mesh) Grant(ctx context.Context, more ...rbacv1.PolicyRule) error {
	m.Args = []string{
		"-cluster-name=" + m.Local.Name, "-controller-namespace=" + Linkerd, "-link-namespace=" + m.Namespace,
		"-cluster-domain=cluster.local", "-identity-trust-domain=cluster.local",
	}
	namespace := fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", Linkerd)
	if err := m.Local.Apply(ctx, namespace); err != nil { // its UID names the installation
		return err
	}
	for _, site := range m.Sites() {
		rules := controlplane.ReadRules()
		if site == m.Local {
			rules = slices.Concat(rules, localRules(), more)
		}
		var err error
		if site.Identity, err = site.CreateIdentity(ctx, m.Namespace, "fingerpost", rules); err != nil {
			return err
		}
	}
	return nil
}

// localRules returns what the server needs in its own cluster besides what it needs in all.
func localRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list", "watch"}},
		{
			APIGroups: []string{"linkerd.io"},
			Resources: []string{"serviceprofiles"},
			Verbs:     []string{"get", "list", "watch"},
		},
		{APIGroups: []string{links.Group}, Resources: []string{"links"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{links.Group}, Resources: []string{"links/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}},
		{ // the status of Links is written under a Lease
			APIGroups: []string{"coordination.k8s.io"},
			Resources: []string{"leases"},
			Verbs:     []string{"get", "list", "watch", "create", "update"},
		},
	}
}

// Install installs the charts, that of the server in the local cluster and the other in those that it may
// link, with more values for each, as YAML. The server has their arguments and their rights, and no others. It reads
// labelled Secrets too, as Linkerd's own command makes them.
func (m *Mesh) Install(ctx context.Context, linkerd, server, link string) error {
	sites := m.Sites()
	errs := make([]error, len(sites))
	var wg sync.WaitGroup
	for i, site := range sites {
		wg.Go(func() {
			chart, values := charts.Link, fmt.Sprintf("write: {enabled: true, leaseNamespace: %s}\n%s", linkerd, link)
			if site == m.Local {
				chart, values = charts.Server,
					fmt.Sprintf("cluster: {name: %s}\nlinks: {namespace: %s, labelledSecrets: true}\n"+
						"controllerNamespace: %s\n%s",
						site.Name, m.Namespace, linkerd, server)
			}
			errs[i] = site.install(ctx, linkerd, chart, m.Namespace+"-system", values)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	m.Args = m.Local.Installation.Args
	return nil
}

func (s *Site) install(ctx context.Context, linkerd, chart, namespace, values string) error {
	if err := s.Apply(ctx, fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n",
		linkerd)); err != nil {
		return err
	}
	in, err := charts.Install(ctx, s.Cluster, chart, namespace, values)
	if err != nil {
		return err
	}
	s.Installation, s.Identity = in, in.Identity
	return nil
}

// Sites returns all clusters of the mesh, the local one first.
func (m *Mesh) Sites() []*Site { return append([]*Site{m.Local}, m.Remotes...) }

// Serve starts the server in the local cluster.
func (m *Mesh) Serve(ctx context.Context, o fingerpost.Options) error {
	o.Kubeconfig = m.Local.Kubeconfig(m.Local.Identity, m.Local.Proxy.URL())
	o.Args = append(slices.Clone(m.Args), o.Args...)
	var err error
	m.Server, err = fingerpost.Start(ctx, o)
	return err
}

// Authority is what a proxy asks for to reach a Service of the shop.
func (m *Mesh) Authority(service string) string {
	return fmt.Sprintf("%s.%s.svc.cluster.local:%d", service, m.Namespace, Port)
}

// Federate makes the federated Service of the local cluster a union of its own (or not) and of members, each
// service@cluster.
func (m *Mesh) Federate(ctx context.Context, local bool, members ...string) error {
	annotations := fmt.Sprintf("multicluster.linkerd.io/remote-discovery: %q", strings.Join(members, ","))
	if local {
		annotations += ", multicluster.linkerd.io/local-discovery: " + Service
	}
	if m.Slices {
		annotations += ", " + optIn
	}
	return m.Local.Apply(ctx, []byte(fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s, annotations: {%s}}
spec: {ports: [{name: http, port: %d}]}
`, Federated, m.Namespace, annotations, Port)))
}

// Link links a site: its Secret and its Link. Where it is linked already, new credentials take effect.
func (m *Mesh) Link(ctx context.Context, site *Site) error {
	annotations := ""
	if m.Slices {
		annotations = optIn
	}
	return errors.Join(
		m.Credentials(ctx, site, site.Kubeconfig(site.Identity, site.Proxy.URL())),
		m.Local.Apply(ctx, []byte(fmt.Sprintf(`apiVersion: %s/v1alpha3
kind: Link
metadata: {name: %s, namespace: %s, annotations: {%s}}
spec: {targetClusterName: %s, targetClusterDomain: cluster.local, clusterCredentialsSecret: cluster-credentials-%s}
`, links.Group, site.Name, m.Namespace, annotations, site.Name, site.Name))),
	)
}

// Credentials puts a kubeconfig into the Secret of a site.
func (m *Mesh) Credentials(ctx context.Context, site *Site, kubeconfig []byte) error {
	return m.Local.Apply(ctx, []byte(fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: cluster-credentials-%s, namespace: %s}
type: %s
data: {kubeconfig: %s}
`, site.Name, m.Namespace, links.SecretType, base64.StdEncoding.EncodeToString(kubeconfig))))
}

// Rotate gives a site a new token and lets the server have it. The old one still works; Revoke ends it.
func (m *Mesh) Rotate(ctx context.Context, site *Site) (old *controlplane.Identity, err error) {
	next, err := site.Mint(ctx, site.Identity)
	if err != nil {
		return nil, err
	}
	old, site.Identity = site.Identity, next
	return old, m.Credentials(ctx, site, site.Kubeconfig(site.Identity, site.Proxy.URL()))
}

// Unlink deletes the Links of sites, and their Secrets.
func (m *Mesh) Unlink(ctx context.Context, sites ...*Site) error {
	var names []string
	for _, site := range sites {
		names = append(names, linkResource+"/"+site.Name, "secrets/cluster-credentials-"+site.Name)
	}
	return m.Local.Delete(ctx, m.Namespace, names...)
}

// Condition returns "status reason: message" of a condition of a site's Link, or nothing.
func (m *Mesh) Condition(ctx context.Context, site *Site, condition string) (string, error) {
	return m.Local.Print(ctx, m.Namespace, linkResource, site.Name,
		fmt.Sprintf(`{range .status.conditions[?(@.type==%q)]}{.status} {.reason}: {.message}{end}`, condition))
}

//go:embed shop.yaml
var shop string

// Shop is the Service and what runs behind it: Pods that bear the marks of a mesh.
func Shop(namespace string, replicas int) []byte {
	return []byte(strings.NewReplacer("$NAMESPACE", namespace, "$REPLICAS", strconv.Itoa(replicas)).Replace(shop))
}
