package inject

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	identityDir = "/var/run/linkerd/identity/end-entity"
	podinfoDir  = "/var/run/linkerd/podinfo"
	tokenDir    = "/var/run/secrets/tokens" //nolint:gosec // a path

	componentLabel  = "linkerd.io/control-plane-component"
	anchorsConfig   = "linkerd-identity-trust-roots"
	anchorsKey      = "ca-bundle.crt"
	unlimitedDetect = "365d"
	keepAlive       = "10000ms"
	userTimeout     = "30s"
)

// variables are those of the proxy, in order: later ones refer to earlier ones as $(name).
type variables struct {
	list []corev1.EnvVar
	s    *settings
}

func (e *variables) set(name, value string) {
	e.list = append(e.list, corev1.EnvVar{Name: name, Value: value})
}

// proxy sets a variable of the proxy's own.
func (e *variables) proxy(name, value string) { e.set("LINKERD2_PROXY_"+name, value) }

// given sets a variable of the proxy's own, unless it is empty.
func (e *variables) given(name string, value Text) {
	if value != "" {
		e.proxy(name, string(value))
	}
}

// field sets a variable to what a kubelet knows of the Pod.
func (e *variables) field(name, path string) {
	e.list = append(e.list, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: path},
	}})
}

// env returns the variables of the proxy.
func (i *Injector) env(w *Workload, meta *metav1.ObjectMeta, with *settings) []corev1.EnvVar {
	const usual = 80
	all := &variables{list: make([]corev1.EnvVar, 0, usual+len(with.Proxy.AdditionalEnv)), s: with}
	component := "" // of the control plane, which reaches its own services in the Pod
	if w.Namespace == i.options.Namespace {
		component = meta.Labels[componentLabel]
	}

	all.addPod()
	all.addCores()
	all.addLog()
	i.addPolicy(all, component)
	all.addTimeouts()
	all.addListeners()
	all.addRouting()
	all.addTracing(i.options.Namespace)
	all.addParameters()

	all.given("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", with.Proxy.OpaquePorts)
	all.proxy("DESTINATION_CONTEXT", `{"ns":"$(_pod_ns)", "nodeName":"$(_pod_nodeName)", "pod":"$(_pod_name)"}`+"\n")
	i.addIdentity(all, component)
	all.given("ACCESS_LOG", with.Proxy.AccessLog)
	all.given("SHUTDOWN_GRACE_PERIOD", with.Proxy.ShutdownGracePeriod)
	return append(append(all.list, with.Proxy.AdditionalEnv...), with.Proxy.ExperimentalEnv...)
}

// addPod adds what the proxy knows of its Pod.
func (e *variables) addPod() {
	e.field("_pod_name", "metadata.name")
	e.field("_pod_ns", "metadata.namespace")
	e.field("_pod_uid", "metadata.uid")
	e.field("_pod_ip", "status.podIP")
	e.field("_pod_nodeName", "spec.nodeName")
	e.set("_pod_containerName", proxyName)
}

// addCores adds how many threads the proxy has.
func (e *variables) addCores() {
	p, workers := &e.s.Proxy, &e.s.Proxy.Runtime.Workers
	cores := func(n int64) string { return strconv.FormatInt(n, 10) }
	if p.Cores > 0 {
		e.proxy("CORES", cores(p.Cores))
		e.proxy("CORES_MIN", cores(p.Cores))
		return
	}

	least := max(workers.Minimum, 1)
	e.proxy("CORES", cores(least))
	e.proxy("CORES_MIN", cores(least))
	if workers.Maximum > 0 {
		e.proxy("CORES_MAX", cores(workers.Maximum))
	}
	e.given("CORES_MAX_RATIO", workers.MaximumCPURatio)
}

func (e *variables) addLog() {
	p := &e.s.Proxy
	e.given("INBOUND_PORTS_REQUIRE_IDENTITY", p.RequireIdentityPorts)
	e.given("INBOUND_PORTS_REQUIRE_TLS", p.RequireTLSPorts)
	e.proxy("SHUTDOWN_ENDPOINT_ENABLED", strconv.FormatBool(p.EnableShutdown))

	level := string(p.LogLevel)
	if p.LogHTTPHeaders != headersInsecure {
		level += ",[{headers}]=off,[{request}]=off"
	}
	e.proxy("LOG", level)
	e.proxy("LOG_FORMAT", string(p.LogFormat))
}

