package api

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
)

const asJSON, asProtobuf = kruntime.ContentTypeJSON, kruntime.ContentTypeProtobuf

// fataler is a testing.TB, or one of rapid.
type fataler interface{ Fatal(args ...any) }

// encode encodes an object as API servers do.
func encode(t fataler, o kruntime.Object) []byte {
	gvks, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := o.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return encodeRaw(t, gvks[0].GroupVersion().String(), gvks[0].Kind, raw)
}

func encodeRaw(t fataler, apiVersion, kind string, raw []byte) []byte {
	u := kruntime.Unknown{TypeMeta: kruntime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}
	b, err := u.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(protobufPrefix), b...)
}

func encodeEvent(t fataler, o kruntime.Object) []byte {
	e := metav1.WatchEvent{Type: "ADDED", Object: kruntime.RawExtension{Raw: encode(t, o)}}
	b, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// fill sets all that a value has.
func fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer:
		if depth > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), depth-1)
		}
	case reflect.Struct:
		for _, f := range v.Fields() {
			if f.CanSet() {
				fill(f, depth-1)
			}
		}
	case reflect.Slice:
		if depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			fill(v.Index(0), depth-1)
			fill(v.Index(1), depth-1)
		}
	case reflect.Map:
		if depth > 0 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, depth-1)
			fill(value, depth-1)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		v.SetString("\x12\x00text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(77)
	default: // no field of these is in protobuf
	}
}

// Whatever is in an object of a kind that clients know: it is measured.
func TestEveryKindIsMeasured(t *testing.T) {
	n := 0
	for gvk := range scheme.Scheme.AllKnownTypes() {
		o, err := scheme.Scheme.New(gvk)
		if err != nil {
			t.Fatal(err)
		}
		m, is := o.(interface{ Marshal() ([]byte, error) })
		if !is || gvk.Version == kruntime.APIVersionInternal {
			continue
		}
		fill(reflect.ValueOf(o).Elem(), 12)
		raw, err := m.Marshal()
		if err != nil {
			t.Errorf("%s: %v", gvk, err)
			continue
		}
		size, err := objectSize(encodeRaw(t, gvk.GroupVersion().String(), gvk.Kind, raw))
		if err != nil || size < len(raw)/4 || size > 1000+40*len(raw) {
			t.Errorf("%s of %d bytes: %d in memory, %v", gvk, len(raw), size, err)
		}
		n++
	}
	if n < 100 {
		t.Errorf("%d kinds", n)
	}
	// Messages nest as deep as their types do. One that had itself within would nest without end.
	var walk func(m *messageType, above []*messageType)
	walk = func(m *messageType, above []*messageType) {
		if slices.Contains(above, m) {
			t.Error("a type leads back to itself")
			return
		}
		for _, f := range m.fields {
			if f.message != nil {
				walk(f.message, append(above, m))
			}
		}
	}
	for _, m := range knownTypes.kinds {
		walk(m, nil)
	}
}

// A body is one of a response.
type body struct {
	contentType string
	content     []byte
}

// dense are responses that take many times as much memory when they are decoded.
func dense(t *testing.T, size int) map[string]body {
	t.Helper()
	text := func(start, repeated, end string) body {
		return body{asJSON, []byte(start + strings.Repeat(repeated, size/len(repeated)) + end)}
	}
	empty := bytes.Repeat([]byte{0x12, 0}, size/2) // field 2, of no bytes
	message := func(apiVersion, kind string, raw []byte) body {
		return body{asProtobuf, encodeRaw(t, apiVersion, kind, raw)}
	}
	spec := append(binary.AppendUvarint([]byte{0x12}, uint64(len(empty))), empty...)
	return map[string]body{
		"Pods":             message("v1", "PodList", empty),
		"Services":         message("v1", "ServiceList", empty),
		"containers":       message("v1", "Pod", spec),
		"endpoints":        message("discovery.k8s.io/v1", "EndpointSlice", empty),
		"metadata":         message("meta.k8s.io/v1", "PartialObjectMetadataList", empty),
		"Pods, JSON":       text(`{"kind":"PodList","apiVersion":"v1","items":[`, "{},", `{}]}`),
		"null, JSON":       text(`{"kind":"PodList","apiVersion":"v1","items":[`, "null,", `{}]}`),
		"containers, JSON": text(`{"kind":"Pod","apiVersion":"v1","spec":{"containers":[`, "{},", `{}]}}`),
	}
}

// measure returns what a body takes once it is decoded.
func measure(accept string, b body) (int, error) {
	if b.contentType == asProtobuf {
		return objectSize(b.content)
	}
	return newContent(false, false, accept).add(b.content)
}

