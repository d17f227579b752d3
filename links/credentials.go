package links

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Hosts restricts the API servers that a kubeconfig may name.
type Hosts struct {
	InCluster bool     // the process runs in a Pod, so that a loopback address is the Pod's own
	Allowed   []string // names, addresses and CIDRs that are allowed although they are loopback or link-local
}

// ParseHosts parses a list for [Hosts.Allowed].
func ParseHosts(list string) ([]string, error) {
	var hosts []string
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		if strings.Contains(item, "/") {
			if _, err := netip.ParsePrefix(item); err != nil {
				return nil, fmt.Errorf("%q is not a CIDR: %w", item, err)
			}
		}
		hosts = append(hosts, strings.ToLower(item))
	}

	return hosts, nil
}

// maxKubeconfig is how many bytes a kubeconfig may have. A parsed one takes up to 600 times as much memory.
const maxKubeconfig = 128 << 10

// Credentials parses a kubeconfig from a Secret. A user who may write the Secret must gain nothing in this
// process by it. So only inline data is accepted: a certificate authority, a token, a client certificate.
// Everything else is rejected: programs to run, plugins, paths of files, impersonation, passwords, proxies,
// unverified or unencrypted connections, servers at a link-local address, and, in a cluster, at a loopback
// address. The Config is built from the accepted fields alone, so that no other field can take effect.
func Credentials(kubeconfig []byte, hosts Hosts) (*rest.Config, error) {
	if len(kubeconfig) == 0 {
		return nil, errors.New("the kubeconfig is empty")
	}
	if len(kubeconfig) > maxKubeconfig {
		return nil, tooLarge(len(kubeconfig))
	}
	parsed, err := loadKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}

	context, found := parsed.Contexts[parsed.CurrentContext]
	if !found || context == nil {
		return nil, fmt.Errorf("the kubeconfig has no context %q, which its current-context names",
			parsed.CurrentContext)
	}
	cluster, found := parsed.Clusters[context.Cluster]
	if !found || cluster == nil {
		return nil, fmt.Errorf("the kubeconfig has no cluster %q, which its current context names", context.Cluster)
	}

	user, found := parsed.AuthInfos[context.AuthInfo]
	if !found || user == nil {
		return nil, fmt.Errorf("the kubeconfig has no user %q, which its current context names", context.AuthInfo)
	}
	if err := validateFields(cluster, user); err != nil {
		return nil, err
	}

	config := &rest.Config{
		Host:        cluster.Server,
		BearerToken: user.Token,
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: cluster.TLSServerName,
			CAData:     cluster.CertificateAuthorityData,
			CertData:   user.ClientCertificateData,
			KeyData:    user.ClientKeyData,
		},
	}

	host, err := hosts.validateServer(cluster.Server)
	if err != nil {
		return nil, err
	}

	// A name may resolve to an address that is not allowed, now or later: check each connection.
	config.Dial = (&net.Dialer{
		Timeout: 3 * time.Second, KeepAlive: 15 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			if hosts.allows(host) {
				return nil
			}
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("address %s of the API server: %w", address, err)
			}
			return hosts.validateAddr(to.Addr())
		},
	}).DialContext
	return config, nil
}

// tooLarge is why a kubeconfig is rejected by its size alone.
func tooLarge(size int) error {
	return fmt.Errorf("the kubeconfig has %d bytes, more than %d: it needs one cluster, one user and one context",
		size, maxKubeconfig)
}

func rejectedField(field, why, instead string) error {
	return fmt.Errorf("%s is rejected: %s; %s", field, why, instead)
}

