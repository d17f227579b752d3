package linkerd

import (
	"bytes"
	"net/netip"
	"testing"
	"unique"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
)

// An address is sent again if, and only if, it has changed for the client: what differs between
// two Workloads makes a message exactly where the messages differ. Two that differ in labels, names or
// the proxy's ports are distinguished in any case.
func TestAddressesAreSaidAgainForAReason(t *testing.T) {
	ports := []uint16{80, 443, 3306, 8080}
	drawPorts := func(t *rapid.T, name string) federation.Ports {
		if rapid.Bool().Draw(t, name+" unsaid") {
			return federation.Ports{}
		}
		var ranges []federation.PortRange
		for _, n := range ports {
			if rapid.Bool().Draw(t, name) {
				ranges = append(ranges, federation.PortRange{First: n, Last: n + 1})
			}
		}
		return federation.PortsOf(ranges...)
	}
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]federation.WorkloadKind{federation.Pod, federation.ExternalWorkload}).Draw(t,
			"kind")
		config := Defaults()
		config.ControllerNamespace = "linkerd"
		config.DefaultOpaquePorts = federation.PortsOf(federation.PortRange{First: 3306, Last: 3306})
		config.TransportMode = rapid.SampledFrom([]string{Transparent, TransportHeader}).Draw(t, "transport")
		port := rapid.SampledFrom(ports).Draw(t, "port")
		draw := func() (*federation.Set, []byte) {
			template := federation.Template{
				ServiceAccount: "default", ControlPlane: "linkerd", InboundPort: 4143, AdminPort: 4191,
				ControlPort: 4190, Identity: "spiffe://a", ServerName: "a",
				Opaque: drawPorts(t, "opaque"), ServerOpaque: drawPorts(t, "servers"), Skip: drawPorts(t, "skip"),
			}
			cohort := federation.Cohort{Kind: kind, Namespace: "ns", Template: unique.Make(template)}
			store, writer := streamtest.Local(nil)
			writer.Set(streamtest.Web, &federation.View{
				Ports: []federation.ServicePort{{Number: 80, Name: "http"}},
				Slices: []*federation.Slice{{
					Name: "web", Ports: []federation.Port{{Number: port, Name: "http"}},
					Endpoints: []*federation.Endpoint{{
						Addr:     netip.MustParseAddr("10.0.0.1"),
						Ready:    true,
						Workload: new(cohort.Workload("web-1")),
					}},
				}},
			})
			watch := store.Watch(federation.Ref{Cluster: "local", Service: streamtest.Web})
			defer watch.Close()
			snapshot, _ := watch.Load()
			set := federation.Select(snapshot, federation.Query{Port: 80}, nil).At(federation.Place{}, nil)
			frames, _ := encoder{config: &config, port: 80}.encode(nil, set)
			return set, frames[0].Bytes()
		}
		a, as := draw()
		b, bs := draw()
		again, gone := federation.Diff(a, b)
		if len(gone) > 0 || len(again) == 0 && !bytes.Equal(as, bs) {
			t.Fatalf("the messages differ, and nothing would be sent: %q %q", as, bs)
		}
		sent, _ := encoder{config: &config, port: 80}.encode(a, b)
		if len(sent) > 0 && bytes.Equal(as, bs) && sameSets(a, b, port) {
			t.Fatalf("nothing is new, and it would be sent again: %q", as)
		}
	})
}

// sameSets reports whether two workloads have equal sets of ports, as far as a port is concerned.
func sameSets(a, b *federation.Set, port uint16) bool {
	of := func(s *federation.Set) federation.Template {
		for e := range s.All() {
			return e.Endpoint.Workload.Template()
		}
		panic("BUG: an empty Set")
	}
	x, y := of(a), of(b)
	return x.Opaque.Given() == y.Opaque.Given() && x.Opaque.Contains(port) == y.Opaque.Contains(port) &&
		x.ServerOpaque.Contains(port) == y.ServerOpaque.Contains(port) && x.Skip.Contains(port) == y.Skip.Contains(port)
}
