package federation

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fingerpost/fingerpost/federation/profile"
)

// A writer that does not know which nodes and ServiceProfiles there are keeps those that it has not written, once it is
// synced as well, until it deletes them. A fenced one keeps nothing.
func TestKeepFacts(t *testing.T) {
	s := NewStore()
	s.AddCluster("local", Expectation{Local: true})
	a, b := Service{"ns", "a"}, Service{"ns", "b"}
	first := s.NewWriter("local")
	for _, name := range []string{"n", "m"} {
		first.SetNode(name, "z")
	}
	first.SetProfile(a, &profile.Profile{})
	first.SetProfile(b, &profile.Profile{})
	first.MarkSynced()
	second := s.NewWriter("local")
	second.SetNode("m", "other")
	if names := first.KeepNodes(); len(names) > 0 {
		t.Errorf("a fenced writer keeps nodes %q", names)
	}
	if names := second.KeepNodes(); !slices.Equal(names, []string{"n"}) {
		t.Errorf("nodes that are kept: %q", names)
	}
	profiles := second.KeepProfiles()
	slices.SortFunc(profiles, func(a, b Service) int { return strings.Compare(a.Name, b.Name) })
	if !slices.Equal(profiles, []Service{a, b}) {
		t.Errorf("ServiceProfiles that are kept: %v", profiles)
	}
	second.MarkSynced()
	second.DeleteProfile(b)
	n, _ := s.Nodes().Get("n")
	m, _ := s.Nodes().Get("m")
	_, aKnown := s.Profiles().Get(a)
	_, bKnown := s.Profiles().Get(b)
	if n.Zone != "z" || m.Zone != "other" || !aKnown || bKnown {
		t.Errorf("afterwards: %v %v %t %t", n, m, aKnown, bKnown)
	}
	third := s.NewWriter("local")
	third.MarkSynced()
	if _, known := s.Nodes().Get("n"); known {
		t.Error("a writer that keeps nothing leaves a node")
	}
}

// What the local cluster publishes besides its Services follows the same laws: it stays until a new writer
// is synced, a fenced writer changes nothing, equal values wake no reader, and RemoveCluster leaves
// nothing.
func TestFacts(t *testing.T) {
	s := NewStore()
	s.AddCluster("local", Expectation{Local: true})
	ip, gone := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	at := func(name string) *Address {
		return &Address{
			Services:  []Service{plain},
			Residents: []Resident{{Workload: podOf(name, Template{}), Running: true}},
		}
	}
	name, p := Service{"ns", "a.ns.svc.cluster.local"}, &profile.Profile{}
	first := s.NewWriter("local")
	first.SetNode("n", "z")
	first.SetAddress(ip, at("p"))
	first.SetAddress(gone, at("q"))
	first.SetProfile(name, p)
	first.MarkSynced()

	watch := s.Addresses().Watch(ip)
	defer watch.Close()
	_, _, superseded := watch.Load()
	second := s.NewWriter("local")
	if second.Address(ip) != nil {
		t.Error("a new writer has set an Address that is the old one's")
	}
	first.DeleteAddress(ip)
	first.SetNode("n", "other")
	second.SetAddress(ip, at("p"))
	if a := second.Address(ip); a == nil || !a.equal(at("p")) || first.Address(ip) != nil {
		t.Error("the writer that has set an Address does not read it, or a fenced one does")
	}
	select {
	case <-superseded:
		t.Error("silence: an equal Address, or a fenced writer, wakes a watcher")
	default:
	}
	if _, known := s.Addresses().Get(gone); !known {
		t.Error("succession: an Address is withdrawn before the new writer is complete")
	}
	second.SetAddress(ip, at("r"))
	<-superseded
	second.SetNode("n", "z")
	second.MarkSynced()
	_, goneKnown := s.Addresses().Get(gone)
	_, profileKnown := s.Profiles().Get(name)
	if node, _ := s.Nodes().Get("n"); goneKnown || profileKnown || node.Zone != "z" {
		t.Errorf("prune: %v %v %q", goneKnown, profileKnown, node.Zone)
	}
	second.DeleteNode("n")
	s.RemoveCluster("local")
	others := s.nodes.table.Len() + s.profiles.table.Len()
	if _, known, _ := watch.Load(); known || others != 0 || s.addresses.table.Len() != 1 {
		t.Error("absence: something is left")
	}
}
