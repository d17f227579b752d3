package inject

import (
	"fmt"
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Services are what proxies ask of the control plane. The zero value is for the Services of Linkerd's chart.
type Services struct{ Destination, Policy, Identity Service }

// A Service is one of the control plane. What is empty of it is as Linkerd's chart has it.
type Service struct {
	Addr string // host and port, such as fingerpost.mesh.svc.cluster.local.:8086
	Name string // TLS identity, such as fingerpost.mesh.serviceaccount.identity.linkerd.cluster.local
}

// Validate rejects what a proxy would not start with.
func (s *Services) Validate() error {
	for name, of := range map[string]*Service{
		"destination": &s.Destination, "policy": &s.Policy, "identity": &s.Identity,
	} {
		if err := of.validate(); err != nil {
			return fmt.Errorf("%s-%w", name, err)
		}
	}
	return nil
}

func (s *Service) validate() error {
	if s.Addr != "" {
		host, port, err := net.SplitHostPort(s.Addr)
		if err != nil || numberOf(port) == 0 || !isHost(host) {
			return fmt.Errorf("addr: %.100q is no host and port", s.Addr)
		}
	}
	if s.Name != "" && len(validation.IsDNS1123Subdomain(s.Name)) > 0 {
		return fmt.Errorf("name: %.100q is no identity", s.Name)
	}
	return nil
}

func isHost(host string) bool {
	return net.ParseIP(host) != nil || len(validation.IsDNS1123Subdomain(strings.TrimSuffix(host, "."))) == 0
}

// address returns where proxies reach a Service; those in its own Pods reach it there. usual is its name in Linkerd's
// chart, and port that of its server.
func (i *Injector) address(e *variables, of Service, usual, port string, isHere bool) string {
	address := of.Addr
	if address == "" {
		address = usual + "." + i.options.Namespace + ".svc." + string(e.s.ClusterDomain) + ".:" + port
	}
	if isHere {
		return "localhost." + address[strings.LastIndexByte(address, ':'):]
	}
	return address
}

// name returns the identity that proxies expect of a Service; account is its ServiceAccount in Linkerd's chart.
func (i *Injector) name(e *variables, of Service, account string) string {
	if of.Name != "" {
		return of.Name
	}
	return e.identity(account, i.options.Namespace, i.options.Namespace)
}
