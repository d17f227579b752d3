package policy

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A part is a message in a policy, and the path to it. HTTP, gRPC, TLS and opaque routes have types of their own with
// fields of the same names. Parts read them by name, so that each rule of the proxy is written once, and the path in a
// Finding is that of the message. A name that no field has is a bug, and panics. What is absent reads as empty.
type part struct {
	message protoreflect.Message
	path    string
	found   *findings
}

func rootOf(message proto.Message) part {
	return part{message: message.ProtoReflect(), found: &findings{}}
}

func (p part) field(name string) protoreflect.FieldDescriptor {
	return p.message.Descriptor().Fields().ByName(protoreflect.Name(name))
}

func (p part) value(name string) protoreflect.Value { return p.message.Get(p.field(name)) }

func (p part) has(name string) bool { return p.message.Has(p.field(name)) }

func (p part) pathOf(name string) string {
	if p.path == "" || name == "" {
		return p.path + name
	}
	return p.path + "." + name
}

// at returns the message in a field.
func (p part) at(name string) part {
	return part{message: p.value(name).Message(), path: p.pathOf(name), found: p.found}
}

// need returns the message in a field, and whether it is there; the proxy refuses a policy that lacks it.
func (p part) need(name string) (part, bool) {
	if !p.has(name) {
		p.invalid(name, "absent")
	}
	return p.at(name), p.has(name)
}

// list returns the messages in a field.
func (p part) list(name string) []part {
	values := p.value(name).List()
	all := make([]part, values.Len())
	for i := range all {
		all[i] = part{values.Get(i).Message(), fmt.Sprintf("%s[%d]", p.pathOf(name), i), p.found}
	}
	return all
}

// which returns the name of the field that a oneof has; empty if none.
func (p part) which(oneof string) string {
	field := p.message.WhichOneof(p.message.Descriptor().Oneofs().ByName(protoreflect.Name(oneof)))
	if field == nil {
		return ""
	}
	return string(field.Name())
}

// needOne returns the same; the proxy refuses a policy in which it is empty.
func (p part) needOne(oneof string) string {
	name := p.which(oneof)
	if name == "" {
		p.invalid(oneof, "absent")
	}
	return name
}

// text returns a string, or bytes.
func (p part) text(name string) string {
	if p.field(name).Kind() == protoreflect.BytesKind {
		return string(p.value(name).Bytes())
	}
	return p.value(name).String()
}

// texts returns the strings in a field.
func (p part) texts(name string) []string {
	values := p.value(name).List()
	all := make([]string, values.Len())
	for i := range all {
		all[i] = values.Get(i).String()
	}
	return all
}

// labels returns a map of strings.
func (p part) labels(name string) map[string]string {
	all := map[string]string{}
	p.value(name).Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		all[key.String()] = value.String()
		return true
	})
	return all
}

// number returns an unsigned number of 32 bits.
func (p part) number(name string) uint32 { return uint32(p.value(name).Uint()) }

// enum returns the name of an enumerated value; empty if the API does not have it.
func (p part) enum(name string) string {
	value := p.field(name).Enum().Values().ByNumber(p.value(name).Enum())
	if value == nil {
		return ""
	}
	return string(value.Name())
}

// duration returns what a field has, and whether it has any.
func (p part) duration(name string) (time.Duration, bool) {
	if !p.has(name) {
		return 0, false
	}

	message, isDuration := p.value(name).Message().Interface().(*durationpb.Duration)
	if !isDuration {
		panic(p.pathOf(name) + " is no duration")
	}

	d := message.AsDuration()
	if d < 0 {
		p.invalid(name, "negative")
	}
	return d, true
}

// needDuration returns what a field has; the proxy refuses a policy that lacks it.
func (p part) needDuration(name string) time.Duration {
	d, present := p.duration(name)
	if !present {
		p.invalid(name, "absent")
	}
	return d
}

// The following note a finding about a field; about the part itself if the name is empty.

func (p part) invalid(name, format string, args ...any) { p.note(ErrInvalid, name, format, args) }

func (p part) panics(name, format string, args ...any) { p.note(ErrPanic, name, format, args) }

func (p part) failsAtOnce(name, format string, args ...any) {
	p.note(ErrFailsAtOnce, name, format, args)
}

func (p part) odd(name, format string, args ...any) { p.note(ErrOdd, name, format, args) }

func (p part) note(class error, name, format string, args []any) {
	*p.found = append(*p.found, Finding{p.pathOf(name), fmt.Sprintf(format, args...), class})
}
