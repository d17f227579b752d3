package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write what is generated: golden renders, and the tables of values")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	charts = "../../charts"
	server = charts + "/fingerpost"
	linked = charts + "/fingerpost-link"
)

// everything switches on what is off, but for dashboards: they are long, and tested by themselves.
const everything = `
fullnameOverride: signpost
commonLabels: {team: mesh}
commonAnnotations: {owner: mesh}
global: {imageRegistry: "registry.example:5000"}
image: {digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
imagePullSecrets: [{name: registry}]
links: {namespace: links, allowHosts: [127.0.0.1, "fd00::/8"]}
mesh: {ipv6: true, http2ClientParams: null}
mirror: {mode: "on", createNamespaces: true}
autoscaling: {enabled: true}
tolerations: [{operator: Exists}]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: arch, operator: Exists}]}]
topologySpreadConstraints:
- {maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {team: mesh}}}
runtimeClassName: gvisor
hostAliases: [{ip: 192.0.2.1, hostnames: [west.example]}]
dnsPolicy: None
dnsConfig: {nameservers: [192.0.2.53]}
deploymentAnnotations: {reloader: "true"}
terminationGracePeriodSeconds: 60
probes: {liveness: {initialDelaySeconds: 5}}
extraContainers: [{name: tail, image: busybox}]
initContainers: [{name: wait, image: busybox}]
extraObjects:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-extra", namespace: mesh}}
podAnnotations: {linkerd.io/inject: enabled}
podLabels: {role: discovery}
priorityClassName: system-cluster-critical
resourceQuota: {enabled: true, pods: 20}
extraArgs: [-enable-pprof]
extraEnv: [{name: HTTP2_READ_IDLE_TIMEOUT_SECONDS, value: "5"}]
extraVolumes: [{name: scratch, emptyDir: {}}]
extraVolumeMounts: [{name: scratch, mountPath: /tmp}]
service: {annotations: {service.kubernetes.io/topology-mode: Auto}}
tls:
  clientCA: {secretName: clients}
  certManager: {enabled: true, issuerRef: {name: mesh, kind: ClusterIssuer, group: cert-manager.io}}
serviceAccount: {annotations: {about: discovery}}
networkPolicy:
  enabled: true
  clients: [{namespaceSelector: {}}]
  monitoring: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  extraIngress: [{ports: [{port: 4143}]}]
  extraEgress: [{ports: [{port: 8090}]}]
podMonitor: {enabled: true, labels: {release: prometheus}, interval: 30s}
serviceMonitor: {enabled: true}
prometheusRule: {enabled: true, labels: {release: prometheus}, alertLabels: {team: mesh}}
spValidator: {enabled: true, tls: {certManager: {enabled: true, issuerRef: {name: mesh}}}}
policy:
  enabled: true
  defaultInboundPolicy: audit
  service: {annotations: {about: policy}}
  webhook: {enabled: true, tls: {certManager: {enabled: true, issuerRef: {name: mesh}}}}
`

// policyDropIn has Linkerd's policy container replaced, too.
const policyDropIn = `
policy: {enabled: true, webhook: {enabled: true, tls: {caBundle: "-----BEGIN CERTIFICATE-----"}}}
`

// renders are what is kept in testdata, by the name of the file.
var renders = map[string]struct {
	dir string
	release
}{
	"default": {server, release{name: "fingerpost", namespace: "fingerpost"}},
	"ha": {
		server,
		release{name: "fingerpost", namespace: "fingerpost", values: []string{server + "/values-ha.yaml"}},
	},
	"drop-in": {
		server,
		release{name: "fingerpost", namespace: "linkerd", values: []string{server + "/values-drop-in.yaml"}},
	},
	"drop-in-policy": {
		server,
		release{
			name: "fingerpost", namespace: "linkerd", set: policyDropIn,
			values: []string{server + "/values-drop-in.yaml"},
		},
	},
	"everything":        {server, release{name: "east", namespace: "mesh", set: everything}},
	"control-plane":     {server, mesh(givenMesh)},
	"control-plane-one": {server, mesh(everythingOfMesh, server+"/values-ha.yaml")},
	"least": {
		server,
		release{
			name:      "fingerpost",
			namespace: "fingerpost",
			set:       "{replicas: 1, mesh: {endpointSlices: false}, links: {labelledSecrets: true}}",
		},
	},
	"link": {linked, release{name: "fingerpost-link", namespace: "fingerpost"}},
	"link-write": {
		linked,
		release{
			name:      "east",
			namespace: "fingerpost",
			set: "{namespace: {create: true}, write: {enabled: true}, serviceAccount: {name: east}, " +
				"token: {create: true}, tokenRenewal: {enabled: false}, " +
				"commonAnnotations: {owner: mesh}}",
		},
	},
}