// addPolicy adds where the proxy asks for endpoints and for policy.
func (i *Injector) addPolicy(e *variables, component string) {
	isHere, services := component == "destination", &i.options.Services
	e.proxy("DESTINATION_SVC_ADDR", i.address(e, services.Destination, "linkerd-dst-headless", "8086", isHere))
	e.proxy("DESTINATION_PROFILE_NETWORKS", string(e.s.ClusterNetworks))
	e.proxy("POLICY_SVC_ADDR", i.address(e, services.Policy, "linkerd-policy", "8090", isHere))
	e.proxy("POLICY_WORKLOAD", `{"ns":"$(_pod_ns)", "pod":"$(_pod_name)"}`+"\n")
	e.proxy("INBOUND_DEFAULT_POLICY", string(e.s.Proxy.DefaultInboundPolicy))
	e.proxy("POLICY_CLUSTER_NETWORKS", string(e.s.ClusterNetworks))
}

func (e *variables) addTimeouts() {
	proxy, streams := &e.s.Proxy, &e.s.Proxy.Control.Streams
	e.proxy("CONTROL_STREAM_INITIAL_TIMEOUT", string(streams.InitialTimeout))
	e.proxy("CONTROL_STREAM_IDLE_TIMEOUT", string(streams.IdleTimeout))
	e.proxy("CONTROL_STREAM_LIFETIME", string(streams.Lifetime))
	e.given("INBOUND_CONNECT_TIMEOUT", proxy.InboundConnectTimeout)
	e.given("OUTBOUND_CONNECT_TIMEOUT", proxy.OutboundConnectTimeout)
	e.given("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", proxy.OutboundUnusedTimeout)
	e.given("INBOUND_DISCOVERY_IDLE_TIMEOUT", proxy.InboundUnusedTimeout)

	if proxy.NoOutboundDetectLimit {
		e.proxy("OUTBOUND_DETECT_TIMEOUT", unlimitedDetect)
	}
	if proxy.NoInboundDetectLimit {
		e.proxy("INBOUND_DETECT_TIMEOUT", unlimitedDetect)
	}
}

// addListeners adds where the proxy listens.
func (e *variables) addListeners() {
	ports := &e.s.Proxy.Ports
	all, local := "[::]", ",[::1]:"
	if e.s.DisableIPv6 {
		all = "0.0.0.0"
	}
	address := func(of string, port int32) string { return of + ":" + strconv.Itoa(int(port)) }

	outbound := address("127.0.0.1", ports.Outbound)
	both := outbound
	if !e.s.DisableIPv6 {
		both += local + strconv.Itoa(int(ports.Outbound))
	}
	e.proxy("CONTROL_LISTEN_ADDR", address(all, ports.Control))
	e.proxy("ADMIN_LISTEN_ADDR", address(all, ports.Admin))
	e.proxy("OUTBOUND_LISTEN_ADDR", outbound)
	e.proxy("OUTBOUND_LISTEN_ADDRS", both)
	e.proxy("INBOUND_LISTEN_ADDR", address(all, ports.Inbound))
	e.field("LINKERD2_PROXY_INBOUND_IPS", "status.podIPs")
	e.proxy("INBOUND_PORTS", e.s.inboundPorts)
}

func (e *variables) addRouting() {
	proxy := &e.s.Proxy
	suffix := "svc." + string(e.s.ClusterDomain) + "."
	if proxy.IsGateway {
		e.proxy("INBOUND_GATEWAY_SUFFIXES", suffix)
	}
	if proxy.IsIngress {
		e.proxy("INGRESS_MODE", "true")
	}
	if proxy.EnableExternalProfiles {
		suffix = "."
	}

	e.proxy("DESTINATION_PROFILE_SUFFIXES", suffix)
	e.proxy("INBOUND_ACCEPT_KEEPALIVE", keepAlive)
	e.proxy("OUTBOUND_CONNECT_KEEPALIVE", keepAlive)
	e.proxy("INBOUND_ACCEPT_USER_TIMEOUT", userTimeout)
	e.proxy("OUTBOUND_CONNECT_USER_TIMEOUT", userTimeout)
	e.proxy("OUTBOUND_METRICS_HOSTNAME_LABELS", strconv.FormatBool(proxy.Metrics.HostnameLabels))
}

