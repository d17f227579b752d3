package discovery

import (
	"encoding/json"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/fingerpost/fingerpost/federation"
)

// Flags defines the flags that set c, with c's values as their defaults. Names and meanings are those of Linkerd's destination where
// it has them.
func (c *Config) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.ControllerNamespace, "controller-namespace", c.ControllerNamespace, "namespace of the mesh's control plane, here and in linked clusters")
	fs.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of this cluster")
	fs.BoolVar(&c.H2Upgrade, "enable-h2-upgrade", c.H2Upgrade, "let proxies speak HTTP/2 to each other whatever the application speaks")
	fs.BoolVar(&c.IPv6, "enable-ipv6", c.IPv6, "reach workloads over IPv6 where they have it")
	fs.BoolVar(&c.ZoneWeights, "ext-endpoint-zone-weights", c.ZoneWeights, "weigh endpoints in the client's zone ten times")
	fs.Func("default-opaque-ports", "ports, and ranges of ports, whose protocol proxies do not detect unless a workload says otherwise, separated by commas", func(list string) error {
		ports, err := parsePorts(list)
		c.DefaultOpaquePorts = ports
		return err
	})
	fs.Func("outbound-transport-mode", "transparent, or transport-header to send all traffic between proxies through the inbound port (default transparent)", func(mode string) error {
		if c.TransportMode = mode; mode != Transparent && mode != TransportHeader {
			return fmt.Errorf("it is neither %s nor %s", Transparent, TransportHeader)
		}
		return nil
	})
	fs.Func("meshed-http2-client-params", "HTTP/2 settings for connections to meshed workloads, as JSON of Http2ClientParams", func(text string) error {
		c.HTTP2 = nil
		if text == "" {
			return nil
		}
		params := &pb.Http2ClientParams{}
		if err := json.Unmarshal([]byte(text), params); err != nil {
			return fmt.Errorf("no JSON of Http2ClientParams: %w", err)
		}
		c.HTTP2 = params
		return nil
	})
	fs.DurationVar(&c.MaxStreamAge, "max-connection-age", c.MaxStreamAge, "after which a connection takes no new streams and a stream ends with OK, more or less by a tenth, so that load spreads after a rollout; 0 for never")
	fs.DurationVar(&c.DrainWindow, "drain-window", c.DrainWindow, "in which streams end, each at a random point, when the process is told to stop; the process ends within a second more. It takes a millisecond for each stream, and no more than this")
	fs.DurationVar(&c.FirstSyncGrace, "first-sync-grace", c.FirstSyncGrace, "how long a first answer waits for a linked cluster that was never heard, from when it was linked")
	fs.Int64Var(&c.FrameBytes, "frame-cache-bytes", c.FrameBytes, "bound on the encoded messages that are kept to be shared by streams, in bytes")
	fs.BoolVar(&c.DetailedMetrics, "detailed-metrics", c.DetailedMetrics, "split the metrics endpoints_* by the member of a federated or mirrored Service, and by the hostname and the node of clients: four series for each combination that streams are open for, so four times as many as a Service has member clusters. By default a Service has four for each port, with its own name, whatever it consists of")
	fs.Float64Var(&c.Admission.Rate, "admission-rate", c.Admission.Rate, "new streams a second, in the long run; more are refused and come back later")
	fs.IntVar(&c.Admission.Burst, "admission-burst", c.Admission.Burst, "new streams that may come at once")
	fs.Float64Var(&c.Admission.ConnectionRate, "admission-connection-rate", c.Admission.ConnectionRate, "new streams a second on one connection, in the long run. A proxy beside the server carries the streams of many clients on few connections: raise all bounds of connections there")
	fs.IntVar(&c.Admission.ConnectionBurst, "admission-connection-burst", c.Admission.ConnectionBurst, "new streams that may come at once on one connection")
	fs.IntVar(&c.Admission.Answers, "admission-answers", c.Admission.Answers, "first answers that are made at the same time")
	fs.IntVar(&c.Admission.Connections, "max-connections", c.Admission.Connections, "connections that may be open; more are closed at once. By default as many as fit a quarter of GOMEMLIMIT at 64 KiB for each, or 10000 without one")
	fs.IntVar(&c.Admission.ConnectionStreams, "max-connection-streams", c.Admission.ConnectionStreams, "streams that may be open on one connection; more are refused")
	fs.IntVar(&c.Admission.Streams, "max-streams", c.Admission.Streams, "streams that may be open in all; more are refused. By default as many as fit half of GOMEMLIMIT at 16 KiB for each, or 100000 without one")
	fs.Int64Var(&c.Admission.ConnectionBytes, "max-connection-bytes", c.Admission.ConnectionBytes, "bytes of messages that wait to be written on one connection; beyond it, or beyond a quarter of what is left of -max-bytes, first answers wait, and heartbeats are sent")
	fs.Int64Var(&c.Admission.Bytes, "max-bytes", c.Admission.Bytes, "bytes of messages that wait to be written in all, where what streams share counts once. By default an eighth of GOMEMLIMIT, or 50331648 without one")
	fs.DurationVar(&c.Admission.Stall, "stall-timeout", c.Admission.Stall, "how long a connection on which messages wait may make no progress at all before it is closed; 10s where answers wait and three quarters of -max-bytes are taken")
	fs.DurationVar(&c.Admission.Request, "request-timeout", c.Admission.Request, "how long the request of a stream may take to arrive before the stream is ended")
}

