package slices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// Three clusters with two replicas each, all of which see everything: in each cluster one replica of the
// oldest installation writes, another one when it is stopped, and one of the next installation when the
// oldest is cut off. The API servers' audit logs have who wrote what.
func TestOneWriter(t *testing.T) {
	w := newWorld(t, "writers")
	began := time.Now()
	replicas := map[string]*replica{}
	for _, r := range w.startAll() {
		replicas[r.name] = r
	}
	for _, s := range clusters {
		w.union(s, 10*time.Second, s.Name()+" holds the union", clusters...)
	}
	holders := map[string]bool{}
	for _, s := range clusters {
		h, err := s.writer(t.Context())
		do(t, err)
		t.Logf("%s is written to by %s", s.Name(), h)
		holders[h] = true
	}
	t.Logf("%d replicas write", len(holders)) // which ones depends on who was in contact first

	stop := w.churn()
	defer func() { stop() }()

	fail := func(s *site, what string, claimed time.Duration, fault func(*replica)) *replica {
		name, err := s.writer(t.Context())
		do(t, err)
		fault(replicas[name])
		eventually(t, claimed, s.Name()+" has another writer after the holder "+what, func(ctx context.Context) error {
			now, err := s.writer(ctx)
			if err == nil && now == name {
				err = fmt.Errorf("it is still %s", now)
			}
			return err
		})
		return replicas[name]
	}
	first := fail(clusters[0], "was cut off", 7*time.Second, func(r *replica) { w.cut(r, clusters[0], true) })
	stop()
	w.union(clusters[0], 10*time.Second, clusters[0].Name()+" holds the union that its next holder wrote", clusters...)
	w.cut(first, clusters[0], false)
	eventually(t, 10*time.Second, "the former holder is in contact, and what it had sent has arrived",
		func(ctx context.Context) error {
			c, err := first.Cluster(ctx, clusters[0].Name())
			if err == nil && (c.State != "Live" || c.Contact != "") {
				err = fmt.Errorf("it is %s: %s", c.State, c.Contact)
			}
			return err
		})
	w.union(clusters[0], time.Second, "the next holder repairs that", clusters...)
	stop = w.churn()
	fail(clusters[1], "was stopped", time.Second, func(r *replica) { do(t, r.Stop()) })
	for _, s := range clusters {
		w.settles(s, 10*time.Second)
	}
	stop()
	for _, s := range clusters {
		w.union(s, 10*time.Second, s.Name()+" holds the union in the end", clusters...)
	}
	for _, s := range clusters {
		w.oneWriter(s, began)
	}
}

