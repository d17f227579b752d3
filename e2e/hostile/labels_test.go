package hostile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// exported is what a proxy exports of an address: it prefixes labels, and escapes nothing.
func exported(labels ...map[string]string) string {
	var all []string
	for _, l := range labels {
		for _, k := range slices.Sorted(maps.Keys(l)) {
			all = append(all, fmt.Sprintf(`dst_%s="%s"`, k, l[k]))
		}
	}
	return "request_total{" + strings.Join(all, ",") + "} 1\n"
}

// Linked clusters put text into the metrics of clients' proxies. Whatever it is, a scrape of these has the one metric,
// with labels that it always has.
func TestLabelsOfProxies(t *testing.T) {
	const forged = "x\"} 1\nslo_success_total{service=\"bank\"} 999999\nz{a=\""
	owner := func(kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: name, UID: "u", Controller: new(true)}}
	}
	rows := map[string]func(app fakeapi.App, pod *corev1.Pod, more *[]fakeapi.Object){
		"an owner's name breaks a scrape": func(_ fakeapi.App, pod *corev1.Pod, _ *[]fakeapi.Object) {
			pod.OwnerReferences = owner("Foo", `x"y{`)
		},
		"a known owner's name forges": func(_ fakeapi.App, pod *corev1.Pod, _ *[]fakeapi.Object) {
			pod.OwnerReferences = owner("StatefulSet", forged)
		},
		"an owner's kind forges": func(_ fakeapi.App, pod *corev1.Pod, _ *[]fakeapi.Object) {
			pod.OwnerReferences = owner("a=\"\"} 1\nforged_total 7\nz{b", "x")
		},
		"an owner's kind is another label": func(_ fakeapi.App, pod *corev1.Pod, _ *[]fakeapi.Object) {
			pod.OwnerReferences = owner("Zone", "elsewhere")
		},
		"an owner's name ends in a backslash": func(_ fakeapi.App, pod *corev1.Pod, _ *[]fakeapi.Object) {
			pod.OwnerReferences = owner("DaemonSet", `x\`)
		},
		"the owner of a Job forges": func(app fakeapi.App, pod *corev1.Pod, more *[]fakeapi.Object) {
			job := &batchv1.Job{ObjectMeta: app.Service().ObjectMeta}
			job.OwnerReferences = owner("CronJob", forged)
			pod.OwnerReferences = owner("Job", job.Name)
			*more = append(*more, job)
		},
		"the hash of a template forges": func(_ fakeapi.App, pod *corev1.Pod, _ *[]fakeapi.Object) {
			pod.Labels["pod-template-hash"] = forged
		},
		"the node forges": func(_ fakeapi.App, pod *corev1.Pod, _ *[]fakeapi.Object) { pod.Spec.NodeName = forged },
	}
	w := newBusy(t)
	good := member(0)
	w.link("good").Run(1, func(int) fakeapi.App { return good })
	names, want := []string{"good"}, good.Addrs()
	for i, name := range slices.Sorted(maps.Keys(rows)) {
		app := member(1 + i)
		app.Pods = 1
		pod, slice, more := app.Pod(0), app.Slice(0), []fakeapi.Object{}
		slice.Endpoints[0].Zone = new(forged)
		rows[name](app, pod, &more)
		cluster := w.link(fmt.Sprintf("c%d", i))
		cluster.Apply(append(more, app.Service(), pod, slice)...)
		names, want = append(names, cluster.Name), append(want, app.Addrs()...)
	}
	w.local.Apply(fakeapi.Federated("shop", "app", names...))
	w.serve()
	w.live(names...)

	stream, err := pb.NewDestinationClient(w.dial()).Get(t.Context(), &pb.GetDestination{
		Scheme: "k8s", Path: fakeapi.Authority("shop", "app-federated"),
	})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for n := 0; n < len(want); {
		u, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range u.GetAdd().GetAddrs() {
			n++
			text := exported(u.GetAdd().GetMetricLabels(), a.GetMetricLabels())
			parser := expfmt.NewTextParser(model.UTF8Validation)
			families, err := parser.TextToMetricFamilies(strings.NewReader(text))
			if err != nil || len(families) != 1 || len(families["request_total"].GetMetric()) != 1 {
				t.Errorf("a scrape has %v, %v:\n%s", slices.Sorted(maps.Keys(families)), err, text)
				continue
			}
			for _, l := range families["request_total"].GetMetric()[0].GetLabel() {
				keys[l.GetName()] = true
			}
		}
	}
	known := []string{
		"dst_control_plane_ns", "dst_deployment", "dst_k8s_job", "dst_namespace", "dst_pod", "dst_pod_template_hash",
		"dst_replicaset", "dst_service", "dst_serviceaccount", "dst_zone", "dst_zone_locality",
	}
	if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, known) {
		t.Errorf("labels are %q", got)
	}
	page, err := w.server.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names[1:] {
		if !strings.Contains(page, `fingerpost_malformed_objects_total{resource="endpointslices.discovery.k8s.io",`+
			`target_cluster="`+name+`"} 1`) {
			t.Errorf("what is left out of %s is not counted", name)
		}
	}
	w.answered(10)
}
