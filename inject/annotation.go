package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Prefixes of the annotations that change settings.
const (
	configPrefix      = "config.linkerd.io/"
	configBetaPrefix  = "config.beta.linkerd.io/"
	configAlphaPrefix = "config.alpha.linkerd.io/"
)

// Annotations of Namespaces, Pods and Services.
const (
	// InjectAnnotation is whether Pods get a proxy: enabled, ingress or disabled.
	InjectAnnotation = "linkerd.io/inject"

	// OpaqueAnnotation has the ports whose protocol is not detected.
	OpaqueAnnotation = configPrefix + "opaque-ports"

	additionalEnv = configPrefix + "proxy-additional-env"
)

// nativeSidecar are the annotations by which the proxy is a sidecar of Kubernetes' own: of those that are there the
// first decides, even if it cannot be read.
var nativeSidecar = []string{
	configPrefix + "proxy-enable-native-sidecar",
	configBetaPrefix + "proxy-enable-native-sidecar",
	configAlphaPrefix + "proxy-enable-native-sidecar",
}

// settings are what a Pod gets: the Values, and over them what annotations have.
type settings struct {
	Values

	spec         *corev1.PodSpec
	inboundPorts string
	debug        bool // there is a debug container
}

// An annotation changes a setting. An error of set is why a value cannot be honoured; nothing is changed then.
type annotation struct {
	key string
	set func(s *settings, value string) error
}

// own is the only one that a Namespace does not decide: whether a Pod is a gateway for others.
var own = annotation{configPrefix + "enable-gateway", boolean(func(s *settings) *bool { return &s.Proxy.IsGateway })}

