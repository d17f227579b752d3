package apply

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
)

const (
	// ReportedAfter is after how many failures in a row an object is reported: some two seconds, with the pauses of a
	// Loop. Before, it was a conflict with another writer, or an API server that restarts.
	ReportedAfter = 4

	maxWorded    = 32 // objects of one Loop of which the words of what refuses them are kept
	shownFailing = 3  // that are named
	failingPause = time.Second
)

// Failures are the objects of one sort that cannot be written into a cluster, for as long as that lasts: what was tried
// and did not succeed is a problem of that cluster. Each Loop has its own, and drops it at its end: what a term has
// tried in vain is the next one's to try.
//
// They cost 100 bytes an object that fails, and 512 for each of maxWorded of them. What has changed is reported once a
// second at most, however many there are.
type Failures struct {
	target *Target
	what   string // is written of an object, such as EndpointSlices

	mu     sync.Mutex      // guards all below; a leaf
	all    map[any]failure // by key of the Loop
	worded int             // those of all that have the words
}

// A failure is why one object cannot be written.
type failure struct {
	since time.Time
	cause api.Cause // the newest; without a text if too many have one
}

// Failures returns those of a Loop that writes into the cluster. what is for people: what is written of each key, such
// as EndpointSlices.
func (t *Target) Failures(what string) *Failures {
	f := &Failures{target: t, what: what, all: map[any]failure{}}
	t.mu.Lock()
	t.failures = append(t.failures, f)
	t.mu.Unlock()
	return f
}

// note notes that an object was tried once more in vain. nil Failures note nothing.
func (f *Failures) note(key any, err error, inARow int) {
	if f == nil || inARow < ReportedAfter {
		return
	}

	cause := api.CauseOf(err)
	f.mu.Lock()
	before, found := f.all[key]
	now := failure{before.since, cause}
	if !found {
		now.since = time.Now()
	}

	switch {
	case before.cause.Text != "":
	case f.worded < maxWorded:
		f.worded++
	default:
		now.cause.Text = ""
	}
	f.all[key] = now
	changed := now != before
	f.mu.Unlock()

	if changed {
		f.target.failing.Ring()
	}
}

// forget notes that an object is as it should be.
func (f *Failures) forget(key any) {
	f.mu.Lock()
	before, found := f.all[key]
	delete(f.all, key)
	if before.cause.Text != "" {
		f.worded--
	}
	f.mu.Unlock()

	if found {
		f.target.failing.Ring()
	}
}

// any reports whether there are some.
func (f *Failures) any() bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all) > 0
}

// drop ends them: nothing of them is reported any more.
func (f *Failures) drop() {
	if f == nil {
		return
	}
	f.target.mu.Lock()
	f.target.failures = slices.DeleteFunc(f.target.failures, func(o *Failures) bool { return o == f })
	f.target.mu.Unlock()
	f.target.failing.Ring()
}

// summary returns what is reported of them: those that fail for longest, first.
func (f *Failures) summary() (all cluster.Failing, found bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if len(f.all) == 0 {
		return cluster.Failing{}, false
	}
	keys := slices.SortedFunc(maps.Keys(f.all), func(a, b any) int {
		if order := f.all[a].since.Compare(f.all[b].since); order != 0 {
			return order
		}
		return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})

	all = cluster.Failing{What: f.what, Count: len(f.all)}
	for _, key := range keys[:min(len(keys), shownFailing)] {
		all.Objects = append(all.Objects, fmt.Sprint(key))
	}

	longest := f.all[keys[0]]
	all.Since, all.Reason = longest.since, longest.cause.Reason
	all.Error = cmp.Or(longest.cause.Text, "too many fail for the words of each to be kept")
	return all, true
}

// reportFailures reports what fails, whenever that has changed, until ctx ends.
func (t *Target) reportFailures(ctx context.Context) {
	for {
		select {
		case <-t.failing.Rung():
			t.mu.Lock()
			t.publish()
			t.mu.Unlock()
		case <-ctx.Done():
			return
		}

		pause := time.NewTimer(failingPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}

// writing returns what is reported of the cluster. Of what several Loops write there is one entry. It needs t.mu.
func (t *Target) writing() cluster.Writing {
	writing := writingOf(t.leases)

	for _, f := range t.failures {
		failing, found := f.summary()
		if !found {
			continue
		}

		same := slices.IndexFunc(writing.Failing, func(o cluster.Failing) bool { return o.What == failing.What })
		if same < 0 {
			writing.Failing = append(writing.Failing, failing)
		} else {
			writing.Failing[same] = bothOf(writing.Failing[same], failing)
		}
	}
	return writing
}

// bothOf returns what is reported of the objects of two: the reason is that of those that fail for longest.
func bothOf(a, b cluster.Failing) cluster.Failing {
	if b.Since.Before(a.Since) {
		a, b = b, a
	}
	all := slices.Concat(a.Objects, b.Objects)
	a.Objects, a.Count = all[:min(len(all), shownFailing)], a.Count+b.Count
	return a
}

// publish reports what is known of writing into the cluster. It needs t.mu, which orders reports.
func (t *Target) publish() { t.campaign.registry.Report(t.Name, t.writing()) }
