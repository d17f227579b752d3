package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestCases are the contract cases of the process: its gRPC server (O07, T09) and its admin pages.
func TestCases(t *testing.T) {
	t.Run("O07", testManyStreams)
	t.Run("T01", testAlive)
	t.Run("T02", testReady)
	t.Run("T04", testPprof)
	t.Run("T09", testHandled)
	t.Run("PP03", testAliveUnlisted)
	t.Run("IC44", testIssuerEnds)
	t.Run("IC51", testFilesComeLater)
	t.Run("IC52", testSchemes)
	t.Run("IC53", testRotation)
	t.Run("IC54", testBadCandidates)
	t.Run("IC56", testAnchorComesLater)
	t.Run("IC57", testOtherAnchors)
	t.Run("IC59", testWrittenInPlace)
	t.Run("IC60", testMixedBundle)
	t.Run("IC61", testIssuerExpires)
	t.Run("IC62", testIssuerMetric)
}

// O07: one connection carries as many streams as a client opens.
func testManyStreams(t *testing.T) {
	conn, _, stop := startGRPC(t, nil)
	// A stream that is not accepted waits for one that ends.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const n = 1100
	var streams []pb.Destination_GetClient
	for i := range n {
		get, err := pb.NewDestinationClient(conn).Get(ctx, &pb.GetDestination{Path: "web.ns.svc.cluster.local"})
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		if _, err := get.Recv(); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		streams = append(streams, get)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for i, get := range streams {
		if _, err := get.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("stream %d ended with %v before the server did", i, err)
		}
	}
}

func never() (bool, []string) { return false, nil }

// T01: before clusters are synced the process is alive and serves its metrics.
func testAlive(t *testing.T) {
	for _, path := range []string{"/ping", "/metrics"} {
		if code, body := ask(never, false, path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// T02: it is ready once they are synced.
func testReady(t *testing.T) {
	ready := &Readiness{}
	if code, body := ask(ready.Report, false, "/ready"); code != 500 || body != "not ready\n" {
		t.Errorf("before the sync: %d %q", code, body)
	}
	ready.setReady(true)
	if code, body := ask(ready.Report, false, "/ready"); code != 200 || body != "ok\n" {
		t.Errorf("after the sync: %d %q", code, body)
	}
}

// PP03: while a kind is not listed the process is alive, and /ready names the kind.
func testAliveUnlisted(t *testing.T) {
	unlisted := func() (bool, []string) { return false, []string{"objects of policy (servers.policy.linkerd.io)"} }
	if code, body := ask(unlisted, false, "/live"); code != 200 {
		t.Errorf("/live: %d %s", code, body)
	}
	if code, body := ask(unlisted, false, "/ready"); code == 200 || !strings.Contains(body, "servers") {
		t.Errorf("/ready: %d %s", code, body)
	}
}

// T04: profiles of the process are shown on request.
func testPprof(t *testing.T) {
	for withPprof, want := range map[bool]int{false: 404, true: 200} {
		if code, _ := ask(never, withPprof, "/debug/pprof/"); code != want {
			t.Errorf("/debug/pprof/ with -enable-pprof=%t: %d", withPprof, code)
		}
	}
}

// T09: streams are counted by how they have ended, for each method.
func testHandled(t *testing.T) {
	conn, metrics, stop := startGRPC(t, nil)
	client := pb.NewDestinationClient(conn)
	methods := map[string]func(path string) error{
		"Get": func(path string) error {
			stream, err := client.Get(t.Context(), &pb.GetDestination{Path: path})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
		"GetProfile": func(path string) error {
			stream, err := client.GetProfile(t.Context(), &pb.GetDestination{Path: path})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
	}
	type series struct{ method, code string }
	want := map[series]float64{}
	for name, ask := range methods {
		for i, path := range []string{"none.ns.svc.cluster.local", "web.ns", "web.ns.svc.cluster.local"} {
			code := []codes.Code{codes.NotFound, codes.InvalidArgument, codes.OK}[i] // OK at the end of the server
			want[series{name, code.String()}] = 1
			if err := ask(path); status.Code(err) != code {
				t.Errorf("%s %s: %v, want %s", name, path, err, code)
			}
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "grpc_server_handled_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["grpc_service"] != "io.linkerd.proxy.destination.Destination" {
				continue
			}
			of := series{labels["grpc_method"], labels["grpc_code"]}
			if got := m.GetCounter().GetValue(); got != want[of] {
				t.Errorf("%+v: %v, want %v", of, got, want[of])
			}
			delete(want, of)
		}
	}
	if len(want) > 0 {
		t.Errorf("%v is not counted", want)
	}
}
