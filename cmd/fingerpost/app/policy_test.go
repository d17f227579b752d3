package app_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	inboundpb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	outboundpb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/discovery/proxyapi"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// policyFlags declares the flags about policy, with serve's defaults but for the writer of statuses, which is off.
func policyFlags(fs *flag.FlagSet, o *app.PolicyOptions) {
	fs.StringVar(&o.Addr, "policy-addr", "", "") // always policyAddr
	fs.BoolVar(&o.Status, "policy-status", false, "")

	networks := func(into *[]rules.Network) func(string) error {
		return func(list string) error {
			*into = nil
			for item := range strings.SplitSeq(list, ",") {
				network, err := rules.ParseNetwork(item, nil)
				if err != nil {
					return err
				}
				*into = append(*into, network)
			}
			return nil
		}
	}
	fs.Func("cluster-networks", "", networks(&o.Rules.ClusterNetworks))
	fs.Func("probe-networks", "", networks(&o.Rules.ProbeNetworks))
	fs.Func("default-inbound-policy", "", func(name string) error {
		known := false
		if o.Rules.DefaultPolicy, known = rules.ParseDefaultPolicy(name); !known {
			return fmt.Errorf("no default policy: %s", name)
		}
		return nil
	})
	fs.StringVar(&o.Rules.EgressNamespace, "global-egress-network-namespace", "linkerd-egress", "")
	fs.BoolVar(&o.Rules.AllowRequestHeaders, "allow-l5d-request-headers", false, "")
	fs.BoolVar(&o.Rules.GRPCAppProtocol, "policy-app-protocol-grpc", true, "")
}

// policyDefaults are the flags about policy of which the defaults are no zero values.
var policyDefaults = []string{
	"-cluster-networks=10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16",
	"-default-inbound-policy=all-unauthenticated",
}

// flagsOf returns flags, where a word without a dash is a file that has others.
func (s *scenario) flagsOf(args []string) (all []string) {
	s.t.Helper()
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			all = append(all, arg)
		} else {
			all = append(all, words(s.t, strings.ReplaceAll(s.text(arg), "\n", " "))...)
		}
	}
	return all
}

// answerTo is the name under which answers to calls that are no streams are printed.
const answerTo = "answer"

// callOptions are those of a call of the Policy API.
type callOptions struct {
	via      string // the replica that it prefers
	deadline time.Duration
}

func (s *scenario) callOptions(verb string, args []string) (o callOptions) {
	s.t.Helper()
	for _, arg := range args {
		switch k, v, _ := strings.Cut(arg, "="); k {
		case "via":
			o.via = v
		case "deadline":
			o.deadline = s.duration(v)
		default:
			s.t.Fatalf("%s: unknown argument %s", verb, arg)
		}
	}
	return o
}

// inbound opens a stream of the policy of a port.
func (s *scenario) inbound(name, workload, port string, args []string) {
	s.t.Helper()
	o := s.callOptions("inbound", args)
	s.opens(name)
	s.streams[name] = proxy.OpenInbound(s.t.Context(), s.connectTo(policyAddr, o.via), s.portSpec(workload, port),
		o.via != "", s.policyObserver(name))
}

// outbound opens a stream of the policy of a target.
func (s *scenario) outbound(name, source, target string, args []string) {
	s.t.Helper()
	o := s.callOptions("outbound", args)
	s.opens(name)
	s.streams[name] = proxy.OpenOutbound(s.t.Context(), s.connectTo(policyAddr, o.via), trafficSpec(source, target),
		o.via != "", s.policyObserver(name))
}

func (s *scenario) policyObserver(name string) func(proxy.Event) {
	return func(e proxy.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen[name] = append(s.seen[name], s.lines(name, e)...)
	}
}

func (s *scenario) getPort(workload, port string, args []string) {
	s.t.Helper()
	spec := s.portSpec(workload, port)
	s.call("get-port", args, func(ctx context.Context, conn *grpc.ClientConn) (*proxy.Policy, error, error) {
		message, err := inboundpb.NewInboundServerPoliciesClient(conn).GetPort(ctx, spec)
		if err != nil {
			return nil, nil, err
		}
		p, violation := proxy.InboundPolicyOf(message)
		return p, violation, nil
	})
}

func (s *scenario) getPolicy(source, target string, args []string) {
	s.t.Helper()
	spec := trafficSpec(source, target)
	s.call("get-policy", args, func(ctx context.Context, conn *grpc.ClientConn) (*proxy.Policy, error, error) {
		message, err := outboundpb.NewOutboundPoliciesClient(conn).Get(ctx, spec)
		if err != nil {
			return nil, nil, err
		}
		p, violation := proxy.OutboundPolicyOf(message)
		return p, violation, nil
	})
}

