package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// run runs the command line.
func (w *world) run(args ...string) (string, error) {
	out, err := exec.CommandContext(w.t.Context(), binary, args...).CombinedOutput()
	return string(out), err
}

// prints runs the command line until it prints all of want.
func (w *world) prints(claimed time.Duration, want []string, args ...string) {
	w.t.Helper()
	w.within(claimed, "fingerpost "+args[0], func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(context.Context) error {
			out, err := w.run(args...)
			flat := strings.Join(strings.Fields(out), " ")
			for _, s := range want {
				if !strings.Contains(flat, s) {
					err = errors.Join(err, fmt.Errorf("it does not print %q:\n%s", s, out))
				}
			}
			return err
		})
	})
}

// A client's addresses are explained as they come and go: whose they are, why they are included, and which the
// client was sent.
func TestExplain(t *testing.T) {
	w := newWorld(t, "explain", 2)
	west := w.Remotes[0]
	w.serve()
	w.link(west)
	shared := netip.MustParseAddrPort("192.0.2.78:8080")
	w.claim(west, shared)
	conn, err := grpc.NewClient(w.Server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.do(err)
	defer conn.Close()
	client := proxy.Open(t.Context(), conn,
		proxy.Request{Authority: w.Authority(mesh.Federated), Token: `{"ns":"explain","pod":"cart","nodeName":"n"}`},
		nil)
	defer client.Close()
	explain := []string{
		"explain", w.Authority(mesh.Federated), "--client", "explain/cart", "--debug-addr", w.Server.Debug,
		"--kubeconfig", "/dev/null",
	}
	w.prints(3*time.Second, []string{
		"for explain/cart on node n: 5 addresses", "holds 5 addresses", "+ 192.0.2.78:8080 west", "yes included",
	}, explain...)

	w.claim(w.Local, shared)
	w.prints(3*time.Second, []string{
		"- 192.0.2.78:8080 west", "duplicate: east/explain/web", "it is of this cluster", "5 addresses",
	}, explain...)
	w.do(west.Proxy.Silence())
	w.prints(15*time.Second, []string{"included, its cluster is Stale", "it is of this cluster"}, explain...)
	w.prints(time.Second, []string{"west Stale"}, "clusters", "west", "--debug-addr", w.Server.Debug)
	w.do(west.Proxy.Pass())
	w.state(west, "Live", 5*time.Second)

	for authority, want := range map[string]string{
		// Only a part of another Service must declare its ports.
		strings.Replace(w.Authority(mesh.Service), "8080", "81", 1):   "included",
		strings.Replace(w.Authority(mesh.Federated), "8080", "81", 1): "port 81 not declared",
	} {
		w.prints(time.Second, []string{want}, "explain", authority, "--debug-addr", w.Server.Debug)
	}
	for authority, want := range map[string]string{
		w.Authority("nobody"): "error: NotFound: Service explain/nobody not found",
		"explain/nobody":      "no Service explain/nobody in cluster",
	} {
		out, err := w.run("explain", authority, "--debug-addr", w.Server.Debug)
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 4 || !strings.Contains(out, want) {
			t.Errorf("explain %s: %v\n%s", authority, err, out)
		}
	}
	if out, err := w.run("explain", "foo.bar.baz", "--debug-addr", w.Server.Debug); err == nil ||
		!strings.Contains(out, "names no Service") {
		t.Errorf("explain foo.bar.baz: %v\n%s", err, out)
	}
}

// A client that does not read is the first in the list, with how far it is behind; profiles and metrics are shown.
func TestSlowStream(t *testing.T) {
	w := newWorld(t, "slow", 1)
	w.serve()
	w.do(w.Local.Apply(t.Context(), crowd(w.Namespace, 0, 100)))
	w.known("crowd")
	quick, slow := w.watch("crowd"), w.watch("crowd")
	whole := func(s *mesh.Watch) bool { return s.Len() == 100 }
	w.within(3*time.Second, "first answers",
		func(ctx context.Context) error { return all200(ctx, []*mesh.Watch{quick, slow}, whole) })
	slow.Stall()
	for generation := 1; ; generation++ {
		w.do(w.Local.Apply(t.Context(), crowd(w.Namespace, generation, 100)))
		one := crowdAddress(generation, 0)
		w.within(4*time.Second, "a change", func(ctx context.Context) error {
			return quick.Until(ctx, "it", func(s *mesh.Watch) bool { return s.Has(one) })
		})
		out, err := w.run("streams", "--slow", "--debug-addr", w.Server.Debug)
		w.do(err)
		if flat := strings.Join(strings.Fields(out), " "); strings.Contains(flat, "+100 -100, not read for") &&
			strings.Contains(flat, "1 behind.") {
			break
		}
		if generation == 200 {
			t.Fatalf("no stream is behind:\n%s", out)
		}
	}
	slow.Resume()
	w.prints(4*time.Second, []string{"2 streams, 0 behind."}, "streams", "--debug-addr", w.Server.Debug)

	w.prints(2*time.Second, []string{"service web.slow.svc.cluster.local", "opaque false"}, "profile",
		w.Authority(mesh.Service), "--addr", w.Server.Addr)
	out, err := w.run("profile", w.Authority(mesh.Service), "--addr", w.Server.Addr, "-o", "json")
	var profile struct{ FullyQualifiedName string }
	if jerr := json.Unmarshal([]byte(out), &profile); err != nil || jerr != nil || profile.FullyQualifiedName == "" {
		t.Errorf("profile -o json: %v %v\n%s", err, jerr, out)
	}
	if out, err := w.run("profile", "foo.bar.baz", "--addr", w.Server.Addr); err == nil ||
		!strings.Contains(out, "names no Service") {
		t.Errorf("profile foo: %v\n%s", err, out)
	}
	out, err = w.run("metrics", "fingerpost_streams", "--metrics-addr", w.Server.Admin)
	sample := regexp.MustCompile(`(?m)^fingerpost_streams\{installation="[^"]+"\} 2$`)
	if err != nil || !sample.MatchString(out) || strings.Contains(out, "go_goroutines") {
		t.Errorf("metrics: %v\n%s", err, out)
	}
}

// Two replicas, one of which is cut off from a cluster: the health report names a cluster or Service in which
// they differ.
func TestReplicasThatDiffer(t *testing.T) {
	w := newWorld(t, "diff", 2)
	west := w.Remotes[0]
	w.serve()
	w.link(west)
	m, site := *w.Mesh, *west
	var err error
	site.Proxy, err = west.NewProxy()
	w.do(err)
	other := &world{&m, t} // it has Links and a way to west of its own
	other.Local, other.Remotes = new(mesh.Site), []*mesh.Site{&site}
	*other.Local = *w.Local
	m.Namespace = "diff-other"
	w.do(w.Local.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: diff-other}\n")))
	w.do(other.Install(t.Context(), "diff-other", "", ""))
	other.serve()
	kubeconfig, both := admin(t, w.Local.Cluster), w.Server.Debug+","+other.Server.Debug
	reports := func(want string) {
		t.Helper()
		w.within(10*time.Second, want, func(ctx context.Context) error {
			return mesh.Eventually(ctx, func(context.Context) error {
				lines := checked(t, kubeconfig, "--debug-addr="+both).lines(other.Server.Debug + " agrees with ")
				if len(lines) != 1 || !strings.Contains(lines[0], want) {
					return fmt.Errorf("no line contains %q: %q", want, lines)
				}
				return nil
			})
		})
	}
	reports("they differ in 1 place, such as west: Live in " + w.Server.Debug + ", not linked in")
	w.do(other.Link(t.Context(), &site))
	other.state(&site, "Live", 10*time.Second)
	reports("success ")

	w.do(site.Proxy.Silence())
	w.do(west.Scale(t.Context(), w.Namespace, mesh.Service, 3))
	_, err = west.WaitEndpoints(t.Context(), w.Namespace, mesh.Service, 3)
	w.do(err)
	reports("such as west diff/web: not the same endpoints")
	w.do(site.Proxy.Pass())
	reports("success ")
}