func TestGolden(t *testing.T) {
	for name, r := range renders {
		t.Run(name, func(t *testing.T) {
			r.hooks = true
			manifests, notes, err := r.render(r.dir)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", name+".yaml"), manifests)
			golden(t, filepath.Join("testdata", name+".txt"), notes)
		})
	}
}

func golden(t *testing.T, path, have string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("%s is out of date, run make generate if this is meant (-want +got):\n%s", path, diff)
	}
}

func TestLint(t *testing.T) {
	for name, r := range renders {
		t.Run(name, func(t *testing.T) {
			values, err := r.merged()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range lint.RunAll(r.dir, values, r.namespace).Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
		})
	}
}

// What a chart needs of other folders is in it: helm packages no files from outside of it.
func TestCopies(t *testing.T) {
	for to, from := range map[string]struct {
		path string
		part func(text string) string
	}{
		"links.yaml": {"../../links/crd/links.yaml", func(text string) string { return text }},
		"flags.txt": {"../../docs/flags.md", func(text string) string {
			serve, _, _ := strings.Cut(text, "## `fingerpost sp-validator`")
			flags := names(regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9-]+)`), serve)
			flags = slices.DeleteFunc(flags, func(name string) bool { return name == "help" || name == "version" })
			return strings.Join(flags, "\n") + "\n"
		}},
	} {
		text, err := os.ReadFile(from.path)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join(server, "files", to), from.part(string(text)))
	}
}

// The CRD outlives the release.
func TestCRD(t *testing.T) {
	manifests, _, err := release{
		name:      "fingerpost",
		namespace: "fingerpost",
		set:       "{crds: {links: true}}",
	}.render(server)
	if err != nil {
		t.Fatal(err)
	}
	var have struct {
		Kind     string
		Metadata struct{ Annotations map[string]string }
	}
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains(document, "\nkind: CustomResourceDefinition\n") {
			if err := yaml.Unmarshal([]byte(document), &have); err != nil {
				t.Fatal(err)
			}
		}
	}
	if have.Metadata.Annotations["helm.sh/resource-policy"] != "keep" {
		t.Errorf("the CRD, and with it every Link, goes with the release: %v", have)
	}
}

// The flags that the chart renders are flags of the server.
func TestFlagsExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for name, r := range renders {
		manifests, _, err := r.render(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		served := slices.DeleteFunc(strings.Split(manifests, "\n---\n"), func(document string) bool {
			return strings.Contains(document, "\nkind: CronJob\n") // of a command, which TestLinkRenewByChart runs
		})
		flags := regexp.MustCompile(`(?m)^ +- "?-([a-z0-9-]+)`)
		for _, match := range flags.FindAllStringSubmatch(strings.Join(served, "\n"), -1) {
			seen++
			if !strings.Contains(string(page), "      --"+match[1]+" ") {
				t.Errorf("%s: -%s is no flag of docs/flags.md", name, match[1])
			}
		}
	}
	if seen < 50 {
		t.Errorf("%d flags were found, want those of every render", seen)
	}
}

// Who follows the docs builds the image that is asked for.
func TestImage(t *testing.T) {
	manifests, _, err := renders["default"].render(server)
	if err != nil {
		t.Fatal(err)
	}
	_, image, _ := strings.Cut(manifests, "\n        image: ")
	image, _, _ = strings.Cut(image, "\n")
	_, tag, _ := strings.Cut(image, ":")
	for page, want := range map[string][]string{
		"install.md":           {"`make image VERSION=" + tag + "` builds it"},
		"link-two-clusters.md": {"`make image VERSION=" + tag + "` builds the image", "`" + image + "`"},
	} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("docs/%s does not have %q", page, w)
			}
		}
	}
}

// The oldest Kubernetes that the charts admit is one that make versions tests, and docs/versions.md names all of those.
func TestVersions(t *testing.T) {
	tested, err := filepath.Glob("../../e2e/kube/kubernetes-*.mod")
	if err != nil || len(tested) < 2 {
		t.Fatalf("Kubernetes: %q %v", tested, err)
	}
	page, err := os.ReadFile("../../docs/versions.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range tested {
		minor := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "kubernetes-"), ".mod")
		if !strings.Contains(string(page), " "+minor+" (the ") {
			t.Errorf("docs/versions.md does not name %s", minor)
		}
		for _, dir := range []string{server, linked} {
			var chart struct {
				KubeVersion string `yaml:"kubeVersion"`
			}
			read(t, filepath.Join(dir, "Chart.yaml"), &chart)
			if want := ">=" + minor + ".0-0"; i == 0 && chart.KubeVersion != want {
				t.Errorf("%s asks for Kubernetes %s, and the oldest that is tested is %s", dir, chart.KubeVersion, want)
			}
		}
	}
}

