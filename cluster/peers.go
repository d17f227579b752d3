package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// Would another replica hand over what it knows? That is needed when a replica starts while a cluster is unreachable,
// which is no time to learn that it does not. So the others are asked once in a while for what transfers nothing: which
// clusters they know. What they refuse twice in a row is reported, until they do not.
const (
	peersInterval = 5 * time.Minute
	peersRetry    = 30 * time.Second // after they have refused, or have had no time
)

// watchPeers asks other replicas until ctx ends.
func (r *Registry) watchPeers(ctx context.Context) {
	timer := time.NewTimer(peersRetry)
	defer timer.Stop()
	refused := false // by the last question

	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}

		_, err := r.options.Peers.Clusters(ctx)
		if ctx.Err() != nil {
			return
		}

		pause := peersRetry
		switch {
		case errors.Is(err, checkpoint.ErrBusy): // what was known stays
		case err == nil:
			refused, pause = false, peersInterval
			r.setPeersRefuse("")
		case refused:
			r.setPeersRefuse(api.CauseOf(err).Text)
		default:
			refused = true
		}
		timer.Reset(pause)
	}
}

// setPeersRefuse publishes why other replicas hand over nothing, and logs it if that is new; empty if they do.
func (r *Registry) setPeersRefuse(reason string) {
	before := r.PeersRefuse()
	r.peersRefuse.Store(reason)
	switch {
	case before == reason:
	case reason == "":
		r.log.Info("Other replicas hand over what they know of clusters again")
	default:
		logs.Warn(r.log, "Other replicas do not hand over what they know of clusters: one that starts while a cluster "+
			"is unreachable will not have its endpoints", "reason", reason)
	}
}

// PeersRefuse returns why other replicas do not hand over what they know of clusters; empty if they do, if that was not
// tried yet, or if there are none.
func (r *Registry) PeersRefuse() string {
	reason, _ := r.peersRefuse.Load()
	return reason
}
