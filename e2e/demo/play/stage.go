package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

const (
	namespace = "shop"
	authority = mesh.Federated + "." + namespace + ".svc.cluster.local:8080"
	replicas  = 2 // of web in each cluster, at first
)

// The clusters. The server runs in east.
const east, west, north = "east", "west", "north"

var clusters = []string{east, west, north}

// Probe times are short here, so that one need not wait: the server's own defaults are 5 s, 10 s and 150 s.
var short = []string{"-probe-interval=1s", "-suspect-after=2s", "-stale-after=5s"}

const shortNote = "probe times are short here: Suspect after 2 s, Stale after 5 s; the defaults are 10 s and 150 s"

// A stage is what the script is played on: three clusters with a shop in each, and a server in the first.
type stage interface {
	Server() *fingerpost.Server // its addresses
	Pods(cluster string) netip.Prefix

	// Authority starts one of a mesh, with an issuer in files, until stop is called. addr is where it is.
	Authority(ctx context.Context, cluster, issuer, anchors string) (addr string, stop func() error, err error)
	Token(ctx context.Context, cluster, audience string) (string, error) // of the shop's account

	Link(ctx context.Context, cluster string) error
	Unlink(ctx context.Context, cluster string) error
	Condition(ctx context.Context, cluster, name string) (string, error) // of its Link
	Rotate(ctx context.Context, cluster string) error                    // and revokes the old token
	Scale(ctx context.Context, cluster string, replicas int) error
	Cut(cluster string, cut bool) error
	Slices(ctx context.Context) ([]discoveryv1.EndpointSlice, error) // of the federated Service, in east

	Close() error
}

// live is a stage of real control planes, with the server as a process of its own.
type live struct {
	mesh   *mesh.Mesh
	binary string
	ends   []func() error // in the order in which they are called
}

// newLive starts control planes and a server.
func newLive(ctx context.Context, binary string, report func(string, ...any)) (_ *live, err error) {
	l := &live{binary: binary}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	report("starting three control planes: east, west, north")
	all, err := controlplane.StartAll(ctx, controlplane.Options{Name: east}, controlplane.Options{Name: west},
		controlplane.Options{Name: north})
	for _, c := range all {
		l.ends = append(l.ends, c.Stop)
	}
	if err != nil {
		return nil, err
	}
	report("opening the shop in each of them: Deployment and Service web, two Pods")
	if l.mesh, err = mesh.New(ctx, namespace, replicas, all...); err != nil {
		return nil, err
	}
	l.mesh.Slices = true // asked for by the federated Service alone
	err = l.mesh.Federate(ctx, true, mesh.Service+"@"+west, mesh.Service+"@"+north)
	l.mesh.Slices = false
	if err != nil {
		return nil, err
	}
	if err := l.mesh.Grant(ctx, rbacv1.PolicyRule{
		APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"},
		Verbs: []string{"create", "update", "delete"},
	}); err != nil {
		return nil, err
	}
	dir := filepath.Dir(binary)
	log, err := os.Create(filepath.Join(dir, "fingerpost.log"))
	if err != nil {
		return nil, err
	}
	l.ends = append(l.ends, log.Close)
	err = l.mesh.Serve(ctx, fingerpost.Options{Binary: binary, Dir: dir, Args: short, Log: log})
	if err == nil {
		l.ends = append([]func() error{l.mesh.Server.Stop}, l.ends...)
	}
	return l, err
}

func (l *live) Server() *fingerpost.Server { return l.mesh.Server }

func (l *live) site(cluster string) *mesh.Site {
	for _, s := range l.mesh.Sites() {
		if s.Name == cluster {
			return s
		}
	}
	panic("there is no cluster " + cluster)
}

func (l *live) Pods(cluster string) netip.Prefix { return l.site(cluster).PodCIDR() }

func (l *live) Authority(
	ctx context.Context, cluster, issuer, anchors string,
) (addr string, stop func() error, err error) {
	id, err := l.site(cluster).CreateIdentity(ctx, mesh.Linkerd, "linkerd-identity", []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
	})
	if err != nil {
		return "", nil, err
	}
	server, err := fingerpost.Start(ctx, fingerpost.Options{
		Binary: l.binary, Dir: issuer, Kubeconfig: l.site(cluster).Kubeconfig(id, ""), Command: "identity",
		Args: []string{
			"-controller-namespace=" + mesh.Linkerd, "-identity-trust-domain=cluster.local", "-identity-tls",
			"-identity-scheme=linkerd.io/tls", "-issuer=" + issuer, "-identity-trust-anchors=" + anchors,
		},
	})
	if err != nil {
		return "", nil, err
	}
	return server.Identity, server.Stop, nil
}

func (l *live) Token(ctx context.Context, cluster, audience string) (string, error) {
	return l.site(cluster).TokenFor(ctx, &controlplane.Identity{Namespace: namespace, Name: "default"}, audience)
}

func (l *live) Link(ctx context.Context, cluster string) error {
	return l.mesh.Link(ctx, l.site(cluster))
}

func (l *live) Unlink(ctx context.Context, cluster string) error {
	return l.mesh.Unlink(ctx, l.site(cluster))
}

func (l *live) Condition(ctx context.Context, cluster, name string) (string, error) {
	return l.mesh.Condition(ctx, l.site(cluster), name)
}

func (l *live) Rotate(ctx context.Context, cluster string) error {
	old, err := l.mesh.Rotate(ctx, l.site(cluster))
	if err != nil {
		return err
	}
	return l.site(cluster).Revoke(ctx, old)
}

func (l *live) Scale(ctx context.Context, cluster string, replicas int) error {
	return l.site(cluster).Scale(ctx, namespace, mesh.Service, replicas)
}

func (l *live) Cut(cluster string, cut bool) error {
	if cut {
		return l.site(cluster).Proxy.Silence()
	}
	return l.site(cluster).Proxy.Pass()
}

func (l *live) Slices(ctx context.Context) ([]discoveryv1.EndpointSlice, error) {
	out, err := l.mesh.Local.Kubectl(ctx, "-n", namespace, "get", "endpointslices", "-o", "json",
		"-l", discoveryv1.LabelServiceName+"="+mesh.Federated)
	if err != nil {
		return nil, err
	}
	var list discoveryv1.EndpointSliceList
	err = json.Unmarshal([]byte(out), &list)
	return list.Items, err
}

// Close stops everything, also what a failure has left.
func (l *live) Close() error {
	var errs []error
	for _, end := range l.ends {
		errs = append(errs, end())
	}
	l.ends = nil
	return errors.Join(errs...)
}

// programs are what the live stage needs, which are built while something else is played.
type programs struct {
	dir    string // of the server's binary
	binary string
	err    error
}

// build builds the control planes and the server.
func build(ctx context.Context, dir string, out io.Writer) programs {
	if _, err := controlplane.Binaries(ctx, out); err != nil {
		return programs{err: err}
	}
	fmt.Fprintln(out, "building the server")
	binary, err := fingerpost.Build(ctx, dir, false)
	return programs{dir: dir, binary: binary, err: err}
}
