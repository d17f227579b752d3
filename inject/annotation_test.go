package inject

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func testPortAnnotations(t *testing.T) {
	r := given{
		annotations: "control-port: '5190', inbound-port: '5143', outbound-port: '5140', admin-port: '5191'",
	}.mustInject(t)
	r.wantEnv(map[string]string{
		"CONTROL_LISTEN_ADDR": "0.0.0.0:5190", "INBOUND_LISTEN_ADDR": "0.0.0.0:5143",
		"OUTBOUND_LISTEN_ADDR": "127.0.0.1:5140", "OUTBOUND_LISTEN_ADDRS": "127.0.0.1:5140",
		"ADMIN_LISTEN_ADDR": "0.0.0.0:5191",
	})
	proxy := r.proxy()
	if proxy.Ports[0].ContainerPort != 5143 || proxy.Ports[1].ContainerPort != 5191 {
		t.Errorf("ports %v", proxy.Ports)
	}
	for _, probe := range []*corev1.Probe{proxy.LivenessProbe, proxy.ReadinessProbe, proxy.StartupProbe} {
		if probe.HTTPGet.Port.IntValue() != 5191 {
			t.Errorf("probe at %s", probe.HTTPGet.Port.String())
		}
	}
	for flag, want := range map[string]string{
		"--incoming-proxy-port": "5143", "--outgoing-proxy-port": "5140",
		"--inbound-ports-to-ignore": "5190,5191,4567,4568",
	} {
		if got := r.initArg(flag); got != want {
			t.Errorf("%s %s, want %s", flag, got, want)
		}
	}
}

// wantIgnored expects that an annotation is ignored, with a warning, and nothing else.
func (r *result) wantIgnored(names ...string) {
	var want []string
	for _, name := range names {
		if !strings.Contains(name, "/") {
			name = "config.linkerd.io/" + name
		}
		want = append(want, name)
	}
	slices.Sort(want)
	got := slices.Sorted(slices.Values(r.Ignored))
	if diff := cmp.Diff(want, got); diff != "" {
		r.tb.Errorf("ignored: %s", diff)
	}
	if len(r.Warnings) != min(len(want), 10) {
		r.tb.Errorf("warnings %q", r.Warnings)
	}
}

func testBadPort(t *testing.T) {
	for _, value := range []string{"x", "0", "65536", "-1", "4294967297"} {
		r := given{annotations: "admin-port: '" + value + "'"}.mustInject(t)
		r.wantEnv(map[string]string{"ADMIN_LISTEN_ADDR": "0.0.0.0:4191"})
		r.wantIgnored("admin-port")
	}
}

func testPodInboundPorts(t *testing.T) {
	given{annotations: "pod-inbound-ports: '80,443'"}.mustInject(t).
		wantEnv(map[string]string{"INBOUND_PORTS": "80,443"})
	r := given{annotations: "pod-inbound-ports: '80,x'"}.mustInject(t)
	r.wantEnv(map[string]string{"INBOUND_PORTS": "8080"})
	r.wantIgnored("pod-inbound-ports")
}

func testProbePorts(t *testing.T) {
	given{spec: "containers: [{name: app, ports: [{containerPort: 9090, name: admin}, {containerPort: 8080}], " +
		"readinessProbe: {httpGet: {port: 9999}}, livenessProbe: {httpGet: {port: admin}}}]"}.
		mustInject(t).wantEnv(map[string]string{"INBOUND_PORTS": "8080,9090,9999"})
}

func testStartupPorts(t *testing.T) {
	given{spec: "containers: [{name: app, ports: [{containerPort: 1000}, {containerPort: 80}, {containerPort: 9}], " +
		"startupProbe: {httpGet: {port: 7000}}}]"}.
		mustInject(t).wantEnv(map[string]string{"INBOUND_PORTS": "9,80,1000,7000"})
}

func testOpaqueAnnotation(t *testing.T) {
	for annotation, want := range map[string]string{
		"3306,http": "3306,8080", "8000-8100": "8000-8100", "x": missing, "": missing, "1 , 2-1, 70000": "1",
	} {
		given{annotations: "opaque-ports: '" + annotation + "'"}.mustInject(t).wantOpaque(annotation, want)
	}
}

