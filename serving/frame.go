package serving

import (
	"iter"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// MaxFrame bounds a message, in bytes: clients of gRPC decode no more than 4 MiB, unless configured to.
const MaxFrame = 4<<20 - 64<<10

// A Frame is one encoded message, or a part of one that others have in common with it. Any number of streams may send
// it at the same time.
type Frame struct {
	bytes         mem.SliceBuffer
	parts         []*Frame // that the message consists of if it was composed; bytes is nil then
	messageType   MessageType
	adds, removes int // addresses in it
	refusal       error

	flights atomic.Int64 // that gRPC has it in
}

// NewFrame returns a message of a type. bytes are its encoding, MaxFrame of them at most, and
// must not be written to any more. adds and removes are how many addresses it adds and removes.
func NewFrame(messageType MessageType, bytes []byte, adds, removes int) *Frame {
	return &Frame{bytes: bytes, messageType: messageType, adds: adds, removes: removes}
}

// NewRefusal returns what takes the place of a message that cannot be sent, for all streams that share it: one that has
// sent nothing ends with the error, and others keep what they have.
func NewRefusal(err error) *Frame { return &Frame{refusal: err} }

// Compose returns a message of a type: all fields of some messages, and then those of a tail of its own. Messages that
// are composed of one Frame share its bytes, in memory and in flight, as streams that send it do. So the answers of
// several Feeds are one message, which costs a stream what it does not share: a nonce, or a version. It counts the
// addresses that its parts do. The caller ensures that all of it has MaxFrame bytes at most.
//
// In protobuf the fields of one message after those of another one are both of them, merged: elements of repeated
// fields add up, of other fields the last one counts. Parts that are too small to be counted in flight are copied, and
// come after the others.
func Compose(messageType MessageType, parts []*Frame, tail []byte) *Frame {
	message := &Frame{messageType: messageType}
	var own []byte

	for _, part := range parts {
		message.adds += part.adds
		message.removes += part.removes
		for plain := range part.plain() {
			if plain.counts() {
				message.parts = append(message.parts, plain)
			} else {
				own = append(own, plain.bytes...)
			}
		}
	}

	message.parts = append(message.parts, &Frame{bytes: append(own, tail...)})
	return message
}

// plain returns the parts of the message, or the message itself if it has none.
func (f *Frame) plain() iter.Seq[*Frame] {
	if f.parts == nil {
		return func(yield func(*Frame) bool) { yield(f) }
	}
	return slices.Values(f.parts)
}

// counts reports whether the bytes of a plain Frame are counted in flight.
func (f *Frame) counts() bool { return len(f.bytes) > maxUncounted }

// Len returns how many bytes the encoding has.
func (f *Frame) Len() int {
	n := len(f.bytes)
	for _, part := range f.parts {
		n += len(part.bytes)
	}
	return n
}

// Bytes returns the encoding, which must not be written to. It is a copy if the message was composed.
func (f *Frame) Bytes() []byte {
	if f.parts == nil {
		return f.bytes
	}
	return f.buffers().Materialize()
}

// buffers returns the encoding as it is.
func (f *Frame) buffers() mem.BufferSlice {
	all := make(mem.BufferSlice, 0, 1+len(f.parts))
	for plain := range f.plain() {
		all = append(all, plain.bytes)
	}
	return all
}

// Type returns what the message does.
func (f *Frame) Type() MessageType { return f.messageType }

// Addresses returns how many addresses the message adds and removes.
func (f *Frame) Addresses() (added, removed int) { return f.adds, f.removes }

// A MessageType is what a message does, for metrics and for the status of a stream. Each protocol has its own, and
// registers them with AddTypes.
type MessageType string

// Beat is the type of a message that is nothing but a heartbeat.
const Beat MessageType = "heartbeat"

// encoded is a message that needs no encoding: a Frame, or what it becomes where its bytes count.
type encoded interface{ buffers() mem.BufferSlice }

// codec is grpc's own for protobuf, which lets Frames pass untouched.
type codec struct{ encoding.CodecV2 }

// Marshal encodes a message, unless it is encoded.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	if m, is := message.(encoded); is {
		return m.buffers(), nil
	}
	return c.CodecV2.Marshal(message)
}

// Codec makes a grpc.Server send Frames.
func Codec() grpc.ServerOption {
	return grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)})
}