// Quantities may be numbers, as Kubernetes takes them; GOMEMLIMIT is nine tenths of the container's limit, however that
// is written.
func TestQuantities(t *testing.T) {
	for limit, want := range map[string]string{
		`"512Mi"`: "483183820", "1.5Gi": "1449551462", "1Ti": "989560464998", "100Ki": "92160",
		"1G": "900000000", "500M": "450000000", "2T": "1800000000000", "1000k": "900000", `"1000000000"`: "900000000",
		"1000000000": "900000000", "536870912": "483183820", "5.36870912e8": "483183820",
		"1099511627776": "989560464998",
		"99999999T":     "9000000000000000000",
	} {
		const cpus = "requests: {cpu: 1, ephemeral-storage: 1000000000}, limits: {cpu: 0.5, "
		manifests := rendered(t, server, fmt.Sprintf("{resources: {%smemory: %s}}}", cpus, limit))
		if !strings.Contains(manifests, "- name: GOMEMLIMIT\n          value: \""+want+"\"\n") {
			t.Errorf("a limit of %s is not rendered as %s", limit, want)
		}
		resources := deployment(t, manifests).Spec.Template.Spec.Containers[0].Resources
		have, _ := resources.Limits.Memory().AsInt64()
		asked := resource.MustParse(strings.Trim(limit, `"`))
		if isSame, _ := asked.AsInt64(); have != isSame {
			t.Errorf("a limit of %s is rendered as %d", limit, have)
		}
		if resources.Limits.Cpu().MilliValue() != 500 || resources.Requests.StorageEphemeral().Value() != 1e9 {
			t.Errorf("CPU and storage: %v", resources)
		}
	}
}

func rendered(t *testing.T, dir, set string) (manifests string) {
	t.Helper()
	manifests, _, err := release{name: "fingerpost", namespace: "fingerpost", set: set}.render(dir)
	if err != nil {
		t.Fatalf("%s: %v", set, err)
	}
	return manifests
}

// deployment returns the first Deployment of manifests; a field that no Deployment has, or has in another type, is an
// error.
func deployment(t *testing.T, manifests string) (d appsv1.Deployment) {
	t.Helper()
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains(document, "\nkind: Deployment\n") {
			if err := sigsyaml.UnmarshalStrict([]byte(document), &d); err != nil {
				t.Fatalf("%v\n%s", err, document)
			}
			return d
		}
	}
	t.Fatal("there is no Deployment")
	return d
}

// Users are those of a namespace of OpenShift, whose numbers a template would print as 1.00068e+09; or none, so that
// OpenShift gives them.
func TestUsers(t *testing.T) {
	const user = 1000680000
	set := fmt.Sprintf("{podSecurityContext: {runAsUser: %d, runAsGroup: %[1]d}, revisionHistoryLimit: 1000000}", user)
	manifests := rendered(t, server, set)
	c := deployment(t, manifests).Spec.Template.Spec.SecurityContext
	if c == nil || *c.RunAsUser != user || *c.RunAsGroup != user || *c.FSGroup != user {
		t.Errorf("%s: %v", set, c)
	}
	if exponent := regexp.MustCompile(`: [0-9.]+e\+[0-9]+`).FindString(manifests); exponent != "" {
		t.Errorf("an integer is rendered as%s", exponent)
	}
	set = "{podSecurityContext: {runAsUser: null, runAsGroup: null}}"
	d := deployment(t, rendered(t, server, set))
	if c := d.Spec.Template.Spec.SecurityContext; c.RunAsUser != nil || c.RunAsGroup != nil || c.FSGroup != nil {
		t.Errorf("%s: %v", set, c)
	}
}

// A chart of charts switches its parts on and off by a condition, gives them other names, and has globals.
func TestParent(t *testing.T) {
	const own, link = "fingerpost", "fingerpost-link"
	for name, c := range map[string]struct{ part, values, set, want string }{
		"on": {
			own, "{global: {team: a}, fingerpost: {enabled: true, replicas: 3}}", "", "replicas: 3\n",
		},
		"off":           {own, "{fingerpost: {enabled: true}}", "{fingerpost: {enabled: false}}", ""},
		"no word of it": {own, "{}", "", "replicas: 2\n"},
		"globals":       {own, "{global: {imageRegistry: mirror.example}}", "", "image: mirror.example/"},
		"nulls of a parent": {
			own, "{global: null, fingerpost: {links: null, ports: {grpc: null}}}", "", "-addr=:8086\n",
		},
		"nulls of a user": {
			own, "{fingerpost: {podAnnotations: {a: b}, probes: {liveness: {initialDelaySeconds: 1}}}}",
			"{fingerpost: {global: null, enabled: null, podAnnotations: {a: null}, probes: {liveness: null}}}",
			"replicas: 2\n",
		},
		"another name": {own, "{}", "{other: {enabled: true, tls: null}}", "app.kubernetes.io/name: other\n"},
		"link, on": {
			link, "{global: {team: a}, fingerpost-link: {enabled: true, write: {enabled: true}}}", "", "-write\n",
		},
		"link, off":   {link, "{}", "{fingerpost-link: {enabled: false}}", ""},
		"link, nulls": {link, "{global: null}", "{fingerpost-link: {write: null, enabled: null}}", "-renew\n"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := release{name: "platform", namespace: "fingerpost", set: c.set}
			manifests, _, err := parent.render(parentOf(t, c.part, strings.Contains(c.set, "other:"), c.values))
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" && manifests != "" || !strings.Contains(manifests, c.want) {
				t.Errorf("want %q in\n%s", c.want, manifests)
			}
		})
	}
}