func testSkipNothing(t *testing.T) {
	r := given{annotations: "skip-outbound-ports: ''"}.mustInject(t)
	if got := r.initArg("--outbound-ports-to-ignore"); got != missing {
		t.Errorf("ignores %s", got)
	}
}

func testPolicyAnnotations(t *testing.T) {
	r := given{
		annotations: "proxy-require-identity-inbound-ports: '80', default-inbound-policy: deny",
	}.mustInject(t)
	r.wantEnv(map[string]string{"INBOUND_PORTS_REQUIRE_IDENTITY": "80", "INBOUND_DEFAULT_POLICY": "deny"})
	r = given{annotations: "default-inbound-policy: x"}.mustInject(t)
	r.wantEnv(map[string]string{"INBOUND_DEFAULT_POLICY": "all-unauthenticated"})
	r.wantIgnored("default-inbound-policy")
}

func testSuffixes(t *testing.T) {
	given{annotations: "enable-external-profiles: 'true'"}.mustInject(t).
		wantEnv(map[string]string{"DESTINATION_PROFILE_SUFFIXES": ".", "INBOUND_GATEWAY_SUFFIXES": missing})
	given{annotations: "enable-gateway: 'true'"}.mustInject(t).wantEnv(map[string]string{
		"DESTINATION_PROFILE_SUFFIXES": "svc.cluster.local.", "INBOUND_GATEWAY_SUFFIXES": "svc.cluster.local.",
	})
}

func testLog(t *testing.T) {
	given{
		annotations: "proxy-log-level: debug, proxy-log-format: json, proxy-log-http-headers: insecure",
	}.mustInject(t).wantEnv(map[string]string{"LOG": "debug", "LOG_FORMAT": "json"})
	given{annotations: "proxy-log-http-headers: 'off'"}.mustInject(t).wantEnv(map[string]string{
		"LOG": "warn,linkerd=info,hickory=error,[{headers}]=off,[{request}]=off",
	})
}

func testBadHeaders(t *testing.T) {
	r := given{annotations: "proxy-log-http-headers: x"}.mustInject(t)
	r.wantEnv(map[string]string{"LOG": "warn,linkerd=info,hickory=error,[{headers}]=off,[{request}]=off"})
	r.wantIgnored("proxy-log-http-headers")
}

// wantResources compares resources, in the form in which they are given.
func (r *result) wantResources(limits, requests map[string]string) {
	texts := func(of corev1.ResourceList) map[string]string {
		all := map[string]string{}
		for name, quantity := range of {
			all[string(name)] = quantity.String()
		}
		return all
	}
	for _, name := range []string{"linkerd-proxy", "linkerd-init"} {
		c := r.container(name)
		if diff := cmp.Diff(limits, texts(c.Resources.Limits)); diff != "" {
			r.tb.Errorf("%s, limits: %s", name, diff)
		}
		if diff := cmp.Diff(requests, texts(c.Resources.Requests)); diff != "" {
			r.tb.Errorf("%s, requests: %s", name, diff)
		}
	}
}

func testCPU(t *testing.T) {
	r := given{annotations: "proxy-cpu-request: 1500m, proxy-cpu-limit: '2'"}.mustInject(t)
	r.wantResources(map[string]string{"cpu": "2"}, map[string]string{"cpu": "1500m"})
	r.wantEnv(map[string]string{"CORES": "2", "CORES_MIN": "2", "CORES_MAX": "2"})
}

func testCPURatio(t *testing.T) {
	given{annotations: "proxy-cpu-ratio-limit: '0.5'"}.mustInject(t).
		wantEnv(map[string]string{"CORES_MAX_RATIO": "0.5"})
	for _, value := range []string{"1", "0", "x", "NaN"} {
		r := given{annotations: "proxy-cpu-ratio-limit: '" + value + "'"}.mustInject(t)
		r.wantEnv(map[string]string{"CORES_MAX_RATIO": missing})
		r.wantIgnored("proxy-cpu-ratio-limit")
	}
}

