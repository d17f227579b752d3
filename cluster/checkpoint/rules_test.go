package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// The types that stand in files, as they were when their codec got its number. If one of them has changed, give it the
// next number, leave the old one out of the codecs, and write its digest here: what a version does not know it leaves
// out, and what it reads in part may open a port.
var shapes = map[byte]struct {
	of     reflect.Type
	digest string
}{
	11: {reflect.TypeFor[ruleWorkload](), "4ab77dde"},
	12: {reflect.TypeFor[serverRules](), "46d85e9f"},
	13: {reflect.TypeFor[target](), "98850c14"},
	14: {reflect.TypeFor[egress](), "69b0a88a"},
	15: {reflect.TypeFor[rules.Workload](), "c81bbf3e"},
}

func TestShapes(t *testing.T) {
	for number, shape := range shapes {
		text := &strings.Builder{}
		describe(text, shape.of)
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(text.String())))[:8]; got != shape.digest {
			t.Errorf("codec %d has the shape %s, and its number is for %s:\n%s", number, got, shape.digest, text)
		}
	}
}

var marshaler = reflect.TypeFor[encoding.BinaryMarshaler]()

// describe writes a type with the types of its fields, and the names of what counts as numbers.
func describe(to *strings.Builder, of reflect.Type) {
	switch {
	case of.Implements(marshaler):
		to.WriteString(of.String())
	case of.Kind() == reflect.Struct:
		to.WriteString("{")
		for f := range of.Fields() {
			if f.Name != "_" && !f.IsExported() {
				panic(of.String() + " has a field that is not encoded: " + f.Name)
			}
			fmt.Fprintf(to, "%s %q ", f.Name, f.Tag)
			describe(to, f.Type)
			to.WriteString(";")
		}
		to.WriteString("}")
	case of.Kind() == reflect.Map:
		to.WriteString("map ")
		describe(to, of.Key())
		describe(to, of.Elem())
	case of.Kind() == reflect.Slice, of.Kind() == reflect.Array, of.Kind() == reflect.Pointer:
		to.WriteString(of.Kind().String() + " ")
		describe(to, of.Elem())
	default:
		to.WriteString(of.Kind().String() + namesOf(of))
	}
}

// namesOf returns what the first numbers of an enumeration are called; nothing for other types.
func namesOf(of reflect.Type) (names string) {
	if of.Kind() != reflect.Uint8 || !of.Implements(reflect.TypeFor[fmt.Stringer]()) {
		return ""
	}
	for n := range uint64(32) {
		v := reflect.New(of).Elem()
		v.SetUint(n)
		names += " " + nameOf(v.Interface().(fmt.Stringer))
	}
	return strings.TrimRight(names, " ")
}

// nameOf returns what a number is called; nothing if it stands for nothing.
func nameOf(number fmt.Stringer) (name string) {
	defer func() { _ = recover() }()
	return number.String()
}

// What was read of rules is what was written, whatever is in any of their fields, and equal content has one encoding.
// Workloads that are one stay one.
func TestRoundTripOfRules(t *testing.T) {
	const rounds = 300
	random := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for range rounds {
		published := federation.Published{Facts: map[string]facts.Copy{
			"workloads":    copyOf[rules.WorkloadRef, *rules.Workload](random),
			"server rules": copyOf[string, *rules.NamespaceServers](random),
			"targets":      copyOf[rules.Reference, *rules.Target](random),
			"egress":       copyOf[string, *rules.NamespaceEgress](random),
		}}
		workloads := published.Facts["workloads"].All.(map[rules.WorkloadRef]*rules.Workload)
		for name, of := range workloads {
			workloads[rules.WorkloadRef{Namespace: "another of", Name: name.Name}] = of
			break
		}

		content := encoded(t, east(published))
		if again := encoded(t, east(published)); !bytes.Equal(content, again) {
			t.Fatal("equal content has two encodings")
		}
		read, err := decode(content)
		if err != nil {
			t.Fatal(err)
		}
		for table, want := range published.Facts {
			got := read.Published.Facts[table]
			equal := cmp.Options{
				cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
				cmp.Comparer(func(a, b rules.Network) bool { return reflect.DeepEqual(a, b) }),
				cmp.Comparer(func(a, b rules.PortList) bool { return reflect.DeepEqual(a, b) }),
			}
			if diff := cmp.Diff(want.All, got.All, equal); diff != "" || !got.IsComplete {
				t.Fatalf("%s, complete: %t (-want +got):\n%s", table, got.IsComplete, diff)
			}
		}
		byText := map[string]*rules.Workload{}
		for name, of := range read.Published.Facts["workloads"].All.(map[rules.WorkloadRef]*rules.Workload) {
			if name.Namespace == "another of" {
				byText[string(of.AppendText(nil))] = of
			}
		}
		for _, of := range read.Published.Facts["workloads"].All.(map[rules.WorkloadRef]*rules.Workload) {
			if one := byText[string(of.AppendText(nil))]; one != nil && one != of {
				t.Fatal("a workload of two Pods was one, and is two")
			}
		}
	}
}

