package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation"
)

// someServer returns a Server as it arrives; it lacks what is nil.
func someServer(namespace, name string, podSelector, port any, protocol string) *unstructured.Unstructured {
	spec := map[string]any{"podSelector": podSelector, "port": port, "proxyProtocol": protocol}
	maps.DeleteFunc(spec, func(_ string, v any) bool { return v == nil })
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
		"metadata": map[string]any{"namespace": namespace, "name": name}, "spec": spec,
	}}
}

func matching(app string) map[string]any {
	return map[string]any{"matchLabels": map[string]any{"app": app}}
}

func TestServer(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "empty": ""}}}
	port := func(name string, number, host int32) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: number, HostPort: host}
	}
	p.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{port("init", 90, 0)}}}
	p.Spec.Containers = []corev1.Container{
		{Ports: []corev1.ContainerPort{port("http", 80, 0), port("", 81, 0)}},
		{Ports: []corev1.ContainerPort{port("http", 8080, 8080), port("mapped", 82, 7777), port("junk", 70000, 0)}},
	}
	kept, _ := newPodRecord(p, &omissions{})
	from := kept.class.Value()

	expressions := func(key, operator string, values ...any) map[string]any {
		return map[string]any{"matchExpressions": []any{
			map[string]any{"key": key, "operator": operator, "values": values},
		}}
	}
	for name, tc := range map[string]struct {
		selector, port any
		protocol       string
		want           string
	}{
		"number":            {matching("web"), int64(80), "opaque", "[80]"},
		"undeclared number": {matching("web"), int64(4), "opaque", "[4]"},
		"name":              {matching("web"), "http", "opaque", "[80 8080]"},
		"of an init one":    {matching("web"), "init", "opaque", "[90]"},
		"at the host":       {matching("web"), "mapped", "opaque", "[82 7777]"},
		"unknown name":      {matching("web"), "https", "opaque", "[]"},
		"no name":           {matching("web"), "", "opaque", "[]"},
		"port of no range":  {matching("web"), "junk", "opaque", "[]"},
		"no port":           {matching("web"), nil, "opaque", "[]"},
		"number too large":  {matching("web"), int64(65616), "opaque", "[]"},
		"too large for one": {matching("web"), int64(1 << 40), "opaque", "invalid"},
		"others":            {matching("db"), int64(80), "opaque", "[]"},
		"everything":        {map[string]any{}, int64(80), "opaque", "[80]"},
		"nothing":           {nil, int64(80), "opaque", "[]"},
		"in":                {expressions("app", "In", "db", "web"), int64(80), "opaque", "[80]"},
		"not in":            {expressions("app", "NotIn", "db", "web"), int64(80), "opaque", "[]"},
		"empty value":       {expressions("empty", "Exists"), int64(80), "opaque", "[80]"},
		"no such label":     {expressions("none", "DoesNotExist"), int64(80), "opaque", "[80]"},
		"unknown operator":  {expressions("app", "Like", "w"), int64(80), "opaque", "invalid"},
		"junk":              {"app=web", int64(80), "opaque", "invalid"},
		"another protocol":  {matching("web"), int64(80), "HTTP/2", "[]"},
		"another case":      {matching("web"), int64(80), "Opaque", "[]"},
		"unread if unused":  {expressions("app", "Like", "w"), int64(80), "unknown", "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := newServerRecord(someServer("ns", "s", tc.selector, tc.port, tc.protocol), &omissions{})
			var ports []federation.PortRange
			if s.appliesTo(kindPod, p.Name, &from) {
				ports = s.appendOpaque(nil, &from)
			}
			got := fmt.Sprint(holds(federation.PortsOf(ports...)))
			if err != nil {
				got = "invalid"
			}
			if got != tc.want {
				t.Errorf("opaque: %s (%v), want %s", got, err, tc.want)
			}
		})
	}
}

// A labelSet answers look-ups as the labels do from which it was made.
func TestLabelSet(t *testing.T) {
	for _, m := range []labels.Set{
		nil, {"a": "1"}, {"a": "", "ab": "2", "b/a": "a", "c": "x.y_z-1"}, {"pod": "web-3", "index": "3", "n": "web"},
	} {
		kept := podLabels{"web-3", newLabelSet("web-3", m, &omissions{})}
		for _, name := range append(slices.Collect(maps.Keys(m)), "x", "1", "2", "/a") {
			want, found := m.Lookup(name)
			got, has := kept.Lookup(name)
			if got != want || has != found || kept.Has(name) != found || kept.Get(name) != want {
				t.Errorf("%v: label %q is %q (%t), want %q (%t)", m, name, got, has, want, found)
			}
		}
	}
}

