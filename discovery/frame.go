package discovery

import (
	"sync/atomic"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
)

// maxFrame bounds a message, in bytes: proxies decode no more than 4 MiB.
const maxFrame = 4<<20 - 64<<10

// A frame is one encoded message. Any number of streams may send it at the same time.
type frame struct {
	bytes         mem.SliceBuffer
	what          what
	adds, removes int // addresses in it

	flights atomic.Int64 // that gRPC has it in
}

// what a frame tells.
type what string

const (
	toAdd     what = "add"
	toRemove  what = "remove"
	isEmpty   what = "no_endpoints"
	heartbeat what = "heartbeat"
	toProfile what = "profile"
)

// codec is grpc's own for protobuf, which lets frames pass untouched.
type codec struct{ encoding.CodecV2 }

// Marshal encodes a message, unless it is a frame.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	switch m := message.(type) {
	case *frame:
		return mem.BufferSlice{m.bytes}, nil
	case *flight:
		return m.buffers(), nil
	}
	return c.CodecV2.Marshal(message)
}

// Codec makes a grpc.Server send frames.
func Codec() grpc.ServerOption {
	return grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)})
}

// Frames that are the same for everybody.
var (
	heartbeatFrame = constant(heartbeat, &pb.Update{Update: &pb.Update_Add{Add: &pb.WeightedAddrSet{}}})
	emptyFrame     = constant(isEmpty, &pb.Update{Update: &pb.Update_NoEndpoints{NoEndpoints: &pb.NoEndpoints{Exists: true}}})
	absentFrame    = constant(isEmpty, &pb.Update{Update: &pb.Update_NoEndpoints{NoEndpoints: &pb.NoEndpoints{Exists: false}}})
)

func constant(w what, m protobuf.Message) *frame {
	b, err := marshal(m)
	if err != nil {
		panic("BUG: a constant that cannot be encoded: " + err.Error())
	}
	return &frame{bytes: b, what: w}
}

// marshal encodes a message, and fails if a text in it is no UTF-8.
func marshal(m protobuf.Message) ([]byte, error) {
	return protobuf.MarshalOptions{Deterministic: true}.Marshal(m)
}
