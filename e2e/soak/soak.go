package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// options are what a soak is like.
type options struct {
	seed                  uint64
	duration              time.Duration
	lights, apps, proxies int
	binary, dir           string
	progress              io.Writer
}

const replicas = 2

// soak performs the script.
type soak struct {
	options
	world    *world
	writers  []*writer
	local    *realCluster
	replicas []*replica
	clients  []*client
	rng      *rand.Rand // of what proxies ask for
	began    time.Time

	revoking sync.WaitGroup
	stalled  []*stream
	lines    []line

	rounds, deeds, opened, late int
	verbs                       map[verb]int
	slowest                     time.Duration // comparison

	mu         sync.Mutex // guards all below
	journal    []string   // the last deeds
	violations []string
}

func (s *soak) log(format string, args ...any) {
	fmt.Fprintf(s.progress, "soak: %5.0fs "+format+"\n", append([]any{time.Since(s.began).Seconds()}, args...)...)
}

// violate notes what must not happen, with the deeds before it.
func (s *soak) violate(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const many = 20
	if len(s.violations) == many {
		s.violations = append(s.violations, "and more")
	}
	if len(s.violations) > many {
		return
	}
	text := fmt.Sprintf("%.3fs: ", time.Since(s.began).Seconds()) + fmt.Sprintf(format, args...)
	if len(s.violations) == 0 {
		text += "\n  the deeds before it:\n    " + strings.Join(s.journal, "\n    ")
	}
	s.violations = append(s.violations, text)
}

func (s *soak) violated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.violations) > 0
}

func (s *soak) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const kept = 60
	what = fmt.Sprintf("%.3fs %s", time.Since(s.began).Seconds(), what)
	s.journal = append(s.journal[max(0, len(s.journal)-kept):], what)
}

// run runs a soak to its end. What it returns as an error kept it from going on; violations are in s.
func (s *soak) run(ctx context.Context) (err error) {
	s.began, s.verbs = time.Now(), map[verb]int{}
	s.world = newWorld(s.seed, s.lights, s.apps, s.proxies, replicas)
	s.rng = rand.New(rand.NewPCG(s.seed, 1))
	api, err := fakeapi.Start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Close()) }()
	s.log("starting two control planes")
	clusters, err := controlplane.StartAll(ctx, controlplane.Options{Name: "soak-local", Light: true},
		controlplane.Options{Name: "soak-remote", Light: true})
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range clusters {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := s.fill(ctx, api, clusters); err != nil {
		return fmt.Errorf("fill the clusters: %w", err)
	}
	account, err := s.local.CreateIdentity(ctx, linkerd, "fingerpost-replicas", controlplane.ReadRules())
	if err != nil {
		return err
	}
	token, err := s.local.TokenFor(ctx, account, "peers.fingerpost.io")
	if err != nil {
		return err
	}
	if s.replicas, err = newReplicas(ctx, replicas, s.binary, s.dir,
		s.local.Kubeconfig(s.local.Admin(), s.local.way.URL()), token); err != nil {
		return err
	}
	defer func() {
		for _, r := range s.replicas {
			err = errors.Join(err, r.stop(false))
		}
	}()
	for _, r := range s.replicas {
		if err := s.start(ctx, r); err != nil {
			return err
		}
	}
	defer s.closeClients()
	s.log("opening %d proxies", s.proxies)
	for i := range s.proxies {
		if err := s.open(ctx, s.replicas[i%replicas]); err != nil {
			return err
		}
	}
	if err := s.compare(ctx); err != nil || s.violated() {
		return err
	}
	for end := time.Now().Add(s.duration); time.Now().Before(end) && !s.violated(); {
		if err := s.round(ctx); err != nil {
			return fmt.Errorf("round %d: %w", s.rounds, err)
		}
	}
	return nil
}

