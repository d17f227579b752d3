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

const defaultPort = 80

// authority is what a client asks for, as the path of the request says it.
type authority struct {
	service  federation.Service
	hostname string // of one instance; empty for all
	port     uint16
}

// parseAuthority reads host[:port] where host is <service>.<namespace>.svc.<domain> or <hostname>.<service>.<namespace>.svc.<domain>.
// Everything is compared to the letter: there is no trailing dot, and no other case. An address instead of a name is not for Get.
func parseAuthority(path, domain string) (authority, error) {
	invalid := status.Errorf(codes.InvalidArgument, "Invalid authority: %s", path)
	host, port := path, uint64(defaultPort)
	if strings.Contains(path, ":") {
		var digits string
		var err error
		if host, digits, err = net.SplitHostPort(path); err != nil {
			return authority{}, invalid
		}
		if port, err = strconv.ParseUint(strings.TrimPrefix(digits, "+"), 10, 16); err != nil || port == 0 {
			return authority{}, invalid
		}
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return authority{}, status.Error(codes.InvalidArgument, "IP queries not supported by Get API: host must be a name")
	}
	name, found := strings.CutSuffix(host, ".svc."+domain)
	if !found {
		return authority{}, invalid
	}
	labels := strings.Split(name, ".")
	a := authority{port: uint16(port)}
	if len(labels) == 3 {
		a.hostname, labels = labels[0], labels[1:]
		if a.hostname == "" {
			return authority{}, invalid
		}
	}
	if len(labels) != 2 || labels[0] == "" || labels[1] == "" {
		return authority{}, invalid
	}
	a.service = federation.Service{Namespace: labels[1], Name: labels[0]}
	return a, nil
}

// client is what a proxy says about itself in the context token.
type client struct {
	Namespace string `json:"ns"`
	Node      string `json:"nodeName"`
	Pod       string `json:"pod"`
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
		return client{Namespace: namespace}, nil
	}
	return client{}, fmt.Errorf("context token is neither JSON nor ns:<namespace>: %w", err)
}
