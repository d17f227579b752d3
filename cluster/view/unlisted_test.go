package view

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/federation"
)

// Nodes that were published stay while they cannot be listed, and go once they are listed without them.
func TestUnlistedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := federation.NewStore()
		store.AddCluster("c", federation.Expectation{Local: true})
		before := store.NewWriter("c")
		before.SetNode("n", "z")
		before.MarkSynced()
		r := NewReconciler(logr.Discard(), "c", Options{Local: true})
		nodes := r.Kinds()[slices.IndexFunc(r.Kinds(), func(k Kind) bool { return k.of == kindNode })]
		r.Begin(store.NewWriter("c"), nodes)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		synctest.Wait()
		if node, _ := store.Nodes().Get("n"); node.Zone != "z" {
			t.Errorf("while Nodes are not listed: zone %q", node.Zone)
		}
		r.Listed(nodes)
		synctest.Wait()
		if node, known := store.Nodes().Get("n"); known {
			t.Errorf("once Nodes are listed without it: %v", node)
		}
		cancel()
		<-done
	})
}