// fill makes the clusters what the world is at the start, and links them.
func (s *soak) fill(ctx context.Context, api *fakeapi.Server, clusters []*controlplane.Cluster) error {
	for i, c := range clusters {
		if err := errors.Join(c.Apply(ctx, mesh.LinkerdCRDs), c.Apply(ctx, links.CRD)); err != nil {
			return err
		}
		r, err := newReal(ctx, c)
		if err != nil {
			return err
		}
		if i == localSite {
			s.local = r
		} else if r.identity, err = c.CreateIdentity(ctx, linkerd, "fingerpost", controlplane.ReadRules()); err != nil {
			return err
		}
		s.writers = append(s.writers, &writer{cluster: r})
	}
	for i := range s.lights {
		c := api.Cluster(clusterName(realSites + i))
		s.writers = append(s.writers, &writer{cluster: &lightCluster{Cluster: c, token: fakeapi.Token}})
	}
	for i, w := range s.writers {
		w.pods, w.have = map[int]map[int]bool{}, map[int]bool{}
		if i != localSite {
			if err := s.link(ctx, i); err != nil {
				return err
			}
		}
		for app := range s.apps {
			if s.world.sites[i].members[app] != nil {
				if err := w.write(ctx, s.world.sites[i], app); err != nil {
					return err
				}
			}
		}
	}
	for app := range s.apps {
		if err := s.local.put(ctx, serviceOf(federatedName(app), s.world.annotations(app))); err != nil {
			return err
		}
	}
	return nil
}

func secretOf(name string, kubeconfig []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: fakeapi.LinkNamespace, Name: name},
		Type:       links.SecretType, Data: map[string][]byte{"kubeconfig": kubeconfig},
	}
}

func (s *soak) link(ctx context.Context, site int) error {
	name := clusterName(site)
	return errors.Join(
		s.local.put(ctx, secretOf(name, s.writers[site].kubeconfig())),
		s.local.Apply(ctx, fmt.Appendf(nil, `apiVersion: %s/v1alpha3
kind: Link
metadata: {name: %[2]s, namespace: %[3]s}
spec: {targetClusterName: %[2]s, targetClusterDomain: cluster.local, clusterCredentialsSecret: %[2]s}
`, links.Group, name, fakeapi.LinkNamespace)),
	)
}

// start starts a replica, and with it a line of samples.
func (s *soak) start(ctx context.Context, r *replica) error {
	began := time.Now()
	if err := r.start(ctx, func(err error) { s.violate("%v", err) }); err != nil {
		return err
	}
	s.log("replica %d is ready after %s", r.number, time.Since(began).Round(10*time.Millisecond))
	s.lines = append(s.lines, line{name: fmt.Sprintf("replica %d, process %d", r.number, r.starts), began: time.Now()})
	return nil
}

// open opens one more proxy.
func (s *soak) open(ctx context.Context, at *replica) error {
	c, err := openClient(ctx, s.rng, s.opened, s.apps, at, s.check)
	if err != nil {
		return err
	}
	s.opened++
	s.clients = append(s.clients, c)
	return nil
}

// check holds a stream to the law.
func (s *soak) check(st *stream) {
	held, last := st.holds()
	lacks, empty := s.world.law.broken(st.app, held, st.client.replica.exempted())
	if len(lacks) > 0 {
		s.violate("%s lacks %v, to which nothing has happened; its last message: %s", st, lacks, last)
	}
	if empty {
		s.violate("%s is empty, and the Service has ready endpoints in a reachable cluster; its last message: %s", st, last)
	}
}

// round performs one round of the script and compares.
func (s *soak) round(ctx context.Context) error {
	s.rounds++
	if err := s.all(ctx, s.world.changes()); err != nil {
		return err
	}
	for _, st := range s.stalled {
		st.open.Resume()
	}
	s.stalled = nil
	if err := s.compare(ctx); err != nil || s.violated() || !s.world.settles() {
		return err
	}
	if err := s.all(ctx, s.world.settle()); err != nil {
		return err
	}
	if err := s.compare(ctx); err != nil || s.violated() {
		return err
	}
	return s.sample(ctx)
}

