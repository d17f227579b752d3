package linkerd

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unicode/utf8"
	"unique"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// setOf returns what a client at a place gets of a union of Services, one Service with each of the endpoints.
func setOf(place federation.Place, query federation.Query, endpoints ...[]*federation.Endpoint) *federation.Set {
	union := &federation.View{
		Ports:       []federation.ServicePort{{Number: 80, Name: "http"}},
		Composition: &federation.Composition{Union: true},
	}
	views := map[federation.Service]*federation.View{streamtest.Web: union}
	for i, all := range endpoints {
		name := federation.Service{Namespace: "ns", Name: fmt.Sprintf("member-%d", i)}
		views[name] = streamtest.ViewOf(&federation.Slice{
			Name:      "a",
			Ports:     []federation.Port{{Number: uint16(8080 + i), Name: "http"}},
			Endpoints: all,
		})
		union.Composition.Members = append(union.Composition.Members,
			federation.MemberRef{Ref: federation.Ref{Cluster: "local", Service: name}})
	}
	store, _ := streamtest.Local(views)
	watch := store.Watch(federation.Ref{Cluster: "local", Service: streamtest.Web})
	defer watch.Close()
	snapshot, _ := watch.Load()
	return federation.Select(snapshot, query, nil).At(place, nil)
}

// oracle returns the messages with each address and all its fields, one message an address,
// all labels on the address.
func oracle(e encoder, set *federation.Set) map[string]*pb.WeightedAddr {
	all := map[string]*pb.WeightedAddr{}
	for entry := range set.All() {
		a := e.weightedAddr(entry)
		for _, l := range setLabelsOf(entry) {
			a.MetricLabels[l.name] = l.value
		}
		all[entry.Addr.String()] = a
	}
	return all
}

// decoded returns the same of frames, and fails for a frame that is no message.
func decoded(t interface{ Fatalf(string, ...any) }, frames []*serving.Frame) map[string]*pb.WeightedAddr {
	all := map[string]*pb.WeightedAddr{}
	for _, f := range frames {
		var u pb.Update
		if err := proto.Unmarshal(f.Bytes(), &u); err != nil {
			t.Fatalf("a frame of %d bytes: %v", len(f.Bytes()), err)
		}
		added, _ := f.Addresses()
		if n := len(u.GetAdd().GetAddrs()); n != added || added == 0 || len(f.Bytes()) > 4<<20 ||
			cap(f.Bytes()) != len(f.Bytes()) {
			t.Fatalf("a frame of %d bytes of %d has %d addresses, and counts %d", len(f.Bytes()),
				cap(f.Bytes()), n, added)
		}
		for _, a := range u.GetAdd().GetAddrs() {
			maps.Copy(a.GetMetricLabels(), u.GetAdd().GetMetricLabels())
			ip, _ := netip.AddrFromSlice(binary.BigEndian.AppendUint32(nil, a.GetAddr().GetIp().GetIpv4()))
			if v6 := a.GetAddr().GetIp().GetIpv6(); v6 != nil {
				ip, _ = netip.AddrFromSlice(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil,
					v6.GetFirst()), v6.GetLast()))
			}
			all[netip.AddrPortFrom(ip, uint16(a.GetAddr().GetPort())).String()] = a
		}
	}
	return all
}

