package mirror

import (
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
)

// What linked clusters have written here has a pace, so that none of them can keep this cluster's API server busy, or
// every client that watches Services. Creations begin with enough for all Services of a Link, as at its first listing;
// they are as few as deletions from then on, because -max-mirrors-per-link bounds what exists. What is deleted because
// its Link was is not paced: no linked cluster has caused it.
const (
	createBurst, createRate = 1000, 5.0 // for one cluster; a second
	deleteBurst, deleteRate = 4, 0.3    // for one cluster; a second
	updateBurst, updateRate = 10, 0.5   // of one name; a second

	// pacedFor is how long a Link reports that its cluster was paced, from the last time on.
	pacedFor = 30 * time.Second
)

// paces are those of what is written in a term.
type paces struct {
	creations, deletions *apply.Pace[api.Key] // by cluster
	updates              *apply.Pace[api.Key] // by name

	mu   sync.Mutex
	last map[string]time.Time // when a cluster was paced
}

func newPaces() *paces {
	return &paces{
		creations: apply.NewPace[api.Key](createRate, createBurst),
		deletions: apply.NewPace[api.Key](deleteRate, deleteBurst),
		updates:   apply.NewPace[api.Key](updateRate, updateBurst),
		last:      map[string]time.Time{},
	}
}

// take returns nil if a name may be written now, or a Retry for its turn. It has a turn for one kind of write at a
// time.
func (p *paces) take(of *apply.Pace[api.Key], cause string, k api.Key) error {
	for _, other := range []*apply.Pace[api.Key]{p.creations, p.deletions, p.updates} {
		if other != of {
			other.Drop(k)
		}
	}
	if cause == "" {
		of.Drop(k)
		return nil
	}
	return of.Take(cause, k)
}

// drop gives the turns of a name back, which is as it should be.
func (p *paces) drop(k api.Key) {
	p.creations.Drop(k)
	p.deletions.Drop(k)
	p.updates.Drop(k)
}

// note notes that something of a cluster waits, and returns whether that is new.
func (p *paces) note(cluster string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	isNew := now.Sub(p.last[cluster]) >= pacedFor
	p.last[cluster] = now
	return isNew
}

// waiting returns how many Services of a cluster wait to be created or deleted.
func (p *paces) waiting(cluster string) int {
	return p.creations.Waiting(cluster) + p.deletions.Waiting(cluster)
}

// pacedUntil returns until when a Link reports that its cluster was paced; zero if it does not.
func (p *paces) pacedUntil(cluster string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, found := p.last[cluster]; found {
		if until := at.Add(pacedFor); time.Now().Before(until) {
			return until
		}
		delete(p.last, cluster)
	}
	return time.Time{}
}

// pacedMessage is the message of the condition.
var pacedMessage = fmt.Sprintf("the cluster has had more Services created and deleted here at once than are written: "+
	"the rest follows, %.0f deletions and %.0f creations a minute", deleteRate*60, createRate*60)

// causeOf returns the linked cluster for whose Service one exists here, or is to; empty if that is not, or no longer,
// a linked one.
func (t *term) causeOf(svc *corev1.Service) string {
	now, _ := t.linkSet.Load()
	for _, cluster := range chargeableClusters(svc) {
		if now.linkOf(cluster) != nil {
			return cluster
		}
	}
	return ""
}

// reportPace reports what became of a name that is created or deleted for a cluster: whether it waits.
func (t *term) reportPace(cluster string, err error) {
	if cluster == "" {
		return
	}
	if errors.Is(err, apply.ErrPaced) && t.paces.note(cluster) {
		t.log.Info("A linked cluster has more Services created and deleted here at once than are written: "+
			"the rest follows in turn", "cluster", cluster)
	}
	t.metrics.waiting.WithLabelValues(cluster).Set(float64(t.paces.waiting(cluster)))
	t.enqueueLinkOf(cluster)
}
