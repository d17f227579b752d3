package live

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// One of 200 clients stops reading while a large Service changes again and again: the others are not delayed,
// it is not cut off, and when it reads again it ends with the same set.
func TestStalledReader(t *testing.T) {
	const streams, addresses, changes = 200, 50, 12
	w := newWorld(t, "stalled", 1)
	w.serve("-admission-burst=1000")
	w.do(w.Local.Apply(t.Context(), crowd(w.Namespace, 0, addresses)))

	w.known("crowd")
	all := make([]*mesh.Watch, streams)
	for i := range all {
		all[i] = w.watch("crowd")
	}
	full := func(generation int) func(*mesh.Watch) bool {
		one := crowdAddress(generation, 0)
		return func(s *mesh.Watch) bool { return s.Len() == addresses && s.Has(one) }
	}
	w.within(10*time.Second, "first answers", func(ctx context.Context) error { return all200(ctx, all, full(0)) })
	slow := all[0]
	slow.Stall()
	began := time.Now()
	for g := 1; g <= changes; g++ {
		w.do(w.Local.Apply(t.Context(), crowd(w.Namespace, g, addresses)))
		w.within(4*time.Second, fmt.Sprintf("change %d at 199 clients", g),
			func(ctx context.Context) error { return all200(ctx, all[1:], full(g)) })
	}
	t.Logf("%d changes of %d addresses at %d clients: %s", changes, addresses, streams,
		time.Since(began).Round(time.Millisecond))
	before := w.mark(slow)
	slow.Resume()
	w.within(4*time.Second, "the slow client catches up",
		func(ctx context.Context) error { return slow.Until(ctx, "all", full(changes)) })
	events, _ := slow.Events()
	for _, e := range events {
		if e.End != nil {
			t.Errorf("the slow client was cut off: %s", mesh.Line(e))
		}
	}
	if got := len(events) - before; got >= 2*changes {
		t.Errorf("the slow client was sent every change, %d messages: it was never slow, or nothing was skipped", got)
	} else {
		t.Logf("the slow client got %d messages for %d changes", got, changes)
	}
	if !slices.Equal(slow.Held(), all[1].Held()) {
		t.Error("the slow client holds something else than the others")
	}
}

// known waits until the server knows a Service that was just made.
func (w *world) known(service string) {
	w.t.Helper()
	w.within(2*time.Second, service+" is known", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			s, err := w.Watch(ctx, w.Authority(service))
			if err != nil {
				return err
			}
			defer s.Close()
			once, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return s.Until(once, "an answer", func(s *mesh.Watch) bool { return s.Len() > 0 })
		})
	})
}

func all200(ctx context.Context, all []*mesh.Watch, done func(*mesh.Watch) bool) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			if err := s.Until(ctx, "all", done); err != nil {
				errs[i] = fmt.Errorf("client %d holds %d addresses: %w", i, s.Len(), context.Cause(ctx))
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func crowdAddress(generation, i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, byte(generation), byte(i >> 8), byte(i)}), mesh.Port)
}

