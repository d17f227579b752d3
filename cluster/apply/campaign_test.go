package apply

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/federation"
)

// A Lease that is not wanted is reported differently from one that another replica holds.
func TestReportOfLeases(t *testing.T) {
	registry := cluster.NewRegistry(logr.Discard(), federation.NewStore(), cluster.Options{})
	if err := registry.Apply(cluster.Spec{Name: "local", Local: true}); err != nil {
		t.Fatal(err)
	}
	target := &Target{
		Name: "local", Log: logr.Discard(), campaign: NewCampaign(logr.Discard(), registry, Options{}),
		leases: map[string]leaseState{},
	}
	none := leaseState{}
	standby := leaseState{state: cluster.Standby}
	behind := leaseState{state: cluster.Standby, holder: "other"}
	holding := leaseState{state: cluster.Holding, held: true}
	refused := leaseState{state: cluster.ReadOnly, problem: "grant it"}
	heldInVain := leaseState{state: cluster.ReadOnly, held: true, problem: "grant it"}
	reviewing := leaseState{state: cluster.Reviewing}
	a, b := []string{"a"}, []string{"b"}
	for _, c := range []struct {
		a, b leaseState
		want cluster.Writing
	}{
		{none, standby, cluster.Writing{State: cluster.Standby, Wanted: b}},
		{none, behind, cluster.Writing{
			State: cluster.Standby, Wanted: b, Holders: map[string]string{"b": "other"},
		}},
		{holding, none, cluster.Writing{State: cluster.Holding, Leases: a, Wanted: a}},
		{refused, holding, cluster.Writing{State: cluster.Holding, Leases: b, Wanted: b, Problem: "grant it"}},
		{standby, holding, cluster.Writing{State: cluster.Holding, Leases: b, Wanted: []string{"a", "b"}}},
		{heldInVain, none, cluster.Writing{State: cluster.ReadOnly, Leases: a, Wanted: a, Problem: "grant it"}},
		{reviewing, none, cluster.Writing{State: cluster.Reviewing}},
		{standby, reviewing, cluster.Writing{State: cluster.Reviewing, Wanted: a}},
		{reviewing, holding, cluster.Writing{State: cluster.Holding, Leases: b, Wanted: b}},
		{reviewing, refused, cluster.Writing{State: cluster.ReadOnly, Problem: "grant it"}},
		{none, none, cluster.Writing{}},
	} {
		(&candidacy{Target: target, config: lease.Config{Name: "a"}}).report(c.a)
		(&candidacy{Target: target, config: lease.Config{Name: "b"}}).report(c.b)
		statuses, _ := registry.Statuses()
		if diff := cmp.Diff(c.want, statuses["local"].Writing); diff != "" {
			t.Errorf("%+v and %+v (-want +got):\n%s", c.a, c.b, diff)
		}
	}
}

var timing = lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond}

// A task that lacks a permission stops no other, and runs once it is granted; a Lease that no task could use is given
// up, and so is one that nothing is to be written under. Then what was written is deleted.
func TestTasksOfOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		server := network.Server("east")
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(server.Kubeconfig(server.Token())))
		if err != nil {
			t.Fatal(err)
		}
		registry := cluster.NewRegistry(logr.Discard(), federation.NewStore(), cluster.Options{
			ProbeInterval: 5 * time.Second, Dial: network.Dial,
		})
		var running, cleaned [2]atomic.Int32
		var refused [2]atomic.Bool
		campaign := NewCampaign(logr.Discard(), registry, Options{Namespace: "linkerd", Replica: "r", Timing: timing})
		for i, name := range []string{"first", "second"} {
			campaign.Add("shared", Task{
				Name: name, Wanted: func(s cluster.Spec) bool { return s.Slices },
				Review: func(context.Context, *Target) error {
					if refused[i].Load() {
						return &MissingPermissions{[]Permission{services}}
					}
					return nil
				},
				Run: func(term context.Context, _ *Target) error {
					running[i].Add(1)
					defer running[i].Add(-1)
					tick := time.NewTicker(time.Second)
					defer tick.Stop()
					for {
						select {
						case <-term.Done():
							return nil
						case <-tick.C:
							if refused[i].Load() {
								return &MissingPermissions{[]Permission{services}}
							}
						}
					}
				},
				Clean: func(context.Context, *Target) error {
					cleaned[i].Add(1)
					return nil
				},
			})
		}
		registry.Engage(campaign.Engage)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- registry.Start(ctx) }()
		apply := func(slices bool) {
			t.Helper()
			spec := cluster.Spec{
				Name:   "east",
				Slices: slices,
				Access: []cluster.Access{{Source: "test", Config: config}},
			}
			if err := registry.Apply(spec); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(when string, first, second int32, state cluster.WritingState) {
			t.Helper()
			statuses, _ := registry.Statuses()
			now := statuses["east"].Writing.State
			if a, b := running[0].Load(), running[1].Load(); a != first || b != second || now != state {
				t.Errorf("%s: %d and %d run and the cluster is %q, want %d, %d, %q", when, a, b, now, first,
					second, state)
			}
		}
		apply(true)
		pass(5 * time.Second)
		expect("at first", 1, 1, cluster.Holding)
		refused[0].Store(true)
		pass(2 * time.Second)
		expect("when one is refused", 0, 1, cluster.ReadOnly)
		refused[1].Store(true)
		pass(2 * time.Second)
		expect("when both are refused", 0, 0, cluster.ReadOnly)
		if holder := holderOf(server, "shared"); holder != "" {
			t.Errorf("the Lease is held by %s", holder)
		}
		server.Fail("selfsubjectaccessreviews.authorization.k8s.io", 503, 0)
		pass(3 * PermissionRetry)
		expect("when that cannot be reviewed", 0, 0, cluster.ReadOnly)
		server.Fail("selfsubjectaccessreviews.authorization.k8s.io", 0, 0)
		refused[0].Store(false)
		pass(2 * PermissionRetry)
		expect("when one is granted", 1, 0, cluster.ReadOnly)
		refused[1].Store(false)
		pass(2 * PermissionRetry)
		expect("when both are granted", 1, 1, cluster.Holding)
		apply(false)
		pass(time.Minute)
		expect("when nothing is wanted", 0, 0, cluster.NotWriting)
		if a, b := cleaned[0].Load(), cleaned[1].Load(); a != 1 || b != 1 {
			t.Errorf("they were cleaned %d and %d times", a, b)
		}
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func holderOf(server *apitest.Server, name string) string {
	object := server.Get(leaseResource.String(), "linkerd", name)
	spec, _ := object.Object["spec"].(map[string]any)
	holder, _ := spec["holderIdentity"].(string)
	return holder
}