// Of no response more is decoded than there may be, and what it takes is about what was measured.
func TestDenseResponses(t *testing.T) {
	for name, x := range dense(t, 64<<10) {
		size, err := measure(asProtobuf, x)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		decoder := codecs.UniversalDeserializer()
		if name == "metadata" {
			decoder = metainternalscheme.Codecs.UniversalDeserializer()
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err = decoder.Decode(x.content, nil, nil)
		runtime.ReadMemStats(&after)
		allocated := int(after.TotalAlloc - before.TotalAlloc) // a slice that grows is copied some times
		t.Logf("%s: %d KiB allocated, %d KiB measured", name, allocated>>10, size>>10)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if size < allocated/4 || size > 4*allocated+len(x.content)*jsonByte {
			t.Errorf("%s: %d KiB allocated, but %d KiB measured", name, allocated>>10, size>>10)
		}
	}
	for name, x := range dense(t, 1<<20) {
		for _, cut := range []func(io.Reader) io.Reader{
			func(r io.Reader) io.Reader { return r }, iotest.HalfReader, iotest.DataErrReader,
		} {
			conn, _ := serverOf(t, http.Header{"Content-Type": {x.contentType}}, http.StatusOK,
				func() io.Reader { return cut(bytes.NewReader(x.content)) })
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://east.test/api/v1/pods", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept", asProtobuf+","+asJSON)
			response, err := conn.HTTPClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.ReadAll(response.Body)
			if !isResponseError(err) || !strings.Contains(err.Error(), "takes more than 64 MiB") {
				t.Errorf("%s: %v", name, err)
			}
			response.Body.Close()
			if n := conn.decoded.Load(); n != 0 {
				t.Errorf("%s: %d bytes are counted after the end", name, n)
			}
		}
	}
}

// An error without a type, as of a proxy in front of the API server, is the error that its code names.
func TestErrorsWithoutType(t *testing.T) {
	conn, _ := serverOf(t, nil, http.StatusUnauthorized, func() io.Reader { return strings.NewReader("no") })
	pods, err := Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{}).requests(conn)
	if err != nil {
		t.Fatal(err)
	}
	all := cache.ToListerWatcherWithContext(pods)
	if _, err := all.ListWithContext(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("error %v", err)
	}
}

// Of what is neither JSON nor protobuf, which may become anything, little is read at once.
func TestOtherResponses(t *testing.T) {
	yaml := strings.Repeat("- {}\n", 8<<10)
	conn, _ := serverOf(t, http.Header{"Content-Type": {"application/yaml"}}, http.StatusOK,
		func() io.Reader { return strings.NewReader(yaml) })
	read := func() (io.Closer, error) {
		response, err := get(t, conn, "https://east.test/api/v1/pods")
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(response.Body)
		return response.Body, err
	}
	one, err := read()
	if err != nil {
		t.Errorf("one: %v", err)
	}
	if other, err := read(); !isResponseError(err) {
		t.Errorf("two: %v", err)
	} else {
		other.Close()
	}
	one.Close()
	if one, err = read(); err != nil {
		t.Errorf("one after the other: %v", err)
	}
	one.Close()
}

// What an API server can have stored passes, and so does a usual page of Pods.
func TestStoredObjectsPass(t *testing.T) {
	pods := &corev1.PodList{}
	slicesOf := &discoveryv1.EndpointSliceList{}
	for range 500 {
		p := corev1.Pod{}
		fill(reflect.ValueOf(&p).Elem(), 6)
		pods.Items = append(pods.Items, p)
		s := discoveryv1.EndpointSlice{}
		fill(reflect.ValueOf(&s).Elem(), 12)
		s.Endpoints = slices.Repeat(s.Endpoints[:1], 50)
		slicesOf.Items = append(slicesOf.Items, s)
	}
	ports := &corev1.Pod{}
	ports.Spec.Containers = []corev1.Container{{
		Name: "a", Ports: slices.Repeat([]corev1.ContainerPort{{ContainerPort: 1}}, 100_000),
	}}
	finalizers := &metav1.PartialObjectMetadata{}
	finalizers.Finalizers = slices.Repeat([]string{"a/b"}, 300_000)
	raw, err := finalizers.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	custom := unstructured.Unstructured{}
	empties := []byte(`{"kind":"a","apiVersion":"b/v1","spec":[` + strings.Repeat("{},", 500_000) + "{}]}")
	if err := custom.UnmarshalJSON(empties); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]body{
		"Pods":       {asProtobuf, encode(t, pods)},
		"slices":     {asProtobuf, encode(t, slicesOf)},
		"ports":      {asProtobuf, encode(t, ports)},
		"finalizers": {asProtobuf, encodeRaw(t, "meta.k8s.io/v1", "PartialObjectMetadata", raw)},
		"custom":     {asJSON, empties},
	} {
		size, err := measure(x.contentType, x)
		t.Logf("%s: %d KiB, %d KiB measured", name, len(x.content)>>10, size>>10)
		if err != nil || size > maxDecoded {
			t.Errorf("%s: %d bytes take %d, %v", name, len(x.content), size, err)
		}
	}
}

// A message that decoders could read in another way than it was measured is rejected.
func TestOddMessages(t *testing.T) {
	item := []byte{0x92, 0x80, 0x80, 0x80, 0x80, 0x01, 0} // field 2, in 35 bits
	for name, body := range map[string][]byte{
		"no prefix":      []byte("x"),
		"no kind":        encodeRaw(t, "v1", "", nil),
		"unknown kind":   encodeRaw(t, "v1", "Unknown", nil),
		"cut off":        encodeRaw(t, "v1", "PodList", []byte{0x12, 9}),
		"long number":    encodeRaw(t, "v1", "PodList", item),
		"kind twice":     append(encodeRaw(t, "v1", "Pod", nil), encodeRaw(t, "v1", "PodList", nil)[4:]...),
		"kind is a list": append(slices.Clone(protobufPrefix), 0x08, 1),
	} {
		if size, err := objectSize(body); !isResponseError(err) {
			t.Errorf("%s: %d, %v", name, size, err)
		}
	}
}

func BenchmarkMeasure(b *testing.B) {
	p := &corev1.Pod{}
	fill(reflect.ValueOf(p).Elem(), 5)
	event := encodeEvent(b, p)
	c := newContent(true, true, asProtobuf)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		c.startRead()
		if size, err := c.add(event); err != nil || size == 0 {
			b.Fatal(size, err)
		}
	}
}