func testMemory(t *testing.T) {
	given{annotations: "proxy-memory-request: 20Mi, proxy-memory-limit: 250Mi, " +
		"proxy-ephemeral-storage-request: 1Gi, proxy-ephemeral-storage-limit: 2Gi"}.mustInject(t).wantResources(
		map[string]string{"memory": "250Mi", "ephemeral-storage": "2Gi"},
		map[string]string{"memory": "20Mi", "ephemeral-storage": "1Gi"})
	r := given{annotations: "proxy-memory-request: x, proxy-memory-limit: 250Mi"}.mustInject(t)
	r.wantResources(map[string]string{"memory": "250Mi"}, map[string]string{})
	r.wantIgnored("proxy-memory-request")
}

func testUser(t *testing.T) {
	r := given{annotations: "proxy-uid: '3000', proxy-gid: '3001'"}.mustInject(t)
	security := r.proxy().SecurityContext
	if *security.RunAsUser != 3000 || security.RunAsGroup == nil || *security.RunAsGroup != 3001 {
		t.Errorf("security %v", security)
	}
	if user, group := r.initArg("--proxy-uid"), r.initArg("--proxy-gid"); user != "3000" || group != "3001" {
		t.Errorf("init: user %s, group %s", user, group)
	}
}

func testConnectTimeouts(t *testing.T) {
	r := given{
		annotations: "proxy-outbound-connect-timeout: 1.5s, proxy-inbound-connect-timeout: '10'",
	}.mustInject(t)
	r.wantEnv(map[string]string{"OUTBOUND_CONNECT_TIMEOUT": "1500ms", "INBOUND_CONNECT_TIMEOUT": "100ms"})
	r.wantIgnored("proxy-inbound-connect-timeout")
}

func testIdleTimeouts(t *testing.T) {
	given{annotations: "proxy-outbound-discovery-cache-unused-timeout: 90s, " +
		"proxy-inbound-discovery-cache-unused-timeout: 1500ms"}.mustInject(t).
		wantEnv(map[string]string{"OUTBOUND_DISCOVERY_IDLE_TIMEOUT": "90s", "INBOUND_DISCOVERY_IDLE_TIMEOUT": "1s"})
}