func (s *soak) all(ctx context.Context, deeds iter.Seq[deed]) error {
	for d := range deeds {
		if err := s.perform(ctx, d); err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}

// perform does a deed that is in the script's model.
func (s *soak) perform(ctx context.Context, d deed) error {
	s.note(d.String())
	s.deeds++
	s.verbs[d.verb]++
	w, site := s.writers[min(d.site, len(s.writers)-1)], s.world.sites[min(d.site, len(s.writers)-1)]
	var err error
	switch d.verb {
	case scale, grow, shrink, flip, remove, create:
		err = w.write(ctx, site, d.app)
	case exclude, include, revive:
		if s.world.retired[d.app] == 0 {
			err = s.local.put(ctx, serviceOf(federatedName(d.app), s.world.annotations(d.app)))
		}
	case retire:
		err = s.local.drop(ctx, serviceOf(federatedName(d.app), nil))
	case link:
		err = s.link(ctx, d.site)
	case unlink:
		name := clusterName(d.site)
		err = s.local.Delete(ctx, fakeapi.LinkNamespace, "links."+links.Group+"/"+name, "secrets/"+name)
	case cut, heal, slow, fast, hangUp:
		err = w.fault(d.verb, d.n)
	case mislay, rotate:
		if d.verb == mislay {
			if err := s.local.put(ctx, secretOf(clusterName(d.site), w.bogus())); err != nil {
				return err
			}
			if err := pause(ctx, 3*d.pause); err != nil { // replicas try it, or not
				return err
			}
		}
		err = s.rotate(ctx, d)
	case restart, kill:
		err = s.restart(ctx, s.replicas[d.site], d.verb == kill)
	case come:
		var at []*replica // as many at each as before
		for range d.n {
			i := s.rng.IntN(len(s.clients))
			at = append(at, s.clients[i].replica)
			s.closeClient(s.clients[i])
			s.clients = slices.Delete(s.clients, i, i+1)
		}
		for _, r := range at {
			err = errors.Join(err, s.open(ctx, r))
		}
	case stall:
		for range d.n {
			for _, st := range pick(s.rng, s.clients).streams {
				st.open.Stall()
				s.stalled = append(s.stalled, st)
			}
		}
	}
	return errors.Join(err, pause(ctx, d.pause))
}

// rotate gives replicas a new token of a cluster and revokes the old one.
func (s *soak) rotate(ctx context.Context, d deed) error {
	w := s.writers[d.site]
	revoke, err := w.rotate(ctx)
	if err != nil {
		return err
	}
	if err := s.local.put(ctx, secretOf(clusterName(d.site), w.kubeconfig())); err != nil {
		return err
	}
	s.revoking.Go(func() { // a real API server remembers for 10 s that a token was good
		if err := revoke(ctx); err != nil && ctx.Err() == nil {
			s.violate("the soak itself: %v", err)
		}
	})
	return nil
}

func (s *soak) restart(ctx context.Context, r *replica, killed bool) error {
	if killed || s.world.count(func(s *site) bool { return s.harmed }) > 0 {
		r.exempt(time.Now().Add(-unsaved))
	}
	if err := r.stop(killed); err != nil {
		return err
	}
	return s.start(ctx, r)
}

func (s *soak) closeClient(c *client) {
	violations, late := c.close()
	s.late += late
	for _, err := range violations {
		s.violate("%v", err)
	}
}

func (s *soak) closeClients() {
	for _, c := range s.clients {
		s.closeClient(c)
	}
	s.clients = nil
}

// compare waits until every stream holds what the world has, and every cluster that is linked and not away is Live.
func (s *soak) compare(ctx context.Context) error {
	s.revoking.Wait()
	began := time.Now()
	want := make([]map[netip.AddrPort]bool, s.apps)
	for app := range want {
		want[app] = s.world.expected(app)
	}
	var before, last error // why it did not agree when it was checked last but one, and last
	check := func(ctx context.Context) (err error) {
		defer func() {
			if err != nil {
				before, last = last, err
			}
		}()
		var differences []error
		for _, c := range s.clients {
			for _, st := range c.streams {
				if d := st.differs(want[st.app], s.world.retired[st.app] > 0); d != "" {
					differences = append(differences, errors.New(d))
				}
			}
		}
		if n := len(differences); n > 0 {
			return fmt.Errorf("%d streams differ:\n%w", n, errors.Join(differences[:min(n, 5)]...))
		}
		return s.live(ctx)
	}
	if err := until(ctx, check); err != nil {
		if ctx.Err() != nil {
			return err
		}
		s.violate("round %d, %s after the last deed: %v\n  just before: %v", s.rounds, within, err, before)
		s.keepStacks(ctx)
		return nil
	}
	took := time.Since(began)
	s.slowest = max(s.slowest, took)
	if took > 5*time.Second {
		s.log("until then: %.300s", last)
	}
	s.world.compared(time.Now())
	for _, r := range s.replicas {
		r.exempt(time.Time{})
	}
	s.log("round %d: all %d streams agree after %s; %d deeds, %d proxies came, away %d, unlinked %d", s.rounds,
		len(s.clients)*streamsOfProxy, took.Round(time.Millisecond), s.deeds, s.opened,
		s.world.count(func(s *site) bool { return s.away }), s.world.count(func(s *site) bool { return !s.linked }))
	return nil
}

// keepStacks writes what the goroutines of each replica do into a file.
func (s *soak) keepStacks(ctx context.Context) {
	for _, r := range s.replicas {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("fingerpost-soak-%d-replica-%d.txt", s.seed, r.number))
		stacks, err := r.server.Stacks(ctx)
		if err == nil {
			err = os.WriteFile(path, stacks, 0o600)
		}
		if err != nil {
			s.log("the stacks of replica %d cannot be kept: %v", r.number, err)
		} else {
			s.log("the stacks of replica %d are in %s", r.number, path)
		}
	}
}

