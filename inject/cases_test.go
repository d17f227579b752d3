package inject

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestCases are the contract cases of the injector that are a function of Values, annotations and Pod.
func TestCases(t *testing.T) {
	t.Run("IJ20", func(t *testing.T) {
		decides(t, "inject: enabled", []decision{
			{"", "", AtNamespace},
			{"enabled", "", AtNamespace},
			{"ingress", "", AtNamespace},
			{"disabled", "injection_disable_annotation_present", AtWorkload},
		})
	})
	t.Run("IJ21", func(t *testing.T) {
		decides(t, "other/x: y", []decision{
			{"", "injection_enable_annotation_absent", ""},
			{"enabled", "", AtWorkload},
			{"ingress", "", AtWorkload},
			{"disabled", "injection_enable_annotation_absent", ""},
		})
	})
	t.Run("IJ22", func(t *testing.T) {
		decides(t, "inject: disabled", []decision{
			{"", "injection_enable_annotation_absent", ""},
			{"enabled", "", AtWorkload},
			{"disabled", "injection_enable_annotation_absent", ""},
		})
	})
	t.Run("IJ24", testInvalidAnnotation)
	t.Run("IJ25", testIngressNamespace)
	t.Run("IJ26", testHostNetwork)
	t.Run("IJ27", testSidecars)
	t.Run("IJ29", testWithoutProjection)
	t.Run("IJ30", testAutomountOff)

	t.Run("IJ46", testBarePod)
	t.Run("IJ47", testLabelsRoot)
	t.Run("IJ50", testOperations)
	t.Run("IJ51", testProxy)
	t.Run("IJ52", testVariables)
	t.Run("IJ53", testAddresses)
	t.Run("IJ54", testListeners)
	t.Run("IJ55", testPortsByDefault)
	t.Run("IJ57", testIdentity)
	t.Run("IJ59", testIPv6)
	t.Run("IJ60", testEqualPatches)
	t.Run("IJ61", testPlainAwait)
	t.Run("IJ62", testPlainWithoutAwait)
	t.Run("IJ63", testWaitBeforeExit)
	t.Run("IJ66", testInitContainersOfThePod)
	t.Run("IJ67", testCNI)
	t.Run("IJ68", testCNINative)
	t.Run("IJ69", testValidator)
	t.Run("IJ70", testValidatorWithoutSecurity)
	t.Run("IJ71", testNativeAnnotations)
	t.Run("IJ72", testIptablesMode)
	t.Run("IJ73", testInitAsRoot)
	t.Run("IJ74", testCapabilities)
	t.Run("IJ75", testAccountMount)
	t.Run("IJ76", testSecurityOfValues)
	t.Run("IJ78", testDebugContainer)
	t.Run("IJ79", testTracingFiles)
	t.Run("IJ80", testTracingAttributes)
	t.Run("IJ81", testDomains)

	t.Run("IJ91", testPortAnnotations)
	t.Run("IJ92", testBadPort)
	t.Run("IJ93", testPodInboundPorts)
	t.Run("IJ94", testProbePorts)
	t.Run("IJ95", testStartupPorts)
	t.Run("IJ96", testOpaqueAnnotation)
	t.Run("IJ98", testSkipNothing)
	t.Run("IJ99", testPolicyAnnotations)
	t.Run("IJ100", testSuffixes)
	t.Run("IJ101", testLog)
	t.Run("IJ102", testBadHeaders)
	t.Run("IJ104", testCPU)
	t.Run("IJ105", testCPURatio)
	t.Run("IJ106", testMemory)
	t.Run("IJ107", testUser)
	t.Run("IJ108", testConnectTimeouts)
	t.Run("IJ109", testIdleTimeouts)
	t.Run("IJ112", testAdditionalEnv)
	t.Run("IJ113", testBadAdditionalEnv)
	t.Run("IJ114", testCloseWait)
	t.Run("IJ115", testCloseWaitUnprivileged)
	t.Run("IJ116", testInheritance)
	t.Run("IJ117", testInheritedByUs)
	t.Run("IJ118", testGatewayIsNotInherited)
	t.Run("IJ119", testEachAnnotation)
	t.Run("IJ120", testUnreadable)

	t.Run("IJ130", testOpaquePorts)
	t.Run("IJ131", testOpaqueOnce)
	t.Run("IJ132", testOpaqueRange)
	t.Run("IJ133", testOpaqueOfNamespace)
	t.Run("IJ135", testOpaqueWithoutProxy)
	t.Run("IJ136", testNothingWithoutProxy)
	t.Run("IJ138", testServiceAnnotations)
	t.Run("IJ139", testServiceBytes)
	t.Run("IJ140", testServiceRoot)
	t.Run("IJ141", testServiceWithoutInjection)
}

type decision struct {
	pod    string // its annotation; empty for none
	reason Reason // empty: it is injected
	at     string
}

