// Package live tests the server as it is run: a process of its own, real control planes, real faults.
package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// What all tests share: the server's binary, and four clusters, of which each test uses a namespace. Two
// tests at a time have a pair of clusters each; one that takes more than a pair runs alone, before all of them.
// Most of them wait most of the time.
var (
	binary   string
	clusters []*controlplane.Cluster
	pairs    = make(chan []*controlplane.Cluster, 2) // those that no test has
)

func TestMain(m *testing.M) {
	fingerpost.TestMain(context.Background(), fingerpost.Race, func(ctx context.Context, built string) (int, error) {
		binary = built
		return run(ctx, m)
	})
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	var options []controlplane.Options
	for _, name := range mesh.Names {
		options = append(options, controlplane.Options{Name: name, Services: true})
	}
	if clusters, err = controlplane.StartAll(ctx, options...); err != nil {
		return 1, err
	}
	defer func() {
		for _, c := range clusters {
			err = errors.Join(err, c.Stop())
		}
	}()
	for pair := range slices.Chunk(clusters, 2) {
		pairs <- pair
		// Where Linkerd's service mirrors are, if there are any.
		if err := pair[0].Apply(
			ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: linkerd-multicluster}\n")); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// claim returns a pair of clusters that no other test uses until the end of the test.
func claim(t *testing.T) []*controlplane.Cluster {
	t.Helper()
	t.Parallel()
	pair := <-pairs
	t.Cleanup(func() { pairs <- pair })
	return pair
}

// world is a mesh of the shared clusters in a namespace of its own.
type world struct {
	*mesh.Mesh
	t *testing.T
}

// newWorld makes a mesh of the first n clusters, with two replicas in each, and installs the charts. The
// server is not started.
func newWorld(t *testing.T, namespace string, n int) *world {
	t.Helper()
	w := newShops(t, namespace, n)
	w.do(w.Install(t.Context(), mesh.Linkerd, "", ""))
	return w
}

// newShops is newWorld without the charts.
func newShops(t *testing.T, namespace string, n int) *world {
	t.Helper()
	free := clusters
	if n <= 2 {
		free = claim(t)
	}
	m, err := mesh.New(t.Context(), namespace, 2, free[:n]...)
	if err != nil {
		t.Fatal(err)
	}
	return &world{m, t}
}

// serve starts the server, as the chart does but with short times, and stops it at the end of the test, where
// it must end well.
func (w *world) serve(args ...string) {
	w.t.Helper()
	err := w.Serve(w.t.Context(), fingerpost.Options{
		Binary: binary, Dir: w.t.TempDir(),
		Args: append([]string{"-probe-interval=1s", "-suspect-after=3s", "-stale-after=8s", "-first-sync-grace=5s"},
			args...),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := w.Server.Stop(); err != nil {
			w.t.Error(err)
		}
		if w.t.Failed() {
			w.t.Logf("the end of the server's log:\n%s", w.Server.Tail())
		}
	})
}

// link links sites and waits until they are Live.
func (w *world) link(sites ...*mesh.Site) {
	w.t.Helper()
	for _, s := range sites {
		w.do(w.Link(w.t.Context(), s))
	}
	for _, s := range sites {
		w.state(s, "Live", 10*time.Second)
	}
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// within bounds a wait at five times the time that is claimed, and logs what it took.
func (w *world) within(claimed time.Duration, what string, wait func(ctx context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*claimed)
	defer cancel()
	began := time.Now()
	if err := wait(ctx); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	w.t.Logf("%s: %s (claimed: %s)", what, time.Since(began).Round(time.Millisecond), claimed)
}

// state waits until a cluster is in a state.
func (w *world) state(s *mesh.Site, state string, claimed time.Duration) {
	w.t.Helper()
	w.within(claimed, s.Name+" is "+state, func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			c, err := w.Server.Cluster(ctx, s.Name)
			if err != nil {
				return err
			}
			if c.State != state {
				return fmt.Errorf("%s is %q: %s %s", s.Name, c.State, c.Contact, c.Credentials)
			}
			return nil
		})
	})
}

// watch opens a stream whose violations fail the test.
func (w *world) watch(service string) *mesh.Watch {
	w.t.Helper()
	s, err := w.Watch(w.t.Context(), w.Authority(service))
	w.do(err)
	w.t.Cleanup(func() {
		s.Close()
		if err := s.Violations(); err != nil {
			w.t.Error(err)
		}
	})
	return s
}
