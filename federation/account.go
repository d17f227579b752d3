package federation

import "unsafe"

// One account a cluster: what it has written and what is held of it (held.go), in Services, endpoints and bytes. The
// first two are counted; bytes are what the values take in memory, without what very many of them share, as names of
// nodes, and without the indexes that readers make. The local cluster has no account, and no limit.
//
// What a cluster writes is bounded by who reads it. Here only holds make room: written + held <= limit, or nothing is
// held.

// A Size is how much there is of a cluster. In a limit 0 is none.
type Size struct {
	Services, Endpoints int
	Bytes               int64
}

// An Account is what a Store has of one cluster.
type Account struct {
	Written, Held Size
	Unconfirmed   HoldStatus // all that is held, and not known to be gone; Since is when the first hold of it began
	LetGo         int        // endpoints that were held and are not, because there was no room, so far
}

// SetLimit sets what c may have written, and what may be held of it, together. Holds that are past it end.
func (s *Store) SetLimit(c Cluster, limit Size) {
	s.mu.Lock()
	defer s.unlock()
	if k := s.cluster(c); k != nil && k.limit != limit {
		k.limit = limit
		s.boundHolds(c, k)
	}
}

// Account returns what there is of c.
func (s *Store) Account(c Cluster) (a Account) {
	s.mu.Lock()
	defer s.mu.Unlock()

	k := s.cluster(c)
	if k == nil {
		return Account{}
	}

	a = Account{Written: k.written, Held: k.holds.size, LetGo: k.holds.letGo}
	for h := range k.holds.all {
		if h.stage != unconfirmed {
			continue
		}
		a.Unconfirmed.Endpoints += h.lacks
		if a.Unconfirmed.Since.IsZero() || h.since.Before(a.Unconfirmed.Since) {
			a.Unconfirmed.Since = h.since
		}
	}
	return a
}

// boundHolds ends holds of a cluster, those that began first, until what is written and held is within the limit. One
// that would make no room stays. It needs s.mu.
func (s *Store) boundHolds(name Cluster, linked *cluster) {
	if linked.holds.order.Len() == 0 || linked.limit == (Size{}) {
		return
	}

	for hold := range linked.holds.all {
		excess := linked.written.plus(linked.holds.size, 1).beyond(linked.limit)
		if excess == (Size{}) {
			return
		}

		if hold.size.within(excess) {
			if hold.stage != remembered {
				linked.holds.letGo += hold.lacks
			}
			s.setHold(linked, hold.service, nil)
			s.refreshMembers(name, hold.service)
		}
	}
}

func (s Size) plus(o Size, times int) Size {
	return Size{s.Services + times*o.Services, s.Endpoints + times*o.Endpoints, s.Bytes + int64(times)*o.Bytes}
}

// beyond returns how much of s is beyond a limit.
func (s Size) beyond(limit Size) (excess Size) {
	if limit.Services > 0 {
		excess.Services = max(0, s.Services-limit.Services)
	}
	if limit.Endpoints > 0 {
		excess.Endpoints = max(0, s.Endpoints-limit.Endpoints)
	}
	if limit.Bytes > 0 {
		excess.Bytes = max(0, s.Bytes-limit.Bytes)
	}
	return excess
}

// within reports whether an excess is less without s.
func (s Size) within(excess Size) bool {
	return excess.Services > 0 && s.Services > 0 || excess.Endpoints > 0 && s.Endpoints > 0 ||
		excess.Bytes > 0 && s.Bytes > 0
}

// sizeBeside returns the size of v, which may be nil, without what it shares with other, which may be
// nil as well.
func (v *View) sizeBeside(other *View) (size Size) {
	if v == nil {
		return Size{}
	}
	if other == nil {
		size = Size{Services: 1, Bytes: v.ownBytes()}
		for _, s := range v.Slices {
			size = size.plus(s.sizeBeside(nil), 1)
		}
		return size
	}

	for _, s := range v.Slices {
		if same := other.slice(s.Name); same != s {
			size = size.plus(s.sizeBeside(same), 1)
		}
	}
	return size
}

// change returns how much more v takes than old; nil is none. Slices that both have are not looked at.
func (v *View) change(old *View) (size Size) {
	var before, now []*Slice
	if old != nil {
		size, before = Size{Services: -1, Bytes: -old.ownBytes()}, old.Slices
	}
	if v != nil {
		size, now = size.plus(Size{Services: 1, Bytes: v.ownBytes()}, 1), v.Slices
	}

	for len(before) > 0 || len(now) > 0 {
		switch {
		case len(now) == 0 || len(before) > 0 && before[0].Name < now[0].Name:
			size, before = size.plus(before[0].sizeBeside(nil), -1), before[1:]
		case len(before) == 0 || now[0].Name < before[0].Name:
			size, now = size.plus(now[0].sizeBeside(nil), 1), now[1:]
		default:
			if before[0] != now[0] {
				size = size.plus(before[0].sizeBeside(nil), -1).plus(now[0].sizeBeside(nil), 1)
			}
			before, now = before[1:], now[1:]
		}
	}
	return size
}

// ownBytes is what a View takes without its slices.
func (v *View) ownBytes() (n int64) {
	n = int64(unsafe.Sizeof(*v)) + int64(len(v.Ports))*int64(unsafe.Sizeof(ServicePort{}))
	if v.Composition != nil {
		n += int64(len(v.Composition.Members)) * int64(unsafe.Sizeof(MemberRef{}))
	}
	return n
}

// sizeBeside returns the size of s without the endpoints that it shares with o, which may be nil.
func (s *Slice) sizeBeside(o *Slice) (size Size) {
	shared := cursor[*Endpoint, *Endpoint]{key: func(e *Endpoint) *Endpoint { return e }}
	if o != nil {
		shared.list = o.Endpoints
	}
	size.Bytes = int64(unsafe.Sizeof(*s)) + int64(len(s.Name)) + int64(len(s.Ports))*int64(unsafe.Sizeof(Port{}))
	for _, e := range s.Endpoints {
		if shared.find(e) < 0 {
			size.Endpoints++
			size.Bytes += e.bytes()
		}
	}
	return size
}

// bytes is what an endpoint takes, with two pointers to it.
func (e *Endpoint) bytes() (n int64) {
	n = int64(unsafe.Sizeof(*e)) + 2*int64(unsafe.Sizeof(e))
	if e.Workload != nil {
		n += int64(unsafe.Sizeof(*e.Workload)) + int64(len(e.Workload.Name))
	}

	if d := e.Detail; d != nil {
		n += int64(unsafe.Sizeof(*d)) + int64(len(d.Hostname))
		for _, hint := range d.Hints {
			n += int64(unsafe.Sizeof(hint)) + int64(len(hint))
		}
		if m := d.Mirror; m != nil {
			n += int64(unsafe.Sizeof(*m)) + int64(len(m.Cluster)+len(m.Identity)+len(m.Name))
		}
	}
	return n
}
