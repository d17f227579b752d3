package api

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	metainternalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// The memory that a response takes depends on what is in it, not on its bytes. Two bytes of protobuf, or
// three of JSON, are a Pod of more than a kilobyte: a megabyte of them would end the process, and decoders
// have no bound. So a response is measured before it is decoded, in the transport that all requests pass.
//
// What it keeps true: of what is being read of one API server, no more is decoded than maxDecoded, or
// some times as much where the measure is a rough one. What an API server can have stored passes: an
// object of 1.5 MiB takes less.
//
//   - A message in protobuf names its kind. Its fields are followed through the Go type of that kind, whose
//     tags have their numbers, so that each element counts with the size that it has in memory. A message
//     that a decoder could read in another way is rejected.
//   - In JSON each object, array and element counts as much as any may take: much where the request accepts
//     protobuf as well, because then they become structs. API servers answer such a request with protobuf.
//
// What it costs: a copy of each page of a list in protobuf, and 5 us for a Pod of 4 KB.
const (
	jsonByte       = 4    // bytes in memory for each of JSON
	jsonValue      = 64   // and for each name, and each object, array and element that has no type
	typedJSONValue = 3000 // or one of Kubernetes' own
	otherByte      = 1000 // and for each byte of anything else, such as YAML

	maxJSONNesting = 10_000 // what decoders read
)

// content measures what a body has, however it is cut into reads: JSON, or the events of a watch. It finds
// where events begin, because decoders read each as a whole, however large it is.
type content struct {
	events   bool
	protobuf bool
	maxEvent int // bytes
	size     int // in memory, of all that is complete; of a watch, of what was read last

	// Of protobuf.
	header  []byte // of the next event; as long as it is not complete
	left    int    // bytes of this event that are still to come
	message []byte // what came of it before, if it is not all in one read

	// Of JSON.
	value           int    // bytes in memory
	partial         int    // bytes in memory of what is not complete
	length          int    // of an event
	open            []byte // the objects and arrays around what comes: how each begins
	quoted, escaped bool
	closed          bool // what came last is one, which was counted when it began
}

// newContent returns what measures a body: events, or JSON.
func newContent(events, protobuf bool, accepted string) *content {
	c := &content{events: events, protobuf: protobuf, maxEvent: maxEvent, value: jsonValue}
	if strings.Contains(accepted, runtime.ContentTypeProtobuf) {
		c.value = typedJSONValue
	}
	return c
}

// startRead forgets what was read of a watch before, and returns what counts of it.
func (c *content) startRead() int {
	c.size = 0
	return c.partial
}

// add adds what was read, and returns the size of it all.
func (c *content) add(b []byte) (size int, err error) {
	if c.protobuf {
		err = c.addEvents(b)
	} else {
		err = c.addJSON(b)
	}
	return c.size + c.partial, err
}

func (c *content) errEvent() error {
	return newResponseError("an event is larger than %d MiB", c.maxEvent>>20)
}

func (c *content) addEvents(data []byte) error {
	for len(data) > 0 {
		if c.left == 0 {
			n := min(4-len(c.header), len(data))
			c.header = append(c.header, data[:n]...)
			data = data[n:]
			if len(c.header) < 4 {
				return nil
			}

			length := binary.BigEndian.Uint32(c.header)
			if uint64(length) > uint64(c.maxEvent) {
				return c.errEvent()
			}
			c.left, c.header = int(length), c.header[:0]
			continue
		}

		event := data[:min(c.left, len(data))]
		data = data[len(event):]
		if c.left -= len(event); c.left > 0 || c.message != nil {
			c.message = append(c.message, event...)
			event = c.message
		}
		if c.left > 0 {
			continue
		}

		size, err := eventSize(event)
		if err != nil {
			return err
		}
		c.size += size
		c.message = nil
	}
	return nil
}

func (c *content) addJSON(b []byte) error {
	for _, char := range b {
		c.length++
		if c.events && c.length > c.maxEvent {
			return c.errEvent()
		}

		c.partial += jsonByte
		switch {
		case c.escaped:
			c.escaped = false
		case c.quoted:
			c.escaped, c.quoted = char == '\\', char != '"'
		case char == '"':
			c.quoted = true
		case char == ':':
			c.partial += jsonValue
		case char == ',':
			if inArray := len(c.open) > 0 && c.open[len(c.open)-1] == '['; inArray && !c.closed {
				c.partial += c.value
			}
			c.closed = false
		case char == '{' || char == '[':
			c.partial += c.value
			if c.open = append(c.open, char); len(c.open) > maxJSONNesting {
				return newResponseError("an object is nested deeper than %d levels", maxJSONNesting)
			}
			c.closed = false
		case char == '}' || char == ']':
			c.closed = true
			c.open = c.open[:max(0, len(c.open)-1)]
			if len(c.open) == 0 && c.events {
				c.size += c.partial
				c.length, c.partial = 0, 0
			}
		}
	}
	return nil
}

// A messageType is what is known of a message in protobuf.
type messageType struct {
	fields []fieldType // by number
}

// A fieldType is what is known of a field.
type fieldType struct {
	size    int          // bytes in memory of one, besides that of the message
	perByte int          // and for each byte of it
	message *messageType // nil unless it is one
}

// messageTypes are those that were needed until now.
type messageTypes struct {
	mu    sync.RWMutex
	types map[reflect.Type]*messageType
	kinds map[schema.GroupVersionKind]*messageType
}

var knownTypes = messageTypes{
	types: map[reflect.Type]*messageType{},
	kinds: map[schema.GroupVersionKind]*messageType{},
}

