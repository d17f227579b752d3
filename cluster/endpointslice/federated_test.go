package endpointslice

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// scene is a Store with the clusters home, east and west, and a federated Service of home.
type scene struct {
	*federation.Store
	writers map[string]*federation.ClusterWriter
}

func newScene(clusters ...string) *scene {
	s := &scene{federation.NewStore(), map[string]*federation.ClusterWriter{}}
	for _, c := range clusters {
		s.AddCluster(federation.Cluster(c), federation.Expectation{TrustDomain: c + ".example"})
		s.writers[c] = s.NewWriter(federation.Cluster(c))
	}
	s.MarkClustersListed()
	return s
}

var bb = federation.Service{Namespace: "ns", Name: "bb"}

// holds makes a cluster claim meshed Pods at some addresses, port http to 8080.
func (s *scene) holds(cluster string, addrs ...string) {
	slice := &federation.Slice{
		Name: "bb-1",
		Ports: []federation.Port{
			{Number: 8080, Name: "web", Protocol: federation.TCP, App: "http"},
			{Number: 9090, Name: "metrics", Protocol: federation.TCP},
		},
	}
	for _, a := range addrs {
		slice.Endpoints = append(slice.Endpoints, &federation.Endpoint{
			Addr: netip.MustParseAddr(a), Ready: true,
			Zone: federation.NameOf(cluster + "-a"), Node: federation.NameOf("node"),
			Workload: new(federation.Cohort{
				Namespace: "ns",
				Template:  unique.Make(federation.Template{ServiceAccount: "bb", ControlPlane: "linkerd"}),
			}.Workload("pod")),
		})
	}
	s.writers[cluster].Set(bb, &federation.View{
		Ports:  []federation.ServicePort{{Number: 80, Name: "web", Target: 8080}},
		Slices: []*federation.Slice{slice},
	})
}

func (s *scene) complete(clusters ...string) {
	for _, c := range clusters {
		s.writers[c].MarkSynced()
	}
}

// union is the federated Service in home; its port 80 has a name of its own.
func (s *scene) union(annotations map[string]string) (*serviceRecord, *federation.Snapshot) {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{
		Ports:      []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "other", Port: 81}},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
	}}
	svc.Namespace, svc.Name, svc.UID, svc.Annotations = "ns", "bb-federated", "uid", annotations
	v := view.Of("home", svc, nil)
	if p, _ := policy.ServiceOf(annotations); !p.None() {
		v.Policy = &p
	}
	s.writers["home"].Set(federation.Service{Namespace: "ns", Name: "bb-federated"}, v)
	kept, _ := newServiceRecord(svc)
	w := s.Watch(federation.Ref{Cluster: "home", Service: federation.Service{Namespace: "ns", Name: "bb-federated"}})
	defer w.Close()
	snapshot, _ := w.Load()
	return kept, snapshot
}

var federatedEverywhere = map[string]string{
	view.OptIn: view.Enabled, linkerd.LocalDiscoveryAnnotation: "bb", linkerd.RemoteDiscoveryKey: "bb@east,bb@west",
}