// annotations are all others, which Pods inherit from their Namespace. Those that depend on each other are not here:
// nativeSidecar and additionalEnv.
var annotations = []annotation{
	{InjectAnnotation, func(s *settings, value string) error {
		s.Proxy.IsIngress = value == ingress
		return nil // what else there may be was decided about before
	}},

	{configPrefix + "proxy-image", imageName(func(s *settings) *image { return &s.Proxy.Image })},
	{configPrefix + "proxy-version", imageTag(func(s *settings) *image { return &s.Proxy.Image })},
	{configPrefix + "image-pull-policy", imagePolicy(func(s *settings) *image { return &s.Proxy.Image })},

	{configPrefix + "enable-debug-sidecar", boolean(func(s *settings) *bool { return &s.debug })},
	{configPrefix + "debug-image", imageName(func(s *settings) *image { return &s.DebugContainer.Image })},
	{configPrefix + "debug-image-version", imageTag(func(s *settings) *image { return &s.DebugContainer.Image })},
	{configPrefix + "debug-image-pull-policy", imagePolicy(func(s *settings) *image {
		return &s.DebugContainer.Image
	})},

	{configPrefix + "control-port", port(func(s *settings) *int32 { return &s.Proxy.Ports.Control })},
	{configPrefix + "inbound-port", port(func(s *settings) *int32 { return &s.Proxy.Ports.Inbound })},
	{configPrefix + "outbound-port", port(func(s *settings) *int32 { return &s.Proxy.Ports.Outbound })},
	{configPrefix + "admin-port", port(func(s *settings) *int32 { return &s.Proxy.Ports.Admin })},
	{configPrefix + "pod-inbound-ports", setInboundPorts},
	{OpaqueAnnotation, setOpaquePorts},
	{configPrefix + "skip-inbound-ports", text(func(s *settings) *Text { return &s.ProxyInit.IgnoreInbound })},
	{configPrefix + "skip-outbound-ports", text(func(s *settings) *Text { return &s.ProxyInit.IgnoreOutbound })},
	{configPrefix + "skip-subnets", text(func(s *settings) *Text { return &s.ProxyInit.SkipSubnets })},
	{
		configPrefix + "proxy-require-identity-inbound-ports",
		text(func(s *settings) *Text { return &s.Proxy.RequireIdentityPorts }),
	},
	{configPrefix + "default-inbound-policy", choice(defaultPolicies, func(s *settings) *Text {
		return &s.Proxy.DefaultInboundPolicy
	})},
	{
		configPrefix + "enable-external-profiles",
		boolean(func(s *settings) *bool { return &s.Proxy.EnableExternalProfiles }),
	},

	{configPrefix + "proxy-log-level", text(func(s *settings) *Text { return &s.Proxy.LogLevel })},
	{configPrefix + "proxy-log-format", text(func(s *settings) *Text { return &s.Proxy.LogFormat })},
	{configPrefix + "proxy-log-http-headers", choice([]string{headersOff, headersInsecure}, func(s *settings) *Text {
		return &s.Proxy.LogHTTPHeaders
	})},
	{configPrefix + "access-log", text(func(s *settings) *Text { return &s.Proxy.AccessLog })},
	{configPrefix + "proxy-admin-shutdown", switched(func(s *settings) *bool { return &s.Proxy.EnableShutdown })},

	{configPrefix + "proxy-cpu-request", cpu(func(s *settings) (*Text, *int64) {
		return &s.Proxy.Resources.CPU.Request, &s.Proxy.Runtime.Workers.Minimum
	})},
	{configPrefix + "proxy-cpu-limit", cpu(func(s *settings) (*Text, *int64) {
		return &s.Proxy.Resources.CPU.Limit, &s.Proxy.Runtime.Workers.Maximum
	})},
	{configPrefix + "proxy-cpu-ratio-limit", setCPURatio},
	{configPrefix + "proxy-memory-request", quantity(func(s *settings) *Text {
		return &s.Proxy.Resources.Memory.Request
	})},
	{configPrefix + "proxy-memory-limit", quantity(func(s *settings) *Text {
		return &s.Proxy.Resources.Memory.Limit
	})},
	{configPrefix + "proxy-ephemeral-storage-request", quantity(func(s *settings) *Text {
		return &s.Proxy.Resources.EphemeralStorage.Request
	})},
	{configPrefix + "proxy-ephemeral-storage-limit", quantity(func(s *settings) *Text {
		return &s.Proxy.Resources.EphemeralStorage.Limit
	})},
	{configPrefix + "proxy-uid", id(0, func(s *settings) *int64 { return &s.Proxy.UID })},
	{configPrefix + "proxy-gid", id(-1, func(s *settings) *int64 { return &s.Proxy.GID })},

	{configPrefix + "proxy-outbound-connect-timeout", duration(time.Millisecond, "ms", func(s *settings) *Text {
		return &s.Proxy.OutboundConnectTimeout
	})},
	{configPrefix + "proxy-inbound-connect-timeout", duration(time.Millisecond, "ms", func(s *settings) *Text {
		return &s.Proxy.InboundConnectTimeout
	})},
	{
		configPrefix + "proxy-outbound-discovery-cache-unused-timeout",
		duration(time.Second, "s", func(s *settings) *Text { return &s.Proxy.OutboundUnusedTimeout }),
	},
	{
		configPrefix + "proxy-inbound-discovery-cache-unused-timeout",
		duration(time.Second, "s", func(s *settings) *Text { return &s.Proxy.InboundUnusedTimeout }),
	},
	{
		configPrefix + "proxy-disable-outbound-protocol-detect-timeout",
		boolean(func(s *settings) *bool { return &s.Proxy.NoOutboundDetectLimit }),
	},
	{
		configPrefix + "proxy-disable-inbound-protocol-detect-timeout",
		boolean(func(s *settings) *bool { return &s.Proxy.NoInboundDetectLimit }),
	},
	{configPrefix + "proxy-await", switched(func(s *settings) *bool { return &s.Proxy.Await })},
	{configPrefix + "shutdown-grace-period", duration(time.Millisecond, "ms", func(s *settings) *Text {
		return &s.Proxy.ShutdownGracePeriod
	})},
	{
		configPrefix + "proxy-metrics-hostname-labels",
		boolean(func(s *settings) *bool { return &s.Proxy.Metrics.HostnameLabels }),
	},
	{configPrefix + "close-wait-timeout", setCloseWait},
	{configAlphaPrefix + "proxy-wait-before-exit-seconds", setWaitBeforeExit},
}

// Annotations returns the keys of all annotations that change settings, sorted.
func Annotations() []string {
	keys := append(slices.Clone(nativeSidecar), own.key, additionalEnv)
	for i := range annotations {
		keys = append(keys, annotations[i].key)
	}
	slices.Sort(keys)
	return keys
}

// inherited returns what a Pod takes over from its Namespace: the annotations of settings that it has none of itself.
func inherited(namespace, pod map[string]string) map[string]string {
	if len(namespace) == 0 {
		return nil
	}
	all := map[string]string{}
	add := func(key string) {
		value, is := namespace[key]
		if _, has := pod[key]; is && !has {
			all[key] = value
		}
	}

	for i := range annotations {
		add(annotations[i].key)
	}
	for _, key := range nativeSidecar {
		add(key)
	}
	add(additionalEnv)
	return all
}

