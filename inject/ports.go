package inject

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func isPort(port int32) bool { return 0 < port && port <= 65535 }

// A portRange is ports from one to another; both belong to it.
type portRange struct{ from, to int32 }

// String returns the form of lists.
func (r portRange) String() string {
	if r.from == r.to {
		return strconv.Itoa(int(r.from))
	}
	return strconv.Itoa(int(r.from)) + "-" + strconv.Itoa(int(r.to))
}

// A portList is ports in the order of a list.
type portList []portRange

func (l portList) contains(port int32) bool {
	return slices.ContainsFunc(l, func(r portRange) bool { return r.from <= port && port <= r.to })
}

// String returns the list as annotations have it.
func (l portList) String() string {
	var b strings.Builder
	for i, r := range l {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(r.String())
	}
	return b.String()
}

// parsePorts reads ports, ranges and names of ports, separated by commas. It leaves out what is none, and returns how
// many items these are. named, which may be nil, has the port of a name; 0 if there is none.
func parsePorts(list string, named func(name string) int32) (ports portList, unknown int) {
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		ports = append(ports, parsePort(item))
		last := &ports[len(ports)-1]

		if last.from == 0 && item != "" && named != nil {
			*last = portRange{named(item), named(item)}
		}
		if last.from == 0 {
			ports = ports[:len(ports)-1]
			unknown++
		}
	}

	if strings.TrimSpace(list) == "" {
		unknown = 0
	}
	return ports, unknown
}

// parsePort reads a port or a range; the zero portRange is none.
func parsePort(item string) portRange {
	from, to, isRange := strings.Cut(item, "-")
	if !isRange {
		to = from
	}
	low, high := numberOf(from), numberOf(to)
	if low == 0 || high < low {
		return portRange{}
	}
	return portRange{low, high}
}

// numberOf returns the port that a text has; 0 for none.
func numberOf(text string) int32 {
	number, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil {
		return 0
	}
	return int32(number)
}

// containers yields the containers of a Pod, init containers first, but for those that are added here: what follows
// from containers is then the same before and after.
func containers(spec *corev1.PodSpec) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
			for i := range list {
				if !isAdded(list[i].Name) && !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// portNamed returns the first port of containers that has a name; 0 if there is none.
func portNamed(spec *corev1.PodSpec) func(name string) int32 {
	return func(name string) int32 {
		for container := range containers(spec) {
			for i := range container.Ports {
				if port := &container.Ports[i]; port.Name == name && isPort(port.ContainerPort) {
					return port.ContainerPort
				}
			}
		}
		return 0
	}
}

// inboundPorts returns the ports that containers declare, and those of their HTTP probes, each once, ascending.
func inboundPorts(spec *corev1.PodSpec) string {
	var ports []int32
	for container := range containers(spec) {
		for i := range container.Ports {
			ports = append(ports, container.Ports[i].ContainerPort)
		}

		for _, probe := range []*corev1.Probe{
			container.LivenessProbe, container.ReadinessProbe, container.StartupProbe,
		} {
			if probe != nil && probe.HTTPGet != nil && probe.HTTPGet.Port.Type == intstr.Int {
				ports = append(ports, probe.HTTPGet.Port.IntVal)
			}
		}
	}

	slices.Sort(ports)
	return joinPorts(slices.DeleteFunc(slices.Compact(ports), func(port int32) bool { return !isPort(port) }))
}

// opaqueOf returns those ports of containers that are opaque by default, each once, in the order of containers.
func (l portList) opaqueOf(spec *corev1.PodSpec) string {
	var ports []int32
	seen := map[int32]bool{}
	for container := range containers(spec) {
		for i := range container.Ports {
			port := container.Ports[i].ContainerPort
			if !seen[port] && l.contains(port) {
				seen[port] = true
				ports = append(ports, port)
			}
		}
	}
	return joinPorts(ports)
}

// opaqueOfService returns those ports of a Service that lead to ports which are opaque by default, each once. Which
// port a name leads to depends on the Pod.
func (l portList) opaqueOfService(spec *corev1.ServiceSpec) string {
	var ports []int32
	seen := map[int32]bool{}

	for i := range spec.Ports {
		port := &spec.Ports[i]
		target := port.TargetPort.IntVal

		switch {
		case port.TargetPort.Type == intstr.String:
			continue
		case target == 0:
			target = port.Port
		}

		if l.contains(target) && !seen[port.Port] {
			seen[port.Port] = true
			ports = append(ports, port.Port)
		}
	}
	return joinPorts(ports)
}

func joinPorts(ports []int32) string {
	var b []byte
	for i, port := range ports {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(port), 10)
	}
	return string(b)
}