// text describes groups, one a line.
func text(groups []*group) string {
	var lines []string
	for _, g := range groups {
		line := fmt.Sprintf("%s %s %q", g.source, g.family, g.identity)
		for _, p := range g.ports {
			line += fmt.Sprintf(" %s:%d/%s/%s", *p.Name, *p.Port, *p.Protocol, optional(p.AppProtocol))
		}
		for _, e := range g.endpoints {
			ref := ""
			if e.TargetRef != nil {
				ref = "=" + e.TargetRef.Kind + "/" + e.TargetRef.Name
			}
			line += fmt.Sprintf(" %s@%s%s", e.Addresses[0], optional(e.Zone), ref)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// Each cluster's endpoints stand apart, under the Service's name for the port, those of other clusters with
// the identity that Linkerd needs to know, and those of its own with their Pods.
func TestFederatedGroups(t *testing.T) {
	s := newScene("home", "east", "west")
	s.holds("home", "10.0.0.1", "fd00::1")
	s.holds("east", "10.1.0.1", "10.1.0.2")
	s.holds("west")
	s.complete("home", "east", "west")
	svc, snapshot := s.union(federatedEverywhere)
	groups, keep := federatedGroups(svc, snapshot, "linkerd", ours, true)
	const identity = "bb.ns.serviceaccount.identity.linkerd.east.example"
	want := `east IPv4 "` + identity + `" http:8080/TCP/http 10.1.0.1@east-a 10.1.0.2@east-a
home IPv4 "" http:8080/TCP/http 10.0.0.1@home-a=Pod/pod`
	if got := text(groups); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	east, home := groups[0].meta, groups[1].meta
	if east.Annotations[linkerd.RemoteGatewayIdentityAnnotation] != identity || len(home.Annotations) > 0 ||
		east.Labels[SourceLabel] != "east" || east.Labels[discoveryv1.LabelManagedBy] != view.ManagedBy ||
		east.Labels[discoveryv1.LabelServiceName] != "bb-federated" {
		t.Errorf("metadata %+v and %+v", east, home)
	}
	if keep(sliceOf("west", "home")) {
		t.Error("the slices of a cluster without endpoints are kept")
	}
}

// ours is an installation that owns every source.
var ours = ownership{"home", true, func(string) string { return "home" }, wasUnlinked, nil}

// wasUnlinked is a Membership of none: all are unlinked.
var wasUnlinked = federation.NewMembership(nil, federation.StateUnlinked, true)

func sliceOf(source, writer string) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{}
	es.Labels = map[string]string{SourceLabel: source, installationLabel: writer}
	return es
}

// Slices of a cluster that was never synced, or that only another installation knows, are left as they are.
func TestSlicesThatAreKept(t *testing.T) {
	s := newScene("home", "east")
	s.holds("home", "10.0.0.1")
	s.complete("home")
	svc, snapshot := s.union(federatedEverywhere) // east is not complete, and west is not linked
	who := map[string]string{"home": "home", "east": "home", "north": "elsewhere"}
	groups, keep := federatedGroups(svc, snapshot, "linkerd",
		ownership{"home", true, func(s string) string { return who[s] }, wasUnlinked, nil}, true)
	if got := text(groups); !strings.HasPrefix(got, "home ") || strings.Contains(got, "\n") {
		t.Errorf("groups\n%s", got)
	}
	for _, c := range []struct {
		source, writer string
		want           bool
	}{
		{"east", "home", true},       // it was never synced
		{"east", "elsewhere", true},  // likewise
		{"west", "elsewhere", true},  // no installation owns it
		{"west", "home", false},      // we wrote it when west was linked
		{"north", "elsewhere", true}, // it is another installation's
		{"north", "home", true},      // which takes it over
		{"home", "elsewhere", false}, // we take it over
		{"home", "home", false},
	} {
		if got := keep(sliceOf(c.source, c.writer)); got != c.want {
			t.Errorf("slice of %s written from %s: kept is %t", c.source, c.writer, got)
		}
	}
}

// The next installation that owns a source takes its slices over as they are: their endpoints stay where they are.
func TestSourceIsTakenOver(t *testing.T) {
	s := newScene("home", "east", "west")
	s.holds("home", "10.0.0.1")
	s.holds("east", "10.1.0.1")
	s.complete("home", "east", "west")
	svc, snapshot := s.union(federatedEverywhere)
	before, _ := federatedGroups(svc, snapshot, "linkerd", ours, true)
	have, next := map[string]*discoveryv1.EndpointSlice{}, 0
	p := planFor(svc, before, nil)
	p.apply(have, &next)
	theirs := ownership{"theirs", true, func(string) string { return "theirs" }, wasUnlinked, nil}
	groups, keep := federatedGroups(svc, snapshot, "linkerd", theirs, true)
	for name, es := range have {
		if keep(es) {
			t.Errorf("%s is left as it is", name)
		}
	}
	p = planFor(svc, groups, slices.Collect(maps.Values(have)))
	if len(have) != 2 || len(p.update) != 2 || len(p.extend)+len(p.create)+len(p.remove) != 0 {
		t.Errorf("%d slices, of which %d are updated, %d removed and %d created",
			len(have), len(p.update), len(p.remove), len(p.create))
	}
	p.apply(have, &next)
	for name, es := range have {
		if got := es.Labels[installationLabel]; got != "theirs" {
			t.Errorf("%s is written by %s", name, got)
		}
	}
}

// holding returns a View of n meshed Pods, each with the account of its number.
func holding(account func(int) string, n int) *federation.View {
	slice := &federation.Slice{
		Name:  "bb-1",
		Ports: []federation.Port{{Number: 8080, Name: "web", Protocol: federation.TCP}},
	}
	for i := range n {
		slice.Endpoints = append(slice.Endpoints, &federation.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i%250 + 1)}), Ready: true,
			Workload: new(federation.Cohort{
				Namespace: "ns",
				Template:  unique.Make(federation.Template{ServiceAccount: account(i), ControlPlane: "linkerd"}),
			}.Workload(fmt.Sprint(i))),
		})
	}
	return &federation.View{
		Ports:  []federation.ServicePort{{Number: 80, Name: "web", Target: 8080}},
		Slices: []*federation.Slice{slice},
	}
}

