package endpointslice

import (
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// shares is which endpoints of clusters are written where a policy divides the traffic of a Service: of each cluster
// what it has in a Division, rounded, since who reads slices is in no bucket. So each cluster with a share has one
// endpoint at least. Hostnames are not divided: DNS finds that of an instance in slices only.
type shares map[discoveryv1.AddressType]*familyShares

type familyShares struct {
	whole  bool                  // everything is written
	serves map[string]bool       // clusters that have a share
	chosen map[netip.Addr]string // the cluster of each ready address
}

// sharesOf returns the shares of the clusters in a Service; nil if no policy is in force.
func sharesOf(
	s *serviceRecord, snapshot *federation.Snapshot, ownerOf func(source string) string, claims *claims,
) shares {
	if !snapshot.Divided() {
		return nil
	}
	all := shares{}
	for family, division := range divisionsOf(s, snapshot, ownerOf, claims) {
		all[family] = newFamilyShares(division)
	}
	return all
}

// divisionsOf returns the Division of the addresses of each family, at whatever ports, that may be written.
func divisionsOf(
	s *serviceRecord, snapshot *federation.Snapshot, ownerOf func(source string) string, claims *claims,
) map[discoveryv1.AddressType]*federation.Division {
	byFamily := map[discoveryv1.AddressType][]federation.Claim{}
	forEachClaim(s, snapshot, ownerOf, func(one federation.Claim, _ []discoveryv1.EndpointPort) {
		e := one.Endpoint()
		if !e.Ready || claims.belongsTo(e.Addr, one.Member.Origin.Cluster) {
			family := familyOf(e.Addr)
			byFamily[family] = append(byFamily[family], one)
		}
	})

	all := map[discoveryv1.AddressType]*federation.Division{}
	for family, of := range byFamily {
		all[family] = snapshot.Divide(of)
	}
	return all
}

func newFamilyShares(of *federation.Division) *familyShares {
	shares := &familyShares{whole: true, serves: map[string]bool{}, chosen: map[netip.Addr]string{}}
	for _, c := range of.Portions {
		n := c.Rounded()
		shares.whole = shares.whole && n == c.Ready
		shares.serves[c.Cluster] = n > 0
		for _, e := range c.Choose(n, 0) {
			shares.chosen[e.Endpoint.Addr] = c.Cluster
		}
	}
	return shares
}

// mayWrite reports whether the endpoints of a member may be written, by whichever installation. A cluster that was just
// linked, so that no Lease lists it yet, has none: until its endpoints may be written the others have to do.
func mayWrite(m *federation.Member, ownerOf func(source string) string) bool {
	return m.View != nil && !m.View.ExternalName && ownerOf(string(m.Origin.Cluster)) != ""
}

// write reports whether an endpoint of a cluster is written.
func (s shares) write(cluster federation.Cluster, e *federation.Endpoint) bool {
	f := s[familyOf(e.Addr)]
	switch {
	case f == nil || f.whole:
		return true
	case !e.Ready:
		return f.serves[string(cluster)]
	default:
		return f.chosen[e.Addr] == string(cluster)
	}
}