func decides(t *testing.T, namespace string, decisions []decision) {
	t.Helper()
	for _, d := range decisions {
		g := given{namespace: namespace}
		if d.pod != "" {
			g.annotations = "inject: " + d.pod
		}
		r := g.inject(t)
		if r.DecidedAt != d.at {
			t.Errorf("%q: decided at %q, want %q", d.pod, r.DecidedAt, d.at)
		}
		if d.reason != "" {
			r.wantReasons(d.reason)
			continue
		}

		mode := missing
		if d.pod == "ingress" {
			mode = "true"
		}
		if !r.Injected || r.env("INGRESS_MODE") != mode {
			t.Errorf("%q: injected %v, want it with ingress mode %s", d.pod, r.Injected, mode)
		}
	}
}

func testInvalidAnnotation(t *testing.T) {
	given{annotations: "inject: 'yes'"}.inject(t).wantReasons("invalid_inject_annotation_at_workload")
	given{annotations: "inject: ''"}.mustInject(t)
	given{namespace: "inject: 'on'"}.inject(t).wantReasons("invalid_inject_annotation_at_ns")
}

func testIngressNamespace(t *testing.T) {
	r := given{namespace: "inject: ingress"}.mustInject(t)
	r.wantEnv(map[string]string{"INGRESS_MODE": "true"})
	if got := r.pod.Annotations["linkerd.io/inject"]; got != "ingress" {
		t.Errorf("the Pod is annotated %q", got)
	}
}

func testHostNetwork(t *testing.T) {
	given{spec: "{hostNetwork: true, containers: [{name: app}]}"}.inject(t).wantReasons("host_network_enabled")
	given{spec: "{hostNetwork: true, containers: [{name: app}]}", annotations: "inject: disabled"}.inject(t).
		wantReasons("host_network_enabled", "injection_disable_annotation_present")
}

func testSidecars(t *testing.T) {
	for _, spec := range []string{
		"containers: [{name: app}, {name: linkerd-proxy}]",
		"{containers: [{name: app}], initContainers: [{name: linkerd-proxy}]}",
		"{containers: [{name: app}], initContainers: [{name: linkerd-init}]}",
		"containers: [{name: app, image: 'gcr.io/istio-release/proxyv2:1'}]",
	} {
		given{spec: spec}.inject(t).wantReasons("sidecar_already_exists")
	}
	given{spec: "containers: [{name: proxy, image: 'example.org/proxy:1'}]"}.mustInject(t)
}

func testWithoutProjection(t *testing.T) {
	off := []string{"identity.serviceAccountTokenProjection=false"}
	const mounted = "[{name: app, volumeMounts: [{name: sa, readOnly: true, mountPath: " +
		"/var/run/secrets/kubernetes.io/serviceaccount}]}]"
	const reason = "disabled_automount_service_account_token_account"
	given{values: off, spec: "{automountServiceAccountToken: false, containers: " + mounted + "}"}.inject(t).
		wantReasons(reason)
	given{values: off}.inject(t).wantReasons(reason)

	r := given{values: off, spec: "containers: " + mounted}.mustInject(t)
	want := corev1.VolumeMount{Name: "sa", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}
	if !slices.Contains(r.proxy().VolumeMounts, want) {
		t.Errorf("mounts %v", r.proxy().VolumeMounts)
	}
	r.wantEnv(map[string]string{"IDENTITY_TOKEN_FILE": "/var/run/secrets/kubernetes.io/serviceaccount/token"})
	for _, v := range r.pod.Spec.Volumes {
		if v.Name == "linkerd-identity-token" {
			t.Error("there is a token volume")
		}
	}
}

func testAutomountOff(t *testing.T) {
	given{spec: "{automountServiceAccountToken: false, containers: [{name: app}]}"}.mustInject(t)
}

func testBarePod(t *testing.T) {
	r := given{}.mustInject(t)
	want := map[string]string{"linkerd.io/control-plane-ns": "linkerd", "linkerd.io/workload-ns": "shop"}
	if diff := cmp.Diff(want, r.pod.Labels); diff != "" {
		t.Error(diff)
	}

	owned := given{owner: Owner{"StatefulSet", "s"}, labels: "app: x"}.mustInject(t)
	want["linkerd.io/proxy-statefulset"], want["app"] = "s", "x"
	if diff := cmp.Diff(want, owned.pod.Labels); diff != "" {
		t.Error(diff)
	}
}

func paths(operations []Operation) (all []string) {
	for _, o := range operations {
		all = append(all, o.Op+" "+o.Path)
	}
	return all
}

func testLabelsRoot(t *testing.T) {
	has := func(r *result) bool { return slices.Contains(paths(r.Patch), "add /metadata/labels") }
	r := given{}.mustInject(t)
	all := paths(r.Patch)
	root := slices.Index(all, "add /metadata/labels")
	if root < 0 || all[root+1] != "add /metadata/labels/linkerd.io~1control-plane-ns" {
		t.Errorf("operations %q", all)
	}
	if value, err := json.Marshal(r.Patch[root].Value); string(value) != "{}" || err != nil {
		t.Errorf("the root is %s %v", value, err)
	}
	if has(given{labels: "a: b"}.mustInject(t)) {
		t.Error("the labels of a Pod are replaced")
	}
}