// ofKind returns the type that a kind is decoded to, or nil for none.
func (m *messageTypes) ofKind(apiVersion, kind string) *messageType {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil
	}

	gvk := gv.WithKind(kind)
	m.mu.RLock()
	known := m.kinds[gvk]
	m.mu.RUnlock()
	if known != nil {
		return known
	}

	object, err := scheme.Scheme.New(gvk)
	if err != nil {
		object, err = metainternalscheme.Scheme.New(gvk)
	}
	if err != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()

	known = m.of(reflect.TypeOf(object).Elem())
	m.kinds[gvk] = known
	return known
}

// of returns what is known of a struct.
func (m *messageTypes) of(t reflect.Type) *messageType {
	if known := m.types[t]; known != nil {
		return known
	}

	message := &messageType{}
	m.types[t] = message
	for f := range t.Fields() {
		// Such as bytes,2,rep,name=items.
		if tag := strings.Split(f.Tag.Get("protobuf"), ","); len(tag) > 1 {
			if number, err := strconv.Atoi(tag[1]); err == nil {
				message.set(number, fieldType{}) // it has fields, should one of them lead back here
				message.set(number, m.field(f.Type))
			}
		}
	}
	return message
}

func (t *messageType) set(number int, f fieldType) {
	for len(t.fields) <= number {
		t.fields = append(t.fields, fieldType{})
	}
	t.fields[number] = f
}

func (m *messageTypes) field(typ reflect.Type) fieldType {
	switch typ.Kind() {
	case reflect.Pointer:
		f := m.field(typ.Elem())
		f.size += int(typ.Elem().Size())
		return f
	case reflect.Struct:
		message := m.of(typ)
		if message.fields == nil { // one that decodes itself, such as Time
			return fieldType{perByte: 1}
		}
		return fieldType{perByte: 1, message: message}
	case reflect.Slice:
		size := 2 * int(typ.Elem().Size()) // a slice that grows is there twice
		switch f := m.field(typ.Elem()); {
		case typ.Elem().Kind() == reflect.Uint8:
			return fieldType{perByte: 1}
		case typ.Name() != "" || f.message == nil: // it has elements of a byte or more
			return fieldType{size: size, perByte: size}
		default:
			f.size += size
			return f
		}
	case reflect.Map:
		const entry = 64
		message := &messageType{}
		message.set(1, m.field(typ.Key()))
		message.set(2, m.field(typ.Elem()))
		return fieldType{size: 2 * (entry + int(typ.Key().Size()+typ.Elem().Size())), message: message}
	default:
		return fieldType{perByte: 1}
	}
}

var errMessage = newResponseError("what the API server answers is no message of protobuf")

// add adds what a message takes to total, and stops where that is more than most. What
// has no type is not decoded.
func (t *messageType) add(total int, message []byte, most int) (int, error) {
	for len(message) > 0 && total <= most {
		number, value, left := nextField(message)
		if left < 0 {
			return total, errMessage
		}
		size := len(message) - left
		message = message[size:]
		if number >= len(t.fields) {
			continue
		}

		f := &t.fields[number]
		total += f.size
		if f.message == nil || value == nil {
			total += f.perByte * size
			continue
		}

		var err error
		if total, err = f.message.add(total, value, most); err != nil {
			return total, err
		}
	}
	return total, nil
}

// nextField returns the number of the first field of a message, its value if it is bytes, and how many bytes
// there are after it; less than 0 if it cannot be read. Nearly all fields have a tag and a length of a byte.
func nextField(message []byte) (number int, value []byte, left int) {
	const numberShift, typeBits, more = 3, 7, 0x80
	if len(message) > 1 && message[0]&(typeBits|more) == byte(protowire.BytesType) && message[1] < more {
		end := 2 + int(message[1])
		if message[0]>>numberShift == 0 || end > len(message) {
			return 0, nil, -1
		}
		return int(message[0] >> numberShift), message[2:end], len(message) - end
	}

	fieldNumber, wireType, tag := protowire.ConsumeTag(message)
	if tag < 0 {
		return 0, nil, -1
	}

	size := protowire.ConsumeFieldValue(fieldNumber, wireType, message[tag:])
	if size < 0 {
		return 0, nil, -1
	}
	if wireType == protowire.BytesType {
		value, _ = protowire.ConsumeBytes(message[tag:])
	}
	return int(fieldNumber), value, len(message) - tag - size
}

// objectSize returns about how much memory an object of Kubernetes takes when it is decoded from protobuf.
func objectSize(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	message, is := bytes.CutPrefix(b, protobufPrefix)
	if !is {
		return 0, errMessage
	}

	var unknown, typeMeta [3][]byte
	if !messageFields(message, unknown[:]) || !messageFields(unknown[1], typeMeta[:]) {
		return 0, errMessage
	}
	t := knownTypes.ofKind(string(typeMeta[1]), string(typeMeta[2]))
	if t == nil {
		return 0, newResponseError("a response in protobuf is of a kind that is not known: %.100q of %.100q",
			typeMeta[2], typeMeta[1])
	}
	return t.add(0, unknown[2], maxDecoded)
}

// eventSize returns the same for an event of a watch.
func eventSize(b []byte) (int, error) {
	var event, extension [3][]byte
	if !messageFields(b, event[:]) || !messageFields(event[2], extension[:]) {
		return 0, errMessage
	}
	return objectSize(extension[1])
}

// messageFields takes those fields by their numbers from a message. Each is bytes, and there at most once.
func messageFields(message []byte, fields [][]byte) bool {
	for len(message) > 0 {
		number, value, left := nextField(message)
		if left < 0 {
			return false
		}

		message = message[len(message)-left:]
		if number >= len(fields) {
			continue
		}
		if value == nil || fields[number] != nil {
			return false
		}
		fields[number] = value
	}
	return true
}
