package discovery

import (
	"testing"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/federation"
)

// A profile depends on what its Service declares. Endpoints, which change much more often, wake no stream.
func TestProfileWakesForDeclarations(t *testing.T) {
	store, claims := local(map[federation.Service]*federation.View{web: viewOf(sliceOf("s", 0, 3))})
	lookupOf := func(asked authority) *lookup {
		return newLookup(NewServer(logr.Discard(), store, Defaults()), path, target{authority: asked}, client{}, newCounter(t.Context()))
	}
	of, one := lookupOf(authority{service: web, port: 80}), lookupOf(authority{service: web, port: 80, hostname: "h"})
	defer of.close()
	defer one.close()
	changed := func(change func(*federation.View)) *federation.View {
		v := viewOf(sliceOf("s", 0, 2))
		v.Slices[0].Endpoints[0].Hostname = "h"
		change(v)
		return v
	}
	for _, c := range []struct {
		what string
		view *federation.View // nil: there is none
		wake bool
	}{
		{"an endpoint leaves", changed(func(*federation.View) {}), false},
		{"an endpoint is not ready", changed(func(v *federation.View) { v.Slices[0].Endpoints[0].Ready = false }), false},
		{"a slice comes", changed(func(v *federation.View) { v.Slices = append(v.Slices, sliceOf("t", 1, 1)) }), false},
		{"all endpoints leave", changed(func(v *federation.View) { v.Slices = nil }), false},
		{"traffic becomes local", changed(func(v *federation.View) { v.LocalOnly = true }), false},
		{"a port is declared", changed(func(v *federation.View) { v.Ports = append(v.Ports, federation.ServicePort{Number: 81}) }), true},
		{"a port is opaque", changed(func(v *federation.View) { v.Opaque = federation.PortsOf(federation.PortRange{First: 80, Last: 80}) }), true},
		{"the Service is deleted", nil, true},
		{"the Service is created", changed(func(*federation.View) {}), true},
		{"the Service becomes an alias", changed(func(v *federation.View) { v.ExternalName = true }), true},
	} {
		before, on, _ := of.answer()
		_, instance, _ := one.answer()
		if of.last == nil {
			of.last = before
		}
		if c.view == nil {
			claims.Delete(web)
		} else {
			claims.Set(web, c.view)
		}
		if woken := closed(on.service); woken != c.wake {
			t.Errorf("%s: a stream of the Service is woken: %v", c.what, woken)
		}
		if !closed(instance.service) {
			t.Errorf("%s: a stream of one of its endpoints is not woken", c.what)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
