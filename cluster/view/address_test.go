package view

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// at renders where the node of a Pod leads to it.
func at(h *hostPorts) string {
	var all []string
	for _, ip := range h.ips {
		for _, port := range h.ports {
			all = append(all, netip.AddrPortFrom(ip, port).String())
		}
	}
	for _, b := range h.bound {
		all = append(all, b.String())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// A port of the node leads to the Pod at the IPs of the node that it is bound to.
func TestHostIP(t *testing.T) {
	for hostIP, want := range map[string]string{
		"":                 "192.168.1.20:443 [fd00::20]:443",
		"0.0.0.0":          "192.168.1.20:443",
		"000.000.000.000":  "192.168.1.20:443",
		"::":               "[fd00::20]:443",
		"192.168.1.20":     "192.168.1.20:443",
		"192.168.001.020":  "192.168.1.20:443",
		"::ffff:192.0.2.1": "192.0.2.1:443",
		"fd00::20":         "[fd00::20]:443",
		"fd00:0::0020":     "[fd00::20]:443",
		"203.0.113.10":     "203.0.113.10:443",
		"127.0.0.1":        "",
		"127.1.2.3":        "",
		"::1":              "",
		"169.254.1.1":      "",
		"node-a":           "",
	} {
		p := &corev1.Pod{ObjectMeta: named("p")}
		p.Status.HostIPs = []corev1.HostIP{{IP: "192.168.1.20"}, {IP: "fd00::20"}}
		p.Status.HostIP = "192.168.1.20"
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{
			{ContainerPort: 8443, HostPort: 443, HostIP: hostIP, Protocol: corev1.ProtocolTCP},
			{ContainerPort: 8443, HostPort: 444, HostIP: hostIP, Protocol: corev1.ProtocolUDP},
			{ContainerPort: 8444},
		}}}
		var out omissions
		if got := at(newHostPorts(p, &out)); got != want {
			t.Errorf("hostIP %q: %s, want %s", hostIP, got, want)
		}
		if (len(out.all) > 0) != (hostIP == "node-a") {
			t.Errorf("hostIP %q: reported %v", hostIP, out.all)
		}
	}
}

// An IP is what Kubernetes takes it for.
func TestParseIP(t *testing.T) {
	for text, want := range map[string]string{
		"10.96.11.12": "10.96.11.12", "10.96.011.012": "10.96.11.12", "192.168.001.100": "192.168.1.100",
		"010.000.000.008": "10.0.0.8", "fd00::1": "fd00::1", "FD00:0:0::0001": "fd00::1",
		"::ffff:10.0.0.1": "10.0.0.1", "::ffff:010.0.0.01": "10.0.0.1",
		"": "", "10.0.0": "", "10.0.0.256": "", "10.0.0.0x1": "", "fe80::1%eth0": "", "a.test": "",
		strings.Repeat("0", 200) + "10.0.0.1": "", "+1.0.0.1": "", "None": "", "10.0.0.1" + " ": "",
	} {
		got, is := ParseIP(text)
		if is != (want != "") || is && got.String() != want {
			t.Errorf("%q: %v, %t, want %q", text, got, is, want)
		}
	}
}

// FuzzParseIP: whatever the text, an IP stands for the same one when it is read again, and has no zone.
func FuzzParseIP(f *testing.F) {
	for _, text := range []string{"10.96.011.012", "::ffff:010.0.0.1", "fe80::1%eth0", "", "1.2.3", "0x1.2.3.4"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ip, is := ParseIP(text)
		if !is {
			return
		}
		if again, is := ParseIP(ip.String()); !is || again != ip || ip.Zone() != "" || ip.Is4In6() {
			t.Errorf("%q is %v, and that %v", text, ip, again)
		}
	})
}

// A Pod may bind a port to any IP. There it comes after all who have the IP.
func TestBoundElsewhere(t *testing.T) {
	const ip = "10.9.0.1"
	pod := func(name string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: named(name)}
		p.Status.Phase, p.Status.PodIP, p.Status.HostIP = corev1.PodRunning, "10.1.0.1", "192.168.0.1"
		change(p)
		return p
	}
	bound := func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 443, HostIP: ip}}}}
	}
	svc := goodService()
	svc.Spec.ClusterIP = ip
	for name, tc := range map[string]struct {
		put  func(w *world)
		want string
	}{
		"alone":     {func(*world) {}, "thief:443"},
		"a Service": {func(w *world) { w.put("Service", svc) }, ""},
		"a Pod": {func(w *world) {
			w.put("Pod", pod("owner", func(p *corev1.Pod) { p.Status.PodIP = ip }))
		}, "owner:0"},
		"another's node": {func(w *world) {
			w.put("Pod", pod("owner", func(p *corev1.Pod) {
				p.Status.HostIP = ip
				p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 443}}}}
			}))
		}, "owner:443"},
	} {
		store := federation.NewStore()
		store.AddCluster("c", federation.Expectation{Local: true})
		r := NewReconciler(logr.Discard(), "c", Options{Local: true})
		w := newWorld(r)
		w.put("Pod", pod("thief", bound))
		tc.put(w)
		r.Begin(store.NewWriter("c"), &store.Facts)
		r.queue.ShutDown()
		got := ""
		if a, known := store.Addresses.Get("c", netip.MustParseAddr(ip)); known {
			for _, who := range a.Residents {
				got += fmt.Sprintf("%s:%d", who.Name, who.Port)
			}
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
