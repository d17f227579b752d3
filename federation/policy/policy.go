package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A ForCluster is the policy that is in force for one cluster, whatever the Service. The zero ForCluster is no policy.
type ForCluster struct {
	WhenStale WhenStale // Unset is Keep
	Drained   uint8     // percent of its traffic that is taken away, from 0 to 100
	Region    string    // that the cluster is in; empty if it is not known
}

// WhenStale is what a cluster's endpoints are worth while the cluster is Stale.
type WhenStale uint8

// The values of when-stale.
const (
	Unset WhenStale = iota // of a Service: what holds for the cluster
	Keep                   // as much as if it were in contact
	Last                   // they take what all others leave over
	Drop                   // they count only if no other cluster has anything ready
)

// String returns the value as it is written.
func (w WhenStale) String() string { return [...]string{"", "keep", "last", "drop"}[w] }

// A Service is the policy of one federated Service. It is immutable. The zero Service is no policy.
type Service struct {
	Prefer    []Tier    // the best first; none: one tier of all clusters
	Capacity  uint32    // ready endpoints that a tier should have at least
	Weights   []Weight  // sorted by cluster; none: by ready endpoints
	WhenStale WhenStale // before that of the cluster
}

// A Tier is clusters that serve together.
type Tier struct {
	Clusters []string // by name, sorted; besides
	Local    bool     // the cluster whose Service it is,
	Region   bool     // those of that cluster's region,
	Others   bool     // and those that are in no other tier
}

// A Weight is the part of its tier's traffic that a cluster gets, beside the weights of the others.
type Weight struct {
	Cluster string
	Weight  uint32
}

// Equal reports whether two policies are the same; nil is none.
func (s *Service) Equal(o *Service) bool {
	if s == nil || o == nil || s == o {
		return s == o
	}
	return s.Capacity == o.Capacity && s.WhenStale == o.WhenStale && slices.Equal(s.Weights, o.Weights) &&
		slices.EqualFunc(s.Prefer, o.Prefer, Tier.equal)
}

func (t Tier) equal(o Tier) bool {
	return t.Local == o.Local && t.Region == o.Region && t.Others == o.Others &&
		slices.Equal(t.Clusters, o.Clusters)
}

// None reports whether nothing is asked for.
func (s *Service) None() bool { return s == nil || s.Equal(&Service{}) }

// String describes the policy by its annotations, without their prefix.
func (s *Service) String() string {
	if s.None() {
		return "none"
	}

	var parts []string
	if len(s.Prefer) > 0 {
		tiers := make([]string, len(s.Prefer))
		for i, t := range s.Prefer {
			tiers[i] = t.String()
		}
		parts = append(parts, "prefer "+strings.Join(tiers, " > "))
	}

	if s.Capacity > 0 {
		parts = append(parts, fmt.Sprintf("capacity %d", s.Capacity))
	}

	if len(s.Weights) > 0 {
		weights := make([]string, len(s.Weights))
		for i, w := range s.Weights {
			weights[i] = fmt.Sprintf("%s=%d", w.Cluster, w.Weight)
		}
		parts = append(parts, "weights "+strings.Join(weights, ","))
	}

	if s.WhenStale != Unset {
		parts = append(parts, "when-stale "+s.WhenStale.String())
	}
	return strings.Join(parts, "; ")
}

// String returns the tier as it is written.
func (t Tier) String() string {
	names := slices.Clone(t.Clusters)
	if t.Local {
		names = append(names, "local")
	}
	if t.Region {
		names = append(names, "region")
	}
	if t.Others {
		names = append(names, "*")
	}
	return strings.Join(names, ",")
}

// Names returns the names of clusters that the policy has, sorted.
func (s *Service) Names() (names []string) {
	if s == nil {
		return nil
	}
	for _, t := range s.Prefer {
		names = append(names, t.Clusters...)
	}
	for _, w := range s.Weights {
		names = append(names, w.Cluster)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// HasRegion reports whether a policy prefers the clusters in the region of the Service's own.
func (s *Service) HasRegion() bool {
	return s != nil && slices.ContainsFunc(s.Prefer, func(t Tier) bool { return t.Region })
}

// A Link is what the annotations of a Link ask for. The zero Link asks for nothing.
type Link struct {
	WhenStale       WhenStale
	Drain           Drain
	WithdrawalGuard WithdrawalGuard
	MaxEndpoints    Limit
	MaxServices     Limit
	Region          string // empty: not given

	// AcceptIdentities is whether references to ServiceAccounts in policies mean those of this cluster, too.
	AcceptIdentities bool
}

// A WithdrawalGuard is which withdrawals of a cluster are held, and for how long. The zero value is not given.
type WithdrawalGuard struct {
	Off     bool
	Percent uint8 // that must be withdrawn, from 1 to 100; 0: not given
	Hold    time.Duration
}

// A Limit is an upper bound. The zero Limit is not given; one that is given, and is 0, means that there is no bound.
type Limit struct {
	Given bool
	N     int
}

// A Drain takes a cluster's traffic away, or gives it back, in steps of 5 percent. The zero Drain takes none away.
type Drain struct {
	From time.Time     // in UTC, without a monotonic clock, so that Drains can be compared
	Over time.Duration // from the first percent to the last; 0: at once
	Up   bool          // it is given back
}

// atOnce is when a Drain began that has always been complete.
var atOnce = time.Unix(0, 0).UTC()

const steps = 20 // of a Drain

// At returns how many percent are taken away at a time, and when that changes next; the zero time means never.
func (d Drain) At(now time.Time) (percent uint8, next time.Time) {
	if d.From.IsZero() {
		return 0, time.Time{}
	}

	done := 0 // steps
	switch elapsed := now.Sub(d.From); {
	case elapsed < 0:
		next = d.From
	case elapsed >= d.Over:
		done = steps
	default:
		done = int(elapsed * steps / d.Over)
		next = d.From.Add((d.Over*time.Duration(done+1) + steps - 1) / steps)
	}

	percent = uint8(done * 100 / steps)
	if d.Up {
		percent = 100 - percent
	}
	return percent, next
}
