package policyapi_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/serving"
)

// TestMessageBudget: what an answer with 50 rules of two backends takes to be computed and encoded, a rule.
func TestMessageBudget(t *testing.T) {
	const budget = 65 // allocations of a rule
	target, options := fiftyRules(), options()
	n := testing.AllocsPerRun(10, func() {
		answer := options.Outbound(target, rules.OutboundQuery{Port: 80})
		if _, err := proto.Marshal(policyapi.EncodeOutbound(answer, original)); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%.0f allocations", n)
	if n > 50*budget {
		t.Errorf("%.0f allocations for 50 rules; the budget is %d a rule", n, budget)
	}
}

// TestPolicyFrameBudget: a message about a Service is encoded once for 1,000 streams, and one about a port once for all
// Pods of a template: they send the same Frame.
func TestPolicyFrameBudget(t *testing.T) {
	const streams = 1000
	inWorld(t, func(w *world) {
		w.setPod("a")
		w.setService("web", 80)
		w.list()
		var all []*stream
		for range streams {
			all = append(all, w.watch(named("web.shop.svc:80")), w.watchPort("shop:a", 80))
		}

		w.targets.Set(web, fiftyRules())
		w.setServers(serverOf(80))
		w.wants("FB", all[0], "web:80", "web:80")
		frames := map[*serving.Frame]bool{}
		for _, s := range all {
			s.take()
			frames[s.frame] = true
		}
		if len(frames) != 2 {
			t.Errorf("%d streams have %d messages", len(all), len(frames))
		}
		for _, s := range all {
			s.cancel()
		}
	})
}