// Labels that are too many count for nothing, which is reported; those of any Pod in good order are kept.
func TestLabelsThatAreTooMany(t *testing.T) {
	of := func(n int) map[string]string {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf("example.com/label-%d", i)] = strings.Repeat("x", maxLabel)
		}
		return all
	}
	var out omissions
	if set := newLabelSet("web", of(50), &out); len(set) == 0 || len(out.all) > 0 {
		t.Errorf("of 50 labels %d bytes are kept: %s", len(set), &out)
	}
	kept := apitest.Kept(20, func(i int) podRecord {
		p := &corev1.Pod{ObjectMeta: named(fmt.Sprint("web-", i))}
		p.Labels, p.Annotations = of(2000), map[string]string{"example.com/large": strings.Repeat("x", 200<<10)}
		p.Labels["n"] = fmt.Sprint("number-", i)
		record, _ := newPodRecord(p, &out)
		return record
	})
	if t.Logf("of a Pod %d bytes are kept", kept); kept > 2<<10 {
		t.Errorf("of a Pod %d bytes are kept", kept)
	}
	if !strings.Contains(out.String(), "labels: they have ") {
		t.Errorf("reported: %s", &out)
	}
}

// Pods of a StatefulSet share one podClass, and selectors still distinguish them.
func TestStatefulSet(t *testing.T) {
	replica := func(name, index string) (podRecord, podClass) {
		p := &corev1.Pod{ObjectMeta: named(name)}
		p.Labels = map[string]string{
			"app": "db", "statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": index,
		}
		kept, _ := newPodRecord(p, &omissions{})
		return kept, kept.class.Value()
	}
	one, from := replica("db-1", "1")
	two, _ := replica("db-2", "2")
	if one != two {
		t.Errorf("%v and %v are kept apart", one.class.Value(), two.class.Value())
	}
	for label, value := range map[string]string{
		"statefulset.kubernetes.io/pod-name": "db-2", "apps.kubernetes.io/pod-index": "2",
	} {
		s, err := newServerRecord(someServer("ns", "s", map[string]any{
			"matchLabels": map[string]any{label: value},
		}, int64(80), opaqueProtocol), &omissions{})
		if err != nil || s.appliesTo(kindPod, "db-1", &from) || !s.appliesTo(kindPod, "db-2", &from) {
			t.Errorf("%s=%s does not select db-2 alone (%v)", label, value, err)
		}
	}
}

// BenchmarkServer is a Server that comes and goes in a namespace of 10,000 Pods, of which it selects some:
// from its update to the View that is published.
func BenchmarkServer(b *testing.B) {
	const pods = 10_000
	for _, selected := range []int{10, pods} {
		b.Run(fmt.Sprintf("selected=%d", selected), func(b *testing.B) {
			store := federation.NewStore()
			store.AddCluster("cluster", federation.Expectation{Local: true})
			r := NewReconciler(logr.Discard(), "cluster", Options{})
			w := newWorld(r)
			update(b, w.kinds["Service"], someService(0))
			for i := range pods {
				p := somePod(0, 0, i)
				p.Labels["app"] = fmt.Sprintf("app-%d", i/selected)
				update(b, w.kinds["Pod"], p)
			}
			for from := 0; from < pods; from += 100 {
				update(b, w.kinds["EndpointSlice"], someSlice(0, 0, from, 100, nil))
			}
			r.Begin(store.NewWriter("cluster"), &store.Facts)
			defer r.queue.ShutDown()
			namespace := someService(0).Namespace
			s := someServer(namespace, "s", matching("app-0"), "http", opaqueProtocol)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				change := w.kinds["Server"].Store.Update
				if i%2 == 1 {
					change = w.kinds["Server"].Store.Delete
				}
				change(s)
				r.reconcileServer(key{Namespace: namespace, Name: "s"})
				r.publishService(key{Namespace: namespace, Name: "service-0"})
			}
		})
	}
}
