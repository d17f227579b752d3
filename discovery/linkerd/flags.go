package linkerd

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/fingerpost/fingerpost/federation"
)

// Flags defines the flags that set c, with c's values as their defaults. Names and meanings are those
// of Linkerd's destination where it has them.
func (c *Config) Flags(fs *flag.FlagSet) {
	c.Config.Flags(fs)
	fs.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of this cluster")
	fs.BoolVar(&c.H2Upgrade, "enable-h2-upgrade", c.H2Upgrade,
		"let proxies speak HTTP/2 to each other whatever the application speaks")
	fs.Func("default-opaque-ports",
		"ports, and ranges of ports, whose protocol proxies do not detect unless a workload declares "+
			"otherwise, separated by commas", func(list string) error {
			ports, err := parsePorts(list)
			c.DefaultOpaquePorts = ports
			return err
		})

	fs.Func("outbound-transport-mode",
		"transparent, or transport-header to send all traffic between proxies through the inbound port "+
			"(default transparent)", func(mode string) error {
			c.TransportMode = mode
			if mode != Transparent && mode != TransportHeader {
				return fmt.Errorf("it is neither %s nor %s", Transparent, TransportHeader)
			}
			return nil
		})

	fs.Func("meshed-http2-client-params",
		"HTTP/2 settings for connections to meshed workloads, as JSON of Http2ClientParams", func(text string) error {
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
}

// Validate returns what in c makes no sense, by the names of the flags.
func (c *Config) Validate() error {
	if !isDomain(c.ClusterDomain) {
		return errors.New(
			"-cluster-domain must be a DNS domain, such as cluster.local, without a dot before or after it")
	}
	return c.Config.Validate()
}

// isDomain reports whether a name can be a DNS domain of Kubernetes: labels of small letters, digits
// and dashes, with room for the two labels of a Service before it.
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
