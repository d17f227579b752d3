package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A portModel is the objects of one namespace, from which it computes each answer about a port anew. It is slow and
// has no index: it is there to be compared with what Options answer. Routes are not in it.
type portModel struct {
	workload *Workload
	objects  *NamespaceObjects
	mesh     map[string]*MeshTLSAuthentication // by name
	nets     map[string]*NetworkAuthentication
}

const modelCluster = "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16"

// TestModelOfPorts compares answers with those of the model, whatever objects there are.
func TestModelOfPorts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model, options := drawPortModel(t), testOptions()
		servers := model.objects.of(options)
		for _, port := range []uint16{80, 8080, 4191} {
			got := *options.Inbound(model.workload, servers, port)
			got.Routes = nil
			if diff := cmp.Diff(model.answer(port), got.lines()); diff != "" {
				t.Fatalf("port %d (-model +got):\n%s", port, diff)
			}
		}
	})
}

var modelNames = []string{"a", "b", "c"}

// drawPortModel returns few objects of few names, so that they meet.
func drawPortModel(t *rapid.T) *portModel {
	m := &portModel{workload: pod(), objects: &NamespaceObjects{}}
	m.workload.HasDefault = rapid.Bool().Draw(t, "has default")
	m.workload.Default = drawAccess(t)
	if rapid.Bool().Draw(t, "requires identity") {
		m.workload.RequireIdentity = ports("8080")
	}

	for _, name := range drawNames(t, "servers") {
		m.objects.Servers = append(m.objects.Servers, drawServer(t, name))
	}
	for _, name := range drawNames(t, "grants") {
		m.objects.ServerAuthorizations = append(m.objects.ServerAuthorizations, drawGrant(t, name))
	}
	for _, name := range drawNames(t, "policies") {
		m.objects.Policies = append(m.objects.Policies, drawAuthorizationPolicy(t, name))
	}
	for _, name := range drawNames(t, "limits") {
		limit := &RateLimit{Meta: named(KindRateLimit, name, drawAge(t)), Server: drawName(t), Total: 5}
		m.objects.RateLimits = append(m.objects.RateLimits, limit)
	}
	m.drawAuthentications(t)
	return m
}

func (m *portModel) drawAuthentications(t *rapid.T) {
	m.mesh, m.nets = map[string]*MeshTLSAuthentication{}, map[string]*NetworkAuthentication{}
	for _, name := range drawNames(t, "meshes") {
		meta := named(KindMeshTLSAuthentication, name, 1)
		m.mesh[name] = &MeshTLSAuthentication{Meta: meta, Identities: drawIdentities(t)}
	}
	for _, name := range drawNames(t, "nets") {
		meta := named(KindNetworkAuthentication, name, 1)
		m.nets[name] = &NetworkAuthentication{Meta: meta, Networks: networks("2.2.2.0/24")}
	}

	m.objects.MeshTLS = func(r Reference) *MeshTLSAuthentication { return m.mesh[r.Name] }
	m.objects.Networks = func(r Reference) *NetworkAuthentication { return m.nets[r.Name] }
}

func drawServer(t *rapid.T, name string) *Server {
	s := server(name, drawAge(t))
	s.Labels = map[string]string{"name": drawName(t)}
	s.Pods = drawSelector(t, "app", "p", "q")
	s.Port = rapid.SampledFrom([]PortRef{{Number: 8080}, {Number: 80}, {Name: "http"}, {Name: "x"}}).Draw(t, "port")
	s.Protocol = ServerProtocol(rapid.IntRange(0, 5).Draw(t, "protocol"))
	s.Access = drawAccess(t)
	return s
}

func drawGrant(t *rapid.T, name string) *ServerAuthorization {
	g := &ServerAuthorization{Meta: named(KindServerAuthorization, name, 1)}
	if rapid.Bool().Draw(t, "by name") {
		g.Server = drawName(t)
	} else {
		g.Selector = drawSelector(t, "name", "a", "b")
	}

	g.Clients = ClientClass(rapid.IntRange(0, 3).Draw(t, "clients"))
	if g.Clients == ClientsIdentified {
		g.Identities = drawIdentities(t)
	}
	if rapid.Bool().Draw(t, "networks") {
		g.Networks = networks("1.1.1.0/24")
	}
	return g
}

func drawAuthorizationPolicy(t *rapid.T, name string) *AuthorizationPolicy {
	p := &AuthorizationPolicy{Meta: named(KindAuthorizationPolicy, name, 1)}
	p.Target = Reference{KindServer, "shop", drawName(t)}
	if rapid.Bool().Draw(t, "of the namespace") {
		p.Target = Reference{Kind: KindNamespace, Name: "shop"}
	}

	switch rapid.IntRange(0, 2).Draw(t, "identities") {
	case 1:
		p.Identities = Reference{KindMeshTLSAuthentication, "shop", drawName(t)}
	case 2:
		p.Identities = Reference{KindServiceAccount, "shop", drawName(t)}
	}
	if rapid.Bool().Draw(t, "requires network") {
		p.Networks = Reference{KindNetworkAuthentication, "shop", drawName(t)}
	}
	return p
}

func drawIdentities(t *rapid.T) Identities {
	text := rapid.SampledFrom([]string{"*", "*.x.y", "i"}).Draw(t, "who")
	return Identities{Patterns: []Pattern{ParseIdentity(text)}}
}

