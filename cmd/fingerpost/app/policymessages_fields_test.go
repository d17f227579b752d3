package app_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	inboundpb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outboundpb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// Each field of a message of policy shows in what is printed of it: two messages that differ are printed differently.
func TestPolicyMessages(t *testing.T) {
	render := func(m proto.Message) []string {
		p := &proxy.Policy{}
		switch m := m.(type) {
		case *inboundpb.Server:
			p.Inbound = m
		case *outboundpb.OutboundPolicy:
			p.Outbound = m
		}
		return policied("a", p)
	}

	changed := 0
	for choice := range 6 { // as many as the protocols, which are the most alternatives of a field
		for _, empty := range []proto.Message{&inboundpb.Server{}, &outboundpb.OutboundPolicy{}} {
			full := proto.Clone(empty)
			fill(full.ProtoReflect(), choice)
			before := render(full)
			eachChange(full.ProtoReflect(), "", func(path string) {
				changed++
				if slices.Equal(render(full), before) {
					t.Errorf("nothing of %s shows in %v", path, before)
				}
			})
			if !slices.Equal(render(full), before) {
				t.Fatal("a change was not taken back")
			}
			render(empty)
		}
	}
	if changed < 500 {
		t.Errorf("only %d fields were changed", changed)
	}
}

// fill sets every field of a message, and of oneofs one, by a number.
func fill(m protoreflect.Message, choice int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if of := f.ContainingOneof(); of != nil && of.Fields().Get(choice%of.Fields().Len()) != f {
			continue
		}
		_, isAddr := m.Interface().(*destination.WeightedAddr)
		switch {
		case isAddr && f.Name() != "addr" && f.Name() != "weight": // the others are never set
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("name").MapKey(), protoreflect.ValueOfString("n"))
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message(), choice)
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f, 1))
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), choice)
		default:
			m.Set(f, scalar(f, 1))
		}
	}
}

// scalar returns one of two values of a field.
func scalar(f protoreflect.FieldDescriptor, n int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("text" + strconv.Itoa(n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{'a' + byte(n)})
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n - 1))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	default:
		return protoreflect.ValueOfUint32(uint32(n))
	}
}

// eachChange changes one scalar after the other, calls a function, and takes the change back.
func eachChange(m protoreflect.Message, path string, do func(path string)) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		here := path + "." + string(f.Name())
		switch {
		case f.IsMap():
			key := protoreflect.ValueOfString("name").MapKey()
			v.Map().Set(key, protoreflect.ValueOfString("other"))
			do(here)
			v.Map().Set(key, protoreflect.ValueOfString("n"))
		case f.IsList() && f.Message() != nil:
			eachChange(v.List().Get(0).Message(), here, do)
			v.List().Append(v.List().Get(0))
			do(here + "[1]")
			v.List().Truncate(1)
		case f.IsList():
			v.List().Set(0, scalar(f, 2))
			do(here)
			v.List().Set(0, scalar(f, 1))
		case f.Message() != nil:
			eachChange(v.Message(), here, do)
		default:
			m.Set(f, scalar(f, 2))
			do(here)
			m.Set(f, v)
		}
		return true
	})
}
