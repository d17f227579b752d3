package linkerd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// A profile depends on what its Service declares. Endpoints, which change much more often, wake no stream.
func TestProfileWakesForDeclarations(t *testing.T) {
	store, writer := streamtest.Local(map[federation.Service]*federation.View{
		streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("s", 0, 3)),
	})
	streamOf := func(hostname string) *profileStream {
		asked := profileTarget{Query: discovery.Query{Service: streamtest.Web, Port: 80, Hostname: hostname}}
		server := NewServer(logr.Discard(), transport(), store, Defaults())
		return server.newProfileStream(streamtest.Path, asked, serving.Client{}, streamtest.NewCounter(t.Context()))
	}
	of, one := streamOf(""), streamOf("h")
	defer of.close()
	defer one.close()
	var sent *serving.Frame // of the Service
	changed := func(change func(*federation.View)) *federation.View {
		v := streamtest.ViewOf(streamtest.SliceOf("s", 0, 2))
		v.Slices[0].Endpoints[0].Detail = &federation.Detail{Hostname: "h"}
		change(v)
		return v
	}
	for _, c := range []struct {
		what string
		view *federation.View // nil: there is none
		wake bool
	}{
		{"an endpoint leaves", changed(func(*federation.View) {}), false},
		{
			"an endpoint is not ready",
			changed(func(v *federation.View) { v.Slices[0].Endpoints[0].Ready = false }), false,
		},
		{
			"a slice comes",
			changed(func(v *federation.View) { v.Slices = append(v.Slices, streamtest.SliceOf("t", 1, 1)) }),
			false,
		},
		{"all endpoints leave", changed(func(v *federation.View) { v.Slices = nil }), false},
		{"traffic becomes local", changed(func(v *federation.View) { v.LocalOnly = true }), false},
		{
			"a port is declared",
			changed(func(v *federation.View) { v.Ports = append(v.Ports, federation.ServicePort{Number: 81}) }),
			true,
		},
		{
			"a port is opaque",
			changed(func(v *federation.View) {
				v.Opaque = federation.PortsOf(federation.PortRange{First: 80, Last: 80})
			}),
			true,
		},
		{"the Service is deleted", nil, true},
		{"the Service is created", changed(func(*federation.View) {}), true},
		{"the Service becomes an alias", changed(func(v *federation.View) { v.ExternalName = true }), true},
	} {
		level, known, _ := of.load(time.Now(), sent)
		_, _, _ = one.load(time.Now(), nil)
		if known && sent == nil {
			sent, _ = of.server.encodeProfile(level)
		}
		rung(of) // by the change before
		rung(one)
		if c.view == nil {
			writer.Delete(streamtest.Web)
		} else {
			writer.Set(streamtest.Web, c.view)
		}
		if woken := rung(of); woken != c.wake {
			t.Errorf("%s: a stream of the Service is woken: %v", c.what, woken)
		}
		if !rung(one) {
			t.Errorf("%s: a stream of one of its endpoints is not woken", c.what)
		}
	}
}

// rung reports whether a stream is woken, once.
func rung(l *profileStream) bool {
	select {
	case <-l.Bell().Rung():
		return true
	default:
		return false
	}
}

// A profile of a Service that is about to exist is sent, and of one that does not come the error after a moment.
func TestProfileOfNewService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, writer := streamtest.Local(nil)
		server := NewServer(logr.Discard(), transport(), store, Defaults())
		ctx, cancel := context.WithCancel(t.Context())
		ask := func() (*streamtest.Counter, chan error) {
			sink, done := streamtest.NewCounter(ctx), make(chan error, 1)
			go func() { done <- server.GetProfile(&pb.GetDestination{Path: streamtest.Path}, profileCounter{sink}) }()
			return sink, done
		}
		began := time.Now()
		_, done := ask()
		if err := <-done; status.Code(err) != codes.NotFound || time.Since(began) > time.Second/10 {
			t.Errorf("a Service that does not exist, after %s: %v", time.Since(began), err)
		}
		began = time.Now()
		sink, done := ask()
		synctest.Wait() // it was asked for
		writer.Set(streamtest.Web, streamtest.ViewOf(streamtest.SliceOf("s", 0, 3)))
		sink.Wait(1)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a new Service was found after %s", waited)
		}
		cancel()
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	})
}