// Validate returns what in c makes no sense, by the names of the flags.
func (c *Config) Validate() error {
	for _, v := range []struct {
		wrong bool
		say   string
	}{
		{!isDomain(c.ClusterDomain), "-cluster-domain must be a DNS domain, such as cluster.local, without a dot before or after it"},
		{c.ControllerNamespace == "", "-controller-namespace must not be empty"},
		{c.MaxStreamAge < 0, "-max-connection-age must not be negative"},
		{c.DrainWindow < 0, "-drain-window must not be negative"},
		{c.FirstSyncGrace < 0, "-first-sync-grace must not be negative"},
		{c.FrameBytes <= 0, "-frame-cache-bytes must be greater than 0"},
		{c.Admission.Rate <= 0, "-admission-rate must be greater than 0"},
		{c.Admission.Burst <= 0, "-admission-burst must be greater than 0"},
		{c.Admission.ConnectionRate <= 0, "-admission-connection-rate must be greater than 0"},
		{c.Admission.ConnectionBurst <= 0, "-admission-connection-burst must be greater than 0"},
		{c.Admission.Answers <= 0, "-admission-answers must be greater than 0"},
		{c.Admission.Connections <= 0, "-max-connections must be greater than 0"},
		{c.Admission.ConnectionStreams <= 0 || c.Admission.ConnectionStreams > 1<<30, "-max-connection-streams must be greater than 0, and at most 1073741824"},
		{c.Admission.Streams <= 0, "-max-streams must be greater than 0"},
		{c.Admission.ConnectionBytes <= 0, "-max-connection-bytes must be greater than 0"},
		{c.Admission.Bytes <= 0, "-max-bytes must be greater than 0"},
		{c.Admission.Stall <= 0, "-stall-timeout must be greater than 0"},
		{c.Admission.Request <= 0, "-request-timeout must be greater than 0"},
	} {
		if v.wrong {
			return fmt.Errorf("%s", v.say)
		}
	}
	return nil
}

// isDomain reports whether a name can be a DNS domain of Kubernetes: labels of small letters, digits and dashes.
func isDomain(name string) bool {
	return len(name) <= maxName-2*(maxLabel+1) && domainPattern.MatchString(name)
}

var domainPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)

// parsePorts reads a list of ports and ranges of ports. Unlike an annotation's, a flag's junk is an error.
func parsePorts(list string) (federation.Ports, error) {
	var ranges []federation.PortRange
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || from == 0 || from > to {
			return federation.Ports{}, fmt.Errorf("%q is neither a port nor a range of ports", item)
		}
		ranges = append(ranges, federation.PortRange{First: uint16(from), Last: uint16(to)})
	}
	return federation.PortsOf(ranges...), nil
}
