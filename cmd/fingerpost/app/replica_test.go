package app_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster/endpointslice"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// replica is one process: the App, and all its connections.
type replica struct {
	*app.App
	name     string
	listener *bufconn.Listener
	policy   *bufconn.Listener // of the Policy API
	peers    *bufconn.Listener // where other replicas ask
	toServer *connections      // those to API servers
	toClient *connections
	cancel   context.CancelFunc
	stopped  chan struct{} // closed when Run has returned
	began    time.Time
	bare     bool // its state had been damaged before it was started
}

// connections are opened by one process, which can lose all of them, and be unable to open others.
type connections struct {
	mu   sync.Mutex
	dial func(ctx context.Context, network, address string) (net.Conn, error) // nil once the process has ended
	lost map[string]bool                                                      // addresses; anywhere for all
	all  map[net.Conn]string
}

const anywhere = ""

var errLost = errors.New("the process has no network")

// open opens a connection, unless those to the address were lost.
func (c *connections) open(ctx context.Context, network, address string) (net.Conn, error) {
	c.mu.Lock()
	dial := c.dial
	c.mu.Unlock()
	if dial == nil {
		return nil, errLost
	}
	conn, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost[anywhere] || c.lost[address] {
		conn.Close()
		return nil, errLost
	}
	if c.all == nil {
		c.all = map[net.Conn]string{}
	}
	c.all[conn] = address
	return conn, nil
}

// lose closes all connections to an address, or to anywhere, and opens no others until restore is called.
func (c *connections) lose(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		c.lost = map[string]bool{}
	}
	c.lost[address] = true
	for conn, to := range c.all {
		if address == anywhere || address == to {
			conn.Close()
			delete(c.all, conn)
		}
	}
}

// end closes all connections for ever. client-go caches transports, which lead here: nothing else may be kept by them.
func (c *connections) end() {
	c.lose(anywhere)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dial, c.all = nil, nil
}

func (c *connections) restore(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lost, address)
}

// options are those of a replica in a scenario, from its flags: some of serve's, with its defaults but for
// admission, for age, and for the writers, which are off.
func (s *scenario) options(args []string) app.Options {
	o := app.Options{
		Addr: discoveryAddr, ProbeInterval: 5 * time.Second,
		Thresholds: federation.Thresholds{Suspect: 10 * time.Second, Stale: 150 * time.Second},
		Serving:    serving.DefaultConfig(),
		Discovery:  linkerd.Defaults(),
		Lease:      lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond},
		Writer:     endpointslice.Options{},
	}
	o.Serving.Admission.ConnectionRate, o.Serving.Admission.ConnectionBurst = 1e6, 1e6
	o.Serving.Admission.Rate, o.Serving.Admission.Burst, o.Serving.Admission.Answers = 1e6, 1e6, 1e3
	fs := flag.NewFlagSet("flags", flag.ContinueOnError)
	o.Discovery.Flags(fs)
	o.Serving.Flags(fs)
	fs.StringVar(&o.Discovery.TrustDomain, "identity-trust-domain", trust, "")
	policyFlags(fs, &o.Policy)
	fs.BoolVar(&o.ReadSlices, "enable-endpoint-slices", true, "")
	fs.BoolVar(&o.Writer.External, "external-workload-slices", false, "")
	fs.BoolVar(&o.Writer.Federated, "federated-slices", false, "")
	fs.BoolVar(&o.ReadOnly, "read-only", false, "")
	fs.IntVar(&o.Writer.MaxSlices, "max-slices-per-source", 100, "")
	fs.IntVar(&o.Budget.ServiceEndpoints, "cluster-max-endpoints-per-service", 10_000, "")
	fs.Func("installation-namespaces", "", func(list string) error {
		o.Installations = strings.Split(list, ",")
		return nil
	})
	fs.BoolFunc("mirror-services", "", func(text string) error { o.Mirrors = text == "on"; return nil })
	fs.IntVar(&o.Mirror.MaxServices, "max-mirrors-per-link", 1000, "")
	fs.BoolVar(&o.Mirror.Headless, "mirror-headless-services", false, "")
	fs.BoolVar(&o.Mirror.CreateNamespaces, "mirror-create-namespaces", false, "")
	fs.BoolFunc("state-dir", "", func(string) error {
		if s.stateDir == "" {
			s.stateDir = s.t.TempDir()
		}
		o.StateDir = s.stateDir
		return nil
	})
	fs.BoolFunc("peers", "", func(string) error {
		o.Peers = app.Peers{ListenAddr: peerAddr, Addr: peerAddr, Lookup: s.lookupReplicas, Dial: s.dialPeer}
		return nil
	})
	fs.StringVar(&o.TLS.Certificate, "tls-cert-file", "", "")
	fs.StringVar(&o.TLS.Key, "tls-key-file", "", "")
	fs.StringVar(&o.TLS.ClientCA, "tls-client-ca-file", "", "")
	fs.DurationVar(&o.StateMaxAge, "state-max-age", 24*time.Hour, "")
	fs.BoolVar(&o.Mirror.Probe, "mirror-probe-gateways", false, "")
	defaults := []string{
		"-cluster-domain=" + domain, "-controller-namespace=" + ours, "-default-opaque-ports=" + opaque,
		"-max-connection-age=0",
	}
	if err := fs.Parse(slices.Concat(defaults, policyDefaults, args)); err != nil {
		s.t.Fatal(err)
	}
	if err := errors.Join(o.Discovery.Validate(), o.Serving.Validate()); err != nil {
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
	o.Mirror.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
		if all, found := s.hosts.Load(host); found {
			return slices.Clone(all.([]netip.Addr)), nil
		}
		return nil, &net.DNSError{Name: host, Err: "no such host", IsNotFound: true}
	}
	return o
}