// live returns an error unless every cluster that can be in contact is, at each replica.
func (s *soak) live(ctx context.Context) error {
	for _, r := range s.replicas {
		all, err := r.server.Clusters(ctx)
		if err != nil {
			return err
		}
		states := map[string]fingerpost.Cluster{}
		for _, c := range all {
			states[c.Name] = c
		}
		for _, site := range s.world.sites {
			if site.away {
				continue
			}
			c, known := states[clusterName(site.index)]
			if known != site.linked {
				return fmt.Errorf("replica %d: cluster %s is linked: %t", r.number, clusterName(site.index), known)
			}
			if known && c.State != "Live" {
				return fmt.Errorf("replica %d: cluster %s is %s: %s %s", r.number, c.Name, c.State, c.Contact,
					c.Credentials)
			}
		}
	}
	return nil
}

// sample adds a sample of each replica to its line.
func (s *soak) sample(ctx context.Context) error {
	for _, r := range s.replicas {
		now, err := take(ctx, r.server)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("replica %d, process %d", r.number, r.starts)
		i := slices.IndexFunc(s.lines, func(l line) bool { return l.name == name })
		s.lines[i].samples = append(s.lines[i].samples, now)
		s.log("%s: %.2f MiB of heap, %.0f goroutines, %.0f file descriptors, %.0f series", name, now.values[0]/(1<<20),
			now.values[1], now.values[2], now.values[3])
	}
	return nil
}

// pause lets time go by.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// summary is the verdict, and what it rests on.
func (s *soak) summary() (text string, ok bool) {
	var b strings.Builder
	rows, risen, measured := report(s.lines)
	ok = !s.violated() && len(risen) == 0
	verdict := "passed"
	switch {
	case !ok:
		verdict = "FAILED"
	case measured == 0:
		verdict = "passed, but whether memory rises is not known: no process ran for long enough"
	}
	fmt.Fprintf(&b, "soak: %s: seed %d, %s, %d light clusters and %d real ones, %d proxies\n", verdict, s.seed,
		time.Since(s.began).Round(time.Second), s.lights, realSites, s.proxies)
	s.mu.Lock()
	for _, v := range s.violations {
		fmt.Fprintf(&b, "\n%s\n", v)
	}
	s.mu.Unlock()
	for _, row := range risen {
		fmt.Fprintf(&b, "\nit rises: %s\n", row)
	}
	if !ok {
		fmt.Fprintf(&b, "\nThe same deeds again: go run -C e2e ./soak -seed %d -duration %s -proxies %d -clusters %d\n", s.seed, s.duration,
			s.proxies, s.lights)
	}
	fmt.Fprintf(&b, "\n%d rounds, %d deeds, %d proxies came; the slowest comparison took %s; %d first messages came after 3 s\n", s.rounds,
		s.deeds, s.opened, s.slowest.Round(time.Millisecond), s.late)
	for _, v := range slices.Sorted(maps.Keys(s.verbs)) {
		fmt.Fprintf(&b, "  %s %d", v, s.verbs[v])
	}
	fmt.Fprintf(&b, "\n\nWhat a replica takes up at quiet times, all clusters and Services as at the start:\n%s\n",
		strings.Join(rows, "\n"))
	return b.String(), ok
}
