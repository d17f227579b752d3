package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/e2e/hostile/attack"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

const drainKey = "federation.fingerpost.io/drain"

// controlPlane is the Namespace of the control plane of a linked cluster.
func controlPlane(annotations map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "linkerd", UID: "n", Annotations: annotations}}
}

// messages counts what a stream for each authority is sent, until the test ends.
func (w *world) messages(authorities []string) *atomic.Int64 {
	var n atomic.Int64
	ctx, cancel := context.WithCancel(w.t.Context())
	var streams sync.WaitGroup
	client := pb.NewDestinationClient(w.dial())
	for _, authority := range authorities {
		streams.Go(func() {
			stream, err := client.Get(ctx, &pb.GetDestination{Scheme: "k8s", Path: authority})
			for err == nil {
				if _, err = stream.Recv(); err == nil {
					n.Add(1)
				}
			}
			if ctx.Err() == nil {
				w.t.Errorf("%s: %v", authority, err)
			}
		})
	}
	w.t.Cleanup(func() { cancel(); streams.Wait() })
	return &n
}

// A linked cluster drains itself and takes that back as fast as it can. Clients receive a few of these changes.
func TestOwnDrainFlood(t *testing.T) {
	const services, flood = 90, 10 * time.Second
	app := func(cluster byte) func(i int) fakeapi.App {
		return func(i int) fakeapi.App {
			first := netip.AddrFrom4([4]byte{12 + cluster, byte(i >> 8), byte(i), 1})
			return fakeapi.App{Namespace: "shop", Name: fmt.Sprintf("app-%d", i), Pods: 3, First: first}
		}
	}
	w := newBusy(t)
	good, evil := w.link("good"), w.link("evil")
	good.Run(services, app(0))
	evil.Run(services, app(1))
	evil.Apply(controlPlane(nil))
	var authorities []string
	for i := range services {
		w.local.Apply(fakeapi.Federated("shop", fmt.Sprintf("app-%d", i), "good", "evil"))
		authorities = append(authorities, fakeapi.Authority("shop", fmt.Sprintf("app-%d-federated", i)))
	}
	w.serve()
	w.live("good", "evil")
	got := w.messages(authorities)
	w.eventually("all streams are answered", func(context.Context) error {
		if n := got.Load(); n < services {
			return fmt.Errorf("%d messages", n)
		}
		return nil
	})
	w.honest.Report()

	var sent atomic.Int64
	before, began := got.Load(), time.Now()
	evil.Misbehave(fakeapi.Flood(evil, "namespaces", 0, &sent, func(i int) (string, fakeapi.Object) {
		return "MODIFIED", controlPlane([]map[string]string{{drainKey: "true"}, {}}[i%2])
	}))
	w.answered(int(flood / (100 * time.Millisecond))) // the honest client asks that often
	took, n := time.Since(began), got.Load()-before
	evil.Misbehave(nil)
	report := w.honest.Report()
	t.Logf("in %s: %d events, %d messages to %d streams; honest: %s", took, sent.Load(), n, services, report)
	if sent.Load() < 1000 {
		t.Errorf("only %d events were sent", sent.Load())
	}
	const burst, interval = 3, 5 * time.Second // see ownBurst and ownInterval in cluster/self.go
	if may := services * (burst + 2 + int64(took/interval)); n > may {
		t.Errorf("%d messages, may be %d", n, may)
	}
}

// lineCount counts lines of a log by cluster and message, and those that the log reports as left out.
type lineCount struct {
	mu      sync.Mutex
	lines   map[[2]string]int
	leftOut map[[2]string]int
}

