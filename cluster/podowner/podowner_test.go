package podowner

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
)

const objects = `{apiVersion: v1, kind: Namespace, metadata: {name: shop, annotations: {
  linkerd.io/inject: enabled, config.linkerd.io/x: a, config.alpha.linkerd.io/x: z, notlinkerd.io/x: a, large: b}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: plain}}
---
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: d-1, namespace: shop, ownerReferences: [
  {apiVersion: v1, kind: Other, name: o, uid: o},
  {apiVersion: apps/v1, kind: Deployment, name: d, uid: u-d, controller: true}]}}
---
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: r, namespace: shop, ownerReferences: [
  {apiVersion: argoproj.io/v1alpha1, kind: Rollout, name: r0, uid: u, controller: true}]}}
---
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: alone, namespace: shop}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: c-1, namespace: shop, ownerReferences: [
  {apiVersion: batch/v1, kind: CronJob, name: c, uid: u-c, controller: true}]}}
`

// A reading is a Reader of an API server, on virtual time.
type reading struct {
	*testing.T
	*Reader

	server    *apitest.Server
	forgotten *[]string // Namespaces
}

// reads runs a test with a Reader.
func reads(t *testing.T, test func(of reading)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		server := network.Server("east")
		server.ApplyYAML(strings.Split(objects, "---\n")...)
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(server.Kubeconfig(server.Token())))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := api.NewConnection(config, network.Dial)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()

		var forgotten []string
		r, err := NewReader(conn, func(namespace string) { forgotten = append(forgotten, namespace) })
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = r.Run(ctx)
		}()
		defer func() {
			cancel()
			<-ended
		}()

		test(reading{t, r, server, &forgotten})
	})
}

func waitSynced(t *testing.T, r *Reader) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
}

func owned(apiVersion, kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Other", Name: "o"},
		{APIVersion: apiVersion, Kind: kind, Name: name, UID: "u", Controller: new(true)},
	}
}

// The controller counts, and who controls it if its kind is made by that one. Nothing that is known is requested.
func TestOwnerOf(t *testing.T) {
	reads(t, func(of reading) {
		t, r, server := of.T, of.Reader, of.server
		waitSynced(t, r)
		for _, c := range []struct {
			references []metav1.OwnerReference
			want       Owner
		}{
			{nil, Owner{}},
			{[]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "d-1"}}, Owner{}},
			{owned("apps/v1", "ReplicaSet", "d-1"), Owner{"apps/v1", "Deployment", "d", "u-d"}},
			{owned("apps/v1", "ReplicaSet", "r"), Owner{"apps/v1", "ReplicaSet", "r", "u"}},
			{owned("apps/v1", "ReplicaSet", "alone"), Owner{"apps/v1", "ReplicaSet", "alone", "u"}},
			{owned("batch/v1", "Job", "c-1"), Owner{"batch/v1", "CronJob", "c", "u-c"}},
			{owned("apps/v1", "StatefulSet", "s"), Owner{"apps/v1", "StatefulSet", "s", "u"}},
			{owned("other/v1", "ReplicaSet", "d-1"), Owner{"other/v1", "ReplicaSet", "d-1", "u"}},
		} {
			if diff := cmp.Diff(c.want, r.OwnerOf(t.Context(), "shop", c.references)); diff != "" {
				t.Errorf("%v: %s", c.references, diff)
			}
		}
		if n := server.Requests("get", "replicasets.apps") + server.Requests("get", "jobs.batch"); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// One that has not arrived is requested, for half a second at most. Without an answer the Pod's own owner is returned.
func TestOwnerOfNew(t *testing.T) {
	reads(t, func(of reading) {
		t, r, server := of.T, of.Reader, of.server
		waitSynced(t, r)
		server.SilenceWatches("replicasets.apps", true)
		server.ApplyYAML("{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: e-1, namespace: shop, ownerReferences: " +
			"[{apiVersion: apps/v1, kind: Deployment, name: e, uid: u-e, controller: true}]}}")

		references := owned("apps/v1", "ReplicaSet", "e-1")
		if got := r.OwnerOf(t.Context(), "shop", references); got != (Owner{"apps/v1", "Deployment", "e", "u-e"}) {
			t.Errorf("%v", got)
		}
		if got := r.OwnerOf(t.Context(), "plain", references); got != (Owner{"apps/v1", "ReplicaSet", "e-1", "u"}) {
			t.Errorf("of another namespace: %v", got)
		}

		server.Delay("replicasets.apps", time.Hour)
		began := time.Now()
		got := r.OwnerOf(t.Context(), "shop", references)
		if took := time.Since(began); took != ownerTimeout || got.Kind != "ReplicaSet" {
			t.Errorf("without an answer: %v, after %s", got, took)
		}
	})
}

// Only annotations of Linkerd are kept. A Namespace that has not arrived is requested, for a second at most, and one
// that is deleted is forgotten.
func TestAnnotations(t *testing.T) {
	reads(t, func(of reading) {
		t, r, server := of.T, of.Reader, of.server
		waitSynced(t, r)
		got, err := r.Annotations(t.Context(), "shop")
		want := map[string]string{
			"linkerd.io/inject": "enabled", "config.linkerd.io/x": "a", "config.alpha.linkerd.io/x": "z",
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Error(err, diff)
		}
		if got, err = r.Annotations(t.Context(), "plain"); len(got) > 0 || err != nil {
			t.Error(err, got)
		}

		server.Delete("Namespace", "", "plain")
		synctest.Wait()
		if !slices.Equal(*of.forgotten, []string{"plain"}) {
			t.Errorf("forgotten: %q", *of.forgotten)
		}
		if _, err = r.Annotations(t.Context(), "plain"); err == nil {
			t.Error("a Namespace that is deleted has annotations")
		}

		server.SilenceWatches("namespaces", true)
		server.ApplyYAML("{apiVersion: v1, kind: Namespace, metadata: {name: new, annotations: {linkerd.io/inject: x, a: b}}}")
		got, err = r.Annotations(t.Context(), "new")
		if diff := cmp.Diff(map[string]string{"linkerd.io/inject": "x"}, got); diff != "" || err != nil {
			t.Error(err, diff)
		}
		server.Delay("namespaces", time.Hour)
		began := time.Now()
		if _, err = r.Annotations(t.Context(), "new"); err == nil || time.Since(began) != namespaceTimeout {
			t.Errorf("without an answer: %v, after %s", err, time.Since(began))
		}
	})
}

// A review waits for all three kinds for as long as it has time.
func TestWaitSynced(t *testing.T) {
	reads(t, func(of reading) {
		t, r, server := of.T, of.Reader, of.server
		server.Delay("jobs.batch", 5*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := r.WaitSynced(ctx); err == nil || !strings.Contains(err.Error(), "are not listed") {
			t.Errorf("before Jobs are listed: %v", err)
		}
		waitSynced(t, r)
	})
}
