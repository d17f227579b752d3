package api

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

// Whatever bytes come, what is left of them is a message if they are one, and pruning it again changes nothing.
func TestPruneAnything(t *testing.T) {
	read := &Message{Fields: map[protowire.Number]*Message{1: nil, 2: {Fields: map[protowire.Number]*Message{
		1: nil, 3: {If: func(b []byte) bool { return len(b) > 1 }},
	}}}}
	rapid.Check(t, func(t *rapid.T) {
		message := rapid.SliceOfN(rapid.SampledFrom([]byte{0x08, 0x0a, 0x12, 0x1a, 0, 1, 2, 3, 4, 0x80}), 0, 20).
			Draw(t, "message")
		once, ok := read.Prune(nil, message)
		if !ok {
			return
		}
		twice, ok := read.Prune(nil, once)
		if !ok || !bytes.Equal(once, twice) {
			t.Fatalf("%x, then %x, %t", once, twice, ok)
		}
	})
}

// What is no object of the kind is decoded as it came: a Status, a message that is none, and JSON.
func TestPrunerPassesOthersOn(t *testing.T) {
	p := pruner{codecs.WithoutConversion(), "Pod", &Message{Fields: map[protowire.Number]*Message{1: MetadataFields}}}
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
