package discovery

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// toy is a protocol with nothing to it, which the tests of the engine use: clients ask for
// <service>.<namespace>.svc.cluster.local:<port>, their token is the name of their node, and an Answer
// is sent as a message of addresses to add and one of addresses to remove.
type toy struct {
	pb.UnimplementedDestinationServer
	*Engine
}

func newToy(store *federation.Store, config serving.Config) *toy {
	return &toy{Engine: NewEngine(serving.NewServer(logr.Discard(), config), store, DefaultConfig())}
}

// unhurried returns a toy that refuses no stream.
func unhurried(store *federation.Store) *toy { return unhurriedWith(store, 64<<20) }

// unhurriedWith returns one that keeps so many bytes of frames.
func unhurriedWith(store *federation.Store, bytes int64) *toy {
	config := serving.DefaultConfig()
	config.FrameBytes = bytes
	config.Admission = serving.AdmissionConfig{Rate: 1e9, Burst: 1e9, Answers: 1000, Patience: time.Minute}
	return newToy(store, config)
}

func (s *toy) Get(request *pb.GetDestination, sink pb.Destination_GetServer) error {
	q, err := queryOf(request.GetPath())
	if err != nil {
		return err
	}
	stream := s.server.Open(sink, "Get", request.GetPath(), serving.Client{Node: request.GetContextToken()})
	defer stream.Close()
	stream.SetHeartbeat(serving.Heartbeat{Frame: toyBeat, First: 2 * time.Second, Idle: 4 * time.Minute})
	return s.Serve(stream, q, Protocol{Encoder: plain{q.Port}, Reject: rejection})
}

func queryOf(path string) (Query, error) {
	host, digits, found := strings.Cut(path, ":")
	port, err := strconv.ParseUint(digits, 10, 16)
	if found && err != nil {
		return Query{}, status.Error(codes.InvalidArgument, err.Error())
	} else if !found {
		port = 80
	}
	labels := strings.Split(strings.TrimSuffix(host, ".svc.cluster.local"), ".")
	if len(labels) == 2 {
		labels = append([]string{""}, labels...)
	}
	if len(labels) != 3 {
		return Query{}, status.Errorf(codes.InvalidArgument, "no name: %s", host)
	}
	return Query{
		Service:  federation.Service{Namespace: labels[2], Name: labels[1]},
		Hostname: labels[0],
		Port:     uint16(port),
	}, nil
}

func rejection(a *federation.Answer, first bool) error {
	switch {
	case first && a.State == federation.Rejected:
		return status.Error(codes.FailedPrecondition, "rejected")
	case first && a.State == federation.Absent:
		return status.Errorf(codes.NotFound, "no Service %s", a.Snapshot.Name)
	}
	return nil
}

// plain is the toy's Encoder.
type plain struct{ port uint16 }

func (p plain) Update(from, to *federation.Answer) (frames []*serving.Frame, leftOut int) {
	if from == nil {
		from = &federation.Answer{}
	}
	add, remove := federation.DiffAt(from.Set, to.Set, p.port)
	if len(add) > 0 {
		set := &pb.WeightedAddrSet{}
		for _, c := range add {
			a := &pb.WeightedAddr{
				Addr:         tcp(c.At(p.port)),
				Weight:       c.Weight,
				MetricLabels: map[string]string{"zone": c.Endpoint.Zone.String()},
			}
			a.MetricLabels["nearness"] = fmt.Sprint(c.Nearness)
			if w := c.Endpoint.Workload; w != nil {
				a.MetricLabels["pod"] = w.Name
			}
			set.Addrs = append(set.Addrs, a)
		}
		frames = append(frames, toyFrame(Add, &pb.Update{Update: &pb.Update_Add{Add: set}}, len(add), 0))
	}
	if len(remove) > 0 {
		set := &pb.AddrSet{}
		for _, addr := range remove {
			set.Addrs = append(set.Addrs, tcp(addr))
		}
		frames = append(frames, toyFrame(Remove, &pb.Update{Update: &pb.Update_Remove{Remove: set}}, 0, len(remove)))
	}
	if to.Set.Empty() && to.State != federation.Unknown && len(frames) == 0 {
		none := &pb.Update{
			Update: &pb.Update_NoEndpoints{NoEndpoints: &pb.NoEndpoints{Exists: to.State == federation.Empty}},
		}
		frames = append(frames, toyFrame(NoEntries, none, 0, 0))
	}
	return frames, 0
}

var toyBeat = toyFrame(serving.Beat, &pb.Update{Update: &pb.Update_Add{Add: &pb.WeightedAddrSet{}}}, 0, 0)

func toyFrame(kind serving.MessageType, u *pb.Update, adds, removes int) *serving.Frame {
	b, err := proto.Marshal(u)
	if err != nil {
		panic(err)
	}
	return serving.NewFrame(kind, b, adds, removes)
}

func tcp(addr netip.AddrPort) *netpb.TcpAddress {
	ip := addr.Addr().As4()
	v4 := uint32(ip[0])<<24 | uint32(ip[1])<<16 | uint32(ip[2])<<8 | uint32(ip[3])
	return &netpb.TcpAddress{Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: v4}}, Port: uint32(addr.Port())}
}
