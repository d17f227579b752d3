package discovery

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/federation"
)

const (
	defaultPort = 80

	maxLabel = 63  // bytes of a label of a DNS name, such as a Service's
	maxName  = 253 // bytes of a DNS name, such as a Pod's
	maxPort  = 8   // bytes of a colon, a port, and what else was always taken
)

// authority is what a client asks for, as the path of the request says it.
type authority struct {
	service  federation.Service
	hostname string // of one instance; empty for all
	port     uint16
}

// parseAuthority reads host[:port] where host is <service>.<namespace>.svc.<domain> or <hostname>.<service>.<namespace>.svc.<domain>.
// Everything is compared to the letter: there is no trailing dot, and no other case. An address instead of a name is not for Get.
func parseAuthority(path, domain string) (authority, error) {
	t, err := parseTarget(path, domain)
	if err == nil && t.ip.IsValid() {
		err = status.Error(codes.InvalidArgument, "IP queries not supported by Get API: host must be a name")
	}
	return t.authority, err
}

// target is what a client asks GetProfile for: an authority, or a port of an IP.
type target struct {
	authority
	ip netip.Addr // zero for a name
}

// parseTarget reads an authority, or ip:port. A path that is longer than a name can be is not repeated in the error.
func parseTarget(path, domain string) (target, error) {
	if len(path) > maxName+maxPort {
		return target{}, status.Errorf(codes.InvalidArgument, "Invalid authority: %d bytes are more than a name and a port have", len(path))
	}
	invalid := status.Errorf(codes.InvalidArgument, "Invalid authority: %s", path)
	host, port := path, uint64(defaultPort)
	if strings.Contains(path, ":") {
		var digits string
		var err error
		if host, digits, err = net.SplitHostPort(path); err != nil {
			return target{}, invalid
		}
		if port, err = strconv.ParseUint(strings.TrimPrefix(digits, "+"), 10, 16); err != nil || port == 0 {
			return target{}, invalid
		}
	}
	t := target{authority: authority{port: uint16(port)}}
	if ip, err := netip.ParseAddr(host); err == nil {
		t.ip = ip.Unmap()
		if ip.Zone() != "" {
			return target{}, invalid
		}
		return t, nil
	}
	name, found := strings.CutSuffix(host, ".svc."+domain)
	if !found || len(host) > maxName {
		return target{}, invalid
	}
	labels := strings.Split(name, ".")
	if len(labels) == 3 {
		t.hostname, labels = labels[0], labels[1:]
		if !isLabel(t.hostname) {
			return target{}, invalid
		}
	}
	if len(labels) != 2 || !isLabel(labels[0]) || !isLabel(labels[1]) {
		return target{}, invalid
	}
	t.service = federation.Service{Namespace: labels[1], Name: labels[0]}
	return t, nil
}

// isLabel reports whether a label of a DNS name has a length that one can have.
func isLabel(s string) bool { return s != "" && len(s) <= maxLabel }

// client is what a proxy says about itself in the context token.
type client struct {
	Namespace string `json:"ns"`
	Node      string `json:"nodeName"`
	Pod       string `json:"pod"`
}

// validate refuses names that are longer than names can be, without repeating them.
func (c client) validate() error {
	for _, field := range []struct{ name, value string }{{"ns", c.Namespace}, {"nodeName", c.Node}, {"pod", c.Pod}} {
		if len(field.value) > maxName {
			return status.Errorf(codes.InvalidArgument, "context token: %s has %d bytes, more than a name has (%d)", field.name, len(field.value), maxName)
		}
	}
	return nil
}

// parseToken reads a context token: JSON, or the old form ns:<namespace>. Anything else says nothing, and is no error.
func parseToken(token string) (client, error) {
	token = strings.TrimSpace(token)
	if token == "" {
		return client{}, nil
	}
	var c client
	err := json.Unmarshal([]byte(token), &c)
	if err == nil {
		return c, nil
	}
	if kind, namespace, ok := strings.Cut(token, ":"); ok && kind == "ns" && !strings.Contains(namespace, ":") {
		return client{Namespace: strings.Clone(namespace)}, nil // and not the whole token with it
	}
	return client{}, fmt.Errorf("context token is neither JSON nor ns:<namespace>: %w", err)
}
