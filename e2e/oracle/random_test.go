package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

var (
	// CI decides about a change by the same events each time; make soak plays others.
	seed     = flag.Uint64("seed", 1086303222, "of the random events; 0 for a new one")
	duration = flag.Duration("duration", 20*time.Second, "how long random events are made")
)

const (
	streams     = 100 // of Get
	lookups     = 60  // of GetProfile
	connections = 4

	// Bounds on how long streams may take once nothing is written any more: as a rule, and after an outage,
	// during which a cluster may have been linked that is listed afterwards.
	converges = 5 * time.Second
	recovers  = 30 * time.Second
)

// Random legal changes in two clusters, some while the remote one cannot be reached or the server is away;
// whenever they pause, every stream holds what the oracle returns.
func TestRandom(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64N(1 << 32)
	}
	t.Logf("replay with: go test -C e2e ./oracle -seed %d -duration %s", *seed, *duration)
	r := rand.New(rand.NewPCG(*seed, 0))
	clusters := controlplane.AllForTest(t, controlplane.Options{Name: "local", Light: true},
		controlplane.Options{Name: "remote", Light: true})
	x := newRun(t, r, clusters[0], clusters[1])
	rounds, deadline := 0, time.Now().Add(*duration)
	for n := 80; time.Now().Before(deadline) && !t.Failed(); n = 1 + r.IntN(1+r.IntN(30)) {
		bound := converges
		switch r.IntN(12) {
		case 0:
			bound = recovers
			x.outage(t.Context(), n)
		case 1:
			x.restart(t.Context(), n)
		default:
			x.steps(t.Context(), n)
		}
		x.compare(t.Context(), bound)
		for range 5 { // streams that know nothing of the past, besides those that know all of it
			x.reopen(pick(r, x.streams))
		}
		rounds++
	}
	x.stop()
	t.Logf("seed %d: %d changes, %d comparisons of %d streams, the slowest converged in %s; compared: %v",
		*seed, x.changes, rounds, len(x.streams), x.slowest.Round(time.Millisecond), x.seen)
}

// A run is one server over two clusters, and the streams.
type run struct {
	t             *testing.T
	r             *rand.Rand
	config        Config
	options       fingerpost.Options
	server        *fingerpost.Server
	local, remote *writer
	way           *controlplane.Proxy // on which the server reaches the remote cluster
	streams       []*stream
	conns         []*grpc.ClientConn
	world         *World        // as it was listed last
	more          chan struct{} // holds one when a stream has seen something

	journal []string // of the changes since the last comparison
	changes int
	seen    map[string]int // what the answers that were compared were like, for the reader of the log
	slowest time.Duration
}

func newRun(t *testing.T, r *rand.Rand, local, remote *controlplane.Cluster) *run {
	t.Helper()
	x := &run{t: t, r: r, seen: map[string]int{}, more: make(chan struct{}, 1), config: Config{
		ControlPlane: linkerd, DefaultOpaque: "25,3306",
		IPv6: r.IntN(4) > 0, H2Upgrade: r.IntN(4) > 0, ZoneWeights: r.IntN(2) > 0, TransportHeader: r.IntN(3) == 0,
		Endpoints: r.IntN(4) == 0,
	}}
	x.config.IPv6 = x.config.IPv6 && !x.config.Endpoints
	for i, c := range []*controlplane.Cluster{local, remote} {
		for _, manifest := range [][]byte{mesh.LinkerdCRDs, []byte(fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: %[2]s}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: %[3]s}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: %[1]s}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: %[1]s}}