// parentOf returns the directory of a chart that has a chart of ours as its part, under the name "other" if renamed.
func parentOf(t *testing.T, part string, renamed bool, values string) string {
	t.Helper()
	dir := t.TempDir()
	dependency := fmt.Sprintf("{name: %s, version: '*', condition: %[1]s.enabled}", part)
	if renamed {
		dependency = fmt.Sprintf("{name: %s, alias: other, version: '*', condition: other.enabled}", part)
	}
	for path, text := range map[string]string{
		"Chart.yaml":  "{apiVersion: v2, name: platform, version: 0.1.0, dependencies: [" + dependency + "]}",
		"values.yaml": values,
	} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "charts", part), os.DirFS(filepath.Join(charts, part))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Names that YAML would read as numbers, switches or nothing are names.
func TestNamesThatLookLikeNumbers(t *testing.T) {
	for _, name := range []string{"0", "1234", "1e3", "0x1f", "true", "null", "0.5"} {
		set := strings.ReplaceAll(`
cluster: {name: "1234"}
controllerNamespace: "1234"
links: {namespace: "1234"}
nameOverride: "1234"
priorityClassName: NAME
runtimeClassName: NAME
serviceAccount: {name: NAME}
image: {tag: "1234"}
tls: {secretName: NAME, clientCA: {configMapName: NAME}}
spValidator: {enabled: true, tls: {secretName: NAME, certManager: {enabled: true, issuerRef: {name: NAME}}}}
policy:
  enabled: true
  globalEgressNetworkNamespace: "1234"
  webhook: {enabled: true, tls: {secretName: NAME, certManager: {enabled: true, issuerRef: {name: NAME}}}}
networkPolicy: {enabled: true}
serviceMonitor: {enabled: true}
`, "NAME", strconv.Quote(name))
		for dir, set := range map[string]string{
			server: set,
			linked: fmt.Sprintf(`{nameOverride: "1234", serviceAccount: {name: %q}, write: {enabled: true, leaseNamespace: "12"}}`, name),
		} {
			manifests, _, err := release{name: "1234", namespace: "5678", set: set, hooks: true}.render(dir)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for document := range strings.SplitSeq(manifests, "\n---\n") {
				var object any
				if err := yaml.Unmarshal([]byte(document), &object); err != nil {
					t.Fatal(err)
				}
				namesAreTexts(t, "", object)
			}
		}
	}
}

// namesAreTexts checks what is a name, a label or an argument of an object.
func namesAreTexts(t *testing.T, path string, v any) {
	t.Helper()
	isName := regexp.MustCompile(`(?i)(name|namespace|resourceNames/|image|args/|labels/[^/]*)$`)
	switch v := v.(type) {
	case map[string]any:
		for key, member := range v {
			namesAreTexts(t, path+"/"+key, member)
		}
	case []any:
		for _, member := range v {
			namesAreTexts(t, path+"/", member)
		}
	case string:
	default:
		if isName.MatchString(path) {
			t.Errorf("%s is %v, a %T", path, v, v)
		}
	}
}

// Replicas prove to each other who they are, unless that is switched off, which the notes report. One that asks no
// peer needs no token, and no right to review those of others.
func TestPeers(t *testing.T) {
	for set, want := range map[string]struct{ token, off, warns bool }{
		"{}":                                  {token: true},
		"{tls: {secretName: own}}":            {}, // without clientCA no replica asks
		"{state: {peers: false}}":             {},
		"{state: {authenticatePeers: false}}": {off: true, warns: true},
		"{state: {peers: false, authenticatePeers: false}}": {},
	} {
		manifests, notes, err := release{name: "fingerpost", namespace: "fingerpost", set: set}.render(server)
		if err != nil {
			t.Fatal(err)
		}
		for text, wanted := range map[string]bool{
			"- -peer-token-file=/var/run/fingerpost/peers/token\n":          want.token,
			"audience: peers.fingerpost.io":                                 want.token,
			"resources: [tokenreviews]":                                     want.token,
			"{name: peer-token, mountPath: /var/run/fingerpost/peers, read": want.token,
			"- -peer-authentication=false\n":                                want.off,
		} {
			if strings.Contains(manifests, text) != wanted {
				t.Errorf("%s: %q is there: %t", set, text, !wanted)
			}
		}
		if strings.Contains(notes, "set state.authenticatePeers") != want.warns {
			t.Errorf("%s: the notes warn: %t", set, !want.warns)
		}
	}
}

