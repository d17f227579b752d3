package changes

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
)

// lookAgain is how often Problems are compared that begin or end without a change of a Status: by the time, or by what
// is wrong with a Link.
const lookAgain = 10 * time.Second

// The bounds of what is reported.
const (
	reportEvery = 10 * time.Minute // of one Service, and one sort of Change
	maxReports  = 256              // within that time
	maxNamed    = 3                // members in a report
)

// Sources are what a Follower compares.
type Sources struct {
	Replica string // this one
	Local   string // the local cluster

	Statuses func() (map[string]cluster.Status, <-chan struct{})
	Store    *federation.Store
	Kinds    func(name string) []cluster.KindStatus // of a cluster
	Links    func() []problem.Problem               // what is wrong with Links themselves
	Complete func() bool                            // it is known which clusters are linked

	// Report reports that members of a Service (namespace/name) of the local cluster came or went, in the replica that
	// writes there.
	Report func(ctx context.Context, service string, what What, text string)
}

// A Follower adds to a Recent what has changed.
//
// Of clusters and Problems it compares levels, by one rule for all: each Problem that an operator should look at
// begins, and ends. So a new class needs nothing here. Of Services it takes what the Store has noted, and of a
// composition the members that one has and the other has not. What there is when it starts is no change, but for
// Problems: they are as new to this replica as they look.
type Follower struct {
	Sources
	recent      *Recent
	differences *federation.Differences

	statuses map[string]cluster.Status    // as they were compared last
	problems map[string][]problem.Problem // by cluster, since they were found; those of Links have the key ""
	writers  map[string]string            // the last that was known of each cluster
	reported map[string]time.Time         // when, by the sort of Change and the Service
}

