package federation

import (
	"net/netip"
	"testing"

	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/profile"
)

// The Tables of a Store know which clusters are linked: one that is not can write nothing, and one that is removed
// leaves nothing, of Tables that were added as well.
func TestFactsFollowClusters(t *testing.T) {
	s := NewStore()
	added := facts.NewTable("added", facts.Options[string, int]{})
	s.AddTable(added)
	if w := s.Nodes.NewWriter("local"); w != nil {
		w.Set("n", Node{})
	}
	s.AddCluster("local", Expectation{Local: true})
	s.AddCluster("east", Expectation{})
	if _, known := s.Nodes.Get("local", "n"); known {
		t.Error("a cluster that is not linked has a node")
	}

	watch := s.Nodes.In("local").Watch("n")
	defer watch.Close()
	for _, c := range []Cluster{"local", "east"} {
		s.Nodes.NewWriter(c).Set("n", Node{Zone: string(c)})
		added.NewWriter(c).Set("n", 1)
	}
	_, _, superseded := watch.Load()
	s.RemoveCluster("local")
	select {
	case <-superseded:
	default:
		t.Error("who waits for a node is not woken when its cluster is removed")
	}
	if _, known := s.Nodes.Get("local", "n"); known {
		t.Error("a node is left")
	}
	for c := range added.ByKey("n") {
		if c != "east" {
			t.Errorf("a fact of %s is left", c)
		}
	}
	if node, _ := s.Nodes.Get("east", "n"); node.Zone != "east" {
		t.Errorf("the node of another cluster is in zone %q", node.Zone)
	}
}

// What a cluster has published is what another Store has after Write, facts included, and Tables whose terms Write ends
// keep nothing else. It is not copied again while nothing changes.
func TestPublishedFacts(t *testing.T) {
	stores := []*Store{NewStore(), NewStore()}
	for _, s := range stores {
		s.AddCluster("local", Expectation{Local: true})
	}
	s, ip := stores[0], netip.MustParseAddr("10.0.0.1")
	address := &Address{Residents: []Resident{{Workload: podOf("p", Template{})}}}
	name, p := Service{"ns", "a.ns.svc.cluster.local"}, &profile.Profile{}
	external := External{Workload: podOf("vm", Template{}), Node: NameOf("n")}
	server := OpaqueServer{Pods: Selector{Text: "app=db", Given: true}, PortName: "sql"}
	s.Nodes.NewWriter("local").Set("n", Node{Zone: "z"})
	s.Addresses.NewWriter("local").Set(ip, address)
	s.Profiles.NewWriter("local").Set(name, p)
	s.Externals.NewWriter("local").Set(plain, external)
	s.Servers.NewWriter("local").Set(plain, server)

	published, _ := s.Published("local", Published{})
	if again, same := s.Published("local", published); !same || again.Facts["nodes"].All == nil {
		t.Error("what has not changed is copied again")
	}
	o, unsaved := stores[1], facts.NewTable("unsaved", facts.Options[string, int]{})
	o.AddTable(unsaved)
	unsaved.Link("local")
	unsaved.NewWriter("local").Set("n", 1)
	o.Nodes.NewWriter("local").Set("gone", Node{})
	o.NewWriter("local").Write(published)
	node, _ := o.Nodes.Get("local", "n")
	at, _ := o.Addresses.Get("local", ip)
	of, _ := o.Profiles.Get("local", name)
	vm, _ := o.Externals.Get("local", plain)
	opaque, _ := o.Servers.Get("local", plain)
	_, kept := o.Nodes.Get("local", "gone")
	if node.Zone != "z" || at != address || of != p || vm != external || opaque != server || kept {
		t.Errorf("written: %v %v %v %v %v %t", node, at, of, vm, opaque, kept)
	}

	if _, known := unsaved.Get("local", "n"); !known {
		t.Error("a fact is gone of a Table that is not in what was published")
	}
	if synced, _ := unsaved.In("local").Synced(); synced {
		t.Error("that Table counts as written")
	}

	derived := facts.NewTable("derived", facts.Options[string, int]{Derived: true})
	s.AddTable(derived)
	derived.Link("local")
	derived.NewWriter("local").Set("n", 1)
	if _, same := s.Published("local", published); !same {
		t.Error("what follows from other objects is a part of what is published")
	}

	s.Nodes.NewWriter("local").Set("m", Node{})
	if now, same := s.Published("local", published); same || now.Facts["nodes"].Same(published.Facts["nodes"]) ||
		!now.Facts["addresses"].Same(published.Facts["addresses"]) {
		t.Error("of what has changed in part all is copied, or nothing")
	}
	o.NewWriter("local")
	fenced := s.NewWriter("local")
	s.NewWriter("local")
	fenced.Write(Published{})
	if _, known := s.Nodes.Get("local", "n"); !known {
		t.Error("a fenced writer has written facts")
	}
}