// apply sets what annotations have, and reports those that it ignores. all are the Pod's with the inherited ones.
func (s *settings) apply(namespace, all map[string]string, ignored func(key, value string, why error)) {
	set := func(key string, of func(*settings, string) error) {
		value, is := all[key]
		if !is {
			return
		}
		if err := of(s, value); err != nil {
			ignored(key, value, err)
		}
	}

	for i := range annotations {
		set(annotations[i].key, annotations[i].set)
	}
	set(own.key, own.set)

	for _, key := range nativeSidecar {
		if _, is := all[key]; is {
			set(key, boolean(func(s *settings) *bool { return &s.Proxy.NativeSidecar }))
			break
		}
	}

	// Variables of the Namespace and of the Pod come together: one does not replace all of the other.
	if value, is := namespace[additionalEnv]; is && value != all[additionalEnv] {
		if err := setAdditionalEnv(s, value); err != nil {
			ignored(additionalEnv, value, fmt.Errorf("that of the Namespace: %w", err))
		}
	}
	set(additionalEnv, setAdditionalEnv)
}

func text(of func(*settings) *Text) func(*settings, string) error {
	return func(s *settings, value string) error {
		*of(s) = Text(value)
		return nil
	}
}

func boolean(of func(*settings) *bool) func(*settings, string) error {
	return func(s *settings, value string) error {
		is, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("neither true nor false")
		}
		*of(s) = is
		return nil
	}
}

// switched is a boolean in the words of Linkerd.
func switched(of func(*settings) *bool) func(*settings, string) error {
	return func(s *settings, value string) error {
		if value != enabled && value != disabled {
			return errors.New("neither enabled nor disabled")
		}
		*of(s) = value == enabled
		return nil
	}
}

func choice(of []string, to func(*settings) *Text) func(*settings, string) error {
	return func(s *settings, value string) error {
		if !slices.Contains(of, value) {
			return errors.New("none of " + strings.Join(of, ", "))
		}
		*to(s) = Text(value)
		return nil
	}
}

func port(of func(*settings) *int32) func(*settings, string) error {
	return func(s *settings, value string) error {
		number, err := strconv.ParseInt(value, 10, 32)
		if err != nil || !isPort(int32(number)) {
			return errors.New("not a port")
		}
		*of(s) = int32(number)
		return nil
	}
}

// id is a user or group. API servers reject Pods with others.
func id(lowest int64, of func(*settings) *int64) func(*settings, string) error {
	return func(s *settings, value string) error {
		number, err := strconv.ParseInt(value, 10, 64)
		if err != nil || number < lowest || number > math.MaxInt32 {
			return errors.New("not a user or group")
		}
		*of(s) = number
		return nil
	}
}

func imageName(of func(*settings) *image) func(*settings, string) error {
	return func(s *settings, value string) error {
		if value == "" || strings.ContainsFunc(value, isSpace) {
			return errors.New("not an image")
		}
		of(s).Name = Text(value)
		return nil
	}
}

// imageTag is that of an image; an empty one is for the version of Linkerd.
func imageTag(of func(*settings) *image) func(*settings, string) error {
	return func(s *settings, value string) error {
		if strings.ContainsFunc(value, isSpace) {
			return errors.New("not a version of an image")
		}
		of(s).Version = Text(value)
		return nil
	}
}

// isSpace reports whether an API server rejects the reference of an image for a character.
func isSpace(r rune) bool { return r <= ' ' || r == 0x7f }

func imagePolicy(of func(*settings) *image) func(*settings, string) error {
	return choice(pullPolicies, func(s *settings) *Text { return &of(s).PullPolicy })
}

func quantity(of func(*settings) *Text) func(*settings, string) error {
	return func(s *settings, value string) error {
		_, err := parseQuantity(value)
		if err == nil {
			*of(s) = Text(value)
		}
		return err
	}
}

// cpu is a quantity from which the number of worker threads follows, in whole cores.
func cpu(of func(*settings) (as *Text, cores *int64)) func(*settings, string) error {
	return func(s *settings, value string) error {
		quantity, err := parseQuantity(value)
		if err != nil {
			return err
		}
		as, cores := of(s)
		*as, *cores = Text(value), quantity.Value()
		return nil
	}
}

func setCPURatio(s *settings, value string) error {
	ratio, err := strconv.ParseFloat(value, 64)
	if err != nil || !(0 < ratio && ratio < 1) {
		return errors.New("not between 0 and 1")
	}
	s.Proxy.Runtime.Workers.MaximumCPURatio = Text(strconv.FormatFloat(ratio, 'f', -1, 64))
	return nil
}