// identity returns the TLS identity of a ServiceAccount in the mesh.
func (e *variables) identity(account, namespace, controlPlane string) string {
	return account + "." + namespace + ".serviceaccount.identity." + controlPlane + "." + e.s.trustDomain()
}

func (e *variables) addTracing(controlPlane string) {
	tracing := &e.s.Proxy.Tracing
	if !tracing.Enabled {
		return
	}
	protocol := string(tracing.Protocol)
	if protocol == "" {
		protocol = "opentelemetry"
	}

	e.proxy("TRACE_ATTRIBUTES_PATH", podinfoDir+"/labels")
	e.proxy("TRACE_ANNOTATIONS_PATH", podinfoDir+"/annotations")
	e.proxy("TRACE_PROTOCOL", protocol)
	e.proxy("TRACE_SERVICE_NAME", string(tracing.ServiceName))
	e.proxy("TRACE_COLLECTOR_SVC_ADDR", string(tracing.Collector.Endpoint))

	of := &tracing.Collector.MeshIdentity
	e.proxy("TRACE_COLLECTOR_SVC_NAME", e.identity(string(of.ServiceAccount), string(of.Namespace), controlPlane))

	var lines strings.Builder
	for _, key := range slices.Sorted(maps.Keys(tracing.Labels)) {
		lines.WriteString(key + "=" + string(tracing.Labels[key]) + "\n")
	}
	e.proxy("TRACE_EXTRA_ATTRIBUTES", lines.String())
}

// addParameters adds each parameter of protocols under a name of its own, sorted.
func (e *variables) addParameters() {
	for _, side := range []struct {
		name   string
		scopes map[string]map[string]map[string]Text
	}{{"INBOUND", e.s.Proxy.Inbound}, {"OUTBOUND", e.s.Proxy.Outbound}} {
		for _, scope := range slices.Sorted(maps.Keys(side.scopes)) {
			for _, protocol := range slices.Sorted(maps.Keys(side.scopes[scope])) {
				parameters := side.scopes[scope][protocol]
				for _, name := range slices.Sorted(maps.Keys(parameters)) {
					e.proxy(side.name+"_"+snake(scope)+"_"+snake(protocol)+"_"+snake(name), string(parameters[name]))
				}
			}
		}
	}
}

// snake returns keepAliveInterval as KEEP_ALIVE_INTERVAL.
func snake(name string) string {
	var upper strings.Builder
	wasLower := false

	for _, r := range name {
		if unicode.IsUpper(r) && wasLower {
			upper.WriteByte('_')
		}

		if r == '-' || r == '.' {
			r = '_'
		}
		wasLower = !unicode.IsUpper(r) && r != '_'
		upper.WriteRune(unicode.ToUpper(r))
	}
	return upper.String()
}

// addIdentity adds by what the proxy gets its certificate, and whom it accepts.
func (i *Injector) addIdentity(to *variables, component string) {
	namespace, services := i.options.Namespace, &i.options.Services
	to.field("_pod_sa", "spec.serviceAccountName")
	to.set("_l5d_ns", namespace)
	to.set("_l5d_trustdomain", to.s.trustDomain())
	to.proxy("IDENTITY_DIR", identityDir)

	if component == "" {
		to.proxy("IDENTITY_TRUST_ANCHORS", i.anchors)
	} else { // they begin before anybody injects, and with new anchors before others have them
		to.list = append(to.list, corev1.EnvVar{
			Name: "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS",
			ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: anchorsConfig}, Key: anchorsKey,
			}},
		})
	}

	token := accountPath + "/token"
	if to.s.Identity.ServiceAccountTokenProjection {
		token = tokenDir + "/" + tokenName
	}
	to.proxy("IDENTITY_TOKEN_FILE", token)
	to.proxy("IDENTITY_SVC_ADDR",
		i.address(to, services.Identity, "linkerd-identity-headless", "8080", component == "identity"))
	to.proxy("IDENTITY_LOCAL_NAME", to.identity("$(_pod_sa)", "$(_pod_ns)", namespace))
	to.proxy("IDENTITY_SVC_NAME", i.name(to, services.Identity, "linkerd-identity"))
	to.proxy("DESTINATION_SVC_NAME", i.name(to, services.Destination, "linkerd-destination"))
	to.proxy("POLICY_SVC_NAME", i.name(to, services.Policy, "linkerd-destination"))
}
