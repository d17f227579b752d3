package hostile

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// What is read of a linked cluster: without the first three nothing can be served, without the others
// something is left out.
var (
	required = []string{"services", "endpointslices", "pods"}
	optional = []string{"replicasets", "jobs", "servers", "externalworkloads"}
)

// errors are what an API server can do other than answer.
var errorsPerKind = map[string]fakeapi.Fault{
	"400": fakeapi.Error(400, metav1.StatusReasonBadRequest), "403": fakeapi.Error(403, metav1.StatusReasonForbidden),
	"404": fakeapi.Error(404, metav1.StatusReasonNotFound), "410": fakeapi.Error(410, metav1.StatusReasonExpired),
	"429": fakeapi.Error(429, metav1.StatusReasonTooManyRequests),
	"500": fakeapi.Error(500, metav1.StatusReasonInternalError),
	"503": fakeapi.Error(503, metav1.StatusReasonServiceUnavailable), "silence": fakeapi.Silence,
	"stall": fakeapi.Stall, "abort": fakeapi.Abort,
}

// member is the Service "app" of linked cluster number i.
func member(i int) fakeapi.App {
	return fakeapi.App{
		Namespace: "shop",
		Name:      "app",
		Pods:      2,
		First:     netip.AddrFrom4([4]byte{12, byte(i >> 8), byte(i), 1}),
	}
}

// Each kind of object fails in each way, in a cluster of its own, all at the same time. Where the kind is not
// required the cluster is used all the same; where it is, that is reported; no other cluster notices, and all are
// used once they are well.
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
	w.answered(20)
	if report := federated.Report(); report.Err != nil {
		t.Errorf("with %d clusters of %d: %v", len(used), len(all), report.Err)
	}
	for _, name := range all {
		w.api.Cluster(name).Misbehave(nil)
	}
	w.live(all...)
	w.client(fakeapi.Authority("shop", "app-federated"), whole...)
	w.answered(20)
}

// What an API server reports of an error is its own: it ends no page of metrics, and makes no series.
func TestOddStatuses(t *testing.T) {
	const reason = "Unknowable"
	w := newBusy(t)
	odd := w.link("odd")
	odd.Run(1, func(int) fakeapi.App { return member(0) })
	w.serve()
	w.live("odd")
	var mu sync.Mutex
	n := 0
	answer := func(rw http.ResponseWriter, r *fakeapi.Request) bool {
		mu.Lock()
		n++
		i := n
		mu.Unlock()
		reasons := []string{
			"\xff", fmt.Sprint(reason, i), strings.Repeat(reason, 1<<16), reason + "\n# HELP", reason + `"} 1`,
		}
		s := metav1.Status{
			Reason: metav1.StatusReason(reasons[i%len(reasons)]), Message: strings.Repeat("\xfe\x1b[2J", 1000),
			Code:    int32(i),
			Details: &metav1.StatusDetails{RetryAfterSeconds: 1 << 30, Name: "\xff", Kind: "\xff"},
		}
		return fakeapi.Answer([]int{500, 409, 418, 200, 599}[i/2%5], s)(rw, r)
	}
	odd.Misbehave(fakeapi.First(fakeapi.On("jobs", answer), fakeapi.On("replicasets", answer),
		fakeapi.On("pods", answer), fakeapi.On("servers", answer)))
	w.eventually("many odd answers were given", func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if n < 40 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	page, err := w.server.Metrics(t.Context())
	if err != nil {
		t.Fatalf("a scrape: %v", err)
	}
	for line := range strings.Lines(page) {
		if strings.Contains(line, reason) {
			t.Errorf("a series with the reason of a cluster: %.200s", line)
		}
	}
	odd.Misbehave(nil)
	w.live("odd")
}

// No redirect is followed: a token goes to its own API server only, and a linked cluster has no requests sent
// into our network.
func TestRedirects(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	victim := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprintf("%s %s, token %q, %d bytes", r.Method, r.URL,
			r.Header.Get("Authorization"), len(body)))
	}))
	t.Cleanup(victim.Close)
	w := newBusy(t)
	away := fakeapi.Redirect(victim.URL + "/internal")
	everything := func(rw http.ResponseWriter, r *fakeapi.Request) bool { return away(rw, r) }
	reviews := fakeapi.On("selfsubjectaccessreviews", away, "create")
	names := []string{"all", "pods", "jobs"}
	for i, fault := range []fakeapi.Fault{
		everything, fakeapi.On("pods", away), fakeapi.First(fakeapi.On("jobs", away), reviews),
	} {
		c := w.link(names[i])
		c.Run(1, func(int) fakeapi.App { return member(i) })
		c.Misbehave(fault)
	}
	w.serve()
	w.live("jobs")
	w.reported("all")
	w.reported("pods")
	mu.Lock()
	defer mu.Unlock()
	if len(seen) > 0 {
		t.Errorf("%d requests were sent elsewhere, the first: %s", len(seen), seen[0])
	}
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
	w.eventually("a condition of the Link reports it", func(ctx context.Context) error {
		page, err := w.server.Metrics(ctx)
		if err != nil {
			return err
		}
		condition := fmt.Sprintf("fingerpost_link_condition{link=%q,namespace=%q,target_cluster=%q,type=%q} 0",
			"east", fakeapi.LinkNamespace, "east", "CredentialsValid")
		if !strings.Contains(page, condition) || east.Used(poor) == 0 {
			return fmt.Errorf("%d requests with the token, and no %s", east.Used(poor), condition)
		}
		return nil
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

// An API server whose etcd was restored from a backup takes watches from versions that have not come again,
// and is silent. What it holds now is read within minutes.
func TestRestoredCluster(t *testing.T) {
	w := newIdle(t)
	east := w.link("east")
	before, after := member(0), member(1)
	before.Pods, after.Pods = 1, 1
	apply := func(a fakeapi.App) { east.Apply(a.Service(), a.Pod(0), a.Slice(0)) }
	apply(before)
	w.local.Apply(fakeapi.Federated("shop", "app", "east"))
	w.serve()
	backup := east.Snapshot()
	apply(after)
	federated := w.client(fakeapi.Authority("shop", "app-federated"))
	held := func(want fakeapi.App) func(context.Context) error {
		return func(context.Context) error {
			if now := federated.Holds(); !slices.Equal(now, want.Addrs()) {
				return fmt.Errorf("the client holds %s, not %s", now, want.Addrs())
			}
			return nil
		}
	}
	w.eventually("what is there is served", held(after))
	east.Restore(backup)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	if err := poll(ctx, held(before)); err != nil {
		t.Errorf("after the restore: %v", err)
	}
}