// duration is one of Go, which the proxy gets in whole units.
func duration(unit time.Duration, suffix string, of func(*settings) *Text) func(*settings, string) error {
	return func(s *settings, value string) error {
		d, err := parseDuration(value)
		if err == nil {
			*of(s) = Text(strconv.FormatInt(int64(d/unit), 10) + suffix)
		}
		return err
	}
}

func parseDuration(value string) (time.Duration, error) {
	const longest = 64 // bytes
	if len(value) > longest {
		return 0, errors.New("not a duration")
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return 0, errors.New("not a duration such as 1m30s")
	}
	return d, nil
}

func setWaitBeforeExit(s *settings, value string) error {
	seconds, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return errors.New("not a number of seconds")
	}
	s.Proxy.WaitBeforeExitSeconds = seconds
	return nil
}

// setCloseWait needs an init container that may write to /proc/sys.
func setCloseWait(s *settings, value string) error {
	d, err := parseDuration(value)
	switch {
	case err != nil:
		return err
	case !s.ProxyInit.RunAsRoot:
		return errors.New("it needs proxyInit.runAsRoot where the mesh was installed")
	}
	s.ProxyInit.CloseWaitSeconds = int64(d / time.Second)
	return nil
}

func setInboundPorts(s *settings, value string) error {
	ports, unknown := parsePorts(value, nil)
	if unknown > 0 || len(ports) == 0 {
		return errors.New("not a list of ports")
	}
	s.inboundPorts = ports.String()
	return nil
}

// setOpaquePorts resolves names of ports, which the proxy does not know. It uses what can be read of a list.
func setOpaquePorts(s *settings, value string) error {
	ports, unknown := parsePorts(value, portNamed(s.spec))
	s.Proxy.OpaquePorts = Text(ports.String())
	if unknown > 0 {
		return fmt.Errorf("%d of its items are neither ports, ranges nor names of container ports", unknown)
	}
	return nil
}

// setAdditionalEnv adds variables; one that there is already is replaced where it stands.
func setAdditionalEnv(s *settings, value string) error {
	var added []corev1.EnvVar
	if err := json.Unmarshal([]byte(value), &added); err != nil {
		return errors.New("not a JSON list of variables")
	}
	for i := range added {
		if err := validateVariable(&added[i]); err != nil {
			return err
		}
	}
	s.Proxy.AdditionalEnv = mergeEnv(s.Proxy.AdditionalEnv, added)
	return nil
}

// validateVariable rejects what no API server accepts: the Pod would be refused for it.
func validateVariable(v *corev1.EnvVar) error {
	isOdd := func(r rune) bool { return r <= ' ' || r > '~' || r == '=' }
	if v.Name == "" || strings.ContainsFunc(v.Name, isOdd) {
		return fmt.Errorf("%.40q cannot name a variable", v.Name)
	}
	if v.Value != "" && v.ValueFrom != nil {
		return fmt.Errorf("%.40q has two values", v.Name)
	}
	return nil
}

// mergeEnv returns variables with others. It changes neither list.
func mergeEnv(variables, others []corev1.EnvVar) []corev1.EnvVar {
	all := slices.Clone(variables)

	at := make(map[string]int, len(all)+len(others))
	for i := range all {
		at[all[i].Name] = i
	}

	for _, v := range others {
		i, is := at[v.Name]
		if is {
			all[i] = v
			continue
		}

		at[v.Name] = len(all)
		all = append(all, v)
	}
	return all
}

// Labels and annotations of Pods that are attributes of spans.
const (
	instanceLabel   = "app.kubernetes.io/instance"
	nameLabel       = "app.kubernetes.io/name"
	attributePrefix = "resource.opentelemetry.io/"
	serviceName     = "service.name"
)

// addAttributes adds what a Pod is known by to the attributes of its spans. An attribute is a line, so that none with
// a break is taken.
func (s *settings) addAttributes(labels, all map[string]string) {
	if !s.Proxy.Tracing.Enabled {
		return
	}
	attributes := maps.Clone(s.Proxy.Tracing.Labels)
	if attributes == nil {
		attributes = map[string]Text{}
	}
	for _, label := range []string{nameLabel, instanceLabel} {
		if name, is := labels[label]; is {
			attributes[serviceName] = Text(name)
		}
	}

	for key, value := range all {
		name, is := strings.CutPrefix(key, attributePrefix)
		if is && !strings.ContainsAny(value, "\r\n") {
			attributes[name] = Text(value)
		}
	}
	s.Proxy.Tracing.Labels = attributes
}
