package federation

import (
	"fmt"
	"testing"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// What a cluster publishes when it is synced for the first time is no difference, nor is what it publishes again, nor
// other endpoints. Everything else is, also what a new writer does not write any more.
func TestDifferences(t *testing.T) {
	store := NewStore()
	store.AddCluster("west", Expectation{})
	differences := store.Differences()
	web, api := Service{"shop", "web"}, Service{"shop", "api"}
	with := func(n int) *View {
		return &View{Slices: []*Slice{{Name: "web-1", Endpoints: endpointsFrom(n)}}}
	}
	rung := func() bool {
		select {
		case <-differences.Rung():
			return true
		default:
			return false
		}
	}

	writer := store.NewWriter("west")
	writer.Set(web, with(2))
	writer.Set(api, &View{})
	writer.MarkSynced()
	writer.Set(web, with(1))
	writer.Set(web, with(2))
	if all, _ := differences.Take(); len(all) > 0 || rung() {
		t.Fatalf("there are differences: %v", all)
	}

	next := store.NewWriter("west")
	next.Set(web, with(2))
	next.MarkSynced()
	next.Set(web, &View{})
	divided := &View{Policy: &policy.Service{Capacity: 3}}
	next.Set(web, divided)
	next.Set(web, &View{Policy: divided.Policy, Unexported: true})
	composed := &View{Composition: &Composition{Union: true, Members: []MemberRef{{Ref: Ref{"east", web}}}}}
	next.Set(web, composed)
	next.Delete(web)
	next.Delete(web)
	if !rung() {
		t.Error("the reader is not woken")
	}

	all, missed := differences.Take()
	wants := []func(Difference) bool{
		func(d Difference) bool { return d.Service == api && d.After == nil },
		func(d Difference) bool { return d.Before.HasEndpoints() && !d.After.HasEndpoints() },
		func(d Difference) bool { return d.Before.Policy.None() && d.After.Policy.Capacity == 3 },
		func(d Difference) bool { return !d.Before.Unexported && d.After.Unexported },
		func(d Difference) bool { return d.Before.Composition == nil && d.After.Composition != nil },
		func(d Difference) bool { return d.Before.Composition != nil && d.After == nil },
	}
	if len(all) != len(wants) || missed > 0 {
		t.Fatalf("there are %d differences and %d more, want %d", len(all), missed, len(wants))
	}
	for i, want := range wants {
		if !want(all[i]) {
			t.Errorf("difference %d is %+v", i, all[i])
		}
	}

	store.RemoveCluster("west")
	if all, _ := differences.Take(); len(all) > 0 {
		t.Errorf("a cluster that was unlinked has differences: %v", all)
	}
}

// A reader that does not come keeps a bounded number alive, and learns how many it has missed.
func TestDifferencesAreBounded(t *testing.T) {
	store := NewStore()
	store.AddCluster("west", Expectation{})
	differences := store.Differences()
	writer := store.NewWriter("west")
	writer.MarkSynced()
	for range maxDifferences {
		writer.Set(Service{"shop", "web"}, &View{})
		writer.Delete(Service{"shop", "web"})
	}
	if all, missed := differences.Take(); len(all) != maxDifferences || missed != maxDifferences {
		t.Errorf("there are %d, and %d were missed; want %d of both", len(all), missed, maxDifferences)
	}
	if all, missed := differences.Take(); len(all)+missed > 0 {
		t.Errorf("there are %d again, and %d were missed", len(all), missed)
	}
}

func endpointsFrom(n int) (all []*Endpoint) {
	for i := range n {
		all = append(all, &Endpoint{Addr: addr(fmt.Sprintf("10.0.0.%d", i))})
	}
	return all
}