// What a client decodes of an address is what weightedAddr returns for it, whatever shares its message.
func TestEncodingIsWhatIsSaid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string, more ...string) string {
			return rapid.SampledFrom(append(more, "", "a", "b", "ä", strings.Repeat("long", 40))).Draw(t, name)
		}
		ports := func(name string) federation.Ports {
			return rapid.SampledFrom([]federation.Ports{
				{}, federation.PortsOf(), federation.PortsOf(federation.PortRange{First: 8080, Last: 8080}),
			}).Draw(t, name)
		}
		port := func(name string) uint16 { return rapid.SampledFrom([]uint16{0, 4143, 8080, 65535}).Draw(t, name) }
		var templates []unique.Handle[federation.Template]
		for range 3 {
			templates = append(templates, unique.Make(federation.Template{
				ServiceAccount: text("account"), ControlPlane: text("control plane", "linkerd", "linkerd"),
				Hash:   text("hash"),
				Opaque: ports("opaque"), ServerOpaque: ports("servers"), Skip: ports("skip"),
				InboundPort: port("inbound"), AdminPort: port("admin"), ControlPort: port("control"),
				Identity: text("identity"), ServerName: text("server name"),
			}))
		}
		seen := map[netip.Addr]bool{}
		members := make([][]*federation.Endpoint, 2)
		for i := range members {
			for range rapid.IntRange(0, 12).Draw(t, "endpoints") {
				e := &federation.Endpoint{
					Ready: true,
					Zone:  federation.NameOf(text("zone", "z1")),
					Addr:  netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "ip")}),
				}
				if rapid.Bool().Draw(t, "v6") {
					e.Addr = netip.AddrFrom16([16]byte{0xfd, 15: rapid.Byte().Draw(t, "ip")})
				}
				if seen[e.Addr] {
					continue
				}
				seen[e.Addr] = true
				if rapid.Bool().Draw(t, "mirrored") {
					e.Detail = &federation.Detail{Mirror: &federation.Mirror{
						Cluster:  text("cluster"),
						Identity: text("gateway"),
						Name:     text("remote", "svc.ns.local", "other.ns.local"),
					}}
				}
				if rapid.Float64().Draw(t, "bare") > .2 {
					cohort := federation.Cohort{
						Kind: rapid.SampledFrom([]federation.WorkloadKind{
							federation.Pod, federation.Pod, federation.ExternalWorkload,
						}).Draw(t, "kind"),
						Namespace: text("namespace"),
						OwnerKind: text("owner kind", "deployment", "pod", "job", "external_workload", "zone",
							"zone_locality", "serviceaccount", "service", "target_cluster"),
						OwnerName: text("owner"), Template: rapid.SampledFrom(templates).Draw(t, "template"),
					}
					e.Workload = new(cohort.Workload(text("name")))
				}
				members[i] = append(members[i], e)
			}
		}
		config := Defaults()
		config.H2Upgrade = rapid.Bool().Draw(t, "h2")
		config.TransportMode = rapid.SampledFrom([]string{Transparent, TransportHeader}).Draw(t, "transport")
		if rapid.Bool().Draw(t, "params") {
			config.HTTP2 = &pb.Http2ClientParams{
				KeepAlive: &pb.Http2ClientParams_KeepAlive{Interval: durationpb.New(1e10)},
			}
		}
		e := encoder{config: &config, port: 80}
		place := federation.Place{Zone: text("client zone", "z1")}
		set := setOf(place, federation.Query{
			Port:        80,
			IPv6:        true,
			ZoneWeights: rapid.Bool().Draw(t, "zone weights"),
		}, members...)
		frames, leftOut := e.encode(nil, set)
		if leftOut != 0 {
			t.Fatalf("%d addresses are left out", leftOut)
		}
		if diff := cmp.Diff(oracle(e, set), decoded(t, frames), protocmp.Transform()); diff != "" {
			t.Fatalf("what is decoded differs (-want +decoded):\n%s", diff)
		}
		again, _ := e.encode(nil, set)
		for i := range frames {
			if string(frames[i].Bytes()) != string(again[i].Bytes()) {
				t.Fatal("the same is encoded in two ways")
			}
		}
	})
}

// FuzzEncode: no text ends the process, or takes more than its own address from a client.
func FuzzEncode(f *testing.F) {
	for i, text := range []string{
		"", "web-1", "pod-\xff\xfe", "\x00", strings.Repeat("z", 1<<12), "a.b.svc.cluster.local",
	} {
		f.Add(text, i, 1)
	}
	f.Add("z", 5, 5<<20) // more than a message holds
	f.Add("z", 9, 5<<20)
	f.Fuzz(func(t *testing.T, text string, field, times int) {
		if len(text)*max(times, 1) < 6<<20 {
			text = strings.Repeat(text, max(times, 1))
		}
		template := federation.Template{ServiceAccount: "web", ControlPlane: "linkerd", Hash: "1"}
		cohort := federation.Cohort{Namespace: "ns", OwnerKind: "deployment", OwnerName: "web"}
		name, zone := "web-1", "z"
		odd := &federation.Endpoint{
			Addr:   netip.MustParseAddr("10.0.0.1"),
			Ready:  true,
			Detail: &federation.Detail{Mirror: &federation.Mirror{Cluster: "east", Name: "a.b.c"}},
		}
		fields := []*string{
			&name, &cohort.Namespace, &cohort.OwnerKind, &cohort.OwnerName, &template.ServiceAccount, &zone,
			&template.Hash, &template.ControlPlane,
			&odd.Mirror().Cluster, &odd.Mirror().Name, &template.Identity, &template.ServerName,
		}
		*fields[uint(field)%uint(len(fields))] = text
		cohort.Template = unique.Make(template)
		if uint(field)%3 == 0 {
			cohort.Kind = federation.ExternalWorkload
		}
		odd.Zone, odd.Workload = federation.NameOf(zone), new(cohort.Workload(name))
		sound := streamtest.PodsOf(3, "z").Endpoints
		for _, e := range sound {
			e.Addr = e.Addr.Next()
		}
		set := setOf(federation.Place{}, federation.Query{Port: 80}, append([]*federation.Endpoint{odd}, sound...))
		config := Defaults()
		e := encoder{config: &config, port: 80}
		frames, leftOut := e.encode(nil, set)
		got, want := decoded(t, frames), oracle(e, set)
		if leftOut > 0 {
			if utf8.ValidString(text) && len(text) < 1<<20 {
				t.Errorf("%q is left out", text)
			}
			delete(want, "10.0.0.1:8080")
		}
		if len(got) != len(want) || len(got)+leftOut != 4 {
			t.Fatalf("%d addresses are encoded and %d left out of 4", len(got), leftOut)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" && leftOut == 0 && len(text) < 1<<10 {
			t.Errorf("what is decoded differs (-want +decoded):\n%s", diff)
		}
	})
}

