package hostile

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// What is read of a linked cluster: without the first three nothing can be served, without the others something is left out.
var (
	required = []string{"services", "endpointslices", "pods"}
	optional = []string{"replicasets", "jobs", "servers", "externalworkloads"}
)

// errors are what an API server can do other than answer.
var errorsPerKind = map[string]fakeapi.Fault{
	"400": fakeapi.Error(400, metav1.StatusReasonBadRequest), "403": fakeapi.Error(403, metav1.StatusReasonForbidden),
	"404": fakeapi.Error(404, metav1.StatusReasonNotFound), "410": fakeapi.Error(410, metav1.StatusReasonExpired),
	"429": fakeapi.Error(429, metav1.StatusReasonTooManyRequests), "500": fakeapi.Error(500, metav1.StatusReasonInternalError),
	"503": fakeapi.Error(503, metav1.StatusReasonServiceUnavailable), "silence": fakeapi.Silence, "stall": fakeapi.Stall, "abort": fakeapi.Abort,
}

// member is the Service "app" of linked cluster number i.
func member(i int) fakeapi.App {
	return fakeapi.App{Namespace: "shop", Name: "app", Pods: 2, First: netip.AddrFrom4([4]byte{12, byte(i >> 8), byte(i), 1})}
}

// Each kind of object fails in each way, in a cluster of its own, all at the same time. Where the kind is not required the cluster is used
// all the same; where it is, that is reported; nobody else notices, and all are used once they are well.
func TestKindsFail(t *testing.T) {
	w := newIdle(t)
	var used, unused, all []string
	var addrs, whole []netip.AddrPort
	for _, resource := range slices.Concat(required, optional) {
		for name, fault := range errorsPerKind {
			app, cluster := member(len(all)), w.link(resource+"-"+name)
			cluster.Run(1, func(int) fakeapi.App { return app })
			cluster.Misbehave(fakeapi.On(resource, fault))
			all, whole = append(all, cluster.Name), append(whole, app.Addrs()...)
			if slices.Contains(optional, resource) {
				used, addrs = append(used, cluster.Name), append(addrs, app.Addrs()...)
			} else {
				unused = append(unused, cluster.Name)
			}
		}
	}
	w.local.Apply(fakeapi.Federated("shop", "app", all...))
	w.serve()
	w.live(used...)
	for _, name := range unused {
		w.reported(name)
	}
	federated := w.client(fakeapi.Authority("shop", "app-federated"), addrs...)
	w.answered(50)
	if report := federated.Report(); report.Err != nil {
		t.Errorf("with %d clusters of %d: %v", len(used), len(all), report.Err)
	}
	for _, name := range all {
		w.api.Cluster(name).Misbehave(nil)
	}
	w.live(all...)
	w.client(fakeapi.Authority("shop", "app-federated"), whole...)
	w.answered(50)
}

// A token that may read nothing is refused, and the one before stays in use, also after every connection is gone.
func TestTokenWithoutRights(t *testing.T) {
	const poor = "may-read-nothing"
	w := newBusy(t)
	east := w.link("east")
	east.Run(1, func(int) fakeapi.App { return member(0) })
	east.Grant(poor, false)
	w.local.Apply(fakeapi.Federated("shop", "app", "east"))
	w.serve()
	w.live("east")
	w.client(fakeapi.Authority("shop", "app-federated"), member(0).Addrs()...)
	w.local.Apply(fakeapi.Link("east", east.Kubeconfig(poor))[0])
	w.eventually("a condition of the Link reports it", func(context.Context) error {
		link := w.local.Get("links", fakeapi.LinkNamespace, "east").(*unstructured.Unstructured)
		conditions, _, _ := unstructured.NestedSlice(link.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "CredentialsValid" && c["status"] == "False" && east.Used(poor) > 0 {
				return nil
			}
		}
		return fmt.Errorf("%d requests with the token, conditions: %v", east.Used(poor), conditions)
	})
	used := east.Used(fakeapi.Token)
	east.HangUp()
	w.eventually("the one before is in use", func(ctx context.Context) error {
		if now := east.Used(fakeapi.Token); now < used+len(required) {
			return fmt.Errorf("%d requests since all connections broke", now-used)
		}
		return w.state(ctx, "east", "Live")
	})
}