// However many identities a cluster has, few of them have slices of their own, those of most endpoints; no
// endpoint is lost.
func TestIdentitiesAreBounded(t *testing.T) {
	s := newScene("home", "east", "west")
	const n = 500
	account := func(i int) string { return fmt.Sprintf("sa%03d", max(0, 490-i)) } // ten endpoints share the last
	s.writers["east"].Set(bb, holding(account, n))
	s.complete("home", "east", "west")
	svc, snapshot := s.union(federatedEverywhere)
	groups, _ := federatedGroups(svc, snapshot, "linkerd", ours, true)
	endpoints, own := 0, map[string]int{}
	for _, g := range groups {
		endpoints += len(g.endpoints)
		own[g.identity] = len(g.endpoints)
	}
	shared := own["sa000.ns.serviceaccount.identity.linkerd.east.example"]
	if endpoints != n || len(own) != maxIdentities+1 || shared != 10 {
		t.Errorf("%d endpoints under %d identities: %v", endpoints, len(own), own)
	}
	p := planFor(svc, groups, nil)
	if most := maxIdentities + n/maxEndpoints + 1; len(p.create) > most {
		t.Errorf("%d slices, want at most %d", len(p.create), most)
	}
}

// Slices are written for Services that ask for them and are made up of others.
func TestOptIn(t *testing.T) {
	s := newScene("home", "east", "west")
	s.holds("home", "10.0.0.1")
	s.holds("east", "10.1.0.1")
	s.complete("home", "east", "west")
	for name, c := range map[string]struct {
		annotations map[string]string
		want        int
	}{
		"federated":     {federatedEverywhere, 2},
		"not asked for": {map[string]string{"multicluster.linkerd.io/local-discovery": "bb"}, 0},
		"asked for in other ways": {
			map[string]string{view.OptIn: "yes", "multicluster.linkerd.io/local-discovery": "bb"}, 0,
		},
		"plain":              {map[string]string{view.OptIn: view.Enabled}, 0},
		"unknown to Linkerd": {map[string]string{view.OptIn: view.Enabled, view.MembersKey: "bb,bb@east"}, 2},
	} {
		svc, snapshot := s.union(c.annotations)
		if groups, _ := federatedGroups(svc, snapshot, "linkerd", ours, true); len(groups) != c.want {
			t.Errorf("%s: %d groups, want %d", name, len(groups), c.want)
		}
	}
}