func testOperations(t *testing.T) {
	r := given{owner: Owner{"Deployment", "d"}}.mustInject(t)
	want := []string{
		"/metadata/annotations", "/metadata/annotations/linkerd.io~1created-by",
		"/metadata/annotations/linkerd.io~1inject", "/metadata/annotations/linkerd.io~1proxy-version",
		"/metadata/annotations/linkerd.io~1trust-root-sha256",
		"/metadata/labels", "/metadata/labels/linkerd.io~1control-plane-ns",
		"/metadata/labels/linkerd.io~1proxy-deployment", "/metadata/labels/linkerd.io~1workload-ns",
		"/spec/volumes", "/spec/initContainers", "/spec/volumes/-", "/spec/initContainers/0", "/spec/volumes/-",
		"/spec/volumes/-", "/spec/initContainers/1",
	}
	for i := range want {
		want[i] = "add " + want[i]
	}
	if diff := cmp.Diff(want, paths(r.Patch)); diff != "" {
		t.Error(diff)
	}

	var volumes []string
	for _, v := range r.pod.Spec.Volumes {
		volumes = append(volumes, v.Name)
	}
	wantVolumes := []string{"linkerd-proxy-init-xtables-lock", "linkerd-identity-end-entity", "linkerd-identity-token"}
	if diff := cmp.Diff(wantVolumes, volumes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"linkerd-init", "linkerd-proxy"}, namesOf(r.pod.Spec.InitContainers)); diff != "" {
		t.Error(diff)
	}

	sum := sha256.Sum256([]byte(anchors))
	wantAnnotations := map[string]string{
		"linkerd.io/inject": "enabled", "linkerd.io/created-by": "fingerpost/proxy-injector v1",
		"linkerd.io/proxy-version": "edge-1", "linkerd.io/trust-root-sha256": hex.EncodeToString(sum[:]),
	}
	if diff := cmp.Diff(wantAnnotations, r.pod.Annotations); diff != "" {
		t.Error(diff)
	}
}

// fromYAML reads what is expected of a field.
func fromYAML[T any](t *testing.T, text string) *T {
	t.Helper()
	to := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), to); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return to
}

func testProxy(t *testing.T) {
	r := given{}.mustInject(t)
	got := *r.proxy()
	got.Env = nil
	want := fromYAML[corev1.Container](t, `
name: linkerd-proxy
image: cr.l5d.io/linkerd/proxy:edge-1
imagePullPolicy: IfNotPresent
restartPolicy: Always
ports: [{name: linkerd-proxy, containerPort: 4143}, {name: linkerd-admin, containerPort: 4191}]
livenessProbe: {httpGet: {path: /live, port: 4191}, initialDelaySeconds: 10, timeoutSeconds: 1}
readinessProbe: {httpGet: {path: /ready, port: 4191}, initialDelaySeconds: 2, timeoutSeconds: 1}
startupProbe: {httpGet: {path: /ready, port: 4191}, periodSeconds: 1, failureThreshold: 120}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  runAsUser: 2102
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
- {name: linkerd-identity-end-entity, mountPath: /var/run/linkerd/identity/end-entity}
- {name: linkerd-identity-token, mountPath: /var/run/secrets/tokens}
`)
	if diff := cmp.Diff(*want, got); diff != "" {
		t.Error(diff)
	}

	text, err := json.Marshal(r.Patch)
	if err != nil || bytes.Contains(text, []byte(`"resources"`)) {
		t.Errorf("the patch has resources, or an error: %v", err)
	}

	init := fromYAML[corev1.Container](t, `
name: linkerd-init
image: cr.l5d.io/linkerd/proxy:edge-1
imagePullPolicy: IfNotPresent
command: [/usr/lib/linkerd/linkerd2-proxy-init]
args:
- --firewall-bin-path
- iptables-nft
- --firewall-save-bin-path
- iptables-nft-save
- --ipv6=false
- --incoming-proxy-port
- "4143"
- --outgoing-proxy-port
- "4140"
- --proxy-uid
- "2102"
- --inbound-ports-to-ignore
- "4190,4191,4567,4568"
- --outbound-ports-to-ignore
- "4567,4568"
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {add: [NET_ADMIN, NET_RAW]}
  privileged: false
  readOnlyRootFilesystem: true
  runAsGroup: 65534
  runAsNonRoot: true
  runAsUser: 65534
  seccompProfile: {type: RuntimeDefault}
volumeMounts: [{name: linkerd-proxy-init-xtables-lock, mountPath: /run}]
`)
	if diff := cmp.Diff(init, r.container("linkerd-init")); diff != "" {
		t.Error(diff)
	}
}