// validateFields returns everything for which a cluster and a user of a kubeconfig are rejected, besides the server.
func validateFields(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) (err error) {
	const (
		inline = "use an inline token or client certificate"
		ca     = "use certificate-authority-data"
		file   = "it would read a file of this process"
	)
	pem := cluster.CertificateAuthorityData
	isPEM := len(pem) == 0 || x509.NewCertPool().AppendCertsFromPEM(pem)
	authenticates := user.Token != "" || len(user.ClientCertificateData) > 0
	impersonates := user.Impersonate != "" || user.ImpersonateUID != "" ||
		len(user.ImpersonateGroups) > 0 || len(user.ImpersonateUserExtra) > 0

	isBlank := func(c rune) bool { return c <= ' ' || c == 0x7f }
	for _, rule := range []struct {
		set                 bool
		field, why, instead string
	}{
		{cluster.InsecureSkipTLSVerify, "cluster.insecure-skip-tls-verify", "any server could pose as the cluster", ca},
		{cluster.CertificateAuthority != "", "cluster.certificate-authority", file, ca},
		{
			cluster.ProxyURL != "", "cluster.proxy-url", "it would send the credentials elsewhere",
			"name a server that can be reached directly",
		},
		{
			!isPEM, "cluster.certificate-authority-data", "it contains no certificate in PEM form",
			"copy it again from the cluster",
		},
		{user.Exec != nil, "user.exec", "it would run a program", inline},
		{user.AuthProvider != nil, "user.auth-provider", "it would load a plugin", inline},
		{user.TokenFile != "", "user.tokenFile", file, inline},
		{user.ClientCertificate != "", "user.client-certificate", file, inline},
		{user.ClientKey != "", "user.client-key", file, inline},
		{impersonates, "user.as", "it would impersonate another identity", inline},
		{user.Username != "" || user.Password != "", "user.username", "API servers accept no passwords", inline},
		{!authenticates, "user", "it has neither a token nor a client certificate", inline},
		{
			strings.ContainsFunc(user.Token, isBlank), "user.token", "it contains white space",
			"copy it again; mind the end of the line",
		},
	} {
		if rule.set {
			err = errors.Join(err, rejectedField(rule.field, rule.why, rule.instead))
		}
	}

	if len(user.ClientCertificateData) > 0 || len(user.ClientKeyData) > 0 {
		if _, pair := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData); pair != nil {
			err = errors.Join(err, rejectedField("user.client-certificate-data",
				"certificate and key do not match: "+pair.Error(), inline))
		}
	}
	return err
}

// validateServer rejects a server by its URL, and returns the host that it names.
func (h Hosts) validateServer(server string) (host string, err error) {
	parsed, err := url.Parse(server)
	switch {
	case err != nil || parsed.Hostname() == "":
		return "", rejectedField("cluster.server",
			fmt.Sprintf("%q is not the URL of a server", server), "write https://host:port")
	case parsed.Scheme != "https":
		return "", rejectedField("cluster.server", "the credentials would be sent in clear text", "write https://")
	case parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "":
		return "", rejectedField("cluster.server", "it contains more than an address", "write https://host:port")
	}

	host = strings.ToLower(parsed.Hostname())
	if h.allows(host) {
		return host, nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return host, h.validateAddr(addr)
	}

	name := strings.TrimSuffix(host, ".")
	isLocalhost := name == "localhost" || strings.HasSuffix(name, ".localhost")
	if h.InCluster && isLocalhost {
		return host, loopbackError(host)
	}
	return host, nil
}

const allowHost = "name the cluster's address, or list the host in -allow-kubeconfig-hosts"

func loopbackError(host string) error {
	return rejectedField("cluster.server", host+" is this process's own host", allowHost)
}

func (h Hosts) validateAddr(addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	switch {
	case h.allows(addr.String()):
		return nil
	case addr.IsLinkLocalUnicast() || addr.IsLinkLocalMulticast() || addr.IsMulticast() || addr.IsUnspecified():
		return rejectedField("cluster.server", addr.String()+" is not the address of a cluster", allowHost)
	case addr.IsLoopback() && h.InCluster:
		return loopbackError(addr.String())
	}
	return nil
}

// allows reports whether the operator has listed a host.
func (h Hosts) allows(host string) bool {
	addr, err := netip.ParseAddr(host)
	return slices.ContainsFunc(h.Allowed, func(item string) bool {
		if item == host {
			return true
		}
		prefix, perr := netip.ParsePrefix(item)
		return err == nil && perr == nil && prefix.Contains(addr.Unmap())
	})
}