// A port leads to where the member's own declaration of that number and protocol leads, whatever its name is. Its
// name leads nowhere: it may be that of another port.
func TestPortsAtMember(t *testing.T) {
	member := &federation.View{Ports: []federation.ServicePort{
		{Number: 53, Name: "dns-tcp", Target: 5353},
		{Number: 53, Protocol: federation.UDP, Name: "dns"},
		{Number: 80, Name: "web", Target: 8080},
		{Number: 443, Name: "https"},
		{Number: 8080, Name: "http"},
	}}
	slice := &federation.Slice{Ports: []federation.Port{
		{Number: 5353, Name: "dns-tcp", Protocol: federation.TCP},
		{Number: 5300, Name: "dns", Protocol: federation.UDP},
		{Number: 8080, Name: "web", Protocol: federation.TCP},
		{Number: 9000, Name: "http", Protocol: federation.TCP},
		{Number: 8443, Name: "https", Protocol: federation.UDP},
	}}
	svc := &serviceRecord{ports: []corev1.ServicePort{
		{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
		{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP},
		{Name: "http", Port: 80},
		{Name: "https", Port: 443}, // the slice has it as UDP only
		{Name: "none", Port: 81},
		{Name: "web", Port: 82},
		{Name: "dns-sctp", Port: 53, Protocol: corev1.ProtocolSCTP},
	}}
	var got []string
	for _, p := range portsAtMember(svc, member, slice) {
		got = append(got, fmt.Sprintf("%s:%d/%s", *p.Name, *p.Port, *p.Protocol))
	}
	if want := []string{"dns:5300/UDP", "dns-tcp:5353/TCP", "http:8080/TCP"}; !slices.Equal(got, want) {
		t.Errorf("ports %v, want %v", got, want)
	}
}

// Slices have what the shares of clusters are worth, rounded, and of a cluster without a share nothing. What a policy
// leaves out is not confirmed, since its cluster still has it.
func TestFederatedGroupsUnderPolicy(t *testing.T) {
	s := newScene("home", "east", "west")
	var east, west []string
	for i := range 10 {
		east, west = append(east, fmt.Sprintf("10.1.0.%d", i+1)), append(west, fmt.Sprintf("10.2.0.%d", i+1))
	}
	s.holds("home", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.1.0.1")
	s.holds("east", east...)
	s.holds("west", west...)
	s.complete("home", "east", "west")
	svc, snapshot := s.union(federatedEverywhere)
	for annotations, want := range map[string]map[string]int{
		"":                              {"home": 4, "east": 9, "west": 10}, // of what two claim home's counts
		"prefer=local > *":              {"home": 4},
		"prefer=local > *;capacity=7":   {"home": 4, "east": 1, "west": 1},
		"prefer=east > *":               {"east": 9},
		"weights=east=80,west=20":       {"east": 9, "west": 2},
		"prefer=west;weights=local=100": {"west": 10},
	} {
		of := map[string]string{}
		for item := range strings.SplitSeq(annotations, ";") {
			key, value, _ := strings.Cut(item, "=")
			of["federation.fingerpost.io/"+key] = value
		}
		p, problems := policy.ServiceOf(of)
		if problems != nil {
			t.Fatal(problems)
		}
		divided, v := *snapshot, *snapshot.View
		divided.View = &v
		if !p.None() {
			v.Policy = &p
		}
		groups, _ := federatedGroups(svc, &divided, "linkerd", ours, true)
		got := map[string]int{}
		for source, own := range bySource(groups) {
			got[source] = len(addressesOfGroups(own, anyEndpoint))
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: slices have %v endpoints, want %v", annotations, got, want)
		}
		claimed, _ := federatedGroups(svc, &divided, "linkerd", ours, false)
		if !addressesOfGroups(bySource(claimed)["east"], anyEndpoint).Has("10.1.0.5") {
			t.Errorf("%s: what the policy leaves out counts as lost", annotations)
		}
	}
}

// A linked cluster is shown what it has itself, what is exported, what the local Service stands for, and
// nothing else; what is not known stays.
func TestShownMembers(t *testing.T) {
	ref := func(cluster, name string) federation.Ref {
		return federation.Ref{
			Cluster: federation.Cluster(cluster),
			Service: federation.Service{Namespace: "shop", Name: name},
		}
	}
	member := func(of federation.Ref, v *federation.View) *federation.Member {
		origin := &federation.Origin{MemberRef: federation.MemberRef{Ref: of}, Home: of.Cluster == "east"}
		return &federation.Member{Origin: origin, View: v, Known: v != nil}
	}
	exported, private := &federation.View{}, &federation.View{Unexported: true}
	all := []*federation.Member{
		member(ref("east", "own"), private), member(ref("west", "exported"), exported),
		member(
			ref("west", "private"),
			private,
		), member(ref("west", "unknown"), nil), member(ref("local", "private"), private),
	}
	local := func(refs ...federation.Ref) *federation.View {
		c := &federation.Composition{Union: true}
		for _, r := range refs {
			c.Members = append(c.Members, federation.MemberRef{Ref: r, Filtered: true})
		}
		return &federation.View{Composition: c}
	}
	const always = "own@east exported@west unknown@west"
	for name, c := range map[string]struct {
		local *federation.View
		want  string
	}{
		"no local Service":        {nil, always},
		"a plain local Service":   {&federation.View{}, always},
		"one with other members":  {local(ref("west", "other"), ref("north", "private")), always},
		"one with this member":    {local(ref("west", "private")), "own@east exported@west private@west unknown@west"},
		"one with the local part": {local(ref("local", "private")), always + " private@local"},
	} {
		var got []string
		for _, m := range shownMembers(c.local, all) {
			got = append(got, m.Origin.Name+"@"+string(m.Origin.Cluster))
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
