package endpointslice

import (
	"fmt"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster/apitest"
)

// workloads makes home have ExternalWorkloads of these numbers.
func (f *fleet) workloads(first, last int) {
	f.t.Helper()
	for i := first; i <= last; i++ {
		f.apply("home", fmt.Sprintf(`{apiVersion: workload.linkerd.io/v1beta1, kind: ExternalWorkload,
  metadata: {name: ew-%[1]d, namespace: ns, labels: {app: web}},
  spec: {meshTLS: {identity: "spiffe://a", serverName: a.test}, ports: [{name: http, port: 80}],
    workloadIPs: [{ip: 10.9.0.%[1]d}]},
  status: {conditions: [{type: Ready, status: "True"}]}}`, i))
	}
}

// denyLists answers 403 to lists, by pages and by a stream. Watches that are open stay.
func denyLists(s *apitest.Server, resource string, denied bool) {
	s.Deny("list", resource, denied)
	s.Deny("watch", resource, denied)
}

// Most ExternalWorkloads are withdrawn only once they were listed anew, and not because a watch went wrong; few of
// them, or fewer than half, at once.
func TestWorkloadsThatVanish(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.stop()
		f.external = true
		f.start()
		f.store.MarkClustersListed()
		close(f.linked)
		f.apply("home", `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: ns},
  spec: {selector: {app: web}, ports: [{name: http, port: 80, protocol: TCP}]}}`)
		f.workloads(1, 50)
		f.pass(5 * time.Second)
		f.wants("web", 50)
		kind := workloadKind.Resource.GroupResource().String()
		remove := func(first, last int) {
			for i := first; i <= last; i++ {
				f.home.Delete("ExternalWorkload", "ns", fmt.Sprintf("ew-%d", i))
			}
			f.pass(2 * time.Second)
		}
		denyLists(f.home, kind, true)
		remove(1, 20)
		f.wants("web", 30)
		f.pass(2 * time.Minute)
		remove(21, 45)
		f.wants("web", 30)
		denyLists(f.home, kind, false)
		f.pass(6 * time.Minute)
		f.wants("web", 5)
	})
}

// What was withdrawn while no replica ran is compared with what is written. Most of it goes only once its cluster was
// listed anew; what a replica starts with is one list.
func TestLossBeforeTerm(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.link("west")
		f.store.MarkClustersListed()
		close(f.linked)
		f.holds("east", "web", 40)
		f.holds("east", "api", 2)
		f.holdsFrom("west", "web", 41, 80)
		f.union("all", "web@east,web@west")
		f.union("apis", "api@east")
		f.pass(5 * time.Second)
		f.wants("all", 80)

		f.stop()
		f.holds("east", "web", 10)
		f.holds("east", "api", 1)
		f.holdsFrom("west", "web", 41, 75)
		f.home.Deny("update", "leases.coordination.k8s.io", true)
		f.start()
		f.link("east")
		f.link("west")
		f.store.MarkClustersListed()
		f.pass(5 * time.Second) // both clusters are known, and nothing is written yet
		denyLists(f.network.Server("east"), sliceResource.String(), true)
		denyLists(f.network.Server("west"), sliceResource.String(), true)
		f.home.Deny("update", "leases.coordination.k8s.io", false)
		f.pass(10 * time.Minute)
		f.wants("all", 40+35) // of west little was lost
		f.wants("apis", 2)
		unconfirmed := func(want int) {
			t.Helper()
			statuses, _ := f.registry.Statuses()
			if got := statuses["east"].Traffic.Unconfirmed.Endpoints; got != want {
				t.Errorf("%d endpoints of east are reported as unconfirmed, want %d", got, want)
			}
		}
		unconfirmed(30 + 1)

		denyLists(f.network.Server("east"), sliceResource.String(), false)
		f.pass(6 * time.Minute)
		f.wants("all", 10+35)
		f.wants("apis", 1)
		unconfirmed(0)
	})
}
