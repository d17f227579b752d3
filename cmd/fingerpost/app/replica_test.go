package app_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster/endpointslice"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

// replica is one process: the App, and all its connections.
type replica struct {
	*app.App
	name     string
	listener *bufconn.Listener
	toServer connections // those to API servers
	toClient connections
	cancel   context.CancelFunc
	stopped  chan struct{} // closed when Run has returned
}

// connections are opened by one process, which can lose all of them, and be unable to open others.
type connections struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu   sync.Mutex
	lost bool
	all  []net.Conn
}

var errLost = errors.New("the process has no network")

// open opens a connection, unless all were lost.
func (c *connections) open(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		conn.Close()
		return nil, errLost
	}
	c.all = append(c.all, conn)
	return conn, nil
}

// lose closes all connections, and opens no others until restore is called.
func (c *connections) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	for _, conn := range c.all {
		conn.Close()
	}
	c.all = nil
}

func (c *connections) restore() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = false
}

// options are those of a replica in a scenario, from its flags: some of serve's, with its defaults but for
// admission, for age, and for the writers, which are off.
func (s *scenario) options(args []string) app.Options {
	o := app.Options{
		ClusterName: home, Addr: "fingerpost.test:8086", ProbeInterval: 5 * time.Second,
		Thresholds: federation.Thresholds{Suspect: 10 * time.Second, Stale: 150 * time.Second},
		Discovery:  linkerd.Defaults(),
		Lease:      lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond},
		Writer:     endpointslice.Options{},
	}
	o.Discovery.TrustDomain = trust
	o.Discovery.Admission.ConnectionRate, o.Discovery.Admission.ConnectionBurst = 1e6, 1e6
	o.Discovery.Admission.Rate, o.Discovery.Admission.Burst, o.Discovery.Admission.Answers = 1e6, 1e6, 1e3
	fs := flag.NewFlagSet("flags", flag.ContinueOnError)
	o.Discovery.Flags(fs)
	fs.BoolVar(&o.ReadSlices, "enable-endpoint-slices", true, "")
	fs.BoolVar(&o.Writer.External, "external-workload-slices", false, "")
	fs.BoolVar(&o.Writer.Federated, "federated-slices", false, "")
	fs.IntVar(&o.Writer.MaxSlices, "max-slices-per-source", 100, "")
	fs.BoolFunc("mirror-services", "", func(text string) error { o.Mirrors = text == "on"; return nil })
	fs.IntVar(&o.Mirror.MaxServices, "max-mirrors-per-link", 1000, "")
	fs.BoolVar(&o.Mirror.Headless, "mirror-headless-services", false, "")
	fs.BoolVar(&o.Mirror.CreateNamespaces, "mirror-create-namespaces", false, "")
	fs.BoolVar(&o.Mirror.Probe, "mirror-probe-gateways", false, "")
	defaults := []string{
		"-cluster-domain=" + domain, "-controller-namespace=" + ours, "-default-opaque-ports=" + opaque,
		"-max-connection-age=0",
	}
	if err := fs.Parse(append(defaults, args...)); err != nil {
		s.t.Fatal(err)
	}
	if err := o.Discovery.Validate(); err != nil {
		s.t.Fatal(err)
	}
	if !o.Writer.External && !o.Writer.Federated && !o.Mirrors {
		// Hours of virtual time are spent on little but renewals: half of the time of all scenarios.
		o.Lease = lease.Timing{Duration: time.Minute, Renew: 20 * time.Second, Fence: 45 * time.Second}
	}
	// No gateway can be reached: there are API servers only.
	o.Mirror.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
		return nil, fmt.Errorf("dial %s: connection refused", address)
	}
	return o
}

// start starts a replica.
func (s *scenario) start(name string) {
	s.t.Helper()
	if s.running(name) != nil {
		s.t.Fatalf("start: %s runs already", name)
	}
	log := logr.Discard()
	if testing.Verbose() {
		log = testr.New(s.t).WithName(name)
	}
	r := &replica{name: name, listener: bufconn.Listen(1 << 16), stopped: make(chan struct{})}
	r.toServer.dial = s.network.Dial
	r.toClient.dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return r.listener.DialContext(ctx) }
	o := s.options(s.flags)
	o.Replica = name
	if s.network.Server(home).Get("namespaces", "", ours) == nil { // its UID names the installation
		namespace := &unstructured.Unstructured{}
		namespace.SetAPIVersion("v1")
		namespace.SetKind("Namespace")
		namespace.SetName(ours)
		s.network.Server(home).Apply(namespace)
	}
	o.Config, o.Dial = s.access(home), r.toServer.open
	o.Config.Dial, o.Config.QPS = o.Dial, -1
	o.Listen = func(context.Context, string, string) (net.Listener, error) { return r.listener, nil }
	ctx, cancel := context.WithCancel(s.t.Context())
	var err error
	if r.App, err = app.New(ctx, log, o); err != nil {
		s.t.Fatal(err)
	}
	r.cancel = cancel
	go func() {
		defer close(r.stopped)
		if err := r.Run(ctx); err != nil {
			s.t.Errorf("%s: %v", name, err)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas, s.ended = append(s.replicas, r), append(s.ended, r.stopped)
}

// running returns a replica that runs, or nil.
func (s *scenario) running(name string) *replica {
	i := slices.IndexFunc(s.replicas, func(r *replica) bool { return r.name == name })
	if i < 0 {
		return nil
	}
	return s.replicas[i]
}

func (s *scenario) mustRun(name string) *replica {
	s.t.Helper()
	r := s.running(name)
	if r == nil {
		s.t.Fatalf("%s does not run", name)
	}
	return r
}

// first returns the replica that has run for the longest time: it serves the clients.
func (s *scenario) first() *replica {
	s.t.Helper()
	if len(s.replicas) == 0 {
		s.t.Fatal("no replica runs")
	}
	return s.replicas[0]
}

// stop stops a replica, and returns when it has ended.
func (s *scenario) stop(name string) {
	s.t.Helper()
	r := s.remove(name)
	r.cancel()
	<-r.stopped
}

// kill ends a replica as SIGKILL does: nothing that it sends from now on arrives.
func (s *scenario) kill(name string) {
	s.t.Helper()
	r := s.remove(name)
	r.toServer.lose()
	r.toClient.lose()
	r.cancel()
}

func (s *scenario) remove(name string) *replica {
	s.t.Helper()
	r := s.mustRun(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = slices.DeleteFunc(s.replicas, func(other *replica) bool { return other == r })
	return r
}

// connect returns the connection of all clients, to the first replica.
func (s *scenario) connect() *grpc.ClientConn {
	s.t.Helper()
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.replicas) == 0 {
			return nil, errors.New("no replica runs")
		}
		return s.replicas[0].toClient.open(ctx, "tcp", address)
	}
	conn, err := grpc.NewClient("passthrough:///fingerpost",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	if err != nil {
		s.t.Fatal(err)
	}
	return conn
}
