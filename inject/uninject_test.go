package inject

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// A Pod is as before its injection once that is undone, but for settings that it has inherited.
func TestUninject(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i, pod := drawInjector(t), drawPod(t)
		delete(pod.Annotations, InjectAnnotation)
		w := &Workload{
			NamespaceAnnotations: map[string]string{InjectAnnotation: enabled}, Meta: &pod.ObjectMeta, Spec: &pod.Spec,
			Owner: Owner{"Job", "j"}, Manifest: true,
		}
		if operations := Uninject(w, w.Meta); len(operations) > 0 {
			t.Fatalf("of a Pod that was never injected: %v", operations)
		}

		injected := apply(t, pod, i.Inject(w).Patch)
		w.Meta, w.Spec = &injected.ObjectMeta, &injected.Spec
		got := apply(t, injected, Uninject(w, w.Meta))
		if _, had := pod.Annotations[OpaqueAnnotation]; !had {
			delete(got.Annotations, OpaqueAnnotation)
		}
		if diff := cmp.Diff(pod, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-before +after) %s", diff)
		}
	})
}

// The control plane's own objects keep their metadata, whichever has the label.
func TestUninjectControlPlane(t *testing.T) {
	pod := given{spec: "containers: [{name: linkerd-proxy}, {name: app}]", labels: "linkerd.io/a: b"}.pod(t)
	object := &metav1.ObjectMeta{Labels: map[string]string{componentLabel: "destination"}}
	w := &Workload{Meta: &pod.ObjectMeta, Spec: &pod.Spec, Path: "/t"}
	want := []Operation{{Op: OpRemove, Path: "/t/spec/containers/0"}}
	if diff := cmp.Diff(want, Uninject(w, object)); diff != "" {
		t.Error(diff)
	}
	pod.Labels[componentLabel] = "identity"
	if diff := cmp.Diff(want, Uninject(w, &metav1.ObjectMeta{Labels: map[string]string{"linkerd.io/a": "b"}})); diff != "" {
		t.Error(diff)
	}
}

// Annotations that change nothing are left out, and those that would be ignored are errors.
func TestOverrides(t *testing.T) {
	values := Defaults("edge-1")
	got, err := values.Overrides(map[string]string{
		configPrefix + "proxy-version": "edge-1", configPrefix + "image-pull-policy": "IfNotPresent",
		configPrefix + "proxy-uid": "2102", configPrefix + "proxy-gid": "7", nativeSidecar[0]: "true",
		OpaqueAnnotation: "25,587,3306,4444,5432,6379,9300,11211", configPrefix + "skip-inbound-ports": "1-2,3",
	})
	want := map[string]string{configPrefix + "proxy-gid": "7", configPrefix + "skip-inbound-ports": "1-2,3"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}

	for key, value := range map[string]string{
		InjectAnnotation + "x": "", "other/x": "y", configPrefix + "proxy-uid": "x", OpaqueAnnotation: "a_b",
		configPrefix + "skip-outbound-ports": "http", additionalEnv: "{", configPrefix + "close-wait-timeout": "1m",
	} {
		_, err := values.Overrides(map[string]string{key: value})
		if bad, is := errors.AsType[*OverrideError](err); !is || bad.Key != key {
			t.Errorf("%s: %v", key, err)
		}
	}
	if got := Defaults("edge-1"); !cmp.Equal(got, values) {
		t.Errorf("the Values have changed: %s", cmp.Diff(got, values))
	}
}
