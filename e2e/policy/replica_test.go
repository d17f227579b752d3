package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/serving"
)

// A replica is a server with policy.
type replica struct {
	t                 *testing.T
	admin, debug      string           // host and port of each server
	webhook           string           // the same, if there is one
	conn, destination *grpc.ClientConn // to the servers of policy and of discovery
	log               *logged
	ended             <-chan struct{}
	stop              func() error // ends it, once, and returns how it has ended
}

// logged is what a replica has logged so far.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) write(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(line + "\n")
}

// contains reports whether one line has all texts.
func (l *logged) contains(all ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(all, func(want string) bool { return !strings.Contains(line, want) }) {
			return nil
		}
	}
	return fmt.Errorf("no line of the log has %q", all)
}

// tail returns the last lines.
func (l *logged) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(l.text.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-100):], "\n")
}

// options are those of a replica that reaches the API server of a cluster by config.
func options(name string, config *rest.Config) app.Options {
	o := app.Options{
		Version: "test", Replica: name, ClusterName: "local", Config: config,
		Addr: "grpc", AdminAddr: "admin", DebugAddr: "debug",
		ProbeInterval: time.Second,
		Thresholds:    federation.Thresholds{Suspect: 3 * time.Second, Stale: 8 * time.Second},
		ReadSlices:    true, LinkNamespace: mesh.Linkerd,
		Lease:   lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond},
		Serving: serving.DefaultConfig(), Discovery: linkerd.Defaults(),
	}
	o.Discovery.ControllerNamespace = mesh.Linkerd
	o.Discovery.ClusterDomain, o.Discovery.TrustDomain = "cluster.local", "cluster.local"
	o.Serving.DrainWindow = 0

	o.Policy.Addr = "policy"
	for _, cidr := range []string{"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fd00::/8"} {
		network, err := rules.ParseNetwork(cidr, nil)
		if err != nil {
			panic(err)
		}
		o.Policy.Rules.ClusterNetworks = append(o.Policy.Rules.ClusterNetworks, network)
	}
	o.Policy.Rules.DefaultPolicy = rules.AllUnauthenticated
	o.Policy.Rules.ProbeNetworks = rules.Everywhere
	o.Policy.Rules.EgressNamespace = "linkerd-egress"
	return o
}

// start starts a replica, which ends with the test. It need not become ready.
func start(t *testing.T, o app.Options) (*replica, error) {
	t.Helper()
	opened := map[string]net.Listener{}
	for _, name := range append([]string{o.Addr, o.AdminAddr, o.DebugAddr, o.Policy.Addr}, o.Webhooks.Addrs...) {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		opened[name] = listener
	}
	o.Listen = func(_ context.Context, _, name string) (net.Listener, error) { return opened[name], nil }

	ended := make(chan struct{})
	r := &replica{t: t, log: &logged{}, ended: ended}
	r.admin, r.debug = opened[o.AdminAddr].Addr().String(), opened[o.DebugAddr].Addr().String()
	for _, name := range o.Webhooks.Addrs {
		r.webhook = opened[name].Addr().String()
	}
	log := funcr.NewJSON(r.log.write, funcr.Options{Verbosity: 1, LogTimestamp: true})
	ctx, cancel := context.WithCancel(logr.NewContext(context.WithoutCancel(t.Context()), log))
	a, err := app.New(ctx, log, o)
	if err != nil {
		cancel()
		return nil, err
	}
	if r.conn, err = dial(opened[o.Policy.Addr]); err != nil {
		cancel()
		return nil, err
	}
	if r.destination, err = dial(opened[o.Addr]); err != nil {
		cancel()
		return nil, err
	}

	var outcome error
	go func() {
		outcome = a.Run(ctx)
		close(ended)
	}()
	r.stop = sync.OnceValue(func() error {
		cancel()
		<-ended
		return errors.Join(outcome, r.conn.Close(), r.destination.Close())
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", o.Replica, r.log.tail())
		}
	})
	return r, nil
}

func dial(to net.Listener) (*grpc.ClientConn, error) {
	return grpc.NewClient(to.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// serve starts a replica as the admin of a cluster, and waits until it is ready.
func (s *site) serve(t *testing.T, name string, change ...func(*app.Options)) *replica {
	t.Helper()
	o := options(name, s.AdminConfig())
	for _, f := range change {
		f(&o)
	}
	r, err := start(t, o)
	do(t, err)
	r.awaitReady()
	return r
}

func (r *replica) awaitReady() {
	r.t.Helper()
	eventually(r.t, 6*time.Second, "ready", r.isReady)
}

func (r *replica) isReady(ctx context.Context) error {
	status, body, err := r.get(ctx, "/ready")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d: %s", status, body)
	}
	return err
}

// get asks the admin server for a page.
func (r *replica) get(ctx context.Context, path string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.admin+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// measures returns an error unless the metrics have a line that begins so.
func (r *replica) measures(ctx context.Context, lines ...string) error {
	_, page, err := r.get(ctx, "/metrics")
	if err != nil {
		return err
	}
	for _, want := range lines {
		if !strings.Contains(withoutInstallation(page), "\n"+want) {
			return fmt.Errorf("no metric %s", want)
		}
	}
	return nil
}

// withoutInstallation takes a label out of metrics that has a UID.
func withoutInstallation(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		if before, rest, found := strings.Cut(line, `installation="`); found {
			_, after, _ := strings.Cut(rest, `"`)
			line = strings.TrimSuffix(before, ",") + strings.TrimPrefix(after, ",")
		}
		b.WriteString(line)
	}
	return b.String()
}