// resolve sets the addresses of a host name; without any there is no such host.
func (s *scenario) resolve(host string, addresses []string) {
	s.hosts.Delete(host)
	var all []netip.Addr
	for _, text := range addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, addr)
	}
	if all != nil {
		s.hosts.Store(host, all)
	}
}

// start starts a replica.
func (s *scenario) start(name string) {
	s.t.Helper()
	s.startIn(name, home)
}

// startIn starts a replica in a cluster: in another one than home it is of another installation.
func (s *scenario) startIn(name, cluster string) {
	s.t.Helper()
	if s.running(name) != nil {
		s.t.Fatalf("start: %s runs already", name)
	}
	r := &replica{
		name: name, listener: bufconn.Listen(1 << 16), policy: bufconn.Listen(1 << 16), peers: bufconn.Listen(1 << 16),
		stopped: make(chan struct{}), began: time.Now(), bare: s.damaged[name],
	}
	delete(s.damaged, name)
	r.toServer = &connections{dial: s.network.DialAs(name)}
	r.toClient = &connections{dial: func(ctx context.Context, _, address string) (net.Conn, error) {
		return r.at(address).DialContext(ctx)
	}}
	o := s.options(s.flags)
	o.ClusterName = cluster
	if o.Peers.Addr != "" {
		o.Peers.TokenFile = s.peerToken(cluster, name)
	}
	if o.Replica = name; o.StateDir != "" {
		o.StateDir = s.stateDirOf(name)
	}
	if s.network.Server(cluster).Get("namespaces", "", ours) == nil { // its UID names the installation
		namespace := &unstructured.Unstructured{}
		namespace.SetAPIVersion("v1")
		namespace.SetKind("Namespace")
		namespace.SetName(ours)
		s.network.Server(cluster).Apply(namespace)
	}
	o.Config, o.Dial = s.access(cluster), r.toServer.open
	o.Config.Dial, o.Config.QPS = o.Dial, -1
	o.Listen = func(_ context.Context, _, address string) (net.Listener, error) { return r.at(address), nil }
	ctx, cancel := context.WithCancel(s.t.Context())
	var err error
	if r.App, err = app.New(ctx, s.newLog(name), o); err != nil {
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

// at returns the listener of an address.
func (r *replica) at(address string) *bufconn.Listener {
	switch address {
	case peerAddr:
		return r.peers
	case policyAddr:
		return r.policy
	default:
		return r.listener
	}
}

// newLog returns a log whose lines the verb logged finds.
func (s *scenario) newLog(name string) logr.Logger {
	return funcr.New(func(_, line string) {
		if testing.Verbose() {
			s.t.Logf("%s: %s", name, line)
		}
		if strings.Contains(line, "BUG:") {
			s.t.Errorf("%s: %s", name, line)
		}
		s.logMu.Lock()
		defer s.logMu.Unlock()
		if s.watch == nil { // histories are long
			s.logged = append(s.logged, line)
		}
	}, funcr.Options{})
}

// printLogged prints how many lines the replicas have logged that contain a text.
func (s *scenario) printLogged(text string) {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	n := 0
	for _, line := range s.logged {
		if strings.Contains(line, text) {
			n++
		}
	}
	fmt.Fprintf(&s.out, "x%d\n", n)
}

// The addresses of servers, on every replica.
const (
	discoveryAddr = "fingerpost.test:8086"
	peerAddr      = "peers.test:8087"
	policyAddr    = "policy.test:8090"
)

// lookupReplicas returns the addresses of all replicas that run: their names.
func (s *scenario) lookupReplicas(context.Context, string) (names []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.replicas {
		names = append(names, r.name)
	}
	return names, nil
}

// peerToken returns a file with the token by which the other replicas know one, in the place of a kubelet.
func (s *scenario) peerToken(cluster, name string) string {
	s.t.Helper()
	token := s.network.Server(cluster).AccountToken(ours, "fingerpost", name, server.PeerAudience)
	path := filepath.Join(s.t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *scenario) dialPeer(ctx context.Context, _, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	r, instead := s.running(name), s.inPlaceOfPeers
	s.mu.Unlock()
	if instead != nil {
		return instead.DialContext(ctx)
	}
	if r != nil {
		return r.peers.DialContext(ctx)
	}
	return nil, fmt.Errorf("dial %s: connection refused", address)
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
	r.toServer.end()
	r.toClient.end()
}

// kill ends a replica as SIGKILL does: nothing that it sends from now on arrives.
func (s *scenario) kill(name string) {
	s.t.Helper()
	r := s.remove(name)
	r.toServer.end()
	r.toClient.end()
	before := s.stateDirOf(name)
	s.killed[name]++
	if err := os.Rename(before, s.stateDirOf(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	r.cancel()
}

// stateDirOf returns the folder of a replica: another one after each kill, so that it holds what was there then.
func (s *scenario) stateDirOf(name string) string {
	return filepath.Join(s.stateDir, fmt.Sprintf("%s-%d", name, s.killed[name]))
}

func (s *scenario) remove(name string) *replica {
	s.t.Helper()
	r := s.mustRun(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = slices.DeleteFunc(s.replicas, func(other *replica) bool { return other == r })
	return r
}

// connect returns a connection of clients: to the replica that they prefer, or else to the first one. In histories
// it has to be ready, as the Service of a mesh's control plane leads to; a scenario may ask before.
func (s *scenario) connect(prefer string) *grpc.ClientConn { return s.connectTo(discoveryAddr, prefer) }

// connectTo returns such a connection to one of the servers of a replica.
func (s *scenario) connectTo(server, prefer string) *grpc.ClientConn {
	s.t.Helper()
	key := server + " " + prefer
	if conn := s.conns[key]; conn != nil {
		return conn
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		serves := func(r *replica) bool { return s.watch == nil || r.Ready.Ready() }
		r := s.running(prefer)
		if r == nil || !serves(r) {
			i := slices.IndexFunc(s.replicas, serves)
			if i < 0 {
				return nil, errors.New("no replica serves")
			}
			r = s.replicas[i]
		}
		return r.toClient.open(ctx, "tcp", address)
	}
	conn, err := grpc.NewClient("passthrough:///"+server,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: 3 * time.Second, // like a proxy's
		}}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.conns[key] = conn
	return conn
}