func (c *lineCount) Write(b []byte) (int, error) {
	var line struct {
		Msg, Cluster, Message string
		Lines                 int
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if json.Unmarshal(b, &line) != nil || bytes.Count(b, []byte("\n")) != 1 {
		return 0, io.ErrShortWrite
	}
	if strings.HasPrefix(line.Msg, "Lines of the log were left out") {
		c.leftOut[[2]string{line.Cluster, line.Message}] += line.Lines
	} else {
		c.lines[[2]string{line.Cluster, line.Msg}]++
	}
	return len(b), nil
}

// Linked clusters have an object be malformed and mended again as fast as they can, and ask for what cannot be
// read. The log has some of it, and how much else there was; it has everything about another cluster.
func TestLogFlood(t *testing.T) {
	const burst, perSecond = 100, 1 // see cmd/fingerpost/server/logpace.go
	rows := map[string]struct {
		resource, message string
		next              func(i int) (string, fakeapi.Object)
	}{
		"toggled": {
			"services",
			"Parts of an object cannot be used and are left out",
			func(i int) (string, fakeapi.Object) {
				s := fakeapi.App{Namespace: "shop", Name: "app"}.Service()
				for j := range i % 2 * 12 {
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
						Name: strings.Repeat("\xff", 200), Port: int32(1000 + j),
					})
				}
				return "MODIFIED", s
			},
		},
		"unreadable": {
			"namespaces", "The cluster asks to be drained in a way that is not understood",
			func(i int) (string, fakeapi.Object) {
				value := fmt.Sprint("later", i, strings.Repeat("\x01", 100))
				return "MODIFIED", controlPlane(map[string]string{drainKey: value})
			},
		},
	}
	w := newBusy(t)
	w.log = &lineCount{lines: map[[2]string]int{}, leftOut: map[[2]string]int{}}
	sent := map[string]*atomic.Int64{}
	for name := range rows {
		w.link(name).Apply(controlPlane(nil))
	}
	w.serve()
	w.live("toggled", "unreadable")
	began := time.Now()
	for name, row := range rows {
		sent[name] = &atomic.Int64{}
		c := w.api.Cluster(name)
		c.Misbehave(fakeapi.Flood(c, row.resource, 0, sent[name], row.next))
	}
	w.answered(50)
	other := w.link("other")
	other.Run(1, func(int) fakeapi.App { return member(0) })
	w.live("other")
	w.eventually("what is left out is counted", func(context.Context) error {
		w.log.mu.Lock()
		defer w.log.mu.Unlock()
		for name, row := range rows {
			if w.log.leftOut[[2]string{name, row.message}] == 0 {
				return errors.New("nothing about " + name)
			}
		}
		return nil
	})
	for name := range rows {
		w.api.Cluster(name).Misbehave(nil)
	}
	took := time.Since(began)
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	for name, row := range rows {
		kind := [2]string{name, row.message}
		n := w.log.lines[kind]
		t.Logf("%s: %d events in %s, %d lines, at least %d more are counted", name, sent[name].Load(), took, n,
			w.log.leftOut[kind])
		if n == 0 || n > burst+perSecond*int(took/time.Second+2) {
			t.Errorf("%s: %d lines in %s", name, n, took)
		}
	}
	if w.log.lines[[2]string{"other", "Cluster is in use"}] != 1 {
		t.Error("the log does not have that another cluster is in use")
	}
	t.Logf("honest: %s", w.honest.Report())
}

// A linked cluster has nearly all endpoints that it may have in one Service. Clients of that Service get as many as one
// may have, and clients of others wait for none of them.
func TestGiantService(t *testing.T) {
	const slices, size, limit, rate = 199, 1000, 10_000, 10
	w := newBusy(t)
	rogue := w.linkRogue(size, nil)
	rogue.Apply(rogueService("app"))
	w.local.Apply(fakeapi.Federated("shop", "app", "rogue"))
	w.serve()
	w.live("rogue")
	for i := range slices {
		s := rogue.slice("app", size)
		s.Name = fmt.Sprintf("app-%d", i)
		rogue.Apply(s)
	}
	w.slices(slices)
	w.metric("fingerpost_cluster_over_budget")

	c := w.client(fakeapi.Authority("shop", "app-federated"))
	w.answers(c, 1)
	c.Stop()
	if n := len(c.Holds()); n != limit {
		t.Errorf("a client has %d addresses, and should have %d", n, limit)
	}

	w.honest.Report()
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	answered, err := attack.Sweep(ctx, w.server.Addr, "app-federated.shop.svc.cluster.local", rate)
	if err != nil || answered < rate {
		t.Errorf("%d clients were answered: %v", answered, err)
	}
	report := w.honest.Report()
	t.Logf("%d clients, %d each second, of %d addresses; heap %d MiB; honest: %s",
		answered, rate, limit, w.heap(), report)
}