// wantVariables are those of a Pod with the chart's values, in order. A value of - is looked at elsewhere.
const wantVariables = `
_pod_name: field metadata.name
_pod_ns: field metadata.namespace
_pod_uid: field metadata.uid
_pod_ip: field status.podIP
_pod_nodeName: field spec.nodeName
_pod_containerName: linkerd-proxy
CORES: "1"
CORES_MIN: "1"
SHUTDOWN_ENDPOINT_ENABLED: "false"
LOG: warn,linkerd=info,hickory=error,[{headers}]=off,[{request}]=off
LOG_FORMAT: plain
DESTINATION_SVC_ADDR: linkerd-dst-headless.linkerd.svc.cluster.local.:8086
DESTINATION_PROFILE_NETWORKS: 10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8
POLICY_SVC_ADDR: linkerd-policy.linkerd.svc.cluster.local.:8090
POLICY_WORKLOAD: "{\"ns\":\"$(_pod_ns)\", \"pod\":\"$(_pod_name)\"}\n"
INBOUND_DEFAULT_POLICY: all-unauthenticated
POLICY_CLUSTER_NETWORKS: 10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8
CONTROL_STREAM_INITIAL_TIMEOUT: 3s
CONTROL_STREAM_IDLE_TIMEOUT: 5m
CONTROL_STREAM_LIFETIME: 1h
INBOUND_CONNECT_TIMEOUT: 100ms
OUTBOUND_CONNECT_TIMEOUT: 1000ms
OUTBOUND_DISCOVERY_IDLE_TIMEOUT: 5s
INBOUND_DISCOVERY_IDLE_TIMEOUT: 90s
CONTROL_LISTEN_ADDR: 0.0.0.0:4190
ADMIN_LISTEN_ADDR: 0.0.0.0:4191
OUTBOUND_LISTEN_ADDR: 127.0.0.1:4140
OUTBOUND_LISTEN_ADDRS: 127.0.0.1:4140
INBOUND_LISTEN_ADDR: 0.0.0.0:4143
INBOUND_IPS: field status.podIPs
INBOUND_PORTS: "8080"
DESTINATION_PROFILE_SUFFIXES: svc.cluster.local.
INBOUND_ACCEPT_KEEPALIVE: 10000ms
OUTBOUND_CONNECT_KEEPALIVE: 10000ms
INBOUND_ACCEPT_USER_TIMEOUT: 30s
OUTBOUND_CONNECT_USER_TIMEOUT: 30s
OUTBOUND_METRICS_HOSTNAME_LABELS: "false"
INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL: 10s
INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT: 3s
OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL: 10s
OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT: 3s
INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION: 25,587,3306,4444,5432,6379,9300,11211
DESTINATION_CONTEXT: "{\"ns\":\"$(_pod_ns)\", \"nodeName\":\"$(_pod_nodeName)\", \"pod\":\"$(_pod_name)\"}\n"
_pod_sa: field spec.serviceAccountName
_l5d_ns: linkerd
_l5d_trustdomain: cluster.local
IDENTITY_DIR: /var/run/linkerd/identity/end-entity
IDENTITY_TRUST_ANCHORS: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
IDENTITY_TOKEN_FILE: /var/run/secrets/tokens/linkerd-identity-token
IDENTITY_SVC_ADDR: linkerd-identity-headless.linkerd.svc.cluster.local.:8080
IDENTITY_LOCAL_NAME: $(_pod_sa).$(_pod_ns).serviceaccount.identity.linkerd.cluster.local
IDENTITY_SVC_NAME: linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local
DESTINATION_SVC_NAME: linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local
POLICY_SVC_NAME: linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local
`

