package rules

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// The fixtures that cases are about, and answers in one line for each part.

func testOptions() *Options {
	cluster := []string{"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"}
	ports, _, _ := ParsePortList("25,587,3306,4444,5432,6379,9300,11211")
	return &Options{
		Identity: IdentityDomain{"linkerd", "cluster.local"}, ClusterDomain: "cluster.local",
		ClusterNetworks: networks(cluster...), OpaquePorts: ports, DefaultPolicy: AllUnauthenticated,
		ProbeNetworks: Everywhere, EgressNamespace: "linkerd-egress", GRPCAppProtocol: true,
	}
}

func networks(cidrs ...string) []Network {
	all := []Network{}
	for _, text := range cidrs {
		cidr, except, _ := strings.Cut(text, " except ")
		n, err := ParseNetwork(cidr, strings.Fields(except))
		if err != nil {
			panic(err)
		}
		all = append(all, n)
	}
	return all
}

func ports(text string) *PortList {
	list, _, err := ParsePortList(text)
	if err != nil {
		panic(err)
	}
	return list
}

func named(kind Kind, name string, age int) Meta {
	return Meta{Reference: Reference{kind, "shop", name}, Created: time.Unix(int64(age), 0).UTC()}
}

func webTarget(routes ...*Route) *Target {
	web := Reference{KindService, "shop", "web"}
	return &Target{
		Reference: web, Exists: true,
		Ports:    []ServicePort{{NamedPort: NamedPort{"http", 8080}}, {NamedPort: NamedPort{"", 9999}}},
		Attached: Attach(ParentObject{Reference: web, Exists: true, HasIP: true}, routes),
		Found:    map[Reference]bool{{KindService, "shop", "api"}: true, web: true},
	}
}

func egressTarget(deny bool, routes ...*Route) *Target {
	out := Reference{KindEgressNetwork, "shop", "out"}
	return &Target{
		Reference: out, Exists: true, Deny: deny,
		Attached: Attach(ParentObject{Reference: out, Exists: true, IsAccepted: true}, routes),
		Found:    map[Reference]bool{{KindService, "shop", "api"}: true},
	}
}

// route returns a route of shop whose parent is a port of the Service web.
func route(kind Kind, name string, age int, backends ...Backend) *Route {
	rule := Rule{Backends: backends}
	if kind.IsHTTP() {
		rule.Matches = []Match{allPaths}
	}
	return &Route{
		Meta:    named(kind, name, age),
		Parents: []Parent{{Reference: Reference{KindService, "shop", "web"}, Port: 8080}},
		Rules:   []Rule{rule},
	}
}

func backend(kind Kind, namespace, name string, port uint16, weight uint32) Backend {
	return Backend{Reference: Reference{kind, namespace, name}, Port: port, Weight: weight}
}

var protocolNames = []string{"Detect", "Http1", "Http2", "Grpc", "Tls", "Opaque"}

// lines renders an answer.
func (o *Outbound) lines() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s", protocolNames[o.Protocol], o.Origin)
	if o.Port != 0 {
		fmt.Fprintf(&text, ":%d", o.Port)
	}
	if o.Accrual != nil {
		fmt.Fprintf(&text, " after %d failures", o.Accrual.MaxFailures)
	}
	for _, r := range o.Routes {
		text.WriteString("\n" + r.line())
	}
	if o.Protocol == OutboundDetect {
		text.WriteString("\nopaque " + o.Opaque.line())
	}
	return text.String()
}

func (o Origin) String() string {
	if o.Default != "" {
		return o.Default
	}
	return fmt.Sprintf("%s/%s/%s", o.Kind, o.Namespace, o.Name)
}

func (r *OutboundRoute) line() string {
	parts := []string{r.String()}
	for _, host := range r.Hosts {
		parts = append(parts, host.String())
	}
	for _, rule := range r.Rules {
		parts = append(parts, "{"+rule.line()+"}")
	}
	return strings.Join(parts, " ")
}

func (r *OutboundRule) line() string {
	var parts []string
	for _, m := range r.Matches {
		parts = append(parts, m.text())
	}
	if r.Fail != nil {
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("fails forbidden=%t %s", r.Fail.Forbidden, r.Fail.Message)))
	}
	if len(r.Filters) > 0 {
		parts = append(parts, fmt.Sprintf("%d filters", len(r.Filters)))
	}
	for _, b := range r.Backends {
		parts = append(parts, b.text(r.IsSplit))
	}

	for name, timeout := range map[string]Timeout{"request": r.Timeouts.Request} {
		if timeout.After > 0 {
			parts = append(parts, name+" "+timeout.After.String())
		}
	}
	if r.Timeouts.Response.After > 0 {
		parts = append(parts, "response "+r.Timeouts.Response.After.String())
	}
	if r.Retry != nil {
		parts = append(parts, fmt.Sprintf("retries %d", r.Retry.Limit))
	}
	if r.AllowHeaders {
		parts = append(parts, "l5d")
	}
	return strings.Join(parts, ", ")
}

func (m Match) text() string {
	switch {
	case m.Path.Type != PathAny:
		return []string{"", "=", "", "~"}[m.Path.Type] + m.Path.Text
	case m.RPCService+m.RPCMethod != "":
		return m.RPCService + "/" + m.RPCMethod
	}
	return "any"
}

func (b *OutboundBackend) text(isSplit bool) string {
	text := "-> " + b.Authority
	if b.Original {
		text = "-> original"
	}
	if b.Fail != "" {
		text = fmt.Sprintf("-> %s fails: %s", b.Origin, b.Fail)
	}
	if isSplit {
		text += fmt.Sprintf(" x%d", b.Weight)
	}
	if b.Load != nil {
		text += " penalized"
	}
	return text
}

// lines renders an answer.
func (in *Inbound) lines() string {
	names := []string{"Detect", "Http1", "Http2", "Grpc", "Opaque", "Tls"}
	text := names[in.Protocol] + " " + in.String()
	for _, a := range in.Authorizations {
		text += "\nlets in " + a.line()
	}
	for _, r := range in.Routes {
		text += "\n" + r.String()
		for _, rule := range r.Rules {
			for _, m := range rule.Matches {
				text += " " + m.Method + m.text()
			}
			if rule.Fail != "" {
				text += " fails: " + rule.Fail
			}
			if len(rule.Filters) > 0 {
				text += fmt.Sprintf(" with %d filters", len(rule.Filters))
			}
		}
		for _, a := range r.Authorizations {
			text += ", lets in " + a.line()
		}
	}
	if in.Limit != nil {
		text += fmt.Sprintf("\nlimit %s %d", in.Limit.Name, in.Limit.Total)
	}
	return text
}

func (a *Authorization) line() string {
	parts := []string{a.String()}
	for _, n := range a.Networks {
		parts = append(parts, n.Block().String())
	}
	parts = append(parts, []string{"none", "any", "tls", "identified"}[a.Clients])
	for _, p := range a.Identities {
		parts = append(parts, p.String())
	}
	return strings.Join(parts, " ")
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }
