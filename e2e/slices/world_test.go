package slices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// An installation is the server in one cluster, with Links to the others.
type installation struct {
	*mesh.Mesh
	site *site
}

// A world is the shop in a namespace of three clusters, each with an installation of its own, by the charts, whose
// replicas are not started. Each cluster has a federated Service, of which it asks for slices.
type world struct {
	*testing.T
	ns            string
	installations []*installation
}

func newWorld(t *testing.T, namespace string) *world {
	t.Helper()
	w := &world{T: t, ns: namespace}
	var servers, linked []*charts.Installation
	for _, s := range clusters {
		s.namespace(t, namespace)
		do(t, s.Apply(t.Context(), links.CRD))
		do(t, s.Apply(t.Context(), mesh.Shop(namespace, 2)))
		servers = append(servers, s.install(t, namespace))
		link, err := charts.Install(t.Context(), s.Cluster, charts.Link, namespace+"-system",
			fmt.Sprintf("write: {enabled: true, leaseNamespace: %s}", linkerd))
		do(t, err)
		linked = append(linked, link)
	}
	for i, s := range clusters {
		in := &installation{Mesh: &mesh.Mesh{Namespace: namespace, Slices: true}, site: s}
		var members []string
		for j, other := range clusters {
			proxy, err := other.NewProxy()
			do(t, err)
			at := &mesh.Site{Cluster: other.Cluster, Name: other.Name(), Proxy: proxy, Identity: linked[j].Identity}
			if i == j {
				in.Local, at.Installation = at, servers[j]
			} else {
				in.Remotes = append(in.Remotes, at)
				members = append(members, mesh.Service+"@"+other.Name())
			}
		}
		do(t, in.Federate(t.Context(), true, members...))
		for _, remote := range in.Remotes {
			do(t, in.Link(t.Context(), remote))
		}
		w.installations = append(w.installations, in)
	}
	for _, s := range clusters {
		_, err := s.WaitEndpoints(t.Context(), namespace, mesh.Service, 2)
		do(t, err)
	}
	t.Cleanup(func() { // the next test's installations must not see these
		for _, in := range w.installations {
			if err := in.Unlink(context.WithoutCancel(t.Context()), in.Remotes...); err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// replica starts a replica of an installation. Its way to its own cluster is its own.
func (w *world) replica(in *installation, name string) *replica {
	w.Helper()
	proxy, err := in.Local.NewProxy()
	do(w.T, err)
	return &replica{name: name, proxy: proxy, Server: in.site.serve(w.T, name, in.Local.Installation, proxy.URL())}
}

// A replica is one server, and its way to the API server of its own cluster.
type replica struct {
	*fingerpost.Server
	name  string
	proxy *controlplane.Proxy
}

// holder returns which replica holds a Lease of a cluster.
func (s *site) holder(ctx context.Context, lease string) (string, error) {
	l, err := s.CoordinationV1().Leases(linkerd).Get(ctx, lease, getOptions)
	if err != nil {
		return "", err
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "", fmt.Errorf("no replica holds %s", lease)
	}
	name, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
	return name, nil
}

// writer returns which replica writes for all clusters: the holder of the oldest installation's Lease that is held.
func (s *site) writer(ctx context.Context) (string, error) {
	list, err := s.CoordinationV1().Leases(linkerd).List(ctx,
		metav1.ListOptions{LabelSelector: apply.InstallationLabel})
	if err != nil {
		return "", err
	}
	live := slices.DeleteFunc(list.Items, func(l coordinationv1.Lease) bool {
		spec := l.Spec
		return spec.HolderIdentity == nil || *spec.HolderIdentity == "" ||
			time.Since(spec.RenewTime.Time) > time.Duration(*spec.LeaseDurationSeconds)*time.Second
	})
	if len(live) == 0 {
		return "", errors.New("no installation holds its Lease")
	}
	oldest := slices.MinFunc(live, func(a, b coordinationv1.Lease) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	name, _, _ := strings.Cut(*oldest.Spec.HolderIdentity, "_")
	return name, nil
}

// union waits until the slices of the federated Service in a cluster hold what the shops of some clusters
// hold, all of it, and nothing else.
func (w *world) union(in *site, claimed time.Duration, what string, of ...*site) {
	w.Helper()
	eventually(w.T, claimed, what, func(ctx context.Context) error {
		var want []string
		for _, s := range of {
			found, err := s.slicesOf(ctx, w.ns, mesh.Service, "endpointslice-controller.k8s.io")
			if err != nil {
				return err
			}
			for _, a := range addressesOf(found) {
				want = append(want, s.Name()+" "+a)
			}
		}
		got, err := w.held(ctx, in)
		if err != nil {
			return err
		}
		if slices.Sort(want); !slices.Equal(got, want) {
			return fmt.Errorf("%s holds %v, want %v", in.Name(), got, want)
		}
		return nil
	})
}

// held returns what the slices of the federated Service hold in a cluster, as CLUSTER ADDRESS, sorted.
func (w *world) held(ctx context.Context, in *site) (all []string, err error) {
	found, err := in.slicesOf(ctx, w.ns, mesh.Federated, federated)
	if err != nil {
		return nil, err
	}
	for _, es := range found {
		for _, a := range addressesOf([]discoveryv1.EndpointSlice{es}) {
			if _, err := netip.ParseAddr(a); err != nil {
				return nil, err
			}
			all = append(all, es.Labels["federation.fingerpost.io/source-cluster"]+" "+a)
		}
	}
	slices.Sort(all)
	return all, nil
}