func testVariables(t *testing.T) {
	r := given{}.mustInject(t)
	var got []string
	for _, v := range r.proxy().Env {
		name := strings.TrimPrefix(v.Name, "LINKERD2_PROXY_")
		if (name == v.Name) != strings.HasPrefix(name, "_") {
			t.Errorf("%s has the wrong prefix", v.Name)
		}
		got = append(got, name)
	}
	values := *fromYAML[map[string]string](t, wantVariables)
	var want []string
	for line := range strings.Lines(wantVariables) {
		if name, _, is := strings.Cut(line, ":"); is {
			want = append(want, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	r.wantEnv(values)
}

// testOwnServices: where they have other addresses and identities, proxies have these.
func testOwnServices(t *testing.T) {
	t.Helper()
	own := Services{
		Destination: Service{"fingerpost.mesh.svc.cluster.local.:18086", "fingerpost.mesh.serviceaccount.identity.linkerd.a"},
		Policy:      Service{Addr: "10.0.0.1:18090"}, Identity: Service{Name: "ca.mesh.serviceaccount.identity.linkerd.a"},
	}
	given{services: own}.mustInject(t).wantEnv(map[string]string{
		"DESTINATION_SVC_ADDR": "fingerpost.mesh.svc.cluster.local.:18086",
		"DESTINATION_SVC_NAME": "fingerpost.mesh.serviceaccount.identity.linkerd.a",
		"POLICY_SVC_ADDR":      "10.0.0.1:18090",
		"POLICY_SVC_NAME":      "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local",
		"IDENTITY_SVC_ADDR":    "linkerd-identity-headless.linkerd.svc.cluster.local.:8080",
		"IDENTITY_SVC_NAME":    "ca.mesh.serviceaccount.identity.linkerd.a",
	})
	given{services: own, system: "shop", labels: "linkerd.io/control-plane-component: destination"}.mustInject(t).
		wantEnv(map[string]string{"DESTINATION_SVC_ADDR": "localhost.:18086", "POLICY_SVC_ADDR": "localhost.:18090"})

	for _, bad := range []Service{
		{Addr: "a"}, {Addr: "a:0"}, {Addr: "a:http"}, {Addr: ":80"}, {Addr: "a b:80"}, {Addr: "a$(_pod_ip):80"}, {Name: "A b"},
	} {
		if err := (&Services{Policy: bad}).Validate(); err == nil {
			t.Errorf("accepted: %q", bad)
		}
	}
}

func testAddresses(t *testing.T) {
	given{}.mustInject(t).wantEnv(map[string]string{
		"DESTINATION_SVC_ADDR": "linkerd-dst-headless.linkerd.svc.cluster.local.:8086",
		"POLICY_SVC_ADDR":      "linkerd-policy.linkerd.svc.cluster.local.:8090",
		"IDENTITY_SVC_ADDR":    "linkerd-identity-headless.linkerd.svc.cluster.local.:8080",
	})
	testOwnServices(t)
	// The control plane's own Pods reach their own services, and have anchors of their own.
	for component, want := range map[string]map[string]string{
		"destination": {"DESTINATION_SVC_ADDR": "localhost.:8086", "POLICY_SVC_ADDR": "localhost.:8090"},
		"identity": {
			"IDENTITY_SVC_ADDR": "localhost.:8080",
			"POLICY_SVC_ADDR":   "linkerd-policy.shop.svc.cluster.local.:8090",
		},
	} {
		r := given{system: "shop", labels: "linkerd.io/control-plane-component: " + component}.mustInject(t)
		r.wantEnv(want)
		for _, v := range r.proxy().Env {
			if v.Name == "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS" && (v.ValueFrom == nil ||
				v.ValueFrom.ConfigMapKeyRef.Name != "linkerd-identity-trust-roots" ||
				v.ValueFrom.ConfigMapKeyRef.Key != "ca-bundle.crt") {
				t.Errorf("%s: anchors from %v", component, v)
			}
		}
	}
}

func testListeners(t *testing.T) {
	given{}.mustInject(t).wantEnv(map[string]string{
		"CONTROL_LISTEN_ADDR": "0.0.0.0:4190", "ADMIN_LISTEN_ADDR": "0.0.0.0:4191",
		"OUTBOUND_LISTEN_ADDR": "127.0.0.1:4140", "OUTBOUND_LISTEN_ADDRS": "127.0.0.1:4140",
		"INBOUND_LISTEN_ADDR": "0.0.0.0:4143",
	})
}

func (r *result) annotation(name string) string {
	value, is := r.pod.Annotations["config.linkerd.io/"+name]
	if !is {
		return missing
	}
	return value
}

func (r *result) wantOpaque(annotation, env string) {
	if got := r.annotation("opaque-ports"); got != annotation {
		r.tb.Errorf("annotated %q, want %q", got, annotation)
	}
	r.wantEnv(map[string]string{"INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION": env})
}

func testPortsByDefault(t *testing.T) {
	r := given{}.mustInject(t)
	r.wantEnv(map[string]string{"INBOUND_PORTS": "8080"})
	r.wantOpaque(missing, "25,587,3306,4444,5432,6379,9300,11211")
}

func testIdentity(t *testing.T) {
	r := given{}.mustInject(t)
	want := fromYAML[corev1.Volume](t, `
name: linkerd-identity-token
projected:
  sources:
  - serviceAccountToken: {path: linkerd-identity-token, audience: identity.l5d.io, expirationSeconds: 86400}
`)
	at := slices.IndexFunc(r.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == want.Name })
	if diff := cmp.Diff(*want, r.pod.Spec.Volumes[at]); diff != "" {
		t.Error(diff)
	}
	r.wantEnv(map[string]string{
		"IDENTITY_TOKEN_FILE":    "/var/run/secrets/tokens/linkerd-identity-token",
		"IDENTITY_TRUST_ANCHORS": anchors,
		"IDENTITY_LOCAL_NAME":    "$(_pod_sa).$(_pod_ns).serviceaccount.identity.linkerd.cluster.local",
	})
}

func testIPv6(t *testing.T) {
	r := given{values: []string{"disableIPv6=false"}}.mustInject(t)
	r.wantEnv(map[string]string{
		"CONTROL_LISTEN_ADDR": "[::]:4190", "ADMIN_LISTEN_ADDR": "[::]:4191", "INBOUND_LISTEN_ADDR": "[::]:4143",
		"OUTBOUND_LISTEN_ADDR": "127.0.0.1:4140", "OUTBOUND_LISTEN_ADDRS": "127.0.0.1:4140,[::1]:4140",
	})
	if slices.Contains(r.container("linkerd-init").Args, "--ipv6=false") {
		t.Error("linkerd-init leaves IPv6 out")
	}
}

func testEqualPatches(t *testing.T) {
	tracing := []string{
		"proxy.tracing.enabled=true", "proxy.tracing.collector.endpoint=c:4317",
		"proxy.tracing.collector.meshIdentity={serviceAccountName: c, namespace: t}",
	}
	g := given{
		values: tracing, labels: "a: b, c: d", annotations: "proxy-cpu-limit: '2', proxy-memory-request: 1Mi, x/y: z",
		namespace: "inject: enabled, proxy-log-level: debug, skip-inbound-ports: '1'",
	}
	first, err := json.Marshal(g.inject(t).Patch)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // the order of maps differs from time to time
		again, err := json.Marshal(g.inject(t).Patch)
		if err != nil || !bytes.Equal(first, again) {
			t.Fatalf("%s, then %s: %v", first, again, err)
		}
	}
}

var plain = []string{"proxy.nativeSidecar=false"}

func testPlainAwait(t *testing.T) {
	r := given{values: plain}.mustInject(t)
	if diff := cmp.Diff([]string{"linkerd-init"}, namesOf(r.pod.Spec.InitContainers)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"linkerd-proxy", "app"}, namesOf(r.pod.Spec.Containers)); diff != "" {
		t.Error(diff)
	}
	want := fromYAML[corev1.Lifecycle](t,
		"postStart: {exec: {command: [/usr/lib/linkerd/linkerd-await, --timeout=2m, --port=4191]}}")
	if diff := cmp.Diff(want, r.proxy().Lifecycle); diff != "" {
		t.Error(diff)
	}
	if r.proxy().StartupProbe != nil || r.proxy().RestartPolicy != nil {
		t.Error("it has a startup probe or a restart policy")
	}
}

