package endpointslice

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func someWorkload() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
		"metadata": map[string]any{
			"namespace": "ns", "name": "ew", "uid": "ew-uid", "labels": map[string]any{"app": "web"},
		},
		"spec": map[string]any{
			"workloadIPs": []any{
				map[string]any{"ip": "10.0.0.1"},
				map[string]any{"ip": "no address"},
				map[string]any{"ip": "::ffff:10.0.0.2"},
			},
			"ports": []any{
				map[string]any{"name": "http", "port": int64(80)},
				map[string]any{"name": "dns", "port": int64(53), "protocol": "UDP"},
			},
		},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	}}
}

func TestNewWorkloadRecord(t *testing.T) {
	w, err := newWorkloadRecord(someWorkload())
	if err != nil {
		t.Fatal(err)
	}
	if len(w.addrs) != 2 || w.addrs[1].String() != "10.0.0.2" || !w.ready ||
		w.ports[0].Protocol != corev1.ProtocolTCP || w.uid != "ew-uid" {
		t.Errorf("%+v", w)
	}
	broken := someWorkload()
	broken.Object["spec"] = map[string]any{"ports": "none"}
	if _, err := newWorkloadRecord(broken); err == nil {
		t.Error("ports that are no list are read")
	}
}

func FuzzWorkloadRecord(f *testing.F) {
	b, err := someWorkload().MarshalJSON()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"kind":"ExternalWorkload","apiVersion":"v1",
"spec":{"workloadIPs":[{"ip":"fe80::1%eth0"}],"ports":[{"port":-1}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		u := &unstructured.Unstructured{}
		if u.UnmarshalJSON(b) != nil {
			return
		}
		w, err := newWorkloadRecord(u)
		if err != nil {
			return
		}
		for _, a := range w.addrs {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
				t.Errorf("address %v", a)
			}
		}
	})
}

// A port leads to what a workload documents under its number or name, with its protocol, and nowhere else.
func TestPortsAtWorkload(t *testing.T) {
	w, err := newWorkloadRecord(someWorkload())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		port corev1.ServicePort
		want int32
	}{
		"by number":          {corev1.ServicePort{Port: 8080, TargetPort: intstr.FromInt32(80)}, 80},
		"by its own number":  {corev1.ServicePort{Port: 80}, 80},
		"by name":            {corev1.ServicePort{Port: 8080, TargetPort: intstr.FromString("http")}, 80},
		"not documented":     {corev1.ServicePort{Port: 8080}, 0},
		"another name":       {corev1.ServicePort{Port: 80, TargetPort: intstr.FromString("https")}, 0},
		"another protocol":   {corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolUDP}, 0},
		"UDP":                {corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}, 53},
		"a name of UDP only": {corev1.ServicePort{Port: 53, TargetPort: intstr.FromString("dns")}, 0},
	} {
		var got int32
		for _, p := range portsAtWorkload(&serviceRecord{ports: []corev1.ServicePort{c.port}}, w) {
			got = *p.Port
		}
		if got != c.want {
			t.Errorf("%s: port %d, want %d", name, got, c.want)
		}
	}
}

// A change concerns the Services that have another endpoint for it, and no others.
func TestAffectedServices(t *testing.T) {
	selecting := func(name string, labels map[string]string) *serviceRecord {
		s, _ := newServiceRecord(&corev1.Service{Spec: corev1.ServiceSpec{Selector: labels}})
		s.Name = name
		return s
	}
	services := []*serviceRecord{
		selecting("app", map[string]string{"app": "web"}),
		selecting("staging", map[string]string{"env": "staging"}),
		selecting("prod", map[string]string{"env": "prod"}),
		{key: key{Name: "none"}},
	}
	with := func(env string, change func(*workloadRecord)) *workloadRecord {
		w, err := newWorkloadRecord(someWorkload())
		if err != nil {
			t.Fatal(err)
		}
		w.labels = map[string]string{"app": "web", "env": env}
		if change != nil {
			change(w)
		}
		return w
	}
	for name, c := range map[string]struct {
		old, now *workloadRecord
		want     []string
	}{
		"the same": {with("staging", nil), with("staging", nil), nil},
		"new":      {nil, with("staging", nil), []string{"app", "staging"}},
		"gone":     {with("prod", nil), nil, []string{"app", "prod"}},
		"label":    {with("staging", nil), with("prod", nil), []string{"prod", "staging"}},
		"readiness": {
			with("prod", nil), with("prod", func(w *workloadRecord) { w.ready = false }),
			[]string{"app", "prod"},
		},
		"zone": {
			with("prod", nil),
			with("prod", func(w *workloadRecord) { w.labels[corev1.LabelTopologyZone] = "a" }),
			[]string{"app", "prod"},
		},
		"label and port": {
			with("staging", nil), with("prod", func(w *workloadRecord) { w.ports = w.ports[:1] }),
			[]string{"app", "prod", "staging"},
		},
	} {
		var got []string
		for _, k := range affectedServices(c.old, c.now, services) {
			got = append(got, k.Name)
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// What no slice may hold is left out of an ExternalWorkload: it would keep all others of its slice from
// being written.
func TestInvalidWorkload(t *testing.T) {
	u := someWorkload()
	u.SetName("not.a.label")
	spec := u.Object["spec"].(map[string]any)
	var ips []any
	for _, ip := range []string{
		"10.0.0.1", "127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0", "::1", "fe80::1", "ff02::1", "::", "junk",
	} {
		ips = append(ips, map[string]any{"ip": ip})
	}
	spec["workloadIPs"] = ips
	spec["ports"] = []any{
		map[string]any{"name": "http", "port": int64(80)}, map[string]any{"name": "none", "port": int64(99999)},
	}
	w, err := newWorkloadRecord(u)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.addrs) != 1 || len(w.ports) != 1 {
		t.Errorf("addresses %v, ports %v", w.addrs, w.ports)
	}
	s, _ := newServiceRecord(someClientService())
	s.headless, s.selector = true, labels.Everything()
	for _, g := range externalGroups(s, []*workloadRecord{w}) {
		for _, e := range g.endpoints {
			if e.Hostname != nil {
				t.Errorf("%v is named %q", e.Addresses, *e.Hostname)
			}
		}
	}
}
