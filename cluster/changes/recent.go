// Package changes has what has changed of late: members of federated Services that came and went, clusters that were
// linked, drained or out of contact, credentials that were replaced, writers that took over. It answers what an
// operator asks first: what was different an hour ago?
//
// A [Follower] finds that out by comparing levels, and a [Recent] keeps it, for [MaxAge] and up to [MaxBytes].
package changes

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/fingerpost/fingerpost/federation"
)

// The bounds of a Recent.
const (
	MaxAge   = 2 * time.Hour
	MaxBytes = 2 << 20

	maxText  = 512 // bytes of a Change's text
	overhead = 160 // bytes of a Change besides its strings, about
)

// A Change is one thing that is other than it was.
type Change struct {
	At      time.Time `json:"at"`
	What    What      `json:"what"`
	Cluster string    `json:"cluster,omitempty"` // that it is about; empty for none
	Service string    `json:"service,omitempty"` // namespace/name, in Home
	Home    string    `json:"home,omitempty"`    // the cluster that has the Service
	Member  string    `json:"member,omitempty"`  // namespace/name in Cluster, which came or went
	Text    string    `json:"text"`              // for people
}

// A Subject is what Changes are asked for about: a cluster, or a Service as its home has it, with members.
type Subject struct {
	Cluster string // empty for none
	Home    string // the cluster of the Service
	Service string // namespace/name; empty for none
	Members []federation.Ref
}

// Of returns those Changes that are about a Subject. Those of a Service are its own, and those of what is a member of
// it, or was one.
func (s Subject) Of(all []Change) []Change {
	type ref struct{ cluster, service string }
	services := map[ref]bool{{s.Home, s.Service}: s.Service != ""}
	for _, m := range s.Members {
		services[ref{string(m.Cluster), m.Namespace + "/" + m.Name}] = true
	}
	for _, c := range all {
		if c.Member != "" && services[ref{c.Home, c.Service}] {
			services[ref{c.Cluster, c.Member}] = true
		}
	}

	return slices.DeleteFunc(slices.Clone(all), func(c Change) bool {
		isCluster := s.Cluster != "" && c.Cluster == s.Cluster
		return !isCluster && !services[ref{c.Home, c.Service}]
	})
}

// What is the sort of a Change.
type What string

// The sorts of Changes.
const (
	Started     What = "Started"     // the replica itself
	Linked      What = "Linked"      // a cluster is
	Unlinked    What = "Unlinked"    // it is not any more
	Began       What = "Began"       // a Problem
	Ended       What = "Ended"       // likewise
	Credentials What = "Credentials" // others are in use
	Drain       What = "Drain"       // traffic is taken away, or is not any more
	Writer      What = "Writer"      // another replica writes into a cluster
	Joined      What = "Joined"      // a member of a Service
	Left        What = "Left"        // likewise
	Created     What = "Created"     // a Service
	Deleted     What = "Deleted"     // likewise
	Exported    What = "Exported"    // whether a Service is
	Emptied     What = "Emptied"     // a Service has no endpoint any more
	Filled      What = "Filled"      // it has some again
	Policy      What = "Policy"      // of a Service's traffic
	Missed      What = "Missed"      // Changes that are not in the Recent
)

// size is what a Change takes, about.
func (c Change) size() int {
	return overhead + len(c.Cluster) + len(c.Service) + len(c.Home) + len(c.Member) + len(c.Text)
}

// A Recent keeps Changes. Where they are too many, the oldest of the cluster that has the most go first: what one
// cluster does, by fault or on purpose, does not push out what is known of others.
type Recent struct {
	since time.Time // there is none from before

	mu       sync.Mutex
	clusters map[string]*clusterChanges
	bytes    int
	number   uint64 // of the Changes so far
}

// clusterChanges are those about one cluster, the oldest first.
type clusterChanges struct {
	all   []numbered
	bytes int
}

// numbered is a Change with its place among all.
type numbered struct {
	Change
	number uint64
}

// NewRecent returns an empty Recent.
func NewRecent() *Recent { return &Recent{since: time.Now(), clusters: map[string]*clusterChanges{}} }

// Since returns from when on there are Changes.
func (r *Recent) Since(now time.Time) time.Time {
	if oldest := now.Add(-MaxAge); oldest.After(r.since) {
		return oldest
	}
	return r.since
}

// Add adds a Change, and forgets those for which there is no room or that are too old.
func (r *Recent) Add(change Change) {
	change.Text = federation.PrintableWithin(change.Text, maxText)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.number++
	of := r.clusters[change.Cluster]
	if of == nil {
		of = &clusterChanges{}
		r.clusters[change.Cluster] = of
	}
	of.all = append(of.all, numbered{change, r.number})
	of.bytes += change.size()
	r.bytes += change.size()

	r.forget(change.At.Add(-MaxAge))
}

// forget removes what is older than a time, and the oldest Changes of whatever cluster has the most until there is
// room. It needs mu.
func (r *Recent) forget(before time.Time) {
	for name, of := range r.clusters {
		for len(of.all) > 0 && of.all[0].At.Before(before) {
			r.removeFirst(name)
		}
	}

	for r.bytes > MaxBytes {
		most := ""
		for name, of := range r.clusters {
			if largest := r.clusters[most]; largest == nil || of.bytes > largest.bytes {
				most = name
			}
		}
		r.removeFirst(most)
	}
}

// removeFirst removes the oldest Change about a cluster. It needs mu.
func (r *Recent) removeFirst(name string) {
	of := r.clusters[name]
	size := of.all[0].size()
	of.all, of.bytes, r.bytes = of.all[1:], of.bytes-size, r.bytes-size
	if len(of.all) == 0 {
		delete(r.clusters, name)
	}
}

// Last returns the Changes within MaxAge, the newest first.
func (r *Recent) Last(now time.Time) []Change {
	r.mu.Lock()
	r.forget(now.Add(-MaxAge))
	var all []numbered
	for _, of := range r.clusters {
		all = append(all, of.all...)
	}
	r.mu.Unlock()

	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(b.number, a.number) })
	changes := make([]Change, len(all))
	for i, n := range all {
		changes[i] = n.Change
	}
	return changes
}