func testPlainWithoutAwait(t *testing.T) {
	r := given{values: append([]string{"proxy.await=false"}, plain...)}.mustInject(t)
	if diff := cmp.Diff([]string{"app", "linkerd-proxy"}, namesOf(r.pod.Spec.Containers)); diff != "" {
		t.Error(diff)
	}
	if r.proxy().Lifecycle != nil {
		t.Error("it has hooks")
	}
}

func testWaitBeforeExit(t *testing.T) {
	const wait = "config.alpha.linkerd.io/proxy-wait-before-exit-seconds: '30'"
	r := given{values: plain, annotations: wait}.mustInject(t)
	want := fromYAML[corev1.LifecycleHandler](t, `exec: {command: [/bin/sleep, "30"]}`)
	if diff := cmp.Diff(want, r.proxy().Lifecycle.PreStop); diff != "" {
		t.Error(diff)
	}
	if r := (given{annotations: wait}).mustInject(t); r.proxy().Lifecycle != nil {
		t.Error("a native sidecar has hooks")
	}
}

func testInitContainersOfThePod(t *testing.T) {
	const spec = "{containers: [{name: app}], initContainers: [{name: a}, {name: b}]}"
	r := given{spec: spec}.mustInject(t)
	want := []string{"linkerd-init", "linkerd-proxy", "a", "b"}
	if diff := cmp.Diff(want, namesOf(r.pod.Spec.InitContainers)); diff != "" {
		t.Error(diff)
	}
	r = given{values: plain, spec: spec}.mustInject(t)
	if diff := cmp.Diff([]string{"a", "b", "linkerd-init"}, namesOf(r.pod.Spec.InitContainers)); diff != "" {
		t.Error(diff)
	}
}

const cni = "cniEnabled=true"

func testCNI(t *testing.T) {
	r := given{
		values: append([]string{cni}, plain...), spec: "{containers: [{name: app}], initContainers: [{name: a}]}",
	}.mustInject(t)
	if diff := cmp.Diff([]string{"a", "linkerd-network-validator"}, namesOf(r.pod.Spec.InitContainers)); diff != "" {
		t.Error(diff)
	}
	for _, v := range r.pod.Spec.Volumes {
		if v.Name == "linkerd-proxy-init-xtables-lock" {
			t.Error("there is a volume of xtables")
		}
	}
}

func testCNINative(t *testing.T) {
	r := given{values: []string{cni}, spec: "{containers: [{name: app}], initContainers: [{name: a}]}"}.mustInject(t)
	want := []string{"linkerd-network-validator", "linkerd-proxy", "a"}
	if diff := cmp.Diff(want, namesOf(r.pod.Spec.InitContainers)); diff != "" {
		t.Error(diff)
	}
}

func testValidator(t *testing.T) {
	r := given{values: []string{cni}}.mustInject(t)
	want := fromYAML[corev1.Container](t, `
name: linkerd-network-validator
image: cr.l5d.io/linkerd/proxy:edge-1
imagePullPolicy: IfNotPresent
command: [/usr/lib/linkerd/linkerd2-network-validator]
args: [--log-format, plain, --log-level, debug, --connect-addr, "1.1.1.1:20001", --listen-addr, "0.0.0.0:4140", --timeout, 10s]
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  readOnlyRootFilesystem: true
  runAsGroup: 65534
  runAsNonRoot: true
  runAsUser: 65534
  seccompProfile: {type: RuntimeDefault}
`)
	if diff := cmp.Diff(want, r.container("linkerd-network-validator")); diff != "" {
		t.Error(diff)
	}
	byDefault := given{values: []string{cni, "networkValidator.securityContext={}"}}.mustInject(t)
	if diff := cmp.Diff(want, byDefault.container("linkerd-network-validator")); diff != "" {
		t.Errorf("without a security context in values: %s", diff)
	}

	args := given{values: []string{cni, "disableIPv6=false"}}.mustInject(t).container("linkerd-network-validator").Args
	if args[5] != "[fd00::1]:20001" || args[7] != "[::]:4140" {
		t.Errorf("with IPv6: %q", args)
	}
}

func testValidatorWithoutSecurity(t *testing.T) {
	r := given{values: []string{cni, "networkValidator.enableSecurityContext=false"}}.mustInject(t)
	if got := r.container("linkerd-network-validator").SecurityContext; got != nil {
		t.Error(got)
	}
}

