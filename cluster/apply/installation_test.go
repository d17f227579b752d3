package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Each source has one owner at most, wherever it is computed: the oldest that lists it and lives. It does not lose the
// source to one that comes later, and when it is gone the next one has it.
func TestOwnersOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000, 0)
		sources := []string{"east", "west"}
		var writer []claim
		for i := range rapid.IntRange(0, 6).Draw(t, "installations") {
			writer = append(writer, claim{
				installation: fmt.Sprint(i),
				created:      time.Unix(int64(rapid.IntRange(0, 3).Draw(t, "created")), 0),
				until:        now.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "until")) * time.Second),
				sources:      sources[:rapid.IntRange(0, 2).Draw(t, "sources")],
			})
		}
		for _, source := range sources {
			owner := ownersOf(writer, now)[source]
			if got := ownersOf(rapid.Permutation(writer).Draw(t, "order"), now)[source]; got != owner {
				t.Fatalf("%s has the owners %s and %s", source, owner, got)
			}
			eligible := slices.DeleteFunc(slices.Clone(writer), func(c claim) bool {
				return !c.until.After(now) || !slices.Contains(c.sources, source)
			})
			if len(eligible) == 0 {
				if owner != "" {
					t.Fatalf("%s is owned by %s, which lists it not, or is gone", source, owner)
				}
				continue
			}
			i := slices.IndexFunc(eligible, func(c claim) bool { return c.installation == owner })
			if i < 0 {
				t.Fatalf("%s is owned by %q", source, owner)
			}
			for _, c := range eligible {
				if c.created.Before(eligible[i].created) {
					t.Fatalf("%s is owned by %s, and %s is older", source, owner, c.installation)
				}
			}
			later := claim{installation: "0 later", created: now, until: now.Add(time.Hour), sources: sources}
			if got := ownersOf(append(writer, later), now)[source]; got != owner {
				t.Fatalf("%s takes %s from %s", got, source, owner)
			}
			rest := slices.Delete(slices.Clone(eligible), i, i+1)
			if got := ownersOf(rest, now)[source]; (got == "") != (len(rest) == 0) {
				t.Fatalf("%d installations are left for %s, and %q owns it", len(rest), source, got)
			}
		}
	})
}

// A source has the next owner when the Lease of the one before is not renewed in time. A renewal is no change.
// What was loaded stays as it was.
func TestOwnersExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var owners Owners
		defer owners.forgetLeases()
		version := 0
		renew := func(id string, seconds int32) {
			version++
			lease := &coordinationv1.Lease{}
			lease.Name, lease.ResourceVersion = LeaseName(id), fmt.Sprint(version)
			lease.Labels = map[string]string{InstallationLabel: id}
			lease.Annotations = map[string]string{sourcesAnnotation: "east,west"}
			lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = new("replica"), &seconds
			owners.recordLease(api.Key{Name: lease.Name}, lease)
		}
		expect := func(when, want string) {
			t.Helper()
			now, _ := owners.Load()
			if got := now["east"]; got != want {
				t.Errorf("%s: %q owns the source, want %q", when, got, want)
			}
		}
		renew("a", 6)
		renew("b", 6)
		expect("at first", "a")
		changed := owners.Changed()
		first, held := owners.Load()
		for range 10 {
			pass(2 * time.Second)
			renew("a", 6)
			renew("b", 6)
		}
		expect("while both are renewed", "a")
		if watch.IsClosed(changed) {
			t.Error("a renewal is a change")
		}
		renew("b", 60)
		pass(6*time.Second - time.Millisecond)
		expect("a moment before a expires", "a")
		pass(time.Millisecond)
		expect("when a expires", "b")
		if !watch.IsClosed(changed) {
			t.Error("nothing has changed when a has expired")
		}
		renew("b", 3)
		pass(3 * time.Second)
		expect("when b expires, after a shorter time than before", "")
		renew("a", 6)
		expect("when a is held again", "a")
		renew("b", 6)
		if first["east"] != "a" || !held["a"] || !held["b"] {
			t.Errorf("what was loaded at first is now %v, and held by %v", first, held)
		}
	})
}

// A review of permissions that fails is no answer: it is asked again, and Leases in all namespaces count then.
func TestReviewFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		server := network.Server("local")
		server.ApplyYAML("{apiVersion: v1, kind: Namespace, metadata: {name: linkerd}}")
		server.ApplyYAML(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: fingerpost-theirs, namespace: elsewhere,
  creationTimestamp: "1999-01-01T00:00:00Z", labels: {federation.fingerpost.io/installation: theirs},
  annotations: {federation.fingerpost.io/source-clusters: "local"}},
  spec: {holderIdentity: a, leaseDurationSeconds: 3600}}`)
		var failures atomic.Int32
		server.Answer("selfsubjectaccessreviews.authorization.k8s.io", func(w http.ResponseWriter, r *http.Request) {
			var review authorizationv1.SelfSubjectAccessReview
			body, err := io.ReadAll(r.Body)
			if err == nil {
				_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &review)
			}
			if err != nil {
				t.Error(err)
			}
			a := review.Spec.ResourceAttributes
			if a.Resource == "leases" && a.Namespace == "" && failures.Add(1) <= 2 {
				http.Error(w, "it is overloaded", http.StatusServiceUnavailable)
				return
			}
			review.Status.Allowed = true
			review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			if err := json.NewEncoder(w).Encode(review); err != nil {
				t.Error(err)
			}
		})
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(server.Kubeconfig(server.Token())))
		if err != nil {
			t.Fatal(err)
		}
		registry := cluster.NewRegistry(logr.Discard(), federation.NewStore(), cluster.Options{
			ProbeInterval: 5 * time.Second, Dial: network.Dial,
		})
		campaign := NewCampaign(logr.Discard(), registry, Options{
			Namespace: "linkerd", Local: "local", Replica: "r", Timing: timing,
		})
		var owner atomic.Value
		campaign.Add(OwnLease, Task{Name: "test", Run: func(term context.Context, t *Target) error {
			owners, _ := t.Owners.Load()
			owner.Store(owners["local"])
			<-term.Done()
			return nil
		}})
		registry.Engage(campaign.Engage)
		spec := cluster.Spec{Name: "local", Local: true, Access: []cluster.Access{{Source: "test", Config: config}}}
		if err := registry.Apply(spec); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- registry.Start(ctx) }()
		pass(5 * time.Minute)
		if got := owner.Load(); got != "theirs" || failures.Load() <= 2 {
			t.Errorf("the source is written by %v, after %d reviews", got, failures.Load())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