// TestEncodeBudget: encoding allocates the frame, and little besides for each address.
func TestEncodeBudget(t *testing.T) {
	const endpoints, allocs = 1000, 100
	set := setOf(federation.Place{Zone: "a"}, federation.Query{Port: 80}, streamtest.PodsOf(endpoints, "a").Endpoints)
	config := Defaults()
	e := encoder{config: &config, port: 80}
	if n := testing.AllocsPerRun(10, func() { e.encode(nil, set) }); n > allocs {
		t.Errorf("%v allocations for %d addresses, the budget is %d", n, endpoints, allocs)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	frames, _ := e.encode(nil, set)
	runtime.ReadMemStats(&after)
	if n := int(after.TotalAlloc-before.TotalAlloc) - len(frames[0].Bytes()); n > 300*endpoints {
		t.Errorf("%d bytes are allocated for %d addresses besides the frame", n, endpoints)
	}
}

// Of what a linked cluster publishes, one text that is no UTF-8 costs its own address only, on streams
// of either kind.
func TestOneAddressCostsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		odd := streamtest.PodsOf(1, "a").Endpoints[0]
		odd.Workload.Name = "pod-\xff\xfe"
		sound := streamtest.PodsOf(3, "a").Endpoints[1:]
		alone := federation.Service{Namespace: "ns", Name: "alone"}
		store, _ := streamtest.Local(map[federation.Service]*federation.View{
			streamtest.Web: streamtest.ViewOf(&federation.Slice{
				Name:      "a",
				Ports:     []federation.Port{{Number: 8080, Name: "http"}},
				Endpoints: append(sound, odd),
			}),
			alone: streamtest.ViewOf(&federation.Slice{
				Name:      "a",
				Ports:     []federation.Port{{Number: 8080, Name: "http"}},
				Endpoints: []*federation.Endpoint{odd},
			}),
		})
		store.Addresses.NewWriter("local").Set(odd.Addr, &federation.Address{Residents: []federation.Resident{{
			Workload: odd.Workload,
			Running:  true,
		}}})
		s := NewServer(logr.Discard(), transport(), store, Defaults())
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		get := func(path string) *streamtest.Sink {
			sink := streamtest.NewOpenSink(ctx)
			wg.Go(func() { _ = s.Get(&pb.GetDestination{Path: path}, sink) })
			synctest.Wait()
			return sink
		}
		if n := len(get(streamtest.Path).Holds()); n != 2 {
			t.Errorf("%d addresses arrive, want 2", n)
		}
		if sent := get("alone.ns.svc.cluster.local").Sent(); len(sent) != 1 || sent[0] != streamtest.Frame(emptyFrame) {
			t.Errorf("a Service of such an address only is answered with %v", sent)
		}
		profile := streamtest.NewCounter(ctx)
		wg.Go(func() {
			_ = s.GetProfile(&pb.GetDestination{Path: odd.Addr.String() + ":8080"}, profileCounter{profile})
		})
		synctest.Wait()
		if n, _ := profile.Count(); n != 1 {
			t.Errorf("%d profiles of the address", n)
		}
		if n := metric(t, s, "fingerpost_left_out_total"); n != 3 {
			t.Errorf("%d are counted, want 3", n)
		}
		cancel()
		wg.Wait()
	})
}

type profileCounter struct{ *streamtest.Counter }

func (profileCounter) Send(*pb.DestinationProfile) error { panic("frames only") }