// call prints the answer to a call, and fails the scenario if it is one that a proxy refuses.
func (s *scenario) call(
	verb string, args []string,
	do func(ctx context.Context, conn *grpc.ClientConn) (p *proxy.Policy, violation, err error),
) {
	s.t.Helper()
	o, ctx := s.callOptions(verb, args), s.t.Context()
	if o.deadline > 0 {
		limited, cancel := context.WithTimeout(ctx, o.deadline)
		defer cancel()
		ctx = limited
	}

	answer, violation, err := do(ctx, s.connectTo(policyAddr, o.via))
	event := proxy.Event{Policy: answer}
	switch {
	case err != nil:
		event = proxy.Event{End: status.Convert(err)}
	case violation != nil && s.watch != nil:
		s.watch.violations = append(s.watch.violations, violation.Error())
	case violation != nil:
		s.t.Errorf("%s: %v", verb, violation)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[answerTo] = append(s.seen[answerTo], s.lines(answerTo, event)...)
}

// printStatuses prints the conditions in the status of an object of policy: for each parent of a route, and for the
// object itself. Messages are printed if that is asked for.
func (s *scenario) printStatuses(cluster, kind, name string, show []string) {
	s.t.Helper()
	namespace, name := namespaced(name)
	o := s.network.Server(cluster).Find(kind, namespace, name)
	if o == nil {
		s.t.Fatalf("statuses: cluster %s has no %s %s/%s", cluster, kind, namespace, name)
	}

	parents, _, _ := unstructured.NestedSlice(o.Object, "status", "parents")
	for _, p := range parents {
		of, _ := p.(map[string]any)["parentRef"].(map[string]any)
		parent := fmt.Sprintf("%v/%v/%v/%v", of["group"], of["kind"], of["namespace"], of["name"])
		if port, has := of["port"]; has {
			parent += fmt.Sprint(":", port)
		}
		by := p.(map[string]any)["controllerName"]
		fmt.Fprintf(&s.out, "%s by %v%s\n", parent, by, conditionsOf(p.(map[string]any), show))
	}

	status, _, _ := unstructured.NestedMap(o.Object, "status")
	if own := conditionsOf(status, show); own != "" || parents == nil {
		fmt.Fprintln(&s.out, "own"+own)
	}
}

// conditionsOf renders a list of conditions.
func conditionsOf(of map[string]any, show []string) (text string) {
	conditions, _, _ := unstructured.NestedSlice(of, "conditions")
	for _, c := range conditions {
		c := c.(map[string]any)
		text += fmt.Sprintf(" %v=%v/%v", c["type"], c["status"], c["reason"])
		if message, _ := c["message"].(string); slices.Contains(show, "messages") && message != "" {
			text += fmt.Sprintf("(%q)", message)
		}
	}
	return text
}

// explainPort prints the objects that bear on a port, or have no effect there, and what cannot be used of them.
func (s *scenario) explainPort(workload, port string) {
	s.t.Helper()
	query := url.Values{"workload": {workload}, "port": {port}}
	text := s.fetch(s.t.Context(), s.first().name, "/explain/policy?"+query.Encode())
	var page debug.PolicyPage
	if err := json.Unmarshal(text, &page); err != nil {
		s.t.Fatal(err)
	}

	for _, o := range page.Objects {
		effect := "counts"
		if !o.Counts {
			effect = "has no effect"
		}
		fmt.Fprintf(&s.out, "%s %s: %s\n", o.Object, effect, o.Why)
	}
	for _, f := range page.Findings {
		fmt.Fprintf(&s.out, "%s: %s\n", f.Object, strings.Join(f.Lines, "; "))
	}
}

// printReady prints whether a replica is ready, and what it waits for.
func (s *scenario) printReady(r *replica) {
	ready, missing := r.Ready.Report()
	if ready {
		fmt.Fprintln(&s.out, "ready")
		return
	}
	fmt.Fprintln(&s.out, "not ready: "+strings.Join(missing, ", "))
}

func (s *scenario) portSpec(workload, port string) *inboundpb.PortSpec {
	s.t.Helper()
	number, err := strconv.ParseUint(port, 10, 32)
	if err != nil {
		s.t.Fatal(err)
	}
	return &inboundpb.PortSpec{Workload: workload, Port: uint32(number)}
}

// trafficSpec returns what a client asks for: an address with any number as its port, which has no IP if that is -; or
// an authority; or nothing, for - alone.
func trafficSpec(source, target string) *outboundpb.TrafficSpec {
	spec := &outboundpb.TrafficSpec{SourceWorkload: source}
	if target == "-" {
		return spec
	}

	i := strings.LastIndex(target, ":")
	number, err := strconv.ParseUint(target[i+1:], 10, 32)
	if i >= 0 && err == nil {
		to := &netpb.TcpAddress{Port: uint32(number)}
		ip, err := netip.ParseAddr(strings.Trim(target[:i], "[]"))
		if err == nil {
			to.Ip = proxyapi.IP(ip)
		}
		if err == nil || target[:i] == "-" {
			spec.Target = &outboundpb.TrafficSpec_Addr{Addr: to}
			return spec
		}
	}
	spec.Target = &outboundpb.TrafficSpec_Authority{Authority: target}
	return spec
}
