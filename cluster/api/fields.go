package api

import (
	"bytes"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Message is what is read of a protobuf message; nil is all of it.
//
// Most of a Pod is not read: volumes, environments, probes, states of containers, managed fields. To decode
// it takes most of the CPU and of the garbage of a first sync. So a kind may name what it reads, and the rest
// is dropped from the message before the generated code decodes it.
//
// What it keeps true: a decoded object has what is named, and is as if the API server had not sent the rest.
// A message that cannot be followed is passed on as it came, so that the decoder reports what is wrong with
// it. JSON is decoded whole. A Watcher that reads other fields has a watch of its own (see readers.go).
type Message struct {
	Fields Fields
	If     func(message []byte) bool // whether the message is read at all; nil: it is
}

// Fields are those fields of a message that are read, by number.
type Fields map[int]*Message

// MetadataFields are those of ObjectMeta. Of managed fields it has who wrote them
// and when, not which they are.
var MetadataFields = &Message{Fields: Fields{
	1: nil, 2: nil, 3: nil, 5: nil, 6: nil, 7: nil, 8: nil, 9: nil, 10: nil, 11: nil, 12: nil, 13: nil, 14: nil,
	17: {Fields: Fields{1: nil, 2: nil, 3: nil, 4: nil, 6: nil, 8: nil}},
}}

// Reading restricts a typed Kind to a part of its objects.
func (k Kind) Reading(read *Message) Kind {
	k.read = read
	return k
}

var noLength [10]byte // as long as a varint may be

// Prune appends what is read of a message, which is no longer than the message, and reports
// whether it could be followed.
func (m *Message) Prune(to, message []byte) ([]byte, bool) {
	for len(message) > 0 {
		number, value, left := nextField(message)
		if left < 0 {
			return to, false
		}

		field := message[:len(message)-left]
		message = message[len(field):]

		within, read := m.Fields[number]
		switch isMessage := within != nil && value != nil; {
		case !read, isMessage && within.If != nil && !within.If(value): // dropped
		case !isMessage || within.Fields == nil:
			to = append(to, field...)
		default:
			to = protowire.AppendTag(to, protowire.Number(number), protowire.BytesType)
			start := len(to)
			// There is room for the length that it had, which is enough: what is left is no longer.
			room := protowire.SizeVarint(uint64(len(value)))
			var ok bool
			if to, ok = within.Prune(append(to, noLength[:room]...), value); !ok {
				return to, false
			}
			rest := to[start+room:]
			to = append(protowire.AppendVarint(to[:start], uint64(len(rest))), rest...)
		}
	}
	return to, true
}

// first returns the first field of a number, which is a string or a message; nil for none.
func first(message []byte, number int) []byte {
	for len(message) > 0 {
		n, value, left := nextField(message)
		if left < 0 || n == number && value != nil {
			return value
		}
		message = message[len(message)-left:]
	}
	return nil
}

// protobufPrefix stands before each message of Kubernetes: an Unknown, with its kind and the object.
var protobufPrefix = []byte("k8s\x00")

// pruner makes the protobuf decoder of a serializer drop what is not read of objects of one kind.
type pruner struct {
	runtime.NegotiatedSerializer
	kind string
	read *Message
}

// SupportedMediaTypes returns those of the serializer.
func (p pruner) SupportedMediaTypes() []runtime.SerializerInfo {
	all := slices.Clone(p.NegotiatedSerializer.SupportedMediaTypes())
	for i := range all {
		if all[i].MediaType == runtime.ContentTypeProtobuf {
			all[i].Serializer = pruningSerializer{all[i].Serializer, p.kind, p.read}
		}
	}
	return all
}

type pruningSerializer struct {
	runtime.Serializer
	kind string
	read *Message
}

// buffers are for pruned messages: decoders keep nothing of them.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Decode decodes an object, or a list.
func (s pruningSerializer) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	message, is := bytes.CutPrefix(data, protobufPrefix)
	if !is {
		return s.Serializer.Decode(data, defaults, into)
	}

	read := s.read
	switch string(first(first(message, 1), 2)) {
	case s.kind:
	case s.kind + "List":
		read = &Message{Fields: Fields{1: nil, 2: s.read}}
	default: // a Status
		return s.Serializer.Decode(data, defaults, into)
	}

	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	envelope := Message{Fields: Fields{1: nil, 2: read, 3: nil, 4: nil}}
	pruned, ok := envelope.Prune(append(slices.Grow((*buffer)[:0], len(data)/4), protobufPrefix...), message)
	*buffer = pruned
	if !ok {
		pruned = data
	}
	return s.Serializer.Decode(pruned, defaults, into)
}