// Values with mistakes are refused with a message that names the value.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct{ dir, set, want string }{
		"unknown": {server, "{relicas: 2}", "additional properties 'relicas' not allowed"},
		"unknown, deeper": {
			server, "{image: {repo: x}}", "at '/image': additional properties 'repo' not allowed",
		},
		"unknown, in a resource": {
			server, "{resources: {limit: {memory: 1Gi}}}",
			"at '/resources': additional properties 'limit' not allowed",
		},
		"unknown log level": {
			server, "{log: {level: verbose}}",
			"at '/log/level': value must be one of 'error', 'warn', 'info', 'debug', 'trace'",
		},
		"transport mode": {
			server, "{mesh: {outboundTransportMode: opaque}}", "at '/mesh/outboundTransportMode'",
		},
		"no memory limit": {
			server, "{resources: {limits: {memory: null}}}",
			"at '/resources/limits': missing property 'memory'",
		},
		"no limits": {server, "{resources: {limits: null}}", "at '/resources': missing property 'limits'"},
		"no memory": {server, "{resources: {limits: {memory: 0}}}", "at '/resources/limits/memory'"},
		"a webhook without policy": {
			server, "{policy: {webhook: {enabled: true}}}",
			"policy.webhook.enabled is for a server that serves policy: set policy.enabled as well",
		},
		"a webhook without an authority": {
			server, "{policy: {enabled: true, webhook: {enabled: true}}}", "policy.webhook.tls.caBundle must hold",
		},
		"networks that are none": {
			server, "{policy: {clusterNetworks: [10.0.0.0/8, 10.0.0.0/33]}}",
			"policy.clusterNetworks: 10.0.0.0/33 is no network, such as 10.0.0.0/8",
		},
		"no cluster networks": {server, "{policy: {clusterNetworks: []}}", "at '/policy/clusterNetworks'"},
		"a default policy that there is not": {
			server, "{policy: {defaultInboundPolicy: allow}}", "at '/policy/defaultInboundPolicy'",
		},
		"one name for two Services": {
			server, "{service: {name: a}, policy: {enabled: true, service: {name: a-headless}}}",
			"policy.service.name is a-headless, the name that service.name with -headless gives another Service",
		},
		"one name for both Services of policy": {
			server, "{policy: {enabled: true, service: {name: a}, webhook: {name: a}}}",
			"policy.webhook.name is a, the name that policy.service.name gives another Service",
		},
		"one port for two servers": {
			server, "{policy: {enabled: true}, ports: {policy: 8086}}",
			"ports.policy is 8086, which is that of ports.grpc",
		},
		"switched off by itself": {
			server, "{enabled: false}", "the Chart.yaml of its parent does, by a condition such as fingerpost.enabled",
		},
		"link, switched off by itself": {linked, "{enabled: false}", "by a condition such as fingerpost-link.enabled"},
		"an issuer that is null": {
			server, "{tls: {certManager: {enabled: true, issuerRef: {name: null}}}}",
			"at '/tls/certManager/issuerRef/name'",
		},
		"no account that is null": {
			server, "{serviceAccount: {create: false, name: null}}", "at '/serviceAccount': missing property 'name'",
		},
		"suspect before it is probed": {
			server, "{links: {suspectAfter: 5s}}",
			"how often clusters are probed, -probe-interval (5s) must be shorter than links.suspectAfter (5s)",
		},
		"opaque ports": {
			server, `{mesh: {defaultOpaquePorts: "25,70000"}}`,
			"mesh.defaultOpaquePorts: 70000 is neither a port nor a range of ports",
		},
		"a name that a mesh gives": {
			server, "{controlPlane: {enabled: true}, service: {name: dst}}",
			`service.name follows from controlPlane.enabled, which makes it "linkerd-dst": leave it out`,
		},
		"a namespace that is not that of the mesh": {
			server, "{controlPlane: {enabled: true}, controllerNamespace: mesh}",
			`controllerNamespace follows from controlPlane.enabled, which makes it "fingerpost"`,
		},
		"policy that is Linkerd's, and ours": {
			server, "{controlPlane: {enabled: true, policy: {enabled: false}}, policy: {enabled: true}}",
			"policy.enabled follows from controlPlane.enabled, which makes it false: leave it out",
		},
		"a value of the mesh under two names": {
			server, "{controlPlane: {enabled: true, values: {clusterDomain: a.example}}}",
			"controlPlane.values.clusterDomain follows from cluster.domain: set that one",
		},
		"a key for everybody": {
			server, "{controlPlane: {enabled: true, values: {proxyInjector: {keyPEM: x}}}}",
			"controlPlane.values.proxyInjector.keyPEM would be in a ConfigMap that everybody reads",
		},
		"an issuer without its key": {
			server, `{controlPlane: {enabled: true, identity: {issuer: {crtPEM: "-----BEGIN CERTIFICATE-----"}}}}`,
			"controlPlane.identity.issuer.crtPEM and keyPEM go together",
		},
		"an issuer of another kind": {
			server, "{controlPlane: {enabled: true, identity: {issuer: {scheme: kubernetes.io/tls, " +
				`crtPEM: "-----BEGIN CERTIFICATE-----", keyPEM: "-----BEGIN PRIVATE KEY-----"}}}}`,
			"controlPlane.identity.issuer.keyPEM is for the scheme linkerd.io/tls",
		},
		"a certificate of the authority itself": {
			server, "{controlPlane: {enabled: true, layout: one}, tls: {secretName: own}}",
			"tls.secretName and tls.certManager are not for controlPlane.layout one with identity",
		},
		"tokens that are not projected": {
			server, "{controlPlane: {enabled: true, values: {identity: {serviceAccountTokenProjection: false}}}}",
			"controlPlane.identity.requireAudience is for tokens that are projected",
		},
		"anchors of two": {
			server, "{controlPlane: {enabled: true, identity: {externalCA: true, " +
				`trustAnchorsPEM: "-----BEGIN CERTIFICATE-----"}}}`,
			"controlPlane.identity.externalCA leaves the trust anchors to others",
		},
		"a port of the mesh": {
			server, "{controlPlane: {enabled: true}, ports: {admin: 8080}}",
			"ports.admin is 8080, which is that of the authority of the mesh",
		},
		"a layout that there is not": {server, "{controlPlane: {layout: two}}", "at '/controlPlane/layout'"},
		"no certificate": {
			server, "{controlPlane: {identity: {trustAnchorsPEM: anchors}}}",
			"at '/controlPlane/identity/trustAnchorsPEM'",
		},
		"a network": {
			server, "{links: {allowHosts: [10.0.0.0/99]}}",
			"links.allowHosts: 10.0.0.0/99 is neither a name nor an address nor a CIDR",
		},
		"a quota for no class": {
			server, "{resourceQuota: {enabled: true}}",
			"resourceQuota.enabled is for Pods of priorityClassName, which is empty",
		},
		"a port twice": {
			server, "{ports: {admin: 8086}}", "ports.admin is 8086, which is that of ports.grpc",
		},
		"the debug server's port": {
			server, "{ports: {grpc: 9998}}", "ports.grpc is 9998, which is that of the debug server",
		},
		"a domain with two dots":  {server, "{cluster: {domain: a..b}}", "at '/cluster/domain'"},
		"too long for a duration": {server, "{links: {staleAfter: 9999999h}}", "at '/links/staleAfter'"},
		"no HTTP/2": {
			server, "{mesh: {http2ClientParams: {keep_alive: 5}}}", "at '/mesh/http2ClientParams/keep_alive'",
		},
		"flags that serve nothing": {
			server, "{extraArgs: [-version]}", "extraArgs: -version is no flag of fingerpost serve",
		},
		"memory in milli": {server, "{resources: {limits: {memory: 500m}}}", "at '/resources/limits/memory'"},
		"no replicas":     {server, "{replicas: 0}", "at '/replicas': minimum: got 0, want 1"},
		"root": {
			server, "{podSecurityContext: {runAsUser: 0}}", "at '/podSecurityContext/runAsUser'",
		},
		"short digest":        {server, "{image: {digest: sha256:12}}", "at '/image/digest'"},
		"cluster name":        {server, "{cluster: {name: a@b}}", "at '/cluster/name'"},
		"a number as a label": {server, "{podLabels: {a: 1}}", "at '/podLabels/a': got number, want string"},
		"a duration without": {
			server, "{links: {staleAfter: 150}}", "at '/links/staleAfter': got number, want string",
		},
		"two client authorities": {
			server, "{tls: {clientCA: {secretName: a, configMapName: b}}}", "at '/tls/clientCA'",
		},
		"clients, in plaintext": {
			server, "{tls: {clientCA: {configMapName: linkerd-identity-trust-roots}}}",
			"at '/tls/secretName': minLength: got 0, want 1",
		},
		"mirrors of Endpoints": {
			server, `{mirror: {mode: "on"}, mesh: {endpointSlices: false}}`,
			"at '/mirror/mode': value must be 'off'",
		},
		"IPv6 in Endpoints": {
			server, "{mesh: {ipv6: true, endpointSlices: false}}", "at '/mesh/ipv6': value must be false",
		},
		"no issuer": {
			server, "{tls: {certManager: {enabled: true}}}",
			"at '/tls/certManager/issuerRef': missing property 'name'",
		},
		"whose account":                {server, "{serviceAccount: {create: false}}", "at '/serviceAccount/name'"},
		"a name with a dot":            {server, "{cluster: {name: eu.east}}", "at '/cluster/name'"},
		"a name that no Link can have": {server, "{cluster: {name: East}}", "at '/cluster/name'"},
		"drains for ever": {
			server, "{podDisruptionBudget: {maxUnavailable: 0}}", "at '/podDisruptionBudget/maxUnavailable'",
		},
		"no range of replicas": {
			server, "{autoscaling: {enabled: true, minReplicas: 9}}",
			"autoscaling.minReplicas is greater than autoscaling.maxReplicas",
		},
		"no rollout": {
			server, `{updateStrategy: {maxSurge: "0%"}}`,
			"updateStrategy.maxUnavailable and updateStrategy.maxSurge are both 0",
		},
		"unknown flag":  {server, "{extraArgs: [--bogus=1]}", "extraArgs: --bogus=1 is no flag of fingerpost serve"},
		"no authority":  {server, "{spValidator: {enabled: true}}", "spValidator.tls.caBundle must hold"},
		"link, unknown": {linked, "{writable: true}", "additional properties 'writable' not allowed"},
		"link, a word":  {linked, `{write: {enabled: "yes"}}`, "at '/write/enabled': got string, want boolean"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := release{name: "fingerpost", namespace: "fingerpost", set: c.set}.render(c.dir)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want an error with %q", c.set, err, c.want)
			}
		})
	}
}

