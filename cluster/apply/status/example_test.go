package status_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/apply/status"
)

const us = "us"

var routes = schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "httproutes"}

// verdict is the status of a route: an entry for each controller, in one list. ours is empty where we have none.
type verdict struct {
	ours   string
	others []any
}

func readVerdict(fields map[string]any) (v verdict) {
	parents, _ := fields["parents"].([]any)
	for _, parent := range parents {
		if entry, is := parent.(map[string]any); is && entry["controllerName"] == us {
			v.ours = fmt.Sprint(entry["accepted"])
		} else {
			v.others = append(v.others, parent)
		}
	}
	return v
}

func (v verdict) Contradicts(want verdict) bool { return v.ours != want.ours }

func (v verdict) Same(o verdict) bool { return v.ours == o.ours }

func (v verdict) Tree(shown verdict) (map[string]any, error) {
	ours := map[string]any{"controllerName": us, "accepted": v.ours}
	return map[string]any{"parents": append([]any{ours}, shown.others...)}, nil
}

// A second user of a Writer: routes, of which we write one entry of a list that others write as well. What it needs is
// above, and in the Config.
func TestRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		server := network.Server("local")
		server.Serve(routes.String(), "v1")
		conn, client := connect(t, network, server)
		defer conn.Close()

		asRead := func(object any) (status.Object[verdict], bool) {
			u := object.(*unstructured.Unstructured)
			fields, _, _ := unstructured.NestedMap(u.Object, "status")
			o := status.Object[verdict]{Version: "v1", UID: string(u.GetUID()), Shown: readVerdict(fields)}
			o.ResourceVersion = u.GetResourceVersion()
			return o, true
		}
		var writer *status.Writer[api.Key, verdict]
		kind := api.Newest(routes, []string{"v1"}, "HTTPRoute")
		informer := api.NewInformer(conn, kind, asRead, func(k api.Key) { writer.Enqueue(k) })
		var accepted atomic.Value // what all routes are to show
		accepted.Store("yes")
		var writes atomic.Int32
		writer = status.NewWriter(logr.Discard(), status.Config[api.Key, verdict]{
			Manager: "us", Client: client, Keys: informer.Keys, Read: readVerdict,
			Of: func(k api.Key) status.Ref { return status.Ref{Resource: routes, Kind: "HTTPRoute", Key: k} },
			Object: func(k api.Key) (status.Object[verdict], bool) {
				o, found := informer.Get(k)
				o.Wanted = func() (verdict, bool) { return verdict{ours: accepted.Load().(string)}, true }
				return o, found
			},
			Wrote: func(api.Key, string) { writes.Add(1) },
		})
		term, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { informer.Run(term) })
		wg.Go(func() { _ = writer.Run(term) })

		expect := func(when, want string, most int32) {
			t.Helper()
			writes.Store(0)
			<-time.NewTimer(2 * time.Minute).C
			synctest.Wait()
			fields, _, _ := unstructured.NestedMap(server.Get(routes.String(), "shop", "web").Object, "status")
			if got := fmt.Sprint(fields["parents"]); got != want || writes.Load() > most {
				t.Errorf("%s: %s after %d writes, want %s after %d", when, got, writes.Load(), want, most)
			}
		}
		route := func(parents string) {
			server.ApplyYAML(`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute,
				metadata: {name: web, namespace: shop}, status: {parents: [` + parents + `]}}`)
		}
		const ours, theirs = "map[accepted:yes controllerName:us]", "map[accepted:no controllerName:them]"
		route("")
		expect("a new route", "["+ours+"]", 1)
		expect("later", "["+ours+"]", 0)
		route("{controllerName: them, accepted: \"no\"}")
		expect("replaced by another", "["+ours+" "+theirs+"]", 1)
		accepted.Store("of late")
		expect("changed", "[map[accepted:of late controllerName:us] "+theirs+"]", 1)
		cancel()
		wg.Wait()
	})
}
