package slices

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

var (
	getOptions = metav1.GetOptions{}
	away       = flag.Duration("away", 12*time.Second, "how long an API server is away; a cluster is Stale after 8 s")
)

// The life of a federated Service's slices over three clusters: each holds the union; a member that leaves
// takes its own addresses; an API server that is away takes none; what changed meanwhile is there when it is
// back; and nothing is ever read back.
func TestFederatedSlices(t *testing.T) {
	w := newWorld(t, "federated")
	east, west, north := clusters[0], clusters[1], clusters[2]
	server := w.replica(w.installations[0], "east-0")
	for _, s := range clusters {
		w.union(s, 5*time.Second, s.Name()+" holds the union", clusters...)
	}

	found, err := east.slicesOf(t.Context(), w.ns, mesh.Federated, federated)
	do(t, err)
	for _, es := range found {
		w.shape(es)
	}

	w.scale(west, 4)
	for _, s := range clusters {
		w.union(s, 3*time.Second, "four replicas in west reach "+s.Name(), clusters...)
	}

	// What is exported stays in the slices of other clusters also where the local Service has it no more.
	exported := []byte(`{"metadata": {"labels": {"mirror.linkerd.io/exported": "remote-discovery"}}}`)
	_, err = north.CoreV1().Services(w.ns).Patch(t.Context(), mesh.Service, types.MergePatchType, exported,
		metav1.PatchOptions{})
	do(t, err)
	do(t, w.installations[0].Federate(t.Context(), true, mesh.Service+"@west"))
	w.union(east, 3*time.Second, "north leaves the Service in east", east, west)
	w.union(west, time.Second, "and that in west is what it was", clusters...)
	do(t, w.installations[0].Federate(t.Context(), true, mesh.Service+"@west", mesh.Service+"@north"))
	w.union(east, 3*time.Second, "north is back", clusters...)

	// The API server of north is away, for longer than it takes to be Stale.
	before, err := w.held(t.Context(), east)
	do(t, err)
	do(t, north.Pause(controlplane.APIServer))
	defer func() { // the other tests need it, whatever becomes of this one
		if err := north.Continue(controlplane.APIServer); err != nil {
			t.Error(err)
		}
	}()
	until := time.NewTimer(*away)
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for gone := true; gone; {
		select {
		case <-until.C:
			gone = false
		case <-ticker.C:
			for _, s := range []*site{east, west} {
				if now, err := w.held(t.Context(), s); err != nil || len(now) != len(before) {
					t.Fatalf("while north is away, %s holds %v (%v), and before %v", s.Name(), now, err, before)
				}
			}
		}
	}
	do(t, north.Continue(controlplane.APIServer))
	w.scale(north, 3)
	for _, s := range clusters {
		w.union(s, 10*time.Second, "what changed in north meanwhile reaches "+s.Name(), clusters...)
	}

	// A cluster that is unlinked takes its own addresses, and loses what was written into it, because no replica
	// else goes on writing.
	in := w.installations[0]
	do(t, in.Unlink(t.Context(), in.Remotes[1]))
	w.union(east, 3*time.Second, "north is unlinked", east, west)
	eventually(t, 8*time.Second, "what was written into it is deleted", func(ctx context.Context) error {
		if now, err := w.held(ctx, north); err != nil || len(now) > 0 {
			return fmt.Errorf("it holds %v: %w", now, err)
		}
		return nil
	})
	do(t, in.Link(t.Context(), in.Remotes[1]))
	w.union(east, 5*time.Second, "and linked again", clusters...)
	w.union(north, 5*time.Second, "and written to again", clusters...)

	_, err = east.Kubectl(t.Context(), "-n", w.ns, "annotate", "service", mesh.Federated,
		"federation.fingerpost.io/endpoint-slices-")
	do(t, err)
	eventually(t, 3*time.Second, "a Service that does not ask for slices any more has none",
		func(ctx context.Context) error {
			if now, err := w.held(ctx, east); err != nil || len(now) > 0 {
				return fmt.Errorf("it holds %v: %w", now, err)
			}
			return nil
		})

	metrics, err := server.Metrics(t.Context())
	do(t, err)
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "fingerpost_slice_write") || strings.HasPrefix(line, "fingerpost_lease_holder") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// scale gives a shop so many replicas, and waits until Kubernetes' own slices hold them.
func (w *world) scale(s *site, replicas int) {
	w.Helper()
	do(w.T, s.Scale(w.Context(), w.ns, mesh.Service, replicas))
	_, err := s.WaitEndpoints(w.Context(), w.ns, mesh.Service, replicas)
	do(w.T, err)
}

