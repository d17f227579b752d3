// Package streamtest is what the tests of the engine and of its protocols have in common: Services to
// ask for, in a Store, and sinks that stand for clients. It imports neither the engine nor a protocol,
// so that their internal tests can import it.
package streamtest

import (
	"fmt"
	"net/netip"
	"time"
	"unique"

	"github.com/fingerpost/fingerpost/federation"
)

// Web is the Service that most tests ask for.
var Web = federation.Service{Namespace: "ns", Name: "web"}

// Path is how they ask for it.
const Path = "web.ns.svc.cluster.local:80"

// SliceOf returns a slice with n bare addresses from 10.<salt>.0.0 on.
func SliceOf(name string, salt, n int) *federation.Slice {
	s := &federation.Slice{Name: name, Ports: []federation.Port{{Number: 8080, Name: "http"}}}
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, byte(salt), byte(i >> 8), byte(i)})
		s.Endpoints = append(s.Endpoints, &federation.Endpoint{Addr: addr, Ready: true})
	}
	return s
}

// PodsOf returns a slice of n meshed Pods in a zone.
func PodsOf(n int, zone string) *federation.Slice {
	s := SliceOf("pods", 1, n)
	cohort := federation.Cohort{
		Namespace: "ns", OwnerKind: "deployment", OwnerName: "web",
		Template: unique.Make(federation.Template{
			ServiceAccount: "web", ControlPlane: "linkerd", Hash: "5d8f7c9b4", InboundPort: 4143, AdminPort: 4191,
			ControlPort: 4190,
		}),
	}

	for i, e := range s.Endpoints {
		e.Zone, e.Node = federation.NameOf(zone), federation.NameOf("node")
		e.Workload = new(cohort.Workload(fmt.Sprintf("web-5d8f7c9b4-%05d", i)))
	}
	return s
}

// ViewOf returns a Service with the port 80, which leads to the port http of slices.
func ViewOf(slices ...*federation.Slice) *federation.View {
	return &federation.View{Ports: []federation.ServicePort{{Number: 80, Name: "http"}}, Slices: slices}
}

// Local returns a Store in which the local cluster is synced with some Services, and how to change them.
func Local(views map[federation.Service]*federation.View) (*federation.Store, *federation.ClusterWriter) {
	store := federation.NewStore()
	store.MarkClustersListed()
	store.AddCluster("local", federation.Expectation{TrustDomain: "cluster.local", Since: time.Now(), Local: true})
	writer := store.NewWriter("local")
	for svc, v := range views {
		writer.Set(svc, v)
	}
	writer.MarkSynced()
	return store, writer
}