func testNativeAnnotations(t *testing.T) {
	const stable, beta, alpha = "proxy-enable-native-sidecar", "config.beta.linkerd.io/proxy-enable-native-sidecar",
		"config.alpha.linkerd.io/proxy-enable-native-sidecar"
	for _, c := range []struct {
		annotations string
		values      bool
		want        bool
	}{
		{stable + ": 'false', " + beta + ": 'true'", true, false},
		{beta + ": 'true'", false, true},
		{alpha + ": 'true'", false, true},
		{stable + ": x, " + beta + ": 'true'", false, false},
		{stable + ": x, " + beta + ": 'false'", true, true},
	} {
		g := given{annotations: c.annotations}
		if !c.values {
			g.values = plain
		}
		if got := g.mustInject(t).proxy().RestartPolicy != nil; got != c.want {
			t.Errorf("%s over %v: %v", c.annotations, c.values, got)
		}
	}
}

func testIptablesMode(t *testing.T) {
	r := given{values: []string{"proxyInit.iptablesMode=legacy"}}.mustInject(t)
	if args := r.container("linkerd-init").Args; args[0] != "--ipv6=false" {
		t.Errorf("arguments %q", args)
	}
	if _, err := chartValues(t, "proxyInit.iptablesMode=x"); err == nil {
		t.Error("values with a mode that does not exist are accepted")
	}
}

func testInitAsRoot(t *testing.T) {
	security := given{values: []string{"proxyInit.runAsRoot=true"}}.mustInject(t).container("linkerd-init").SecurityContext
	if *security.RunAsUser != 0 || *security.RunAsGroup != 0 || *security.RunAsNonRoot || *security.Privileged {
		t.Errorf("as root: %v", security)
	}
	security = given{values: []string{"proxyInit.privileged=true"}}.mustInject(t).container("linkerd-init").SecurityContext
	if !*security.Privileged || !*security.AllowPrivilegeEscalation || *security.RunAsUser != 65534 {
		t.Errorf("privileged: %v", security)
	}
}

func testCapabilities(t *testing.T) {
	r := given{
		spec: "containers: [{name: app, securityContext: {capabilities: {add: [SYS_TIME], drop: [ALL, NET_RAW]}}}]",
	}.mustInject(t)
	want := &corev1.Capabilities{Add: []corev1.Capability{"SYS_TIME"}, Drop: []corev1.Capability{"ALL", "NET_RAW"}}
	if diff := cmp.Diff(want, r.proxy().SecurityContext.Capabilities); diff != "" {
		t.Error(diff)
	}
	want = &corev1.Capabilities{
		Add: []corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_TIME"}, Drop: []corev1.Capability{"ALL"},
	}
	if diff := cmp.Diff(want, r.container("linkerd-init").SecurityContext.Capabilities); diff != "" {
		t.Error(diff)
	}
}

func testAccountMount(t *testing.T) {
	const mount = "{name: sa, readOnly: true, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}"
	r := given{spec: "containers: [{name: app, volumeMounts: [" + mount + "]}, {name: b}]"}.mustInject(t)
	want := *fromYAML[corev1.VolumeMount](t, mount)
	for _, name := range []string{"linkerd-proxy", "linkerd-init"} {
		if !slices.Contains(r.container(name).VolumeMounts, want) {
			t.Errorf("%s has mounts %v", name, r.container(name).VolumeMounts)
		}
	}
}

func testSecurityOfValues(t *testing.T) {
	r := given{
		values: []string{"proxy.securityContext={runAsUser: 7, procMount: Default}"}, annotations: "proxy-uid: '9'",
	}.mustInject(t)
	want := fromYAML[corev1.SecurityContext](t, "{runAsUser: 7, procMount: Default}")
	if diff := cmp.Diff(want, r.proxy().SecurityContext); diff != "" {
		t.Error(diff)
	}
}

func testDebugContainer(t *testing.T) {
	r := given{annotations: "enable-debug-sidecar: 'true'"}.mustInject(t)
	want := fromYAML[corev1.Container](t, `
name: linkerd-debug
image: cr.l5d.io/linkerd/debug:edge-1
imagePullPolicy: IfNotPresent
terminationMessagePolicy: FallbackToLogsOnError
livenessProbe: {exec: {command: ["true"]}}
readinessProbe: {exec: {command: ["true"]}}
`)
	if diff := cmp.Diff(want, r.container("linkerd-debug")); diff != "" {
		t.Error(diff)
	}
	all := paths(r.Patch)
	debug := slices.Index(all, "add /spec/containers/-")
	if proxy := slices.Index(all, "add /spec/initContainers/1"); debug < 0 || debug > proxy {
		t.Errorf("operations %q", all)
	}

	r = given{annotations: "enable-debug-sidecar: 'true', debug-image-version: v7"}.mustInject(t)
	if got := r.container("linkerd-debug").Image; got != "cr.l5d.io/linkerd/debug:v7" {
		t.Errorf("image %s", got)
	}
	if r := (given{annotations: "enable-debug-sidecar: x"}).mustInject(t); r.container("linkerd-debug") != nil {
		t.Error("there is a debug container")
	}
}