// Who brings the values of another chart gets the right name in one sentence. drop-in.md has all of them.
func TestTranslation(t *testing.T) {
	var translation map[string]string
	read(t, server+"/files/linkerd-values.yaml", &translation)
	known := map[string]bool{}
	for _, v := range table(t, server) {
		for name := v.name; name != "."; name = strings.TrimSuffix(name, filepath.Ext(name)) {
			known[name] = true
			if filepath.Ext(name) == "" {
				break
			}
		}
	}
	rows := "| there | here |\n|---|---|\n"
	for _, theirs := range slices.Sorted(maps.Keys(translation)) {
		ours := translation[theirs]
		name := regexp.MustCompile(`^[\w.]+`).FindString(ours)
		isNothing, isFree := name == "nothing", strings.HasPrefix(name, "controlPlane.values.")
		if !known[name] && name != "affinity.nodeAffinity" && !isNothing && !isFree {
			t.Errorf("%s: there is no value %s", theirs, name)
		}
		row, want := strings.Replace(ours, name, "`"+name+"`", 1), "the value "+theirs+" is called "+ours
		if isNothing {
			row, want = ours, "the value "+theirs+" means "+ours
		}
		rows += fmt.Sprintf("| `%s` | %s |\n", theirs, row)
		parts := strings.Split(theirs, ".")
		set := strings.Join(parts, ": {") + ": x" + strings.Repeat("}", len(parts)-1)
		if known[parts[0]] { // the schema refuses it, and names its parent
			want = "at '/" + parts[0] + "'"
		}
		_, _, err := release{name: "fingerpost", namespace: "fingerpost", set: "{" + set + "}"}.render(server)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", set, err, want)
		}
	}
	_, _, err := release{name: "fingerpost", namespace: "fingerpost", set: "{identity: {else: x}}"}.render(server)
	const unknown = "what the value identity has is not known in this chart"
	if err == nil || !strings.Contains(err.Error(), unknown) {
		t.Errorf("%v, want an error with %q", err, unknown)
	}
	const path, begin, end = "../../docs/drop-in.md", "<!-- values: make generate -->\n", "<!-- end of values -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, tail, _ := strings.Cut(string(page), begin)
	_, tail, found := strings.Cut(tail, end)
	if !found {
		t.Fatalf("%s has no place for the table", path)
	}
	golden(t, path, head+begin+rows+end+tail)
}

