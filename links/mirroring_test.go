package links

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

func mirroringFrom(t *testing.T, spec string) *Mirroring {
	t.Helper()
	u := &unstructured.Unstructured{}
	text := "apiVersion: multicluster.linkerd.io/v1alpha3\nkind: Link\nmetadata: {name: east, namespace: mc}\nspec: " + spec
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	l, ok := newLink(u, "local")
	if !ok {
		t.Fatal("the Link is not kept")
	}
	if l.refusal != "" {
		t.Errorf("%s: the cluster is not linked: %s", spec, l.refused)
	}
	return l.mirroring
}

// Of the name of a cluster that is too long a part is shown, which names no cluster.
func TestLongName(t *testing.T) {
	for name, valid := range map[string]bool{
		strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, strings.Repeat("ä", 1<<20): false,
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"targetClusterName": name}}}
		l, _ := newLink(u, "local")
		if (l.refusal == "") != valid || len(l.clusterName) > 66 || (l.clusterName == name) != valid {
			t.Errorf("a name of %d bytes: %q, %s", len(name), l.clusterName, l.refused)
		}
	}
}

// An absent or empty selector selects nothing, unlike elsewhere in Kubernetes.
func TestEmptySelectors(t *testing.T) {
	m := mirroringFrom(
		t,
		`{targetClusterName: east, selector: {}, remoteDiscoverySelector: {matchLabels: {}}, federatedServiceSelector: {matchExpressions: [{key: a, operator: Exists}]}}`,
	)
	set := labels.Set{"a": "b"}
	if m.Problem != "" || m.Selector.Matches(set) || m.RemoteDiscoverySelector.Matches(set) ||
		!m.FederatedServiceSelector.Matches(set) || m.FederatedServiceSelector.Matches(labels.Set{}) {
		t.Errorf(
			"selectors %v, %v, %v, problem %q", m.Selector, m.RemoteDiscoverySelector,
			m.FederatedServiceSelector, m.Problem,
		)
	}
}

// Fields that a Link leaves out have defaults. Numbers are strings, and a period may be bare seconds.
func TestGatewaySpec(t *testing.T) {
	for spec, want := range map[string]struct {
		gateway Gateway
		probe   *Probe
	}{
		`{targetClusterName: east}`: {Gateway{Port: 4143}, nil},
		// Of no gateway.
		`{targetClusterName: east, probeSpec: {path: /ready, port: "4191"}}`: {Gateway{Port: 4143}, nil},
		`{targetClusterName: east, gatewayAddress: "b.example, 192.0.2.1,,b.example", gatewayPort: "1", gatewayIdentity: id, probeSpec: {path: /ready, port: "4191", period: 5s, timeout: 1m, failureThreshold: "7"}}`: {
			Gateway{Addresses: []string{"192.0.2.1", "b.example"}, Port: 1, Identity: "id"},
			&Probe{
				Path: "/ready", Port: 4191, Period: 5 * time.Second, Timeout: time.Minute,
				FailureThreshold: 7,
			},
		},
		`{targetClusterName: east, gatewayAddress: 192.0.2.1, probeSpec: {path: /ready, period: "9"}}`: {
			Gateway{Addresses: []string{"192.0.2.1"}, Port: 4143},
			&Probe{
				Path: "/ready", Port: 4143, Period: 9 * time.Second, Timeout: 30 * time.Second,
				FailureThreshold: 3,
			},
		},
	} {
		m := mirroringFrom(t, spec)
		if diff := cmp.Diff(want.gateway, m.Gateway) + cmp.Diff(want.probe, m.Probe); diff != "" || m.Problem != "" {
			t.Errorf("%s: problem %q\n%s", spec, m.Problem, diff)
		}
	}
}

