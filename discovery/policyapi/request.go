package policyapi

import (
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery/proxyapi"
	"github.com/fingerpost/fingerpost/federation/rules"
)

const (
	maxName      = 253 // bytes of a name
	maxWorkload  = 2048
	maxAuthority = 512
	defaultPort  = 80
)

// parseWorkload reads which workload a proxy is: {"ns":"N","pod":"P"}, {"ns":"N","external_workload":"W"}, or N:P. Of
// two names in JSON the first one counts.
func parseWorkload(text string) (w rules.WorkloadRef, err error) {
	invalid := status.Errorf(codes.InvalidArgument, "no workload: %.64q", text)
	if len(text) > maxWorkload {
		return w, invalid
	}

	text = strings.TrimSuffix(text, "\n")
	if strings.HasPrefix(text, "{") {
		w, err = parseWorkloadJSON(text)
	} else {
		w.Namespace, w.Name, _ = strings.Cut(text, ":")
	}
	isName := func(s string) bool { return s != "" && len(s) <= maxName }
	if err != nil || !isName(w.Namespace) || !isName(w.Name) {
		return rules.WorkloadRef{}, invalid
	}
	return w, nil
}

var errTrailing = errors.New("something follows the object")

// parseWorkloadJSON goes through an object field by field, as the order of two decides. Fields of other names are left
// out.
func parseWorkloadJSON(text string) (w rules.WorkloadRef, err error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	if _, err := decoder.Token(); err != nil { // the brace
		return w, err
	}

	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return w, err
		}

		var into any = new(json.RawMessage)
		switch isNamed := w.Name != ""; {
		case key == "ns":
			into = &w.Namespace
		case key == "pod" && !isNamed:
			into = &w.Name
		case key == "external_workload" && !isNamed:
			into, w.External = &w.Name, true
		}
		if err := decoder.Decode(into); err != nil {
			return w, err
		}
	}

	if _, err := decoder.Token(); err != nil { // the other brace
		return w, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return w, errTrailing
	}
	return w, nil
}

// A target is what a client asks about: an address, or a Service by its name.
type target struct {
	address netip.AddrPort // zero for a name
	service rules.Reference
	port    uint16
}

// parseTarget reads what a client asks about. A name that is no Service's is NotFound.
func parseTarget(spec *outbound.TrafficSpec, domain string) (t target, err error) {
	switch asked := spec.GetTarget().(type) {
	case *outbound.TrafficSpec_Addr:
		return parseAddress(asked.Addr)
	case *outbound.TrafficSpec_Authority:
		return parseAuthority(asked.Authority, domain)
	default:
		return t, status.Error(codes.InvalidArgument, "no target: an address or an authority is missing")
	}
}

func parseAddress(asked *netpb.TcpAddress) (t target, err error) {
	ip, valid := proxyapi.ParseIP(asked.GetIp())
	port, err := parsePort(asked.GetPort())
	if !valid {
		return t, status.Error(codes.InvalidArgument, "no target: the address has no IP")
	}
	return target{address: netip.AddrPortFrom(ip.Unmap(), port), port: port}, err
}

func parsePort(port uint32) (uint16, error) {
	if port == 0 || port > 65535 {
		return 0, status.Errorf(codes.InvalidArgument, "no port: %d", port)
	}
	return uint16(port), nil
}

// parseAuthority reads S.N.svc or S.N.svc.<domain>, with or without a trailing dot and a port.
func parseAuthority(authority, domain string) (t target, err error) {
	parsed, err := url.Parse("//" + authority)
	if err != nil || len(authority) > maxAuthority || parsed.Hostname() == "" || parsed.Host != authority {
		return t, status.Errorf(codes.InvalidArgument, "no authority: %.64q", authority)
	}

	t.port = defaultPort
	if text := parsed.Port(); text != "" && text != "0" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return t, status.Errorf(codes.InvalidArgument, "no port: %.64q", text)
		}
		t.port = uint16(port)
	}

	host := strings.TrimSuffix(parsed.Hostname(), ".")
	name, is := strings.CutSuffix(host, ".svc."+domain)
	if !is {
		name, is = strings.CutSuffix(host, ".svc")
	}
	service, namespace, _ := strings.Cut(name, ".")
	if !is || !label.MatchString(service) || !label.MatchString(namespace) {
		return t, status.Errorf(codes.NotFound, "%.64q is no Service of this cluster", authority)
	}
	t.service = rules.Reference{Kind: rules.KindService, Namespace: namespace, Name: service}
	return t, nil
}

// label is what names of Services and Namespaces can be (RFC 1123).
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
