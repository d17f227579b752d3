package endpointslice

import (
	"cmp"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// shares is which endpoints of clusters are written where a policy divides the traffic of a Service. Who reads slices
// is in no bucket, so that a fraction of an endpoint is rounded, and each cluster with a share has one at least. An
// endpoint is an address here: families are divided for themselves, and what shares follow from is in slices, so
// that a confirmation, which reads slices without their workloads, finds the same. Hostnames are not divided: DNS finds
// that of an instance in slices only.
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
	for _, family := range s.families {
		all[family] = newFamilyShares(s, snapshot, family, ownerOf, claims)
	}
	return all
}

func newFamilyShares(
	s *serviceRecord, snapshot *federation.Snapshot, family discoveryv1.AddressType,
	ownerOf func(source string) string, claims *claims,
) *familyShares {
	familyShares := &familyShares{whole: true, serves: map[string]bool{}, chosen: map[netip.Addr]string{}}
	members, waiting := familyShares.claimAddresses(s, snapshot, family, ownerOf, claims)
	ready := map[string][]netip.Addr{}
	for a, c := range familyShares.chosen {
		ready[c] = append(ready[c], a)
		delete(waiting[c], a)
	}

	for i := range members {
		m := &members[i]
		m.Ready = len(ready[m.Cluster])
		m.All = m.Ready + len(waiting[m.Cluster])
	}

	for i, share := range policy.Shares(snapshot.View.Policy, members) {
		cluster, n := members[i].Cluster, share.Rounded()
		own := ready[cluster]
		familyShares.whole = familyShares.whole && n == len(own)
		familyShares.serves[cluster] = n > 0
		slices.SortFunc(own, func(a, b netip.Addr) int {
			return cmp.Or(cmp.Compare(policy.Score(b, 0), policy.Score(a, 0)), a.Compare(b))
		})
		for _, a := range own[n:] {
			delete(familyShares.chosen, a)
		}
	}
	return familyShares
}

// claimAddresses chooses the cluster to which each ready address belongs. It returns the clusters, and which addresses
// of them wait to be ready, even if another cluster has them.
func (f *familyShares) claimAddresses(
	svc *serviceRecord, snapshot *federation.Snapshot, family discoveryv1.AddressType,
	ownerOf func(source string) string, claims *claims,
) (members []policy.Member, waiting map[string]map[netip.Addr]bool) {
	waiting = map[string]map[netip.Addr]bool{}
	for _, member := range snapshot.Members {
		part := member.Part()
		if waiting[part.Cluster] == nil {
			waiting[part.Cluster] = map[netip.Addr]bool{}
			members = append(members, part)
		}
		if !mayWrite(member, ownerOf) {
			continue
		}

		for _, slice := range member.View.Slices {
			if len(portsAtMember(svc, member.View, slice)) == 0 {
				continue
			}

			for _, e := range slice.Endpoints {
				switch {
				case familyOf(e.Addr) != family:
				case e.Ready && claims.belongsTo(e.Addr, member.Origin.Cluster):
					f.chosen[e.Addr] = part.Cluster
				case !e.Ready && !e.Terminating:
					waiting[part.Cluster][e.Addr] = true
				}
			}
		}
	}

	return members, waiting
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