// NewFollower returns a Follower that adds to a Recent.
func NewFollower(recent *Recent, sources Sources) *Follower {
	return &Follower{
		Sources: sources, recent: recent, differences: sources.Store.Differences(),
		statuses: map[string]cluster.Status{},
		problems: map[string][]problem.Problem{}, writers: map[string]string{},
		reported: map[string]time.Time{},
	}
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	f.add(Change{
		What: Started, Text: "replica " + f.Replica + " has started: of what was before, others may know more",
	})
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()

	for due := true; ; {
		statuses, changed := f.Statuses()
		f.compare(statuses, due)
		f.takeDifferences(ctx)
		due = false

		select {
		case <-changed:
		case <-ticker.C:
			due = true
		case <-f.differences.Rung():
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *Follower) add(c Change) {
	c.At = time.Now()
	f.recent.Add(c)
}

func (f *Follower) addCluster(name string, what What, format string, args ...any) {
	f.add(Change{What: what, Cluster: name, Text: fmt.Sprintf(format, args...)})
}

// compare adds what differs from the Statuses before. With all it looks again at each Problem, and otherwise at those
// of clusters whose Status has changed.
func (f *Follower) compare(statuses map[string]cluster.Status, all bool) {
	for name, status := range statuses {
		old, known := f.statuses[name]
		if known && !all && old.SameButTimes(status) {
			continue
		}

		switch {
		case known:
			f.compareStatus(old, status)
		case f.Complete():
			f.addCluster(name, Linked, "cluster %s is linked", name)
		}
		f.compareWriter(name, status.Writing)
		f.compareProblems(name, status.Problems(f.Kinds(name), time.Now()))
	}

	for name := range f.statuses {
		if _, still := statuses[name]; !still {
			delete(f.writers, name)
			delete(f.problems, name) // they have not ended by themselves
			f.addCluster(name, Unlinked, "cluster %s is not linked any more", name)
		}
	}

	if all {
		f.forgetReported()
		f.compareProblems("", f.Links())
	}
	f.statuses = statuses
}

// compareStatus adds what differs, besides Problems, between two Statuses of a cluster.
func (f *Follower) compareStatus(old, now cluster.Status) {
	if !now.Local && now.Renewed(old) {
		f.addCluster(now.Name, Credentials, "new credentials or another address of %s: %s", now.Name, now.InUse())
	}

	before, after := old.Traffic.Drain, now.Traffic.Drain
	switch {
	case phaseOf(before) == phaseOf(after) && before.By == after.By:
	case phaseOf(after) == undrained:
		f.addCluster(now.Name, Drain, "%s is not drained any more", now.Name)
	case phaseOf(after) == drained:
		f.addCluster(now.Name, Drain, "%s is drained: %s", now.Name, after.By)
	default:
		f.addCluster(now.Name, Drain, "%s begins to be drained, or to come back: %d %%, by %s",
			now.Name, after.Percent, after.By)
	}
}

// A drainPhase is how far a drain is. Its steps are not Changes.
type drainPhase int

const (
	undrained drainPhase = iota
	draining
	drained
)

func phaseOf(d cluster.Drain) drainPhase {
	switch {
	case d.By == "":
		return undrained
	case d.Percent < 100:
		return draining
	default:
		return drained
	}
}

// compareWriter adds that another replica writes into a cluster than the last one that was known: the holder of the
// first of its Leases. Another one may have another holder. Of one that is not known to be held nothing follows.
func (f *Follower) compareWriter(name string, writing cluster.Writing) {
	if len(writing.Wanted) == 0 {
		return
	}
	first := writing.Wanted[0]
	writer, _, _ := strings.Cut(writing.Holders[first], "_")
	if slices.Contains(writing.Leases, first) {
		writer = f.Replica
	}

	before := f.writers[name]
	switch {
	case writer == "" || writer == before:
		return
	case before == "":
		f.addCluster(name, Writer, "%s writes into %s", writer, name)
	default:
		f.addCluster(name, Writer, "%s writes into %s, after %s", writer, name, before)
	}
	f.writers[name] = writer
}

// compareProblems adds the Problems of a cluster that have begun and ended; of no cluster, those of all Links.
func (f *Follower) compareProblems(of string, all []problem.Problem) {
	before := f.problems[of]
	found := slices.DeleteFunc(problem.ToLook(all), func(p problem.Problem) bool {
		return p.Class == problem.Connecting && !p.IsUrgent() // each new cluster is, for a moment
	})

	for i := range found {
		now := &found[i]
		if old := slices.IndexFunc(before, now.IsSame); old >= 0 {
			now.Since = before[old].Since
			continue
		}
		now.Since = time.Now()
		f.addCluster(now.Cluster, Began, "%s: %s", now.Title, now.Text)
	}

	for _, old := range before {
		if !slices.ContainsFunc(found, old.IsSame) {
			lasted := time.Since(old.Since).Round(time.Second)
			f.addCluster(old.Cluster, Ended, "%s: that is over, after %s", old.Title, lasted)
		}
	}
	f.problems[of] = found
}

// takeDifferences adds what has changed about Services.
func (f *Follower) takeDifferences(ctx context.Context) {
	all, missed := f.differences.Take()
	for _, d := range all {
		f.addDifference(ctx, d)
	}
	if missed > 0 {
		f.add(Change{What: Missed, Text: fmt.Sprintf("there were %d more changes of Services at once", missed)})
	}
}

func (f *Follower) addDifference(ctx context.Context, found federation.Difference) {
	change := Change{
		Cluster: string(found.Cluster), Home: string(found.Cluster), Service: found.Namespace + "/" + found.Name,
	}
	add := func(what What, text string) {
		change.What, change.Text = what, text
		f.add(change)
	}

	before, after := found.Before, found.After
	isLocal := change.Cluster == f.Local
	concerns := func(v *federation.View) bool { return v != nil && (isLocal || !v.Unexported) }

	switch {
	case !concerns(before) && !concerns(after): // no other cluster learns of it
		return
	case before == nil:
		add(Created, "the Service was created")
		before = &federation.View{}
	case after == nil:
		add(Deleted, "the Service was deleted"+lost(before))
		after = &federation.View{}
	case before.Unexported && !after.Unexported:
		add(Exported, "the Service is exported"+having(after))
	case after.Unexported && !before.Unexported:
		add(Exported, "the Service is not exported any more"+lost(before))
	case before.HasEndpoints() && !after.HasEndpoints():
		add(Emptied, "the Service has no endpoints any more"+lost(before))
	case after.HasEndpoints() && !before.HasEndpoints():
		add(Filled, "the Service has endpoints"+having(after))
	}

	if !before.Policy.Equal(after.Policy) {
		add(Policy, fmt.Sprintf("its traffic policy is %s, and was %s", after.Policy, before.Policy))
	}
	isLasting := found.Before != nil && found.After != nil
	f.addMembers(ctx, change, isLasting, before.Composition, after.Composition)
}

// addMembers adds which members a Service has and had not, and the other way round. Of one that lasts, and was not
// created or deleted with them, it reports that.
func (f *Follower) addMembers(
	ctx context.Context, change Change, isLasting bool, before, after *federation.Composition,
) {
	left := f.addMoved(change, Left, before.Without(after))
	joined := f.addMoved(change, Joined, after.Without(before))
	if isLasting && change.Home == f.Local {
		f.report(ctx, change.Service, Left, left)
		f.report(ctx, change.Service, Joined, joined)
	}
}

// addMoved adds members of a Service that left or joined, and returns their texts.
func (f *Follower) addMoved(change Change, what What, members iter.Seq[federation.MemberRef]) (texts []string) {
	for m := range members {
		change.What, change.Cluster, change.Member = what, string(m.Cluster), m.Namespace+"/"+m.Name
		change.Text = fmt.Sprintf("member %s of cluster %s has %s", change.Member, m.Cluster,
			strings.ToLower(string(what)))
		if what == Left {
			change.Text += f.whyLeft(m.Ref)
		}
		f.add(change)
		texts = append(texts, change.Text)
	}
	return texts
}

// report reports that members of a Service came or went, if this replica writes into the local cluster now. Who may
// annotate Services decides how often that is: so it is reported of a Service once in reportEvery, and of so many
// Services meanwhile. The Changes have all.
func (f *Follower) report(ctx context.Context, service string, what What, texts []string) {
	statuses, _ := f.Statuses()
	key := string(what) + " " + service
	reported := time.Since(f.reported[key]) < reportEvery
	writing := statuses[f.Local].Writing.State == cluster.Holding
	if len(texts) == 0 || !writing || reported || len(f.reported) == maxReports {
		return
	}

	f.reported[key] = time.Now()
	text := strings.Join(texts[:min(len(texts), maxNamed)], "; ")
	if more := len(texts) - maxNamed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	f.Report(ctx, service, what, text)
}

// forgetReported forgets what may be reported again.
func (f *Follower) forgetReported() {
	maps.DeleteFunc(f.reported, func(_ string, at time.Time) bool { return time.Since(at) >= reportEvery })
}

// whyLeft returns what can be seen of why a cluster's Service is no member any more; empty if there is no sign.
func (f *Follower) whyLeft(ref federation.Ref) string {
	view := f.Store.View(ref)
	switch {
	case !f.Store.Linked(ref.Cluster):
		return ": the cluster is not linked"
	case view == nil:
		return ": the cluster has no such Service any more"
	case view.Unexported:
		return ": the cluster does not export the Service any more"
	default:
		return ""
	}
}

func lost(v *federation.View) string {
	if ready, notReady := v.Count(); ready+notReady > 0 {
		return fmt.Sprintf(": it had %d of %d endpoints ready", ready, ready+notReady)
	}
	return ""
}

func having(v *federation.View) string {
	if ready, notReady := v.Count(); ready+notReady > 0 {
		return fmt.Sprintf(": %d of %d are ready", ready, ready+notReady)
	}
	return ""
}