func testAdditionalEnv(t *testing.T) {
	r := given{
		values: []string{
			"proxy.additionalEnv=[{name: A, value: values}, {name: B, value: values}]",
			"proxy.experimentalEnv=[{name: X, value: experiment}]",
		},
		namespace: `inject: enabled, proxy-additional-env: '[{"name":"A","value":"namespace"},{"name":"C","value":"namespace"}]'`,
		annotations: `proxy-additional-env: '[{"name":"A","value":"pod"},{"name":"D","valueFrom":` +
			`{"fieldRef":{"fieldPath":"spec.nodeName"}}}]'`,
	}.mustInject(t)
	env := r.proxy().Env
	var got []string
	for _, v := range env[len(env)-5:] {
		got = append(got, v.Name+"="+r.env(v.Name))
	}
	want := []string{"A=pod", "B=values", "C=namespace", "D=field spec.nodeName", "X=experiment"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func testBadAdditionalEnv(t *testing.T) {
	for _, value := range []string{
		"{", `[{"name":""}]`, `[{"name":"a=b"}]`, `{"name":"A"}`,
		`[{"name":"A","value":"1","valueFrom":{"fieldRef":{"fieldPath":"x"}}}]`,
	} {
		r := given{annotations: "proxy-additional-env: '" + value + "'"}.mustInject(t)
		r.wantIgnored("proxy-additional-env")
		r.wantEnv(map[string]string{"A": missing, "a=b": missing})
	}
}

const asRoot = "proxyInit.runAsRoot=true"

func testCloseWait(t *testing.T) {
	r := given{values: []string{asRoot}, annotations: "close-wait-timeout: 10s"}.mustInject(t)
	security := r.container("linkerd-init").SecurityContext
	if got := r.initArg("--timeout-close-wait-secs"); got != "10" || !*security.Privileged {
		t.Errorf("%s s, privileged %v", got, *security.Privileged)
	}
}

func testCloseWaitUnprivileged(t *testing.T) {
	r := given{annotations: "close-wait-timeout: 10s"}.mustInject(t)
	if got := r.initArg("--timeout-close-wait-secs"); got != missing {
		t.Errorf("%s s", got)
	}
	r.wantIgnored("close-wait-timeout")
}

func testInheritance(t *testing.T) {
	const namespace = "inject: enabled, proxy-log-level: debug"
	const filter = ",[{headers}]=off,[{request}]=off"
	r := given{namespace: namespace, annotations: "proxy-log-level: trace"}.mustInject(t)
	r.wantEnv(map[string]string{"LOG": "trace" + filter})
	r = given{namespace: namespace}.mustInject(t)
	r.wantEnv(map[string]string{"LOG": "debug" + filter})
	if got := r.annotation("proxy-log-level"); got != "debug" {
		t.Errorf("annotated %q", got)
	}
}

func testInheritedByUs(t *testing.T) {
	const annotations = "proxy-cpu-ratio-limit: '0.5', debug-image: example.org/debug, debug-image-version: v7, " +
		"debug-image-pull-policy: Always, enable-debug-sidecar: 'true', close-wait-timeout: 10s, " +
		"config.beta.linkerd.io/proxy-enable-native-sidecar: 'true'"
	r := given{
		values: append([]string{asRoot}, plain...), namespace: "inject: enabled, " + annotations,
	}.mustInject(t)
	r.wantEnv(map[string]string{"CORES_MAX_RATIO": "0.5"})
	if debug := r.container("linkerd-debug"); debug.Image != "example.org/debug:v7" || debug.ImagePullPolicy != "Always" {
		t.Errorf("debug image %s, %s", debug.Image, debug.ImagePullPolicy)
	}
	if r.initArg("--timeout-close-wait-secs") != "10" || r.proxy().RestartPolicy == nil {
		t.Error("close-wait or the sidecar are not as the Namespace has them")
	}
	for key, value := range texts(t, annotations) {
		if r.pod.Annotations[key] != value {
			t.Errorf("%s of the Pod is %q, want %q", key, r.pod.Annotations[key], value)
		}
	}
}

func testGatewayIsNotInherited(t *testing.T) {
	r := given{namespace: "inject: enabled, enable-gateway: 'true'"}.mustInject(t)
	r.wantEnv(map[string]string{"INBOUND_GATEWAY_SUFFIXES": missing})
	if got := r.annotation("enable-gateway"); got != missing {
		t.Errorf("annotated %q", got)
	}
}

// eachAnnotation has one readable value of each annotation, and what it changes in which container.
var eachAnnotation = map[string]struct {
	value string
	want  map[string]string // by variable, or by field as differences have it
}{
	"proxy-image":                                         {"example.org/proxy", map[string]string{"image": "example.org/proxy:edge-1", "init image": "example.org/proxy:edge-1"}},
	"proxy-version":                                       {"v7", map[string]string{"image": "cr.l5d.io/linkerd/proxy:v7", "init image": "cr.l5d.io/linkerd/proxy:v7", "version annotation": "v7"}},
	"image-pull-policy":                                   {"Always", map[string]string{"pull": "Always", "init pull": "Always"}},
	"control-port":                                        {"5190", map[string]string{"CONTROL_LISTEN_ADDR": "0.0.0.0:5190", "--inbound-ports-to-ignore": "5190,4191,4567,4568"}},
	"inbound-port":                                        {"5143", map[string]string{"INBOUND_LISTEN_ADDR": "0.0.0.0:5143", "--incoming-proxy-port": "5143", "proxy port": "5143"}},
	"outbound-port":                                       {"5140", map[string]string{"OUTBOUND_LISTEN_ADDR": "127.0.0.1:5140", "OUTBOUND_LISTEN_ADDRS": "127.0.0.1:5140", "--outgoing-proxy-port": "5140"}},
	"admin-port":                                          {"5191", map[string]string{"ADMIN_LISTEN_ADDR": "0.0.0.0:5191", "--inbound-ports-to-ignore": "4190,5191,4567,4568", "admin port": "5191"}},
	"pod-inbound-ports":                                   {"1,2-3", map[string]string{"INBOUND_PORTS": "1,2-3"}},
	"opaque-ports":                                        {"http", map[string]string{"INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION": "8080"}},
	"skip-inbound-ports":                                  {"7", map[string]string{"--inbound-ports-to-ignore": "4190,4191,7"}},
	"skip-outbound-ports":                                 {"8-9", map[string]string{"--outbound-ports-to-ignore": "8-9"}},
	"skip-subnets":                                        {"10.1.0.0/16", map[string]string{"--subnets-to-ignore": "10.1.0.0/16"}},
	"proxy-require-identity-inbound-ports":                {"80", map[string]string{"INBOUND_PORTS_REQUIRE_IDENTITY": "80"}},
	"default-inbound-policy":                              {"audit", map[string]string{"INBOUND_DEFAULT_POLICY": "audit"}},
	"enable-external-profiles":                            {"true", map[string]string{"DESTINATION_PROFILE_SUFFIXES": "."}},
	"enable-gateway":                                      {"true", map[string]string{"INBOUND_GATEWAY_SUFFIXES": "svc.cluster.local."}},
	"proxy-log-level":                                     {"info", map[string]string{"LOG": "info,[{headers}]=off,[{request}]=off"}},
	"proxy-log-format":                                    {"json", map[string]string{"LOG_FORMAT": "json"}},
	"proxy-log-http-headers":                              {"insecure", map[string]string{"LOG": "warn,linkerd=info,hickory=error"}},
	"access-log":                                          {"apache", map[string]string{"ACCESS_LOG": "apache"}},
	"proxy-admin-shutdown":                                {"enabled", map[string]string{"SHUTDOWN_ENDPOINT_ENABLED": "true"}},
	"proxy-cpu-request":                                   {"2500m", map[string]string{"CORES": "3", "CORES_MIN": "3", "request cpu": "2500m"}},
	"proxy-cpu-limit":                                     {"3", map[string]string{"CORES_MAX": "3", "limit cpu": "3"}},
	"proxy-cpu-ratio-limit":                               {"0.25", map[string]string{"CORES_MAX_RATIO": "0.25"}},
	"proxy-memory-request":                                {"1Mi", map[string]string{"request memory": "1Mi"}},
	"proxy-memory-limit":                                  {"2Mi", map[string]string{"limit memory": "2Mi"}},
	"proxy-ephemeral-storage-request":                     {"3Mi", map[string]string{"request ephemeral-storage": "3Mi"}},
	"proxy-ephemeral-storage-limit":                       {"4Mi", map[string]string{"limit ephemeral-storage": "4Mi"}},
	"proxy-uid":                                           {"7", map[string]string{"--proxy-uid": "7", "user": "7"}},
	"proxy-gid":                                           {"8", map[string]string{"--proxy-gid": "8", "group": "8"}},
	"proxy-outbound-connect-timeout":                      {"2s", map[string]string{"OUTBOUND_CONNECT_TIMEOUT": "2000ms"}},
	"proxy-inbound-connect-timeout":                       {"3s", map[string]string{"INBOUND_CONNECT_TIMEOUT": "3000ms"}},
	"proxy-outbound-discovery-cache-unused-timeout":       {"1m", map[string]string{"OUTBOUND_DISCOVERY_IDLE_TIMEOUT": "60s"}},
	"proxy-inbound-discovery-cache-unused-timeout":        {"2m", map[string]string{"INBOUND_DISCOVERY_IDLE_TIMEOUT": "120s"}},
	"proxy-disable-outbound-protocol-detect-timeout":      {"true", map[string]string{"OUTBOUND_DETECT_TIMEOUT": "365d"}},
	"proxy-disable-inbound-protocol-detect-timeout":       {"true", map[string]string{"INBOUND_DETECT_TIMEOUT": "365d"}},
	"proxy-await":                                         {"disabled", map[string]string{"startup": "none"}},
	"shutdown-grace-period":                               {"90s", map[string]string{"SHUTDOWN_GRACE_PERIOD": "90000ms"}},
	"proxy-metrics-hostname-labels":                       {"true", map[string]string{"OUTBOUND_METRICS_HOSTNAME_LABELS": "true"}},
	"proxy-additional-env":                                {`[{"name":"A","value":"1"}]`, map[string]string{"A": "1"}},
	"enable-debug-sidecar":                                {"true", map[string]string{"debug": "cr.l5d.io/linkerd/debug:edge-1"}},
	"proxy-enable-native-sidecar":                         {"false", map[string]string{"restart": "none", "startup": "none", "await hook": "4191"}},
	"config.beta.linkerd.io/proxy-enable-native-sidecar":  {"false", map[string]string{"restart": "none", "startup": "none", "await hook": "4191"}},
	"config.alpha.linkerd.io/proxy-enable-native-sidecar": {"false", map[string]string{"restart": "none", "startup": "none", "await hook": "4191"}},
	"linkerd.io/inject":                                   {"ingress", map[string]string{"INGRESS_MODE": "true"}},

	// These show beside others only, below.
	"debug-image": {"example.org/debug", nil}, "debug-image-version": {"v7", nil},
	"debug-image-pull-policy": {"Always", nil}, "close-wait-timeout": {"1m", nil},
	"config.alpha.linkerd.io/proxy-wait-before-exit-seconds": {"9", nil},
}

// facts returns what annotations may change, by the names that eachAnnotation has for it.
func (r *result) facts() map[string]string {
	all := map[string]string{}
	for _, v := range r.proxy().Env {
		name := strings.TrimPrefix(v.Name, "LINKERD2_PROXY_")
		all[name] = r.env(name)
	}
	args := r.container("linkerd-init").Args
	for i, arg := range args {
		if strings.HasPrefix(arg, "--") && i+1 < len(args) {
			all[arg] = args[i+1]
		}
	}

	proxy, init := r.proxy(), r.container("linkerd-init")
	all["image"], all["init image"] = proxy.Image, init.Image
	all["pull"], all["init pull"] = string(proxy.ImagePullPolicy), string(init.ImagePullPolicy)
	all["version annotation"] = r.pod.Annotations["linkerd.io/proxy-version"]
	all["proxy port"] = portText(proxy.Ports[0].ContainerPort)
	all["admin port"] = portText(proxy.Ports[1].ContainerPort)
	for name, quantity := range proxy.Resources.Limits {
		all["limit "+string(name)] = quantity.String()
	}
	for name, quantity := range proxy.Resources.Requests {
		all["request "+string(name)] = quantity.String()
	}

	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			r.tb.Fatal(err)
		}
		return string(b)
	}
	all["user"] = text(proxy.SecurityContext.RunAsUser)
	if group := proxy.SecurityContext.RunAsGroup; group != nil {
		all["group"] = text(group)
	}
	all["init security"] = text(init.SecurityContext)
	all["startup"], all["restart"] = "there", "there"
	if proxy.StartupProbe == nil {
		all["startup"] = "none"
	}
	if proxy.RestartPolicy == nil {
		all["restart"] = "none"
	}
	if proxy.Lifecycle != nil && proxy.Lifecycle.PostStart != nil {
		all["await hook"] = strings.TrimPrefix(proxy.Lifecycle.PostStart.Exec.Command[2], "--port=")
	}
	if proxy.Lifecycle != nil && proxy.Lifecycle.PreStop != nil {
		all["wait hook"] = proxy.Lifecycle.PreStop.Exec.Command[1]
	}
	if debug := r.container("linkerd-debug"); debug != nil {
		all["debug"] = debug.Image
		all["debug pull"] = string(debug.ImagePullPolicy)
	}
	return all
}