// shape checks what a slice with what other clusters hold looks like.
func (w *world) shape(es discoveryv1.EndpointSlice) {
	w.Helper()
	source := es.Labels["federation.fingerpost.io/source-cluster"]
	if o := metav1.GetControllerOf(&es); o == nil || o.Kind != "Service" || o.Name != mesh.Federated {
		w.Errorf("%s: owner %+v", es.Name, o)
	}
	if portsText(es) != fmt.Sprintf("http:%d/TCP", mesh.Port) {
		w.Errorf("%s: ports %s", es.Name, portsText(es))
	}
	identity, local := es.Annotations["mirror.linkerd.io/remote-gateway-identity"], source == clusters[0].Name()
	want := "web." + w.ns + ".serviceaccount.identity.linkerd.cluster.local"
	if local {
		want = ""
	}
	if identity != want {
		w.Errorf("%s of %s: identity %q, want %q", es.Name, source, identity, want)
	}
	for _, e := range es.Endpoints {
		switch {
		case local && (e.TargetRef == nil || e.TargetRef.Kind != "Pod" || e.NodeName == nil):
			w.Errorf("%s: a Pod of this cluster is %+v on %v", es.Name, e.TargetRef, e.NodeName)
		case !local && (e.TargetRef != nil || e.NodeName != nil):
			w.Errorf("%s: a Pod of %s is %+v on %v", es.Name, source, e.TargetRef, e.NodeName)
		case e.Zone == nil || !strings.HasPrefix(*e.Zone, source):
			w.Errorf("%s: zone %v", es.Name, e.Zone)
		case !*e.Conditions.Ready || !*e.Conditions.Serving || *e.Conditions.Terminating:
			w.Errorf("%s: conditions %v %v %v", es.Name, *e.Conditions.Ready, *e.Conditions.Serving,
				*e.Conditions.Terminating)
		}
	}
}

// With the rights of Linkerd's stock role a cluster is read-only: discovery goes on, nothing is tried, and
// the Link reports so. Once the rights are there, it is written to.
func TestReadOnly(t *testing.T) {
	w := newWorld(t, "readonly")
	west, in := clusters[1], w.installations[0]
	strong := in.Remotes[0].Identity
	weak, err := west.CreateIdentity(t.Context(), w.ns, "weak", controlplane.ReadRules())
	do(t, err)
	in.Remotes[0].Identity = weak
	do(t, in.Link(t.Context(), in.Remotes[0]))
	w.replica(in, "east-0")
	eventually(t, 5*time.Second, "the Link reports that west is read-only", func(ctx context.Context) error {
		got, err := in.Condition(ctx, in.Remotes[0], "Writable")
		if err == nil && !strings.HasPrefix(got, "False ReadOnly: ") {
			err = fmt.Errorf("condition %q", got)
		}
		return err
	})
	w.union(clusters[0], 5*time.Second, "what west holds is known", clusters...)
	requests, err := west.Requests()
	do(t, err)
	asked := 0
	for _, q := range requests {
		if !strings.Contains(q.User, w.ns+":weak") {
			continue
		}
		if q.Resource == "selfsubjectaccessreviews" {
			asked++
		} else if slices.Contains([]string{"create", "update", "patch", "delete"}, q.Verb) ||
			q.Code >= 400 && q.Resource == "leases" {
			t.Errorf("%s %s: %d", q.Verb, q.URI, q.Code)
		}
	}
	t.Logf("rights were asked for with %d requests", asked)

	in.Remotes[0].Identity = strong // other credentials: what was refused is asked again
	do(t, in.Link(t.Context(), in.Remotes[0]))
	w.union(west, 5*time.Second, "with the rights west is written to", clusters...)
}