`, namespace, linkerd, clients))} {
			x.do(c.Apply(t.Context(), manifest))
		}
		w, err := newWriter(r, c, i == 0)
		x.do(err)
		w.endpoints = x.config.Endpoints
		if i == 0 {
			x.local = w
		} else {
			x.remote = w
		}
	}
	var err error
	x.way, err = remote.NewProxy()
	x.do(err)

	binary, err := fingerpost.Build(t.Context(), t.TempDir(), fingerpost.Race)
	x.do(err)
	mode := "transparent"
	if x.config.TransportHeader {
		mode = "transport-header"
	}
	args := []string{
		"-cluster-name=local", "-controller-namespace=" + linkerd, "-cluster-domain=cluster.local",
		"-identity-trust-domain=local.test",
		"-probe-interval=1s", "-default-opaque-ports=" + x.config.DefaultOpaque, "-outbound-transport-mode=" + mode,
		fmt.Sprintf("-enable-endpoint-slices=%t", !x.config.Endpoints),
		fmt.Sprintf("-enable-ipv6=%t", x.config.IPv6), fmt.Sprintf("-enable-h2-upgrade=%t", x.config.H2Upgrade),
		fmt.Sprintf("-ext-endpoint-zone-weights=%t", x.config.ZoneWeights),
	}
	t.Log(args)
	x.options = fingerpost.Options{
		Binary:     binary,
		Dir:        t.TempDir(),
		Kubeconfig: local.Kubeconfig(local.Admin(), ""),
		Args:       args,
	}
	x.serve(t.Context())
	t.Cleanup(func() {
		x.stop()
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", x.server.Tail())
		}
	})
	for range streams {
		q := Question{
			Service: pick(r, serviceNames), Port: pick(r, []uint16{80, 80, 8080, 443, 9999}),
			Node: pick(r, append(slices.Clone(nodeNames), "", "unknown")),
		}
		if r.IntN(5) == 0 {
			q.Hostname = pick(r, hostnames)
		}
		x.streams = append(x.streams, &stream{question: q, conn: r.IntN(connections)})
	}
	for range lookups {
		l := &Lookup{
			Port:      pick(r, []uint16{80, 443, 8080, 8081, 3306, 4143}),
			Namespace: pick(r, []string{"", namespace, clients, clients}),
		}
		s := &stream{lookup: l, conn: r.IntN(connections)}
		switch r.IntN(4) {
		case 0:
			l.Service = pick(r, serviceNames)
			if r.IntN(3) == 0 {
				l.Hostname = pick(r, hostnames)
			}
		case 1:
			s.ipOf = pick(r, serviceNames)
		default:
			l.IP = netip.MustParseAddr(pick(r, slices.Concat(addresses4, addresses6, hosts, hosts)))
		}
		x.streams = append(x.streams, s)
	}
	return x
}

// serve starts the server.
func (x *run) serve(ctx context.Context) {
	x.t.Helper()
	server, err := fingerpost.Start(ctx, x.options)
	x.do(err)
	x.server, x.conns = server, nil
	for range connections {
		conn, err := grpc.NewClient(server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		x.do(err)
		x.conns = append(x.conns, conn)
	}
}

// stop ends every stream, and the server. A second stop does nothing.
func (x *run) stop() {
	x.t.Helper()
	for _, s := range x.streams {
		s.close(x.t)
	}
	for _, c := range x.conns {
		_ = c.Close()
	}
	if err := x.server.Stop(); err != nil {
		x.t.Error(err)
	}
}

// restart lets the server be away during changes.
func (x *run) restart(ctx context.Context, n int) {
	x.t.Helper()
	x.note("the server stops")
	x.stop()
	x.steps(ctx, n)
	x.serve(ctx)
	x.note("the server starts")
	x.seen["restart"]++
}

// outage makes the remote API server unreachable during changes.
func (x *run) outage(ctx context.Context, n int) {
	x.t.Helper()
	if x.r.IntN(2) == 0 {
		x.note("the remote cluster is silent")
		x.do(x.way.Silence())
	} else {
		x.note("the remote cluster refuses connections")
		x.way.Refuse()
	}
	x.steps(ctx, n)
	x.do(x.way.Pass())
	x.note("the remote cluster is back")
	x.seen["outage"]++
}

func (x *run) note(what string) { x.journal = append(x.journal, what) }

// steps makes changes.
func (x *run) steps(ctx context.Context, n int) {
	x.t.Helper()
	for range n {
		x.step(ctx)
	}
}

func (x *run) do(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

// step makes one change.
func (x *run) step(ctx context.Context) {
	x.t.Helper()
	var what string
	var err error
	switch n := x.r.IntN(40); {
	case n == 0:
		what, err = x.local.link(ctx, x.remote.Cluster, x.way.URL())
	case n == 1 && x.r.IntN(2) == 0:
		what = "cut the connections to the remote cluster"
		x.way.CutConnections()
	case n < 24:
		what, err = x.local.change(ctx)
	default:
		what, err = x.remote.change(ctx)
	}
	x.changes++
	x.note(fmt.Sprintf("%d %s", x.changes, what))
	if err != nil {
		x.t.Fatalf("seed %d, change %d is not legal: %s: %v", *seed, x.changes, what, err)
	}
}

// compare waits until every stream holds what the oracle returns.
func (x *run) compare(ctx context.Context, bound time.Duration) {
	x.t.Helper()
	began := time.Now()
	x.world = x.list(ctx)
	for _, s := range x.streams {
		if s.ended() {
			x.reopen(s) // whether it is refused now is what counts
		}
	}
	deadline := time.NewTimer(bound)
	defer deadline.Stop()
	for {
		right := true
		for _, s := range x.streams {
			if s.differs(x.want(s)) == "" {
				continue
			}
			if right = false; s.ended() {
				x.reopen(s) // as a proxy does, but at once
			}
		}
		if right {
			break
		}
		select {
		case <-x.more:
		case <-deadline.C:
			x.report(bound)
			return
		}
	}
	x.slowest = max(x.slowest, time.Since(began))
	for _, s := range x.streams {
		x.count(x.want(s))
	}
	x.journal = nil
}

// want is what the oracle returns for a stream.
func (x *run) want(s *stream) Answer {
	if s.lookup != nil {
		return x.world.Lookup(*s.lookup)
	}
	return x.world.Answer(s.question)
}

// count notes what an answer was like.
func (x *run) count(a Answer) {
	if a.Refused != codes.OK {
		x.seen[a.Refused.String()]++
	} else if len(a.Addresses)+len(a.Profiles) == 0 {
		x.seen["empty"]++
	}
	for _, p := range a.Profiles {
		for what, so := range map[string]bool{
			"profile": true, "empty profile": p.Budget == "", "profile of a Service": p.Parent != "",
			"opaque profile":                          p.Opaque,
			"ServiceProfile":                          p.Object != "",
			"ServiceProfile of a client":              strings.Contains(p.Object, " "+clients+"/"),
			"endpoint profile":                        p.At.IsValid(),
			"endpoint profile of a Pod":               p.Endpoint.Labels["pod"] != "",
			"endpoint profile of an ExternalWorkload": p.Endpoint.Labels["external_workload"] != "",
		} {
			if so {
				x.seen[what]++
			}
		}
	}
	for addr, a := range a.Addresses {
		for what, so := range map[string]bool{
			"address": true, "IPv6": addr.Addr().Is6(), "Pod": a.Labels["pod"] != "",
			"ExternalWorkload": a.Labels["external_workload"] != "",
			"opaque":           a.Hint == "opaque", "opaque transport": a.InboundPort != 0,
			"gateway": a.Authority != "",
			"remote":  strings.HasSuffix(a.ServerName, "remote.test") || strings.HasSuffix(a.ServerName, "other.test"),
			"in zone": a.Labels["zone_locality"] == "local", "not meshed": a.Hint == "",
			"Deployment": a.Labels["deployment"] != "", "CronJob": a.Labels["cronjob"] != "",
		} {
			if so {
				x.seen[what]++
			}
		}
	}
}

// A stream follows one question; when the server ends it, it is opened anew if it should be.
type stream struct {
	question Question
	lookup   *Lookup // instead, for GetProfile
	ipOf     string  // the Service whose cluster IP is looked up, as it is when the stream is opened
	conn     int
	open     interface { // nil before the first
		Close()
		Violations() error
	}

	mu     sync.Mutex
	served bool       // since it was opened it received something
	end    codes.Code // once it has ended
	over   bool
}

func (x *run) reopen(s *stream) {
	s.close(x.t)
	s.mu.Lock()
	s.served, s.end, s.over = false, codes.OK, false
	s.mu.Unlock()
	observe := func(e proxy.Event) {
		s.mu.Lock()
		if e.Message != nil && e.Message.Type != proxy.Heartbeat || e.Profile != nil {
			s.served = true
		}
		if e.End != nil {
			s.over, s.end = true, e.End.Code()
		}
		s.mu.Unlock()
		select {
		case x.more <- struct{}{}:
		default:
		}
	}
	conn := x.conns[s.conn]
	if s.lookup == nil {
		s.open = proxy.Open(x.t.Context(), conn,
			x.request(s.question.Service, s.question.Hostname, s.question.Port, namespace, s.question.Node), observe)
		return
	}
	if l := s.lookup; s.ipOf != "" {
		l.IP = netip.MustParseAddr("192.0.2.1") // of no endpoint
		if svc := x.world.Local.Services[s.ipOf]; svc != nil && svc.Spec.ClusterIP != "" {
			l.IP = netip.MustParseAddr(svc.Spec.ClusterIP)
		}
	}
	request := x.request(s.lookup.Service, s.lookup.Hostname, s.lookup.Port, s.lookup.Namespace, "")
	if s.lookup.IP.IsValid() {
		request.Authority = netip.AddrPortFrom(s.lookup.IP, s.lookup.Port).String()
	}
	s.open = proxy.OpenProfile(x.t.Context(), conn, request, observe)
}

func (x *run) request(service, hostname string, port uint16, in, node string) proxy.Request {
	x.t.Helper()
	if hostname != "" {
		service = hostname + "." + service
	}
	token, err := json.Marshal(map[string]string{"ns": in, "nodeName": node})
	x.do(err)
	return proxy.Request{
		Authority: fmt.Sprintf("%s.%s.svc.cluster.local:%d", service, namespace, port),
		Token:     string(token),
	}
}

func (s *stream) close(t *testing.T) {
	t.Helper()
	if s.open == nil {
		return
	}
	s.open.Close()
	if err := s.open.Violations(); err != nil {
		t.Errorf("seed %d: %v", *seed, err)
	}
	s.open = nil
}

// ended reports whether it has to be opened.
func (s *stream) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open == nil || s.over
}

// differs returns how a stream differs from what it should be; nothing if it does not.
func (s *stream) differs(want Answer) string {
	s.mu.Lock()
	served, over, end := s.served, s.over, s.end
	s.mu.Unlock()
	switch {
	case over && end == want.Refused && end != codes.OK:
		return ""
	case over:
		return fmt.Sprintf("it ended with %s, want %s", end, want.Refused)
	case want.Ends:
		return fmt.Sprintf("it goes on, and should have ended with %s", want.Refused)
	case !served:
		return "it received nothing"
	case want.Kept:
		return ""
	}
	if lookup, is := s.open.(*proxy.ProfileStream); is {
		got := toldProfile(lookup.Newest())
		diff := ""
		for i, p := range want.Profiles {
			d := cmp.Diff(p, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmpopts.EquateEmpty())
			if d == "" {
				return ""
			}
			if i == 0 {
				diff = d
			}
		}
		return diff
	}
	got := map[netip.AddrPort]Address{}
	for _, a := range s.open.(*proxy.Stream).Holds() {
		got[a.Addr] = received(a)
	}
	if want.Addresses == nil {
		want.Addresses = map[netip.AddrPort]Address{}
	}
	return cmp.Diff(want.Addresses, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
}

// received reads what was sent of an address.
func received(a proxy.Address) Address {
	out := Address{
		Weight: a.GetWeight(), ServerName: a.GetTlsIdentity().GetServerName().GetName(),
		Authority:   a.GetAuthorityOverride().GetAuthorityOverride(),
		InboundPort: a.GetProtocolHint().GetOpaqueTransport().GetInboundPort(), Labels: a.Labels,
	}
	switch id := a.GetTlsIdentity().GetStrategy().(type) {
	case *pb.TlsIdentity_DnsLikeIdentity_:
		out.Identity = "dns " + id.DnsLikeIdentity.GetName()
	case *pb.TlsIdentity_UriLikeIdentity_:
		out.Identity = "uri " + id.UriLikeIdentity.GetUri()
	}
	if hint := a.GetProtocolHint(); hint != nil {
		switch hint.GetProtocol().(type) {
		case *pb.ProtocolHint_H2_:
			out.Hint = "h2"
		case *pb.ProtocolHint_Opaque_:
			out.Hint = "opaque"
		default:
			out.Hint = "unset"
		}
	}
	return out
}

// toldProfile reads a profile.
func toldProfile(p *proxy.Profile) Profile {
	out := Profile{Name: p.GetFullyQualifiedName(), Opaque: p.GetOpaqueProtocol()}
	if b := p.GetRetryBudget(); b != nil {
		out.Budget = fmt.Sprintf("%v/%d/%s", b.GetRetryRatio(), b.GetMinRetriesPerSecond(), b.GetTtl().AsDuration())
	}
	for _, r := range p.GetRoutes() {
		method := ""
		if m := r.GetCondition().GetMethod(); m != nil {
			method = m.GetRegistered().String()
		}
		out.Routes = append(out.Routes, r.GetMetricsLabels()["route"]+" "+method)
	}
	for _, o := range p.GetDstOverrides() {
		out.Overrides = append(out.Overrides, fmt.Sprintf("%s %d", o.GetAuthority(), o.GetWeight()))
	}
	name := func(m *meta.Metadata) string {
		r := m.GetResource()
		if r == nil {
			return ""
		}
		return fmt.Sprintf("%s %s/%s:%d", r.GetKind(), r.GetNamespace(), r.GetName(), r.GetPort())
	}
	out.Parent, out.Object = name(p.GetParentRef()), name(p.GetProfileRef())
	if p.Address != nil {
		out.At, out.Endpoint = p.Address.Addr, received(*p.Address)
	}
	return out
}

// report names each stream that differs, and prints the objects that the first ones depend on.
func (x *run) report(bound time.Duration) {
	x.t.Helper()
	x.t.Errorf("seed %d, after change %d: streams differ from the oracle %s after the last change (%+v)", *seed,
		x.changes, bound, x.config)
	x.t.Logf("changes since the streams agreed:\n%s", strings.Join(x.journal, "\n"))
	n := 0
	for _, s := range x.streams {
		want := x.want(s)
		diff := s.differs(want)
		if diff == "" {
			continue
		}
		if n++; n > 3 {
			continue
		}
		x.t.Logf("%s: %+v wanted: -want +got\n%s", s, want, diff)
		if n > 1 {
			continue
		}
		name := s.question.Service
		if s.lookup != nil {
			name = s.lookup.Service + s.ipOf // one of them
		}
		for _, c := range append([]*Cluster{x.world.Local}, byName(x.world.Linked)...) {
			x.t.Log(c.about(x.world.Local.Services[name], name, s.lookup != nil))
		}
	}
	x.t.Logf("%d of %d streams differ", n, len(x.streams))
}

// String returns what the stream asks for.
func (s *stream) String() string {
	if s.lookup != nil {
		return fmt.Sprintf("lookup of %+v", *s.lookup)
	}
	return fmt.Sprintf("%+v", s.question)
}

// about renders what a Service, or an IP, may depend on in a cluster, so that a scenario can be made of it.
func (c *Cluster) about(svc *corev1.Service, name string, allWorkloads bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %s, trust domain %s\n", c.Name, c.TrustDomain)
	show := func(object metav1.Object) {
		object.SetManagedFields(nil)
		object.SetCreationTimestamp(metav1.Time{})
		object.SetUID("")
		text, err := yaml.Marshal(object)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&b, "---\n%s", text)
	}
	members, workloads := map[string]bool{name: true}, map[string]bool{}
	if svc != nil {
		for _, key := range []string{"remote-discovery", "local-discovery", "remote-service"} {
			key = "multicluster.linkerd.io/" + key
			for item := range strings.SplitSeq(svc.Annotations[key]+","+svc.Labels[key], ",") {
				member, _, _ := strings.Cut(item, "@")
				members[member] = true
			}
		}
	}
	for _, s := range byName(c.Services) {
		if members[s.Name] {
			show(s)
		}
	}
	for _, s := range byName(c.Slices) {
		if !members[serviceOf(s)] {
			continue
		}
		show(s)
		for _, e := range s.Endpoints {
			if e.TargetRef != nil {
				workloads[e.TargetRef.Name] = true
			}
		}
	}
	for _, p := range byName(c.Pods) {
		if allWorkloads || workloads[p.Name] {
			show(essence(p))
		}
	}
	for _, e := range byName(c.Externals) {
		if allWorkloads || workloads[e.Name] {
			show(e)
		}
	}
	for _, s := range byName(c.Servers) {
		show(s)
	}
	for _, of := range c.Profiles {
		for _, p := range byName(of) {
			show(p)
		}
	}
	for _, n := range byName(c.Nodes) {
		fmt.Fprintf(&b, "--- node %s %v\n", n.Name, n.Labels)
	}
	return b.String()
}

// essence leaves out of a Pod what the API server filled in.
func essence(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{TypeMeta: p.TypeMeta, ObjectMeta: p.ObjectMeta, Status: corev1.PodStatus{Phase: p.Status.Phase}}
	out.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, ServiceAccountName: p.Spec.ServiceAccountName}
	for _, c := range p.Spec.InitContainers {
		out.Spec.InitContainers = append(out.Spec.InitContainers,
			corev1.Container{Name: c.Name, Ports: c.Ports, Env: c.Env})
	}
	for _, c := range p.Spec.Containers {
		out.Spec.Containers = append(out.Spec.Containers, corev1.Container{Name: c.Name, Ports: c.Ports, Env: c.Env})
	}
	return out
}

// list reads everything anew.
func (x *run) list(ctx context.Context) *World {
	x.t.Helper()
	w := &World{Config: x.config, Local: x.listCluster(ctx, x.local, "local.test"), Linked: map[string]*Cluster{}}
	credentials := map[string]*corev1.Secret{}
	x.do(listInto(ctx, x.local, secrets, linkerd, credentials))
	for _, s := range credentials {
		if s.Labels["multicluster.linkerd.io/cluster-name"] == "remote" {
			w.Linked["remote"] = x.listCluster(ctx, x.remote, s.Annotations["multicluster.linkerd.io/trust-domain"])
		}
	}
	return w
}

func (x *run) listCluster(ctx context.Context, from *writer, trustDomain string) *Cluster {
	x.t.Helper()
	c := &Cluster{
		Name: from.Name(), TrustDomain: trustDomain, Services: map[string]*corev1.Service{},
		Slices: map[string]*discoveryv1.EndpointSlice{},
		Pods:   map[string]*corev1.Pod{}, Nodes: map[string]*corev1.Node{}, Externals: map[string]*External{},
		Servers:     map[string]*Server{},
		ReplicaSets: map[string]*metav1.PartialObjectMetadata{}, Jobs: map[string]*metav1.PartialObjectMetadata{},
		Profiles: map[string]map[string]*ServiceProfile{namespace: {}, clients: {}},
	}
	x.do(errors.Join(
		listInto(ctx, from, services, namespace, c.Services), listInto(ctx, from, slicesOf, namespace, c.Slices),
		listInto(ctx, from, pods, namespace, c.Pods), listInto(ctx, from, nodes, "", c.Nodes),
		listInto(ctx, from, externals, namespace, c.Externals), listInto(ctx, from, servers, namespace, c.Servers),
		listInto(ctx, from, sets, namespace, c.ReplicaSets), listInto(ctx, from, jobs, namespace, c.Jobs),
	))
	if x.config.Endpoints {
		all := map[string]*corev1.Endpoints{} //nolint:staticcheck // who reads Endpoints was asked to
		x.do(listInto(ctx, from, endpoints, namespace, all))
		clear(c.Slices)
		for _, e := range all {
			for _, s := range SlicesOf(e) {
				c.Slices[s.Name] = s
			}
		}
	}
	for in, to := range c.Profiles {
		x.do(listInto(ctx, from, profiles, in, to))
	}
	return c
}

func listInto[T any](ctx context.Context, from *writer, kind schema.GroupVersionResource, in string,
	to map[string]*T,
) error {
	all, err := from.resource(kind, in).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, u := range all.Items {
		text, err := u.MarshalJSON()
		if err != nil {
			return err
		}
		object := new(T)
		if err := json.Unmarshal(text, object); err != nil {
			return err
		}
		to[u.GetName()] = object
	}
	return nil
}