// A problem names its field, and does not keep the cluster from being linked.
func TestMirroringProblems(t *testing.T) {
	manyHosts := ""
	for i := range maxGatewayAddresses + 1 {
		manyHosts += fmt.Sprintf("host-%d,", i)
	}
	for spec, want := range map[string]string{
		`{targetClusterName: east, gatewayPort: http}`:                                                          `spec.gatewayPort "http" is not a port`,
		`{targetClusterName: east, gatewayPort: "0"}`:                                                           `spec.gatewayPort "0" is not a port`,
		`{targetClusterName: east, selector: {matchExpressions: [{key: a, operator: Like}]}}`:                   `spec.selector: "Like" is not a valid label selector operator`,
		`{targetClusterName: east, selector: junk}`:                                                             `cannot unmarshal`,
		`{targetClusterName: east, federatedServiceSelector: {matchLabels: {"not a key": x}}}`:                  `spec.federatedServiceSelector: `,
		`{targetClusterName: east, gatewayPort: http, remoteDiscoverySelector: {matchLabels: {a: "not @ it"}}}`: `; `,
		`{targetClusterName: east, gatewayAddress: "` + manyHosts + `"}`:                                        `spec.gatewayAddress names 101 addresses: name 100 at most`,
		`{targetClusterName: east, gatewayAddress: "192.0.2.1,::ffff:127.0.0.1"}`:                               `spec.gatewayAddress ::ffff:127.0.0.1 is loopback`,
	} {
		m := mirroringFrom(t, spec)
		if !strings.Contains(m.Problem, want) {
			t.Errorf("%s: problem %q, want %q", spec, m.Problem, want)
		}
	}
}

// So does a problem with the probe of a gateway.
func TestProbeProblems(t *testing.T) {
	for spec, want := range map[string]string{
		`path: /, period: soon`:          `spec.probeSpec.period "soon" is not a duration from 100ms to 1h`,
		`path: /, timeout: -1s`:          `spec.probeSpec.timeout "-1s" is not a duration from 100ms to 1h`,
		`path: "@192.0.2.1/"`:            `spec.probeSpec.path "@192.0.2.1/" is not a path such as /ready`,
		`path: "http://192.0.2.1/"`:      `spec.probeSpec.path "http://192.0.2.1/" is not a path`,
		`path: /, period: 1ns`:           `spec.probeSpec.period "1ns" is not a duration from 100ms to 1h`,
		`path: /, period: "9300000000"`:  `spec.probeSpec.period "9300000000" is not a duration`,
		`path: /, period: 2562047h`:      `spec.probeSpec.period "2562047h" is not a duration`,
		`path: /, failureThreshold: "0"`: `spec.probeSpec.failureThreshold "0" is not a number above 0`,
	} {
		m := mirroringFrom(t, "{targetClusterName: east, gatewayAddress: a, probeSpec: {"+spec+"}}")
		if !strings.Contains(m.Problem, want) {
			t.Errorf("%s: problem %q, want %q", spec, m.Problem, want)
		}
	}
}

// An edit by which a Link names no cluster, or the local one, changes nothing of what it links, however often it is
// made. What was never accepted links nothing.
func TestRefusedEdit(t *testing.T) {
	read := func(name any) *Link {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"targetClusterName": name, "targetClusterDomain": fmt.Sprint(name, ".test"),
			"clusterCredentialsSecret": fmt.Sprint("of-", name),
		}}}
		l, _ := newLink(u, "local")
		return l
	}
	east := read("east")
	for _, name := range []any{"", "local", "-", map[string]any{"a": "b"}} {
		edited := read(name).after(east)
		again := read("").after(edited)
		for _, l := range []*Link{edited, again} {
			if l.clusterName != "east" || l.clusterDomain != "east.test" || l.secret != "of-east" ||
				l.mirroring.Cluster != "east" || l.mirroring.Problem != l.refused ||
				l.refusal == "" || !strings.Contains(l.refused, "east stays") {
				t.Errorf("edited to name %v, it links %q by %q: %s", name, l.clusterName, l.secret, l.refused)
			}
		}
		if l := read(name).after(read("")); l.kept != "" {
			t.Errorf("one that was never accepted links %q", l.kept)
		}
		if l := read("west").after(edited); l.clusterName != "west" || l.refusal != "" {
			t.Errorf("corrected to name west, it links %q", l.clusterName)
		}
	}
}
