package app_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	http "github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// lines renders what a stream has seen; it needs s.mu.
func (s *scenario) lines(name string, e proxy.Event) []string {
	if e.End != nil {
		if e.End.Code() == codes.OK {
			return []string{name + " end OK"}
		}
		return []string{fmt.Sprintf("%s end %s: %s", name, e.End.Code(), e.End.Message())}
	}
	if e.Profile != nil {
		return s.profiled(name, e.Profile)
	}
	if e.Policy != nil {
		return policied(name, e.Policy)
	}
	switch m := e.Message; m.Type {
	case proxy.Add:
		return s.added(name, m)
	case proxy.Remove:
		line := name + " remove"
		for _, a := range m.Removed {
			line += " " + a.String()
		}
		return []string{line}
	case proxy.NoEndpoints:
		return []string{fmt.Sprintf("%s no-endpoints exists=%t", name, m.Exists)}
	default:
		return nil // a heartbeat is no message
	}
}

func (s *scenario) added(name string, m *proxy.Message) []string {
	head := name + " add"
	if slices.Contains(s.show, "set-labels") {
		head += " " + labels(m.SetLabels)
	}
	if len(s.show) == 0 {
		for _, a := range m.Added {
			head += " " + a.Addr.String()
		}
		return []string{head}
	}
	all := []string{head}
	for _, a := range m.Added {
		all = append(all, "  "+s.address(a))
	}
	return all
}

// address renders an address and those of its fields that are shown.
func (s *scenario) address(a proxy.Address) string {
	line := a.Addr.String()
	for _, f := range s.show {
		if f != "set-labels" { // of a message
			line += " " + f + "=" + field(s.t, a, f)
		}
	}
	return line
}

func (s *scenario) profiled(name string, p *proxy.Profile) []string {
	switch {
	case p.Heartbeat:
		return nil
	case p.Repeated:
		return []string{name + " profile repeated"}
	case p.Bytes == 0:
		return []string{name + " profile empty"}
	}
	all := []string{fmt.Sprintf("%s profile %s opaque=%t budget=%s parent=%s profile=%s", name,
		dash(p.GetFullyQualifiedName()), p.GetOpaqueProtocol(),
		budget(p.GetRetryBudget()), reference(p.GetParentRef()), reference(p.GetProfileRef()))}
	for _, r := range p.GetRoutes() {
		classes := make([]string, 0, len(r.GetResponseClasses()))
		for _, c := range r.GetResponseClasses() {
			means := "success"
			if c.GetIsFailure() {
				means = "failure"
			}
			classes = append(classes, responses(c.GetCondition())+"="+means)
		}
		all = append(all, fmt.Sprintf("  route %s retryable=%t timeout=%s condition=%s responses=[%s]",
			labels(r.GetMetricsLabels()), r.GetIsRetryable(),
			duration(r.GetTimeout()), requests(r.GetCondition()), strings.Join(classes, ", ")))
	}
	for _, o := range p.GetDstOverrides() {
		all = append(all, fmt.Sprintf("  override %s weight=%d backend=%s", o.GetAuthority(), o.GetWeight(),
			reference(o.GetBackendRef())))
	}
	if p.Address != nil {
		all = append(all, "  endpoint "+s.address(*p.Address))
	}
	return all
}

func budget(b *pb.RetryBudget) string {
	if b == nil {
		return "-"
	}
	return fmt.Sprintf("%v/%d/%s", b.GetRetryRatio(), b.GetMinRetriesPerSecond(), duration(b.GetTtl()))
}

// reference renders what a profile is about, with the parts that are not set left empty.
func reference(m *meta.Metadata) string {
	switch r := m.GetResource(); {
	case m == nil:
		return "-"
	case r == nil:
		return "default/" + m.GetDefault()
	default:
		to := strings.Join([]string{r.GetGroup(), r.GetKind(), r.GetNamespace(), r.GetName()}, "/")
		if r.GetSection() != "" {
			to += "#" + r.GetSection()
		}
		if r.GetPort() != 0 {
			to += ":" + strconv.Itoa(int(r.GetPort()))
		}
		return to
	}
}

func duration(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return d.AsDuration().String()
}

// requests renders a condition on requests.
func requests(m *pb.RequestMatch) string {
	switch m := m.GetMatch().(type) {
	case *pb.RequestMatch_All:
		return "all[" + list(m.All.GetMatches(), requests) + "]"
	case *pb.RequestMatch_Any:
		return "any[" + list(m.Any.GetMatches(), requests) + "]"
	case *pb.RequestMatch_Not:
		return "not(" + requests(m.Not) + ")"
	case *pb.RequestMatch_Path:
		return "path(" + m.Path.GetRegex() + ")"
	case *pb.RequestMatch_Method:
		if name, ok := m.Method.GetType().(*http.HttpMethod_Unregistered); ok {
			return fmt.Sprintf("method(%q)", name.Unregistered)
		}
		return "method(" + m.Method.GetRegistered().String() + ")"
	default:
		return "-"
	}
}

// responses renders a condition on responses.
func responses(m *pb.ResponseMatch) string {
	switch m := m.GetMatch().(type) {
	case *pb.ResponseMatch_All:
		return "all[" + list(m.All.GetMatches(), responses) + "]"
	case *pb.ResponseMatch_Any:
		return "any[" + list(m.Any.GetMatches(), responses) + "]"
	case *pb.ResponseMatch_Not:
		return "not(" + responses(m.Not) + ")"
	case *pb.ResponseMatch_Status:
		return "status(" + bound(m.Status.GetMin()) + "-" + bound(m.Status.GetMax()) + ")"
	default:
		return "-"
	}
}

// bound renders one end of a range; nothing if it is open.
func bound(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(int(n))
}

func list[M any](ms []M, render func(M) string) string {
	all := make([]string, 0, len(ms))
	for _, m := range ms {
		all = append(all, render(m))
	}
	return strings.Join(all, ", ")
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func labels(m map[string]string) string {
	var all []string
	for _, k := range sortedKeys(m) {
		all = append(all, k+"="+m[k])
	}
	return "{" + strings.Join(all, ",") + "}"
}

// field renders one field of an address; "-" if it is not set.
func field(t *testing.T, a proxy.Address, name string) string {
	t.Helper()
	switch name {
	case "weight":
		return strconv.Itoa(int(a.GetWeight()))
	case "identity":
		return dash(a.GetTlsIdentity().GetDnsLikeIdentity().GetName() +
			a.GetTlsIdentity().GetUriLikeIdentity().GetUri())
	case "server-name":
		return dash(a.GetTlsIdentity().GetServerName().GetName())
	case "hint":
		switch h := a.GetProtocolHint(); {
		case h == nil:
			return "-"
		case h.GetH2() != nil:
			return "h2"
		case h.GetOpaque() != nil:
			return "opaque"
		default:
			return "none"
		}
	case "inbound-port":
		if o := a.GetProtocolHint().GetOpaqueTransport(); o != nil {
			return strconv.Itoa(int(o.GetInboundPort()))
		}
		return "-"
	case "authority":
		return dash(a.GetAuthorityOverride().GetAuthorityOverride())
	case "http2":
		if k := a.GetHttp2().GetKeepAlive(); k != nil {
			return fmt.Sprintf("keepalive=%s/%s", k.GetInterval().AsDuration(), k.GetTimeout().AsDuration())
		}
		return "-"
	case "labels":
		return labels(a.GetMetricLabels())
	default:
		label, ok := strings.CutPrefix(name, "label:")
		if !ok {
			t.Fatalf("unknown field %q", name)
		}
		return dash(a.Labels[label])
	}
}
