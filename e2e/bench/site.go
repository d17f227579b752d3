package main

import (
	"context"
	"errors"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

const localCluster = "local"

// A site is a server beside clusters that have an API server each: the local one, and others that are linked to
// it. Each has the Service small.
type site struct {
	fleets map[string]*fleet // by cluster
	server *fingerpost.Server
	stops  []func() error // of all that was started
}

// serveSite starts clusters, and a server that is Live with all of them. The caller stops what is returned.
func (b *bench) serveSite(ctx context.Context, remotes ...string) (*site, error) {
	started := &site{fleets: map[string]*fleet{}}
	if err := started.start(ctx, b, remotes); err != nil {
		return nil, errors.Join(err, started.stop())
	}
	return started, nil
}

func (s *site) start(ctx context.Context, b *bench, remotes []string) error {
	if _, err := controlplane.Binaries(ctx, os.Stderr); err != nil {
		return err
	}
	local, err := s.startCluster(ctx, localCluster)
	if err != nil {
		return err
	}

	for _, name := range remotes {
		remote, err := s.startCluster(ctx, name)
		if err != nil {
			return err
		}
		if err := s.link(ctx, name, remote.AdminKubeconfig()); err != nil {
			return err
		}
	}

	s.server, err = b.serveFrom(ctx, local.AdminKubeconfig(), nil, append([]string{
		"-link-namespace=" + namespace, "-controller-namespace=" + namespace, "-allow-kubeconfig-hosts=127.0.0.0/8",
	}, unbounded...)...)
	if err != nil {
		return err
	}
	s.stops = append(s.stops, s.server.Stop)
	return live(ctx, s.server, len(remotes))
}

// startCluster starts an API server and writes the Service, with addresses that no other cluster has.
func (s *site) startCluster(ctx context.Context, name string) (*controlplane.Cluster, error) {
	cluster, err := controlplane.Start(ctx, controlplane.Options{Name: "bench-" + name, Light: true})
	if err != nil {
		return nil, err
	}
	s.stops = append(s.stops, cluster.Stop)

	held, err := emptyFleet(ctx, cluster)
	if err != nil {
		return nil, err
	}
	first := len(s.fleets) * small.endpoints
	s.fleets[name] = held
	return cluster, held.write(ctx, small, first)
}

// link links a cluster to the local one, and creates what stands for its Service there.
func (s *site) link(ctx context.Context, name string, kubeconfig []byte) error {
	local := s.fleets[localCluster].client.CoreV1()
	_, err := local.Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:        standsFor(name).name,
			Annotations: map[string]string{"multicluster.linkerd.io/remote-discovery": small.name + "@" + name},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	_, err = local.Secrets(namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "cluster-credentials-" + name,
			Labels: map[string]string{"multicluster.linkerd.io/cluster-name": name},
			Annotations: map[string]string{
				"multicluster.linkerd.io/trust-domain":   "cluster.local",
				"multicluster.linkerd.io/cluster-domain": "cluster.local",
			},
		},
		Type: "mirror.linkerd.io/remote-kubeconfig",
		Data: map[string][]byte{"kubeconfig": kubeconfig},
	}, metav1.CreateOptions{})
	return err
}

// standsFor returns the local Service by which clients reach the Service small of a cluster.
func standsFor(cluster string) service {
	if cluster == localCluster {
		return small
	}
	return service{name: small.name + "-" + cluster}
}

// stop stops all that was started, the newest first.
func (s *site) stop() (err error) {
	for len(s.stops) > 0 {
		last := len(s.stops) - 1
		err = errors.Join(err, s.stops[last]())
		s.stops = s.stops[:last]
	}
	return err
}
