package serving

import (
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// MaxFrame bounds a message, in bytes: clients of gRPC decode no more than 4 MiB, unless configured to.
const MaxFrame = 4<<20 - 64<<10

// A Frame is one encoded message. Any number of streams may send it at the same time.
type Frame struct {
	bytes         mem.SliceBuffer
	kind          Kind
	adds, removes int // addresses in it

	flights atomic.Int64 // that gRPC has it in
}

// NewFrame returns a message of a kind. bytes are its encoding, MaxFrame of them at most, and
// must not be written to any more. adds and removes are how many addresses it adds and removes.
func NewFrame(kind Kind, bytes []byte, adds, removes int) *Frame {
	return &Frame{bytes: bytes, kind: kind, adds: adds, removes: removes}
}

// Bytes returns the encoding.
func (f *Frame) Bytes() []byte { return f.bytes }

// Kind returns what the message does.
func (f *Frame) Kind() Kind { return f.kind }

// Addresses returns how many addresses the message adds and removes.
func (f *Frame) Addresses() (added, removed int) { return f.adds, f.removes }

// Kind is what a message does, for metrics and for the status of a stream. Each protocol has its own, and registers
// them with AddKinds.
type Kind string

// Beat is the kind of a message that is nothing but a heartbeat.
const Beat Kind = "heartbeat"

// codec is grpc's own for protobuf, which lets Frames pass untouched.
type codec struct{ encoding.CodecV2 }

// Marshal encodes a message, unless it is a Frame.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	switch m := message.(type) {
	case *Frame:
		return mem.BufferSlice{m.bytes}, nil
	case *flight:
		return m.buffers(), nil
	}
	return c.CodecV2.Marshal(message)
}

// Codec makes a grpc.Server send Frames.
func Codec() grpc.ServerOption {
	return grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)})
}
