package federation

import (
	"math/bits"
	"net/netip"
	"slices"
)

// What clients are given of a Division, each in its bucket.
//
// This comes before zone hints and address families, which then choose among what was given; of several claims to an
// address the best one is given, or none. What a client cannot have wherever it stands does not count: of a member with
// internalTrafficPolicy: Local it is what runs on the client's node that is ready or not. Hostnames are not divided: a
// client that asks for an instance gets it.
//
// A Division is computed when the first client needs it, once for a Selection, or for a node where a member is Local.
// Clients get the entries of whole clusters, which all share, and of each divided cluster the few that score highest in
// their bucket: how many depends on the sixteenth. Without a policy nothing is computed.

// divides reports whether a policy is in force for the answers to a Query.
func (s *Snapshot) divides(q Query) bool {
	if !s.Federated() || q.Hostname != "" {
		return false
	}
	return s.View.Policy != nil || slices.ContainsFunc(s.Members, func(m *Member) bool {
		part := m.Part()
		return part.IsForced()
	})
}

// Divided reports whether a policy divides the traffic of the Service between clusters.
func (s *Snapshot) Divided() bool { return s.divides(Query{}) }

// elsewhere stands for the nodes on which nothing of a Local member runs; no node has such a name.
const elsewhere = "/"

// Division returns the Division of what clients at a place can have; buckets make no difference. It is computed when it
// is asked for first, also where no policy is in force: all that is ready is each cluster's share then.
func (x *Selection) Division(p Place) *Division { return x.divisionAt(p.Node) }

// divisionAt returns the Division for clients on a node.
func (x *Selection) divisionAt(node string) *Division {
	all := &x.divisions
	all.mu.Lock()
	defer all.mu.Unlock()

	if all.byNode == nil {
		all.byNode, all.local = map[string]*Division{}, x.localNodes()
	}
	if !all.local[node] {
		node = elsewhere
	}
	if all.byNode[node] == nil {
		all.byNode[node] = x.newDivision(node)
	}
	return all.byNode[node]
}

// localNodes returns the nodes on which something of a Local member runs, ready or not.
func (x *Selection) localNodes() map[string]bool {
	nodes := map[string]bool{}
	for key, b := range x.blocks {
		if !key.local {
			continue
		}
		for _, e := range b.slice.Endpoints {
			entry := Entry{Endpoint: e, origin: key.origin}
			if at, somewhere := entry.part(true); somewhere {
				nodes[at.node] = true
			}
		}
	}

	return nodes
}

func (x *Selection) newDivision(node string) *Division {
	division := x.snapshot.newDivision()
	families := x.addReady(division, node)
	x.addWaiting(division, node, families)
	division.addShares(x.snapshot.View)
	division.addBuckets()
	return division
}

// addBuckets sets what clients in buckets are given.
func (d *Division) addBuckets() {
	d.whole = true
	for _, c := range d.Portions {
		c.whole = c.Given(0) == c.Ready
		d.whole = d.whole && c.whole
		d.divided = d.divided || c.Divided(c.Ready)
		d.borders |= 1 << c.From()
		if c.whole {
			d.fixed = merged(d.fixed, c.Entries)
		}
	}
}

// first returns the first sixteenth whose clients get as many endpoints of each cluster as those of another one.
func (d *Division) first(sixteenth uint8) uint8 {
	before := d.borders & (1<<(sixteenth+1) - 1)
	return uint8(bits.Len16(before|1)) - 1
}

// addReady adds to each cluster what is ready of it, and returns the workloads that are among this, where some have
// both families.
func (x *Selection) addReady(division *Division, node string) map[family]bool {
	entries := x.claims(node)
	overIPv6, families := x.overIPv6(entries), map[family]bool{}

	for i, next := 0, 0; i < len(entries); i = next {
		var best int
		best, next = x.best(entries, i)
		entry := entries[best]
		if overIPv6 != nil {
			if !overIPv6(entry) {
				continue
			}
			if entry.Endpoint.Workload != nil {
				families[entry.family()] = true
			}
		}

		division.add(entry)
	}

	return families
}

// addWaiting adds to each cluster what may be ready soon: of a workload that has both families one address.
func (x *Selection) addWaiting(division *Division, node string, families map[family]bool) {
	for key, b := range x.blocks {
		portion := division.of[key.origin]
		if !x.dual() && !key.local {
			portion.All += b.waiting
			continue
		}

		for _, e := range b.slice.Endpoints {
			entry := Entry{Endpoint: e, origin: key.origin}
			at, somewhere := entry.part(key.local)
			if !x.query.waitsFor(e) || !somewhere || key.local && at.node != node {
				continue
			}

			if x.dual() && e.Workload != nil {
				if families[entry.family()] {
					continue
				}
				families[entry.family()] = true
			}
			portion.All++
		}
	}
}

// given returns those of all claims that clients at a place get by the shares of clusters. leaveOut, if it is not
// nil, gets the others.
func (x *Selection) given(p Place, entries []*Entry, leaveOut func(*Entry, Reason)) []*Entry {
	division := x.divisionAt(p.Node)
	if division.whole {
		return entries
	}

	given := division.fixed
	for _, c := range division.Portions {
		if n := c.Given(p.Sixteenth); n > 0 && !c.whole {
			given = merged(given, c.Choose(n, p.Bucket))
		}
	}
	if leaveOut != nil {
		x.explainGiven(division, entries, given, leaveOut)
	}
	return given
}

// explainGiven calls leaveOut for those of all claims that are not given.
func (x *Selection) explainGiven(d *Division, entries, given []*Entry, leaveOut func(*Entry, Reason)) {
	in, counts := map[*Entry]bool{}, map[*Entry]*Portion{}
	for _, e := range given {
		in[e] = true
	}
	for _, c := range d.Portions {
		for _, e := range c.Entries {
			counts[e] = c
		}
	}

	for _, e := range entries {
		c := counts[e]
		switch {
		case in[e]:
		case c != nil:
			leaveOut(e, c.Reason())
		case x.winner(entries, e) == e:
			leaveOut(e, OverIPv6)
		default:
			leaveOut(e, Duplicate)
		}
	}
}

// winner returns the claim that counts for the address of e.
func (x *Selection) winner(entries []*Entry, e *Entry) *Entry {
	i, _ := slices.BinarySearchFunc(entries, e.Addr, func(o *Entry, addr netip.AddrPort) int {
		return o.Addr.Compare(addr)
	})
	best, _ := x.best(entries, i)
	return entries[best]
}

// Divided reports whether a policy is in force for the answers.
func (x *Selection) Divided() bool { return x.divided }