// What is not complete is not in a file, and not known of one without it: an empty Table would open what it closes.
func TestIncompleteRules(t *testing.T) {
	incomplete := copyOf[string, *rules.NamespaceServers](rand.New(rand.NewPCG(1, 1)))
	incomplete.IsComplete = false
	empty := facts.Copy{All: map[rules.Reference]*rules.Target{}, IsComplete: true}
	read, err := decode(encoded(t, east(federation.Published{Facts: map[string]facts.Copy{
		"server rules": incomplete, "targets": empty,
	}})))
	if err != nil {
		t.Fatal(err)
	}
	if got := read.Published.Facts["server rules"]; got.All != nil {
		t.Errorf("what was not complete is read as %v", got)
	}
	if got := read.Published.Facts["egress"]; got.All != nil {
		t.Errorf("what was never written is read as %v", got)
	}
	if got := read.Published.Facts["targets"]; !reflect.DeepEqual(got, empty) {
		t.Errorf("what is empty is read as %v", got)
	}
}

func copyOf[K comparable, V any](random *rand.Rand) facts.Copy {
	all := map[K]V{}
	for range random.IntN(4) {
		var k K
		var v V
		fill(random, reflect.ValueOf(&k).Elem(), 0)
		for reflect.ValueOf(v).IsNil() {
			fill(random, reflect.ValueOf(&v).Elem(), 0)
		}
		all[k] = v
	}
	return facts.Copy{All: all, IsComplete: true}
}

// fill sets a value to a random one. Of what embeds or lists a pointer there is something: codecs require that.
func fill(random *rand.Rand, v reflect.Value, depth int) {
	texts := []string{"", "a", "shop", "web", "ä", strings.Repeat("x", 300)}
	switch into := v.Addr().Interface().(type) {
	case *rules.Network:
		all := []struct {
			cidr   string
			except []string
		}{{"0.0.0.0/0", []string{"10.0.0.0/8", "10.1.0.0/16"}}, {"fd00::/8", nil}, {"10.0.0.1", nil}}
		one := all[random.IntN(len(all))]
		*into, _ = rules.ParseNetwork(one.cidr, one.except)
		return
	case *rules.PortList:
		list, _, _ := rules.ParsePortList([]string{"", "80,http", "a,b,1-10,5"}[random.IntN(3)])
		*into = *list
		return
	case *time.Time:
		if random.IntN(3) > 0 {
			*into = time.Unix(random.Int64N(1<<32), 0).UTC()
		}
		return
	}

	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(random.IntN(2) > 0)
	case reflect.String:
		v.SetString(texts[random.IntN(len(texts))])
	case reflect.Uint8:
		v.SetUint(random.Uint64N(6))
	case reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(random.Uint64N(1 << min(v.Type().Bits(), 40)))
	case reflect.Int, reflect.Int64, reflect.Int32, reflect.Int16:
		v.SetInt(random.Int64N(1<<30) - 1<<20)
	case reflect.Float64, reflect.Float32:
		v.SetFloat(float64(random.IntN(1000)) / 8)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			isOptional := f.Type.Kind() == reflect.Pointer && !f.Anonymous && f.Name != "Route"
			if f.IsExported() && (!isOptional || random.IntN(2) > 0) {
				fill(random, v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		if random.IntN(3) == 0 || depth > 12 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), random.IntN(3), 3))
		for i := range v.Len() {
			fill(random, v.Index(i), depth+1)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(random, v.Elem(), depth+1)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range random.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(random, key, depth+1)
			fill(random, value, depth+1)
			v.SetMapIndex(key, value)
		}
	default:
		panic("a field of kind " + v.Kind().String())
	}
}