// crowd is a Service with n addresses, all others in each generation. They are those of a gateway with a long
// name, so that few of them make a message which fills a client's window soon.
func crowd(namespace string, generation, n int) []byte {
	var b strings.Builder
	long := strings.Repeat("a-name-that-takes-room.", 9)
	fmt.Fprintf(
		&b, "apiVersion: v1\nkind: Service\nmetadata: {name: crowd, namespace: %s}\nspec: {ports: [{name: http, port: %d}]}\n", namespace, mesh.Port)
	for from := 0; from < n; from += 1000 {
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: crowd-%d
  namespace: %s
  labels: {kubernetes.io/service-name: crowd, endpointslice.kubernetes.io/managed-by: test}
  annotations: {mirror.linkerd.io/remote-gateway-identity: %sgateway, mirror.linkerd.io/remote-svc-fq-name: %scrowd}
addressType: IPv4
ports: [{name: http, port: %d}]
endpoints:
`, from, namespace, long, long, mesh.Port)
		for i := from; i < min(from+1000, n); i++ {
			fmt.Fprintf(&b, "- {addresses: [%s]}\n", crowdAddress(generation, i).Addr())
		}
	}
	return []byte(b.String())
}

// SIGTERM: every stream ends with OK, and the process ends by itself and well.
func TestDrain(t *testing.T) {
	w := newWorld(t, "drain", 1)
	w.serve()
	var all []*mesh.Watch
	for range 20 {
		s := w.watch(mesh.Service)
		w.holds(s, time.Second, "an answer", map[*mesh.Site]int{w.Local: 2})
		all = append(all, s)
	}
	w.do(w.Server.Terminate())
	w.within(2*time.Second, "streams end", func(ctx context.Context) error {
		for _, s := range all {
			select {
			case <-s.Done():
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for _, s := range all {
		events, _ := s.Events()
		if last := events[len(events)-1]; last.End.Code() != codes.OK {
			t.Errorf("a stream ended with %s", mesh.Line(last))
		}
	}
	w.within(3*time.Second, "the process ends", func(ctx context.Context) error {
		select {
		case <-w.Server.Exited():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// The command line shows what a running server knows and answers.
func TestCommandLine(t *testing.T) {
	w := newWorld(t, "cli", 2)
	west := w.Remotes[0]
	w.serve()
	w.link(west)
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
		return string(out), err
	}
	table, err := run("clusters", "--debug-addr", w.Server.Debug)
	if err != nil || !strings.Contains(table, "\neast (local)  Live ") || !strings.Contains(table, "\nwest ") {
		t.Errorf("clusters: %v\n%s", err, table)
	}
	table, err = run("endpoints", "--addr", w.Server.Addr, w.Authority(mesh.Federated), "-o", "json")
	if n := strings.Count(table, "web.cli.serviceaccount.identity.linkerd.cluster.local"); err != nil || n != 4 {
		t.Errorf("endpoints shows %d of 4 identities: %v\n%s", n, err, table)
	}
	text, err := run("endpoints", "--addr", w.Server.Addr, w.Authority(mesh.Service), "-o", "json")
	var list []struct{ Addr, Identity string }
	if jerr := json.Unmarshal([]byte(text), &list); err != nil || jerr != nil || len(list) != 2 {
		t.Errorf("endpoints -o json: %v %v\n%s", err, jerr, text)
	}
	text, err = run("endpoints", "cli/"+mesh.Service, "--addr", w.Server.Addr, "--debug-addr", w.Server.Debug)
	if n := strings.Count(text, " east "); err != nil || n != 2 {
		t.Errorf("endpoints of a short name shows %d addresses of east: %v\n%s", n, err, text)
	}
	if text, err := run("endpoints", "--addr", w.Server.Addr, "foo.bar.baz"); err == nil ||
		!strings.Contains(text, "names no Service") {
		t.Errorf("endpoints foo.bar.baz: %v\n%s", err, text)
	}
	if text, err := run("endpoints", "--addr", w.Server.Addr, "nobody.cli.svc.cluster.local"); err == nil ||
		!strings.Contains(text, "NotFound") {
		t.Errorf("endpoints of a Service that does not exist: %v\n%s", err, text)
	}
	metrics, err := w.Server.Metrics(t.Context())
	w.do(err)
	for _, want := range []string{
		`fingerpost_cluster_state{state="Live",target_cluster="west"} 1`, `cluster_store_size 1`,
		`fingerpost_links_readable 1`,
		`fingerpost_link_condition{link="west",namespace="cli",target_cluster="west",type="Accepted"} 1`,
		`fingerpost_objects{resource="pods",target_cluster="west"}`,
		`grpc_server_handled_total{grpc_code="NotFound",grpc_method="Get"`, `fingerpost_panics_total 0`,
		`http_client_requests_total{client="west",code="200",method="get"}`,
		`workqueue_depth{controller="cluster/west",name="cluster/west",priority=""} 0`,
		`workqueue_adds_total{controller="links",name="links"}`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no metric %s", want)
		}
	}
}

// Links that are not there yet, and whose schema knows no conditions: labelled Secrets work at once, Links
// when they appear, and Events report what the Link cannot hold. What else the status holds stays.
func TestForeignLinks(t *testing.T) {
	full := newWorld(t, "foreign", 2)
	bare := controlplane.ForTest(t, controlplane.Options{Name: "bare", Light: true})
	west := full.Remotes[0]
	w := &world{&mesh.Mesh{Namespace: "foreign", Local: &mesh.Site{Cluster: bare, Name: bare.Name()}}, t}
	w.Args = []string{
		"-cluster-name=" + bare.Name(), "-controller-namespace=" + mesh.Linkerd,
		"-link-namespace=" + w.Namespace,
	}
	w.do(bare.Apply(t.Context(), labelledSecret(west, "linkerd")))
	w.Local.Identity = bare.Admin()
	var err error
	w.Local.Proxy, err = bare.NewProxy()
	w.do(err)
	w.serve()
	w.state(west, "Live", 5*time.Second)
	metrics, err := w.Server.Metrics(t.Context())
	w.do(err)
	if !strings.Contains(metrics, "fingerpost_links_readable 0") {
		t.Error("there are no Links, and no metric shows it")
	}

	w.do(bare.Apply(t.Context(), apitest.LinkerdLinks))
	w.do(bare.Apply(t.Context(), []byte(fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: foreign}
---
apiVersion: %[1]s/v1alpha3
kind: Link
metadata: {name: north, namespace: foreign}
spec: {targetClusterName: north, targetClusterDomain: cluster.local, clusterCredentialsSecret: absent}
`, links.Group))))
	_, err = bare.Kubectl(t.Context(), "-n", "foreign", "patch", "link", "north", "--subresource=status",
		"--type=merge", "-p",
		`{"status":{"mirrorServices":[{"controllerName":"linkerd.io/service-mirror","remoteRef":{"name":"a","namespace":"b"}}]}}`)
	w.do(err)
	w.within(15*time.Second, "an Event about the Link", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			out, err := bare.Print(ctx, "foreign", "events", "",
				`{range .items[*]}{.reason} {.regarding.name}{.involvedObject.name} {.message}{.note}{"\n"}{end}`)
			if err == nil && !strings.Contains(out, "Refused north CredentialsValid is False") {
				err = fmt.Errorf("no Event about the credentials:\n%s", out)
			}
			return err
		})
	})
	out, err := bare.Kubectl(t.Context(), "-n", "foreign", "get", "link", "north", "-o", "jsonpath={.status}")
	w.do(err)
	if strings.Contains(out, "conditions") || !strings.Contains(out, "mirrorServices") {
		t.Errorf("the status is %s", out)
	}
	if page, err := w.Server.Cluster(t.Context(), "north"); err != nil || page.State != "Connecting" ||
		page.Credentials == "" {
		t.Errorf("the debug page shows %+v (%v)", page, err)
	}
}