var traced = []string{
	"proxy.tracing.enabled=true", "proxy.tracing.collector.endpoint=collector.t:4317",
	"proxy.tracing.collector.meshIdentity={serviceAccountName: collector, namespace: t}",
}

func testTracingFiles(t *testing.T) {
	r := given{values: traced}.mustInject(t)
	want := fromYAML[corev1.Volume](t, `
name: linkerd-podinfo
downwardAPI:
  items:
  - {path: labels, fieldRef: {fieldPath: metadata.labels}}
  - {path: annotations, fieldRef: {fieldPath: metadata.annotations}}
`)
	at := slices.IndexFunc(r.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == want.Name })
	if at < 0 {
		t.Fatal("there is no such volume")
	}
	if diff := cmp.Diff(*want, r.pod.Spec.Volumes[at]); diff != "" {
		t.Error(diff)
	}
	mount := corev1.VolumeMount{Name: "linkerd-podinfo", MountPath: "/var/run/linkerd/podinfo"}
	if !slices.Contains(r.proxy().VolumeMounts, mount) {
		t.Errorf("mounts %v", r.proxy().VolumeMounts)
	}
	r.wantEnv(map[string]string{
		"TRACE_ATTRIBUTES_PATH":  "/var/run/linkerd/podinfo/labels",
		"TRACE_ANNOTATIONS_PATH": "/var/run/linkerd/podinfo/annotations",
		"TRACE_PROTOCOL":         "opentelemetry", "TRACE_SERVICE_NAME": "linkerd-proxy",
		"TRACE_COLLECTOR_SVC_ADDR": "collector.t:4317",
		"TRACE_COLLECTOR_SVC_NAME": "collector.t.serviceaccount.identity.linkerd.cluster.local",
	})
	if _, err := chartValues(t, "proxy.tracing.enabled=true"); err == nil {
		t.Error("tracing to nowhere is accepted")
	}
}

func testTracingAttributes(t *testing.T) {
	given{
		values: traced, labels: "app.kubernetes.io/instance: cart-1, app.kubernetes.io/name: cart",
		annotations: "resource.opentelemetry.io/team: red, resource.opentelemetry.io/odd: \"a\\nservice.name=b\"",
	}.mustInject(t).wantEnv(map[string]string{
		"TRACE_EXTRA_ATTRIBUTES": "k8s.container.name=$(_pod_containerName)\nk8s.pod.ip=$(_pod_ip)\n" +
			"k8s.pod.uid=$(_pod_uid)\nservice.name=cart-1\nteam=red\n",
	})
	r := given{values: traced, labels: "app.kubernetes.io/name: cart"}.mustInject(t)
	if !strings.Contains(r.env("TRACE_EXTRA_ATTRIBUTES"), "service.name=cart\n") {
		t.Errorf("attributes %q", r.env("TRACE_EXTRA_ATTRIBUTES"))
	}
}

func testDomains(t *testing.T) {
	given{values: []string{"identityTrustDomain=td", "clusterDomain=c.d"}, system: "l5d"}.mustInject(t).
		wantEnv(map[string]string{
			"DESTINATION_SVC_ADDR":         "linkerd-dst-headless.l5d.svc.c.d.:8086",
			"POLICY_SVC_ADDR":              "linkerd-policy.l5d.svc.c.d.:8090",
			"IDENTITY_SVC_ADDR":            "linkerd-identity-headless.l5d.svc.c.d.:8080",
			"IDENTITY_LOCAL_NAME":          "$(_pod_sa).$(_pod_ns).serviceaccount.identity.l5d.td",
			"IDENTITY_SVC_NAME":            "linkerd-identity.l5d.serviceaccount.identity.l5d.td",
			"DESTINATION_SVC_NAME":         "linkerd-destination.l5d.serviceaccount.identity.l5d.td",
			"POLICY_SVC_NAME":              "linkerd-destination.l5d.serviceaccount.identity.l5d.td",
			"DESTINATION_PROFILE_SUFFIXES": "svc.c.d.", "_l5d_ns": "l5d", "_l5d_trustdomain": "td",
		})
	given{values: []string{"identityTrustDomain=''", "clusterDomain=c.d"}}.mustInject(t).
		wantEnv(map[string]string{"_l5d_trustdomain": "c.d"})
}

// service returns what becomes of a Service.
func service(t *testing.T, namespace, annotations, ports string) (*corev1.Service, []Operation) {
	t.Helper()
	of := &corev1.Service{Spec: *fromYAML[corev1.ServiceSpec](t, "ports: ["+ports+"]")}
	if annotations != "" {
		of.Annotations = texts(t, annotations)
	}
	g := given{namespace: namespace}
	operations := g.injector(t).Service(g.namespaceAnnotations(t), &of.ObjectMeta, &of.Spec)
	return apply(t, of, operations), operations
}

func wantServiceOpaque(t *testing.T, namespace, ports, want string) {
	t.Helper()
	of, _ := service(t, namespace, "", ports)
	got, is := of.Annotations[OpaqueAnnotation]
	if !is {
		got = missing
	}
	if got != want {
		t.Errorf("Service with %s: annotated %q, want %q", ports, got, want)
	}
}
