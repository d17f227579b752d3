package view

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// drawPod returns a Pod with what is read, in many forms, and much that is not.
func drawPod(t *rapid.T) *corev1.Pod {
	word := rapid.StringMatching(`[a-z]{1,3}`)
	ip := func() string { return rapid.SampledFrom([]string{"", "10.0.0.1", "fd00::1"}).Draw(t, "ip") }
	var containers [2][]corev1.Container
	for i := range containers {
		for range rapid.IntRange(0, 2).Draw(t, "containers") {
			c := corev1.Container{
				Name:          rapid.SampledFrom([]string{"app", linkerd.ProxyContainer}).Draw(t, "container"),
				Image:         "image",
				VolumeMounts:  []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
				LivenessProbe: &corev1.Probe{PeriodSeconds: 3},
			}
			for range rapid.IntRange(0, 3).Draw(t, "variables") {
				c.Env = append(c.Env, corev1.EnvVar{
					Name: rapid.SampledFrom([]string{
						"A", inboundListenEnv, adminListenEnv, controlListenEnv,
					}).Draw(t, "name"),
					Value: rapid.SampledFrom([]string{
						"0.0.0.0:1", "[::]:2", "bad", "",
					}).Draw(t, "value"),
				})
			}
			for range rapid.IntRange(0, 2).Draw(t, "ports") {
				c.Ports = append(c.Ports, corev1.ContainerPort{
					Name: word.Draw(t, "port"), ContainerPort: rapid.Int32Range(0, 70000).Draw(t, "number"),
					HostPort: rapid.SampledFrom([]int32{0, 80, 81}).Draw(t, "host port"),
					Protocol: rapid.SampledFrom([]corev1.Protocol{"", "TCP", "UDP"}).Draw(t, "protocol"),
				})
			}
			containers[i] = append(containers[i], c)
		}
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web-" + word.Draw(t, "name"), UID: "u", ResourceVersion: "7", Generation: 3,
			Labels: map[string]string{
				"app": word.Draw(t, "app"), linkerd.ControlPlaneLabel: word.Draw(t, "mesh"),
			},
			Annotations:     map[string]string{linkerd.OpaquePortsAnnotation: "25", "other": word.Draw(t, "other")},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: word.Draw(t, "owner")}},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, Time: &metav1.Time{},
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`),
			}},
		},
		Spec: corev1.PodSpec{
			InitContainers: containers[0], Containers: containers[1], NodeName: word.Draw(t, "node"),
			ServiceAccountName: word.Draw(t, "account"), HostNetwork: rapid.Bool().Draw(t, "host network"),
			Volumes: []corev1.Volume{{Name: "v"}}, SchedulerName: "s",
		},
		Status: corev1.PodStatus{
			Phase: rapid.SampledFrom([]corev1.PodPhase{corev1.PodRunning, corev1.PodFailed}).Draw(t, "phase"),
			PodIP: ip(), PodIPs: []corev1.PodIP{{IP: ip()}}, HostIP: ip(), HostIPs: []corev1.HostIP{{IP: ip()}},
			Reason: "r", ContainerStatuses: []corev1.ContainerStatus{{Name: "app", ImageID: "i"}},
			Conditions: []corev1.PodCondition{{
				Type:   corev1.PodReady,
				Status: rapid.SampledFrom([]corev1.ConditionStatus{"True", "False"}).Draw(t, "ready"),
			}},
		},
	}
	if rapid.Bool().Draw(t, "terminating") {
		p.DeletionTimestamp = &metav1.Time{}
	}
	return p
}

// A Pod of which only the fields that are read were decoded has the record of the whole Pod.
func TestPodFields(t *testing.T) {
	r := NewReconciler(logr.Discard(), "east", Options{Local: true})
	rapid.Check(t, func(t *rapid.T) {
		message, err := drawPod(t).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		read, ok := podFields.Prune(nil, message)
		var whole, pruned corev1.Pod
		if err := whole.Unmarshal(message); err != nil || !ok {
			t.Fatal(err, ok)
		}
		if err := pruned.Unmarshal(read); err != nil {
			t.Fatal(err)
		}
		var omitted [2]omissions
		want, _ := r.reducePod(&whole, &omitted[0])
		got, _ := r.reducePod(&pruned, &omitted[1])
		if want.node != got.node || want.class != got.class || omitted[0].String() != omitted[1].String() {
			t.Fatalf("%+v\n%+v\n%+v\n%+v", want, want.class.Value(), got, got.class.Value())
		}
		for i := range whole.ManagedFields {
			whole.ManagedFields[i].FieldsV1 = nil
		}
		if !reflect.DeepEqual(want.ips, got.ips) || !reflect.DeepEqual(whole.ObjectMeta, pruned.ObjectMeta) {
			t.Fatalf("%+v\n%+v\n%+v\n%+v", want.ips, whole.ObjectMeta, got.ips, pruned.ObjectMeta)
		}
		if len(pruned.Spec.Volumes) > 0 || len(pruned.Status.ContainerStatuses) > 0 {
			t.Fatal("it has what is not read")
		}
	})
}

// Of a Pod as it is with a proxy, less than a third is decoded.
func TestPodFieldsAreFew(t *testing.T) {
	p := somePod(0, 0, 0)
	for i := range 30 { // as many as the proxy of Linkerd has
		p.Spec.Containers[1].Env = append(p.Spec.Containers[1].Env, corev1.EnvVar{
			Name: fmt.Sprintf("LINKERD2_PROXY_SETTING_%d", i), Value: "some value of it",
		})
	}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 1000))}}
	message, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if read, ok := podFields.Prune(nil, message); !ok || len(read) > len(message)/3 {
		t.Errorf("%d bytes of %d are decoded, %t", len(read), len(message), ok)
	}
}
