package endpointslice

import (
	"context"

	"github.com/fingerpost/fingerpost/cluster/apply"
)

// Creations of slices have a pace, so that no source cluster can keep this cluster's API server busy by withdrawing
// its endpoints and bringing them back. What withdraws does not wait, and nothing is withdrawn oftener than it was
// added: so deletions have that pace, too. Updates are as frequent as a Service is published, and no object more.
//
//	creations of one cluster in one Service: 5 at once, then one in 2 s
//	of one cluster in all Services: 5,000 at once, as when it is linked, then 20 a second
const (
	serviceBurst, serviceRate = 5, 0.5
	sourceBurst, sourceRate   = 5000, 20.0
)

// A turn is that of one source cluster in a Service.
type turn struct {
	key
	source string
}

// paces are those of creations in a term.
type paces struct {
	services *apply.Pace[turn] // each turn is a cause by itself
	sources  *apply.Pace[turn]
}

func newPaces() paces {
	return paces{
		services: apply.NewPace[turn](serviceRate, serviceBurst),
		sources:  apply.NewPace[turn](sourceRate, sourceBurst),
	}
}

// take returns nil if slices may be created now, or a Retry. A turn that waits for its source has had that of its
// Service: asking again, as when the Service changes meanwhile, costs it nothing.
func (p paces) take(t turn) error {
	if !p.sources.InLine(t) {
		if err := p.services.Take(t.String()+"/"+t.source, t); err != nil {
			return err
		}
	}
	return p.sources.Take(t.source, t)
}

// drop gives a turn back: nothing is to be created.
func (p paces) drop(t turn) {
	p.services.Drop(t)
	p.sources.Drop(t)
}

// dropOthers gives the turns of a Service back, but for those of sources.
func (p paces) dropOthers(k key, sources map[string]int) {
	gone := func(t turn) bool {
		_, wanted := sources[t.source]
		return t.key == k && !wanted
	}
	p.services.DropFunc(gone)
	p.sources.DropFunc(gone)
}

// applyInTurn carries out the plan of one source cluster. What it is to create may have to wait; the rest is not
// kept waiting for it.
func (t *sliceWriter) applyInTurn(ctx context.Context, svc *serviceRecord, plan sourcePlan) error {
	turn := turn{svc.key, plan.source}
	if len(plan.create) == 0 || plan.source == "" || plan.source == t.Name {
		t.paces.drop(turn)
		return t.applyPlan(ctx, svc, plan.slicePlan)
	}

	paced := t.paces.take(turn)
	if paced != nil {
		plan.create = nil
	}
	if err := t.applyPlan(ctx, svc, plan.slicePlan); err != nil {
		return err
	}
	return paced
}