func portText(port int32) string { return joinPorts([]int32{port}) }

// changed returns what differs from other facts.
func changed(from, to map[string]string) map[string]string {
	all := map[string]string{}
	for name, value := range to {
		if from[name] != value {
			all[name] = value
		}
	}
	for name := range from {
		if _, is := to[name]; !is {
			all[name] = missing
		}
	}
	return all
}

func testEachAnnotation(t *testing.T) {
	var listed []string
	plainFacts := given{}.mustInject(t).facts()
	for name, c := range eachAnnotation {
		key := name
		if !strings.Contains(name, "/") {
			key = configPrefix + name
		}
		listed = append(listed, key)
		r := given{annotations: name + ": '" + c.value + "'"}.mustInject(t)
		got, want := changed(plainFacts, r.facts()), maps.Clone(c.want)
		if want == nil {
			want = map[string]string{}
		}
		if name == "enable-debug-sidecar" {
			want["debug pull"] = "IfNotPresent"
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s changes\n%s", name, c.value, diff)
		}
		if name != "close-wait-timeout" {
			r.wantIgnored()
		}
	}

	slices.Sort(listed)
	if diff := cmp.Diff(listed, Annotations()); diff != "" {
		t.Errorf("annotations: %s", diff)
	}

	// Those that have an effect beside another one.
	for name, c := range map[string]struct {
		beside given
		want   map[string]string
	}{
		"debug-image": {
			given{annotations: "enable-debug-sidecar: 'true'"}, map[string]string{"debug": "example.org/debug:edge-1"},
		},
		"debug-image-version": {
			given{annotations: "enable-debug-sidecar: 'true'"},
			map[string]string{"debug": "cr.l5d.io/linkerd/debug:v7"},
		},
		"debug-image-pull-policy": {
			given{annotations: "enable-debug-sidecar: 'true'"}, map[string]string{"debug pull": "Always"},
		},
		"config.alpha.linkerd.io/proxy-wait-before-exit-seconds": {
			given{values: plain}, map[string]string{"wait hook": "9"},
		},
	} {
		before := c.beside.mustInject(t).facts()
		g := c.beside
		if g.annotations != "" {
			g.annotations += ", "
		}
		g.annotations += name + ": '" + eachAnnotation[name].value + "'"
		if diff := cmp.Diff(c.want, changed(before, g.mustInject(t).facts())); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// unreadable are annotations none of whose values can be honoured: those that are not here take any text.
const unreadable = `proxy-image: 'a b', proxy-version: 'a b', image-pull-policy: x, enable-debug-sidecar: x, ` +
	`debug-image: '', debug-image-version: "a\nb", debug-image-pull-policy: x, control-port: x, inbound-port: x, ` +
	`outbound-port: x, admin-port: x, pod-inbound-ports: x, default-inbound-policy: x, enable-external-profiles: x, ` +
	`enable-gateway: x, proxy-log-http-headers: x, proxy-admin-shutdown: x, proxy-cpu-request: x, ` +
	`proxy-cpu-limit: '-1', proxy-cpu-ratio-limit: x, proxy-memory-request: x, proxy-memory-limit: x, ` +
	`proxy-ephemeral-storage-request: x, proxy-ephemeral-storage-limit: x, proxy-uid: x, proxy-gid: x, ` +
	`proxy-outbound-connect-timeout: x, proxy-inbound-connect-timeout: -1s, ` +
	`proxy-outbound-discovery-cache-unused-timeout: x, proxy-inbound-discovery-cache-unused-timeout: x, ` +
	`proxy-disable-outbound-protocol-detect-timeout: x, proxy-disable-inbound-protocol-detect-timeout: x, ` +
	`proxy-await: x, shutdown-grace-period: x, proxy-metrics-hostname-labels: x, proxy-additional-env: x, ` +
	`close-wait-timeout: x, proxy-enable-native-sidecar: x, ` +
	`config.alpha.linkerd.io/proxy-wait-before-exit-seconds: x`

func testUnreadable(t *testing.T) {
	r := given{annotations: unreadable}.mustInject(t)
	if diff := changed(given{}.mustInject(t).facts(), r.facts()); len(diff) > 0 {
		t.Errorf("they change %v", diff)
	}
	r.wantIgnored(slices.Collect(maps.Keys(texts(t, unreadable)))...)
	for _, warning := range r.Warnings {
		if len(warning) > 200 || strings.Contains(warning, "\n") {
			t.Errorf("warning %q", warning)
		}
	}
}

func testOpaquePorts(t *testing.T) {
	given{spec: "containers: [{name: app, ports: [{containerPort: 3306}, {containerPort: 80}]}]"}.mustInject(t).
		wantOpaque("3306", "3306")
}

func testOpaqueOnce(t *testing.T) {
	given{spec: "containers: [{name: a, ports: [{containerPort: 3306}]}, " +
		"{name: b, ports: [{containerPort: 25}, {containerPort: 3306}]}]"}.mustInject(t).wantOpaque("3306,25", "3306,25")
}

func testOpaqueRange(t *testing.T) {
	given{
		values: []string{"proxy.opaquePorts=3000-4000"}, spec: "containers: [{name: a, ports: [{containerPort: 3306}]}]",
	}.mustInject(t).wantOpaque("3306", "3306")
}

const mysql = "containers: [{name: app, ports: [{containerPort: 3306}]}]"

func testOpaqueOfNamespace(t *testing.T) {
	given{spec: mysql, namespace: "inject: enabled, opaque-ports: '9999'"}.mustInject(t).wantOpaque("9999", "9999")
	given{spec: mysql, namespace: "inject: enabled, opaque-ports: ''"}.mustInject(t).wantOpaque("", missing)
}

func testOpaqueWithoutProxy(t *testing.T) {
	r := given{spec: mysql, annotations: "inject: disabled"}.inject(t)
	if got := paths(r.Patch); len(got) != 1 || r.annotation("opaque-ports") != "3306" || r.Injected {
		t.Errorf("%q: %q", got, r.annotation("opaque-ports"))
	}
	r = given{spec: mysql, annotations: "inject: disabled", namespace: "inject: enabled, opaque-ports: '1-2'"}.inject(t)
	if got := r.annotation("opaque-ports"); got != "1-2" || r.Injected {
		t.Errorf("annotated %q", got)
	}
}

func testNothingWithoutProxy(t *testing.T) {
	r := given{spec: "containers: [{name: app, ports: [{containerPort: 80}]}]", annotations: "inject: disabled"}.inject(t)
	if len(r.Patch) > 0 {
		t.Errorf("operations %q", paths(r.Patch))
	}
}

func testServiceAnnotations(t *testing.T) {
	if _, operations := service(t, "opaque-ports: '9'", "opaque-ports: '1'", "{port: 3306}"); len(operations) > 0 {
		t.Errorf("operations %q", paths(operations))
	}
	wantServiceOpaque(t, "opaque-ports: '9'", "{port: 80}", "9")
	for ports, want := range map[string]string{
		"{port: 3306}":                    "3306",
		"{port: 80, targetPort: 3306}":    "80",
		"{port: 3306, targetPort: 80}":    missing,
		"{port: 3306, targetPort: mysql}": missing,
		"{port: 3306, name: a, protocol: TCP}, {port: 3306, name: b, protocol: UDP}, {port: 25, name: c}": "3306,25",
	} {
		wantServiceOpaque(t, "x/y: z", ports, want)
	}
}

func testServiceBytes(t *testing.T) {
	const value = `3306,"<x>\&` + "\u2028é"
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	of, _ := service(t, "opaque-ports: "+string(text), "", "{port: 80}")
	if got := of.Annotations[OpaqueAnnotation]; got != value {
		t.Errorf("annotated %q, want %q", got, value)
	}
}

func testServiceRoot(t *testing.T) {
	_, operations := service(t, "x/y: z", "", "{port: 3306}")
	want := []string{"add /metadata/annotations", "add /metadata/annotations/config.linkerd.io~1opaque-ports"}
	if diff := cmp.Diff(want, paths(operations)); diff != "" {
		t.Error(diff)
	}
	if _, operations = service(t, "x/y: z", "a/b: c", "{port: 3306}"); len(operations) != 1 {
		t.Errorf("operations %q", paths(operations))
	}
}

func testServiceWithoutInjection(t *testing.T) {
	wantServiceOpaque(t, "inject: disabled", "{port: 3306}", "3306")
}
