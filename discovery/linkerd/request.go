package linkerd

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

const (
	defaultPort = 80

	maxLabel = 63  // bytes of a label of a DNS name, such as a Service's
	maxName  = 253 // bytes of a DNS name, such as a Pod's
	maxPort  = 8   // bytes of a colon, a port, and what else was always taken
)

// parseAuthority reads host[:port] where host is <service>.<namespace>.svc.<domain> or
// <hostname>.<service>.<namespace>.svc.<domain>. Everything is compared to the letter: there is no
// trailing dot, and no other case. An address instead of a name is not for Get.
func parseAuthority(path, domain string) (discovery.Query, error) {
	t, err := parseTarget(path, domain)
	if err == nil && t.ip.IsValid() {
		err = status.Error(codes.InvalidArgument, "IP queries not supported by Get API: host must be a name")
	}
	return t.Query, err
}

// profileTarget is what a client asks GetProfile for: a Service, or a port of an IP.
type profileTarget struct {
	discovery.Query
	ip netip.Addr // zero for a name
}

// parseTarget reads an authority, or ip:port. A path that is longer than a name can be is not repeated
// in the error.
func parseTarget(path, domain string) (profileTarget, error) {
	if len(path) > maxName+maxPort {
		return profileTarget{}, status.Errorf(codes.InvalidArgument,
			"Invalid authority: %d bytes are more than a name and a port have", len(path))
	}
	t, valid := splitAuthority(path, domain)
	if !valid {
		return profileTarget{}, status.Errorf(codes.InvalidArgument, "Invalid authority: %s", path)
	}
	return t, nil
}

func splitAuthority(path, domain string) (t profileTarget, valid bool) {
	host, port := path, uint64(defaultPort)
	if strings.Contains(path, ":") {
		var digits string
		var err error
		if host, digits, err = net.SplitHostPort(path); err != nil {
			return t, false
		}
		if port, err = strconv.ParseUint(strings.TrimPrefix(digits, "+"), 10, 16); err != nil || port == 0 {
			return t, false
		}
	}

	t.Port = uint16(port)
	if ip, err := netip.ParseAddr(host); err == nil {
		t.ip = ip.Unmap()
		return t, ip.Zone() == ""
	}

	name, found := strings.CutSuffix(host, ".svc."+domain)
	labels := strings.Split(name, ".")
	if len(labels) == 3 {
		t.Hostname, labels = labels[0], labels[1:]
		found = found && isLabel(t.Hostname)
	}

	if !found || len(host) > maxName || len(labels) != 2 || !isLabel(labels[0]) || !isLabel(labels[1]) {
		return t, false
	}
	t.Service = federation.Service{Namespace: labels[1], Name: labels[0]}
	return t, true
}

// isLabel reports whether a label of a DNS name has a length that one can have.
func isLabel(s string) bool { return s != "" && len(s) <= maxLabel }

// validateClient refuses names that are longer than names can be, without repeating them.
func validateClient(c serving.Client) error {
	for _, field := range []struct{ name, value string }{{"ns", c.Namespace}, {"nodeName", c.Node}, {"pod", c.Pod}} {
		if len(field.value) > maxName {
			return status.Errorf(codes.InvalidArgument, "context token: %s has %d bytes, more than a name has (%d)",
				field.name, len(field.value), maxName)
		}
	}
	return nil
}

// parseToken reads a context token: JSON, or the old form ns:<namespace>.
func parseToken(token string) (serving.Client, error) {
	token = strings.TrimSpace(token)
	if token == "" {
		return serving.Client{}, nil
	}

	var c struct {
		Namespace string `json:"ns"`
		Node      string `json:"nodeName"`
		Pod       string `json:"pod"`
	}
	err := json.Unmarshal([]byte(token), &c)
	if err == nil {
		return serving.Client{Namespace: c.Namespace, Node: c.Node, Pod: c.Pod}, nil
	}
	if namespace, old := strings.CutPrefix(token, "ns:"); old && !strings.Contains(namespace, ":") {
		return serving.Client{Namespace: strings.Clone(namespace)}, nil // and not the whole token with it
	}

	return serving.Client{}, fmt.Errorf("context token is neither JSON nor ns:<namespace>: %w", err)
}