// churn changes something in each cluster all the time, until it is stopped.
func (w *world) churn() (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var wg sync.WaitGroup
	for _, s := range clusters {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := s.Scale(ctx, w.ns, mesh.Service, 2+n%2); err != nil && ctx.Err() == nil {
					w.Error(err)
					return
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// startAll starts two replicas of each installation, all at the same time.
func (w *world) startAll() (all []*replica) {
	w.Helper()
	started := make(chan *replica)
	var wg sync.WaitGroup
	for _, in := range w.installations {
		for i := range 2 {
			proxy, err := in.Local.NewProxy()
			do(w.T, err)
			wg.Go(func() {
				r := &replica{name: fmt.Sprintf("%s-%d", in.Local.Name, i), proxy: proxy}
				if r.Server, err = in.site.start(w.T, r.name, in.Local.Installation, proxy.URL()); err != nil {
					w.Error(err)
				}
				started <- r
			})
		}
	}
	go func() { wg.Wait(); close(started) }()
	for r := range started {
		if r.Server != nil {
			all = append(all, r)
			stopAfter(w.T, r.name, r.Server)
		}
	}
	if w.Failed() {
		w.FailNow()
	}
	return all
}

// cut takes away a replica's way to a cluster's API server, or gives it back. The way over a Link is that of
// both replicas.
func (w *world) cut(r *replica, s *site, off bool) {
	w.Helper()
	proxy := r.proxy
	for _, in := range w.installations {
		if strings.HasPrefix(r.name, in.Local.Name+"-") && in.site != s {
			for _, remote := range in.Remotes {
				if remote.Name == s.Name() {
					proxy = remote.Proxy
				}
			}
		}
	}
	if off {
		do(w.T, proxy.Silence())
	} else {
		do(w.T, proxy.Pass())
	}
}

// settles waits until a cluster is written to under churn.
func (w *world) settles(s *site, claimed time.Duration) {
	w.Helper()
	before, err := s.slicesOf(w.Context(), w.ns, mesh.Federated, federated)
	do(w.T, err)
	eventually(w.T, claimed, s.Name()+" is written to", func(ctx context.Context) error {
		now, err := s.slicesOf(ctx, w.ns, mesh.Federated, federated)
		if err == nil && slices.Equal(versionsOf(before), versionsOf(now)) {
			err = fmt.Errorf("nothing is written")
		}
		return err
	})
}

func versionsOf(found []discoveryv1.EndpointSlice) (all []string) {
	for _, es := range found {
		all = append(all, es.Name+" "+es.ResourceVersion)
	}
	return all
}

// fence is how long after its last renewal was sent a holder may send, with what a busy machine may take
// between its look at the clock and the stamp on the request. After 6 s another may write.
const fence = 5 * time.Second

// oneWriter checks in the audit log of a cluster that the writer of each slice held the Lease of its installation
// when it *sent* the request: its own write to that Lease was the last one then, and the fence was not
// passed. A request that was sent before the fence may arrive later, which is counted.
func (w *world) oneWriter(s *site, since time.Time) {
	w.Helper()
	requests, err := s.Requests()
	do(w.T, err)
	slices.SortStableFunc(requests, func(a, b controlplane.Request) int { return a.Time.Compare(b.Time) })
	type renewal struct {
		by         string
		sent, done time.Time
	}
	renewals := map[string][]renewal{} // by Lease, in the order in which they were done
	leaseOf := map[string]string{}     // by user agent
	var changes []controlplane.Request
	for _, q := range requests {
		_, ours := strings.CutPrefix(q.UserAgent, "fingerpost/")
		if !ours || q.Time.Before(since) || q.Code >= 300 ||
			!slices.Contains([]string{"create", "update", "delete"}, q.Verb) {
			continue
		}
		switch {
		case q.Resource != "leases" && (q.Resource != "endpointslices" || q.Namespace != w.ns) ||
			strings.Contains(q.URI+q.Name, externalLease):
		case q.Sent.IsZero():
			w.Errorf("%s: %s of %s has no time in its Audit-ID", s.Name(), q.URI, q.UserAgent)
		case q.Resource == "leases":
			renewals[q.Name] = append(renewals[q.Name], renewal{q.UserAgent, q.Sent, q.Time})
			leaseOf[q.UserAgent] = q.Name
		default:
			changes = append(changes, q)
		}
	}
	holder := func(of string, at time.Time) string { // who had done the last renewal of the same Lease
		by := ""
		for _, r := range renewals[leaseOf[of]] {
			if r.done.After(at) {
				break
			}
			by = r.by
		}
		return by
	}
	writes, late := map[string]int{}, 0
	for _, q := range changes {
		writes[q.UserAgent]++
		var renewed time.Time
		for _, r := range renewals[leaseOf[q.UserAgent]] {
			if r.by == q.UserAgent && !r.sent.After(q.Sent) {
				renewed = r.sent
			}
		}
		if age := q.Sent.Sub(renewed); age > fence {
			w.Errorf("%s: %s was sent by %s at %s, %s after its last renewal", s.Name(), q.URI, q.UserAgent,
				q.Sent, age)
		}
		if h := holder(q.UserAgent, q.Sent.Add(time.Millisecond)); h != q.UserAgent { // it is cut to milliseconds
			w.Errorf("%s: %s was sent by %s at %s, when the Lease was that of %q", s.Name(), q.URI, q.UserAgent,
				q.Sent, h)
		}
		if holder(q.UserAgent, q.Time) != q.UserAgent {
			late++
			w.Logf("%s: %s %s of %s arrived %s after it was sent, when another held the Lease", s.Name(),
				q.Verb, q.URI, q.UserAgent, q.Time.Sub(q.Sent))
		}
	}
	if len(writes) < 1 {
		w.Errorf("%s was not written to", s.Name())
	}
	w.Logf("%s: %d Leases, writes by holder: %v, %d late", s.Name(), len(renewals), writes, late)
}

// The holder is killed under churn: new slices follow, and in all of it no slice is written that does not change.
func TestHolderIsKilled(t *testing.T) {
	const services, each = 5, 30
	s, ns := clusters[2], "killed"
	s.namespace(t, ns)
	in := s.install(t, ns)
	x := &caseRun{T: t, cases: &cases{site: s, in: in}, ns: ns}
	for i := range services {
		app := map[string]string{"app": fmt.Sprintf("web-%d", i)}
		svc := x.svc(app["app"])
		svc.Spec.Selector = app
		s.service(t, svc)
		for j := range each {
			s.create(t, ready(workload(ns, fmt.Sprintf("ew-%d-%d", i, j), app,
				[]string{fmt.Sprintf("10.8.%d.%d", i, j+1)}, "http:8080"), true))
		}
	}
	watched := s.watchWrites(t, ns)
	replicas := map[string]*replica{}
	for i := range 2 {
		name := fmt.Sprintf("killed-%d", i)
		server, err := s.start(t, name, in, "")
		do(t, err)
		replicas[name] = &replica{name: name, Server: server}
	}
	for i := range services {
		x.expect(fmt.Sprintf("web-%d", i), sizes(each))
	}
	changes, r := 0, 0
	flip := func(service, j int) {
		changes++
		s.change(t, ns, fmt.Sprintf("ew-%d-%d", service, j),
			func(u *unstructured.Unstructured) { ready(u, changes%2 == 0) })
	}
	for ; r < 40; r++ {
		flip(r%services, r%each)
	}
	holder, err := s.holder(t.Context(), externalLease)
	do(t, err)
	killed := replicas[holder]
	do(t, syscall.Kill(killed.PID(), syscall.SIGKILL))
	at := time.Now()
	if err := killed.Stop(); err == nil {
		t.Error("the replica that was killed ended well")
	}
	for name, r := range replicas {
		if name != holder {
			stopAfter(t, name, r.Server)
		}
	}
	for ; r < 80; r++ {
		flip(r%services, r%each)
	}
	s.create(t, ready(workload(ns, "late", map[string]string{"app": "web-0"}, []string{"10.8.9.9"}, "http:8080"), true))
	eventually(t, 10*time.Second, "the other replica writes", func(ctx context.Context) error {
		found, err := s.slicesOf(ctx, ns, "web-0", external)
		if err == nil && !slices.Contains(addressesOf(found), "10.8.9.9") {
			err = fmt.Errorf("the newest workload is not there")
		}
		return err
	})
	t.Logf("new slices %s after the holder was killed", time.Since(at).Round(time.Millisecond))
	for i := range services {
		want := each
		if i == 0 {
			want++
		}
		x.expect(fmt.Sprintf("web-%d", i), sizes(want))
	}
	writes, same := watched()
	for _, name := range same {
		t.Errorf("%s was written and did not change", name)
	}
	t.Logf("%d changes of ExternalWorkloads, %d writes of slices, %d of them the first", changes+1, writes, services)
	if writes > changes+1+services {
		t.Errorf("%d writes for %d changes", writes, changes+1)
	}
}

// watchWrites counts the writes of slices in a namespace from now on. What is returned ends it, and returns how
// many there were and which slices were written without being changed.
func (s *site) watchWrites(t *testing.T, namespace string) func() (writes int, same []string) {
	t.Helper()
	list, err := s.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{})
	do(t, err)
	w, err := s.DiscoveryV1().EndpointSlices(namespace).Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: list.ResourceVersion, LabelSelector: discoveryv1.LabelManagedBy + "=" + external,
	})
	do(t, err)
	var writes int
	unchanged, last := map[string]bool{}, map[string]string{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for event := range w.ResultChan() {
			es, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				continue
			}
			writes++
			content := fmt.Sprint(es.Labels, portsText(*es))
			for _, e := range es.Endpoints {
				content += fmt.Sprint(e.Addresses, *e.Conditions.Ready, e.TargetRef.Name)
			}
			if last[es.Name] == content {
				unchanged[es.Name] = true
			}
			last[es.Name] = content
		}
	})
	return func() (int, []string) {
		w.Stop()
		wg.Wait()
		return writes, slices.Sorted(maps.Keys(unchanged))
	}
}
