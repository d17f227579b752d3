package discovery

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// A Service that is scaled to zero is not blamed for the ports that its slice does not have then.
func TestExplainScaledToZero(t *testing.T) {
	store, _ := streamtest.Local(map[federation.Service]*federation.View{streamtest.Web: {
		Ports:  []federation.ServicePort{{Number: 80, Name: "http"}},
		Slices: []*federation.Slice{{Name: "web-1"}},
	}})
	reject := func(*federation.Answer) string { return "" }
	x := unhurried(store).Explain(Query{Service: streamtest.Web, Port: 80}, serving.Client{}, reject)
	if len(x.Claims) != 1 || x.Claims[0].Why != "no Pods or other endpoints" || x.Claims[0].Slice != "" {
		t.Errorf("%+v", x.Claims)
	}
}

// Of several clusters that were never synced, the one is named that a first answer waits for the longest.
func TestExplainNamesTheSlowestCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &federation.View{
			Ports:       []federation.ServicePort{{Number: 80, Name: "http"}},
			Composition: &federation.Composition{Union: true},
		}
		for _, c := range []federation.Cluster{"east", "west"} {
			all.Composition.Members = append(all.Composition.Members,
				federation.MemberRef{Ref: federation.Ref{Cluster: c, Service: streamtest.Web}})
		}
		federated := federation.Service{Namespace: "ns", Name: "web-federated"}
		store, _ := streamtest.Local(map[federation.Service]*federation.View{federated: all})
		store.AddCluster("east", federation.Expectation{Since: time.Now()}) // it does not answer
		store.AddCluster("west", federation.Expectation{Since: time.Now()})
		store.SetListing("west", true)
		x := unhurried(store).Explain(Query{Service: federated, Port: 80}, serving.Client{}, nil)
		if want := "a first answer waits 10s more for west, which is not synced yet"; x.Waits != want {
			t.Errorf("%q, want %q", x.Waits, want)
		}
	})
}
