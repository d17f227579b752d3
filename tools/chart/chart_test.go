package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
)

var update = flag.Bool("update", false, "write what is generated: golden renders, and the tables of values")

func TestMain(m *testing.M) {
	quiet()
	goleak.VerifyTestMain(m)
}

const (
	charts = "../../charts"
	server = charts + "/fingerpost"
	linked = charts + "/fingerpost-link"
)

// everything switches on what is off, but for dashboards: they are long, and tested by themselves.
const everything = `
fullnameOverride: signpost
commonLabels: {team: mesh}
image: {digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
imagePullSecrets: [{name: registry}]
links: {namespace: links, allowHosts: [127.0.0.1, "fd00::/8"]}
mesh: {ipv6: true, http2ClientParams: null}
mirror: {mode: "on", createNamespaces: true}
autoscaling: {enabled: true}
tolerations: [{operator: Exists}]
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms: [{matchExpressions: [{key: arch, operator: Exists}]}]
podAnnotations: {linkerd.io/inject: enabled}
podLabels: {role: discovery}
priorityClassName: system-cluster-critical
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
prometheusRule: {enabled: true, labels: {release: prometheus}, alertLabels: {team: mesh}}
spValidator: {enabled: true, tls: {certManager: {enabled: true, issuerRef: {name: mesh}}}}
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
	"everything": {server, release{name: "east", namespace: "mesh", set: everything}},
	"least": {
		server,
		release{
			name:      "fingerpost",
			namespace: "fingerpost",
			set:       "{replicas: 1, mesh: {endpointSlices: false}, links: {labelledSecrets: false}}",
		},
	},
	"link": {linked, release{name: "fingerpost-link", namespace: "fingerpost"}},
	"link-write": {
		linked,
		release{
			name:      "east",
			namespace: "fingerpost",
			set:       "{namespace: {create: true}, write: {enabled: true}, serviceAccount: {name: east}}",
		},
	},
}

func TestGolden(t *testing.T) {
	for name, r := range renders {
		t.Run(name, func(t *testing.T) {
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

// The CRD is that of links/crd, and outlives the release.
func TestCRD(t *testing.T) {
	manifests, _, err := release{
		name:      "fingerpost",
		namespace: "fingerpost",
		set:       "{crds: {links: true}}",
	}.render(server)
	if err != nil {
		t.Fatal(err)
	}
	var want, have map[string]any
	read(t, "../../links/crd/links.yaml", &want)
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains(document, "\nkind: CustomResourceDefinition\n") {
			if err := yaml.Unmarshal([]byte(document), &have); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff(want["spec"], have["spec"]); diff != "" {
		t.Errorf("the CRD differs (-want +got):\n%s", diff)
	}
	metadata, _ := have["metadata"].(map[string]any)
	if annotations, _ := metadata["annotations"].(map[string]any); annotations["helm.sh/resource-policy"] != "keep" {
		t.Errorf("the CRD, and with it every Link, goes with the release: %v", annotations)
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
		for _, match := range regexp.MustCompile(`(?m)^ +- "?-([a-z0-9-]+)`).FindAllStringSubmatch(manifests, -1) {
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

// GOMEMLIMIT is nine tenths of the container's limit, however that is written.
func TestGoMemLimit(t *testing.T) {
	for limit, want := range map[string]string{
		"512Mi": "483183820", "1.5Gi": "1449551462", "1Ti": "989560464998", "100Ki": "92160",
		"1G": "900000000", "500M": "450000000", "2T": "1800000000000", "1000k": "900000", "1000000000": "900000000",
	} {
		manifests, _, err := release{
			name:      "fingerpost",
			namespace: "fingerpost",
			set:       fmt.Sprintf("{resources: {limits: {memory: %q}}}", limit),
		}.render(server)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(manifests, "- name: GOMEMLIMIT\n          value: \""+want+"\"\n") {
			t.Errorf("a limit of %s is not rendered as %s", limit, want)
		}
	}
}

// Values with mistakes are refused with a message that names the value.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct{ dir, set, want string }{
		"unknown": {server, "{replicaCount: 2}", "additional properties 'replicaCount' not allowed"},
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
		"whose account": {server, "{serviceAccount: {create: false}}", "at '/serviceAccount/name'"},
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
		if !found && name != "global" {
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
			head + heading + "Generated from values.yaml by `make generate`.\n\n| value | default | what |\n|---|---|---|\n")
		for _, v := range table(t, dir) {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", v.name, v.text, v.about)
		}
		golden(t, path, b.String())
	}
}
