package api

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

var pruned = &Message{Fields: Fields{1: nil, 2: {Fields: Fields{
	1: nil, 3: {If: func(b []byte) bool { return len(b) > 1 }}, 4: {},
}}}}

// checkPrune fails if what is left of a message is longer than it, is no message, or is not left when it is pruned
// again.
func checkPrune(t interface{ Fatalf(string, ...any) }, message []byte) {
	once, ok := pruned.Prune(nil, message)
	if !ok {
		return
	}
	if len(once) > len(message) {
		t.Fatalf("%x is longer than %x", once, message)
	}
	twice, ok := pruned.Prune(nil, once)
	if !ok || !bytes.Equal(once, twice) {
		t.Fatalf("%x, then %x, %t", once, twice, ok)
	}
}

func TestPruneAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SampledFrom([]byte{0x08, 0x0a, 0x12, 0x1a, 0x22, 0, 1, 2, 3, 4, 0x80})
		checkPrune(t, rapid.SliceOfN(some, 0, 20).Draw(t, "message"))
	})
}

func FuzzPrune(f *testing.F) {
	f.Add([]byte{0x12, 2, 0x22, 0})
	f.Add([]byte{0x12, 0x82, 0x80, 0, 0x08, 1})
	f.Add(append([]byte{0x12, 0x80, 2}, bytes.Repeat([]byte{0x22, 0, 0x08, 1}, 64)...))
	f.Fuzz(func(t *testing.T, message []byte) { checkPrune(t, message) })
}

// What is no object of the kind is decoded as it came: a Status, a message that is none, and JSON.
func TestPrunerPassesOthersOn(t *testing.T) {
	p := pruner{codecs.WithoutConversion(), "Pod", &Message{Fields: Fields{1: MetadataFields}}}
	info, _ := runtime.SerializerInfoForMediaType(p.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	encode := func(o runtime.Object, kind string) []byte {
		o.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		var b bytes.Buffer
		if err := info.Serializer.Encode(o, &b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{NodeName: "n"}}
	list := &corev1.PodList{ListMeta: metav1.ListMeta{Continue: "more"}, Items: []corev1.Pod{*pod}}
	for what, b := range map[string][]byte{"Pod": encode(pod, "Pod"), "PodList": encode(list, "PodList")} {
		o, _, err := info.Serializer.Decode(b, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := o.(*corev1.Pod)
		if l, is := o.(*corev1.PodList); is && l.Continue == "more" && len(l.Items) == 1 {
			got = &l.Items[0]
		}
		if got == nil || got.Name != "web" || got.Spec.NodeName != "" {
			t.Errorf("%s: %+v", what, o)
		}
	}
	gone := apierrors.NewResourceExpired("it is gone").Status()
	o, _, err := info.Serializer.Decode(encode(&gone, "Status"), nil, nil)
	status, is := o.(*metav1.Status)
	if err != nil || !is || !apierrors.IsResourceExpired(apierrors.FromObject(status)) {
		t.Errorf("a Status is decoded as %+v, %v", o, err)
	}
	torn := encode(pod, "Pod")
	if _, _, err := info.Serializer.Decode(torn[:len(torn)-3], nil, nil); err == nil {
		t.Error("a torn Pod is decoded")
	}
}
