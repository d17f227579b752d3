package inject

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func httpGet(path string, port int32) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}}
}

// init returns the container that leads the connections of a Pod to its proxy.
func (s *settings) init() *container {
	made := &container{Resources: s.resources(), Container: corev1.Container{
		Name: initName, Image: s.reference(&s.Proxy.Image), ImagePullPolicy: s.pullPolicy(&s.Proxy.Image),
		Command: []string{"/usr/lib/linkerd/linkerd2-proxy-init"}, Args: s.initArgs(),
		SecurityContext:          s.initSecurity(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts: []corev1.VolumeMount{{
			Name:      string(s.ProxyInit.XtablesMountSource.Name),
			MountPath: string(s.ProxyInit.XtablesMountSource.MountPath),
		}},
	}}

	if account := accountMount(s.spec); account != nil {
		made.VolumeMounts = append(made.VolumeMounts, *account)
	}
	return made
}

// initArgs returns arguments in an order that is part of what tools compare.
func (s *settings) initArgs() (args []string) {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	given := func(flag string, value Text) {
		if value != "" {
			args = append(args, flag, string(value))
		}
	}

	values, ports := &s.ProxyInit, &s.Proxy.Ports
	if values.IptablesMode == modeNFT {
		args = append(args, "--firewall-bin-path", "iptables-nft", "--firewall-save-bin-path", "iptables-nft-save")
	}
	if s.DisableIPv6 {
		args = append(args, "--ipv6=false")
	}

	args = append(args, "--incoming-proxy-port", number(int64(ports.Inbound)), "--outgoing-proxy-port",
		number(int64(ports.Outbound)), "--proxy-uid", number(s.Proxy.UID))
	if s.Proxy.GID >= 0 {
		args = append(args, "--proxy-gid", number(s.Proxy.GID))
	}

	ignored := number(int64(ports.Control)) + "," + number(int64(ports.Admin))
	if values.IgnoreInbound != "" {
		ignored += "," + string(values.IgnoreInbound)
	}
	args = append(args, "--inbound-ports-to-ignore", ignored)
	given("--outbound-ports-to-ignore", values.IgnoreOutbound)

	if values.CloseWaitSeconds > 0 {
		args = append(args, "--timeout-close-wait-secs", number(values.CloseWaitSeconds))
	}
	given("--log-format", values.LogFormat)
	given("--log-level", values.LogLevel)
	given("--subnets-to-ignore", values.SkipSubnets)
	return args
}

// initSecurity returns what may change the firewall of the Pod.
func (s *settings) initSecurity() *corev1.SecurityContext {
	values := &s.ProxyInit
	needed := []corev1.Capability{"NET_ADMIN", "NET_RAW"}
	security := restricted(orNobody(values.RunAsUser))
	security.RunAsGroup = new(orNobody(values.RunAsGroup))

	security.Capabilities = &corev1.Capabilities{Add: needed}
	if of := capabilities(s.spec); of != nil {
		security.Capabilities.Add = slices.Concat(needed, of.Add)
		security.Capabilities.Drop = slices.DeleteFunc(of.Drop, func(c corev1.Capability) bool {
			return slices.Contains(needed, c)
		})
	}

	isPrivileged := values.CloseWaitSeconds > 0 || values.Privileged
	security.Privileged, security.AllowPrivilegeEscalation = &isPrivileged, &isPrivileged
	if values.RunAsRoot {
		security.RunAsUser, security.RunAsGroup, security.RunAsNonRoot = new(int64(0)), new(int64(0)), new(false)
	}
	return security
}

// orNobody returns a user or group that is not root.
func orNobody(id int64) int64 {
	if id == 0 {
		return unprivileged
	}
	return id
}

// validator returns the container that tests whether a CNI plugin leads connections to the proxy.
func (s *settings) validator() *container {
	values := &s.NetworkValidator
	connect, listen := "[fd00::1]:20001", "[::]:4140"
	if s.DisableIPv6 {
		connect, listen = "1.1.1.1:20001", "0.0.0.0:4140"
	}
	if values.ConnectAddr != "" {
		connect = string(values.ConnectAddr)
	}
	if values.ListenAddr != "" {
		listen = string(values.ListenAddr)
	}

	made := &container{Resources: s.resources(), Container: corev1.Container{
		Name: validatorName, Image: s.reference(&s.Proxy.Image), ImagePullPolicy: s.pullPolicy(&s.Proxy.Image),
		Command: []string{"/usr/lib/linkerd/linkerd2-network-validator"},
		Args: []string{
			"--log-format", string(values.LogFormat), "--log-level", string(values.LogLevel),
			"--connect-addr", connect, "--listen-addr", listen, "--timeout", string(values.Timeout),
		},
	}}

	if values.EnableSecurityContext != nil && !*values.EnableSecurityContext {
		return made
	}
	made.SecurityContext = values.SecurityContext
	if made.SecurityContext == nil {
		made.SecurityContext = restricted(unprivileged)
		made.SecurityContext.RunAsGroup = new(int64(unprivileged))
		made.SecurityContext.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
	}
	return made
}

// debugContainer returns the container that has tools to look at traffic. Some clusters demand probes of all.
func (s *settings) debugContainer() *container {
	always := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	of := &s.DebugContainer.Image
	return &container{Container: corev1.Container{
		Name: debugName, Image: s.reference(of), ImagePullPolicy: s.pullPolicy(of),
		LivenessProbe: always, ReadinessProbe: always,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}}
}