// What does not take the default of a value is as it was asked for.
func TestFreeForm(t *testing.T) {
	const both = "{image: {registry: a.example, repository: team/x}, global: {imageRegistry: b.example}}"
	for set, want := range map[string]string{
		"{image: {registry: mirror.example}}": "image: mirror.example/fingerpost/fingerpost:",
		both:                                  "image: b.example/team/x:",
		"{podAntiAffinity: {mode: off}, topologySpread: {zones: off}}": "",
	} {
		set = strings.ReplaceAll(set, ": off", `: "off"`)
		manifests, _, err := release{name: "fingerpost", namespace: "fingerpost", set: set}.render(server)
		if err != nil {
			t.Fatal(err)
		}
		if want == "" {
			for _, gone := range []string{"ffinity", "topologySpread"} {
				if strings.Contains(manifests, gone) {
					t.Errorf("%s: there is %s", set, gone)
				}
			}
		} else if !strings.Contains(manifests, want) {
			t.Errorf("%s: no %s", set, want)
		}
	}
}

// In a cluster without the mesh's namespace the first installation names it in one sentence, before anything is
// created; one into the release's own namespace, which helm has yet to create, goes on.
func TestMissingNamespaces(t *testing.T) {
	const missing = "there is no namespace %s: create it, or set %s to one that exists"
	for set, want := range map[string]string{
		"{}": fmt.Sprintf(missing, "linkerd", "controllerNamespace"),
		"{controllerNamespace: mesh, links: {namespace: far}}": fmt.Sprintf(missing,
			"far", "links.namespace"),
		"{controllerNamespace: mesh}":                                     "",
		"{controllerNamespace: kube-system, links: {namespace: default}}": "",
		"{rbac: {create: false}}":                                         "", // it may not be allowed to look
	} {
		_, _, err := release{name: "fingerpost", namespace: "mesh", set: set, cluster: bare{}}.render(server)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
	writer := release{name: "east", namespace: "mesh", set: "{write: {enabled: true}}", cluster: bare{}}
	_, _, err := writer.render(linked)
	if want := fmt.Sprintf(missing, "linkerd", "write.leaseNamespace"); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// bare is a cluster that has nothing but two namespaces.
type bare struct{}

func (bare) GetClientFor(_, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if kind != "Namespace" {
		return nil, false, fmt.Errorf("a template looks up a %s", kind)
	}
	client := fake.NewSimpleDynamicClient(scheme.Scheme,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	return client.Resource(namespaces), false, nil
}

// Every object of the schema lets only keys pass that it names, and each of them has a default in
// values.yaml. That values.yaml has no others is what lint finds.
func TestSchemaIsClosed(t *testing.T) {
	for _, dir := range []string{server, linked} {
		var schema, defaults map[string]any
		read(t, filepath.Join(dir, "values.schema.json"), &schema)
		read(t, filepath.Join(dir, "values.yaml"), &defaults)
		closed(t, dir, schema)
		covered(t, dir, schema, defaults)
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func closed(t *testing.T, path string, schema any) {
	t.Helper()
	object, ok := schema.(map[string]any)
	if !ok {
		return
	}
	if object["type"] == "object" && object["properties"] != nil && object["additionalProperties"] != false {
		t.Errorf("%s lets unknown keys pass", path)
	}
	for key, s := range object {
		closed(t, path+"/"+key, s)
	}
}

func covered(t *testing.T, path string, schema, defaults map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	for name, s := range properties {
		v, found := defaults[name]
		if !found && name != "global" && name != "enabled" { // of a parent chart
			t.Errorf("%s/%s has no default in values.yaml", path, name)
		}
		if members, ok := v.(map[string]any); ok {
			covered(t, path+"/"+name, s.(map[string]any), members)
		}
	}
}

// A value is a line of a chart's table of values.
type value struct{ name, text, about string }

// table reads values.yaml: what has a comment is a value, and so is everything without members of its own.
func table(t *testing.T, dir string) []value {
	t.Helper()
	var document yaml.Node
	read(t, filepath.Join(dir, "values.yaml"), &document)
	var values []value
	var walk func(path string, mapping *yaml.Node)
	walk = func(path string, mapping *yaml.Node) {
		for i := 0; i < len(mapping.Content); i += 2 {
			key, v := mapping.Content[i], mapping.Content[i+1]
			name := strings.TrimPrefix(path+"."+key.Value, ".")
			paragraphs := strings.Split(strings.ReplaceAll(key.HeadComment, "# ", ""), "\n\n")
			about := strings.ReplaceAll(paragraphs[len(paragraphs)-1], "\n", " ")
			if about == "" && v.Kind == yaml.MappingNode && len(v.Content) > 0 {
				walk(name, v)
				continue
			}
			if about == "" {
				t.Errorf("%s: %s has no comment", dir, name)
			}
			var decoded any
			if err := v.Decode(&decoded); err != nil {
				t.Fatal(err)
			}
			encoded, err := json.Marshal(decoded)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value{name, string(encoded), about})
		}
	}
	walk("", document.Content[0])
	return values
}

// The README of each chart has a table of its values.
func TestValuesTable(t *testing.T) {
	for _, dir := range []string{server, linked} {
		path := filepath.Join(dir, "README.md")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		const heading = "\n## Values\n\n"
		head, _, found := strings.Cut(string(text), heading)
		if !found {
			t.Fatalf("%s has no section of values", path)
		}
		var b strings.Builder
		b.WriteString(
			head + heading + "Generated from values.yaml by `make generate`.\n\n| value | default | what |\n|---|---|---|\n",
		)
		for _, v := range table(t, dir) {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", v.name, v.text, v.about)
		}
		golden(t, path, b.String())
	}
}