func drawNames(t *rapid.T, of string) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(modelNames), 0, 3, rapid.ID[string]).Draw(t, of)
}

func drawName(t *rapid.T) string { return rapid.SampledFrom(modelNames).Draw(t, "name") }
func drawAge(t *rapid.T) int     { return rapid.IntRange(1, 2).Draw(t, "age") }

func drawAccess(t *rapid.T) DefaultPolicy {
	return DefaultPolicy(rapid.IntRange(0, 5).Draw(t, "access"))
}

func drawSelector(t *rapid.T, key string, values ...string) *LabelSelector {
	return rapid.SampledFrom([]*LabelSelector{
		nil,
		{},
		{Requirements: []LabelRequirement{{Key: key, Operator: LabelIn, Values: values[:1]}}},
		{Requirements: []LabelRequirement{{Key: key, Operator: LabelNotIn, Values: values[1:]}}},
	}).Draw(t, "selector")
}

// answer returns the lines of a port.
func (m *portModel) answer(port uint16) string {
	protocols := []string{"Detect", "Http1", "Http2", "Grpc", "Opaque", "Tls"}
	s := m.server(port)
	if s == nil {
		policy := m.policy(port)
		return "Detect " + policy + modelDefault(policy)
	}

	text := protocols[s.Protocol] + " Server/shop/" + s.Name
	for _, name := range modelNames {
		text += m.ofPolicy(s, name)
	}
	for _, name := range modelNames {
		text += m.ofGrant(s, name)
	}
	return text + modelDefault(defaultPolicies[s.Access]) + m.limit(s)
}

// older reports whether an object is looked at before another.
func older(a, b Meta) bool {
	return a.Created.Before(b.Created) || a.Created.Equal(b.Created) && a.Name < b.Name
}

func (m *portModel) server(port uint16) (first *Server) {
	declared := map[string]uint16{"http": 8080, "admin": 4191}
	for _, s := range m.objects.Servers {
		number := s.Port.Number
		if s.Port.Name != "" {
			number = declared[s.Port.Name]
		}
		if number == port && modelSelects(s.Pods, m.workload.Labels) && (first == nil || older(s.Meta, first.Meta)) {
			first = s
		}
	}
	return first
}

func modelSelects(s *LabelSelector, labels map[string]string) bool {
	if s == nil {
		return false
	}
	for _, r := range s.Requirements {
		if slices.Contains(r.Values, labels[r.Key]) != (r.Operator == LabelIn) {
			return false
		}
	}
	return true
}

func (m *portModel) policy(port uint16) string {
	name := "all-unauthenticated"
	if m.workload.HasDefault {
		name = defaultPolicies[m.workload.Default]
	}
	if m.workload.RequireIdentity == nil || port != 8080 {
		return name
	}
	if name == "audit" {
		return "all-authenticated"
	}
	return strings.Replace(name, "-unauthenticated", "-authenticated", 1)
}

func modelDefault(name string) string {
	where, who := "0.0.0.0/0 ::/0", "any"
	if strings.HasPrefix(name, "cluster") {
		where = modelCluster
	}
	if strings.HasSuffix(name, "-authenticated") {
		who = "identified *"
	}
	if name == "deny" {
		return ""
	}
	return fmt.Sprintf("\nlets in %s %s %s", name, where, who)
}

func (m *portModel) ofPolicy(s *Server, name string) (text string) {
	for _, p := range m.objects.Policies {
		if p.Name != name || p.Target.Kind == KindServer && p.Target.Name != s.Name {
			continue
		}

		where, who := "0.0.0.0/0 ::/0", "any"
		if p.Identities.Kind == KindServiceAccount {
			who = "identified " + p.Identities.Name + ".shop.serviceaccount.identity.linkerd.cluster.local"
		} else if p.Identities.Name != "" {
			if m.mesh[p.Identities.Name] == nil {
				continue
			}
			who = "identified " + m.mesh[p.Identities.Name].Identities.Patterns[0].String()
		}

		if p.Networks.Name != "" {
			if m.nets[p.Networks.Name] == nil {
				continue
			}
			where = "2.2.2.0/24"
		}
		text += fmt.Sprintf("\nlets in AuthorizationPolicy/shop/%s %s %s", name, where, who)
	}
	return text
}

func (m *portModel) ofGrant(s *Server, name string) (text string) {
	for _, g := range m.objects.ServerAuthorizations {
		named := g.Server == s.Name || g.Server == "" && modelSelects(g.Selector, s.Labels)
		if g.Name != name || !named || g.Clients == ClientsNone {
			continue
		}

		where, who := modelCluster, []string{"", "any", "tls", "identified"}[g.Clients]
		if g.Networks != nil {
			where = "1.1.1.0/24"
		}
		if g.Clients == ClientsIdentified {
			who += " " + g.Identities.Patterns[0].String()
		}
		text += fmt.Sprintf("\nlets in ServerAuthorization/shop/%s %s %s", name, where, who)
	}
	return text
}

func (m *portModel) limit(s *Server) string {
	var first *RateLimit
	for _, l := range m.objects.RateLimits {
		if l.Server == s.Name && (first == nil || older(l.Meta, first.Meta)) {
			first = l
		}
	}
	if first == nil || s.Protocol > ProtocolHTTP2 {
		return ""
	}
	return fmt.Sprintf("\nlimit %s 5", first.Name)
}
