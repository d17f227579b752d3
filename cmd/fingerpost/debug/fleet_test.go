package debug

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// newFleet returns what a replica in the cluster east knows of so many healthy clusters, whose Services a default
// installation federates and may not write into.
func newFleet(clusters, services int) overviewInput {
	in := overviewInput{
		now: noon, local: "east", replica: "fingerpost-6c9f8-k2x4p", version: "v0.1.0", namespace: "linkerd",
		probes: map[string][]cluster.Probe{}, views: map[federation.Cluster]*federation.Views{},
	}
	store := federation.NewStore()
	for i := range clusters {
		name := fmt.Sprintf("eu-%02d", i)
		if names := []string{"east", "central", "north", "south", "west"}; i < len(names) {
			name = names[i]
		}
		status := cluster.Status{
			Name: name, Local: i == 0, State: federation.Live, Since: noon.Add(-time.Hour), Synced: true,
			ClusterDomain: "cluster.local", TrustDomain: "cluster.local", LastContact: noon.Add(-time.Second),
			Source: "Secret linkerd/cluster-credentials-" + name, Expires: noon.AddDate(0, 0, 29),
		}
		status.Writing = cluster.Writing{State: cluster.ReadOnly, Problem: "grant create on endpointslices"}
		if i == 0 {
			status.Writing = cluster.Writing{
				State: cluster.Standby, Wanted: []string{"fingerpost-1"},
				Holders: map[string]string{"fingerpost-1": "fingerpost-6c9f8-zz1ab_abcdefgh"},
			}
		}
		in.clusters.Clusters = append(in.clusters.Clusters, ClusterEntry{Status: status})
		for j := range cluster.ProbeSteps {
			rtt := time.Duration(2+i+(i*j*7919)%17) * time.Millisecond
			in.probes[name] = append(in.probes[name], cluster.Probe{RTT: rtt})
		}
		store.AddCluster(federation.Cluster(name), federation.Expectation{Local: i == 0})
		writer := store.NewWriter(federation.Cluster(name))
		for s := range services {
			writer.Set(fleetService(s), fleetView(1+(s*7+i*3)%23))
		}
		writer.MarkSynced()
	}
	local := store.NewWriter("east")
	for s := range services {
		local.Set(fleetService(s), fleetView(1+(s*7)%23))
		if s%2 == 1 {
			continue
		}
		union := &federation.Composition{Union: true}
		for _, c := range in.clusters.Clusters {
			ref := federation.Ref{Cluster: federation.Cluster(c.Name), Service: fleetService(s)}
			union.Members = append(union.Members, federation.MemberRef{Ref: ref})
		}
		svc := fleetService(s)
		svc.Name += "-federated"
		ports := []federation.ServicePort{{Number: 8080}}
		local.Set(svc, &federation.View{Composition: union, Ports: ports})
	}
	pods := &federation.Slice{Name: "destination"}
	for i, pod := range []string{in.replica, "fingerpost-6c9f8-zz1ab", "fingerpost-6c9f8-q9d8e"} {
		e := fleetEndpoint(i)
		e.Workload = new(federation.Cohort{Namespace: "linkerd"}.Workload(pod))
		pods.Endpoints = append(pods.Endpoints, e)
	}
	local.Set(federation.Service{Namespace: "linkerd", Name: "linkerd-dst"},
		&federation.View{Slices: []*federation.Slice{pods}})
	local.MarkSynced()
	maps.Insert(in.views, store.All())
	for i := range 40 {
		in.streams = append(in.streams, discovery.StreamStatus{
			ID: uint64(i), Method: "Get", Authority: "web.shop.svc.cluster.local:8080", Namespace: "shop",
			Pod: fmt.Sprintf("cart-%d", i), Peer: "10.1.2.3:4567", Opened: noon.Add(-time.Hour), Addresses: 12,
			Last: &discovery.LastSent{What: "add", At: noon.Add(-time.Minute)},
		})
	}
	in.clusters.FindProblems(noon)
	in.problems = newProblemsPage(problemsInput{store: store, local: "east"})
	in.streamsOf = countStreams(in.streams)
	return in
}

func fleetService(i int) federation.Service {
	names := []string{"web", "cart", "ledger", "search", "mail", "users", "stock", "prices"}
	name := names[i%len(names)]
	if i >= len(names) {
		name = fmt.Sprintf("%s-%d", name, i/len(names))
	}
	return federation.Service{Namespace: []string{"shop", "pay", "shop"}[i%3], Name: name}
}

func fleetView(endpoints int) *federation.View {
	s := &federation.Slice{Name: "s", Ports: []federation.Port{{Number: 8080, Protocol: federation.TCP}}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, fleetEndpoint(i))
	}
	ports := []federation.ServicePort{{Number: 8080, Target: 8080}}
	return &federation.View{Slices: []*federation.Slice{s}, Ports: ports}
}

func fleetEndpoint(i int) *federation.Endpoint {
	return &federation.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Ready: true}
}

// fail takes a cluster out of contact for a while.
func (in *overviewInput) fail(i int, state federation.ClusterState, text string, since time.Duration) {
	c := &in.clusters.Clusters[i]
	c.State, c.Status.Contact, c.Contact = state, errors.New(text), text
	c.LastContact, c.Since = noon.Add(-since), noon.Add(-since)
	if state == federation.Connecting {
		c.LastContact, c.Source, c.Synced = time.Time{}, "", false
	}
	probes := in.probes[c.Name]
	for j := range probes {
		if time.Duration(len(probes)-j)*cluster.ProbeStep <= since {
			probes[j] = cluster.Probe{Failed: true}
		}
	}
	in.clusters.FindProblems(noon)
}
