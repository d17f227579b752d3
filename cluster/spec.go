package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// A Spec is what is wanted of one cluster: how it is reached, and what may be done with it.
type Spec struct {
	Name          string   // fleet-wide
	Local         bool     // the process runs in this cluster
	TrustDomain   string   // of the identities of its workloads
	ClusterDomain string   // of its DNS names
	Slices        bool     // endpoints of other clusters may be written into it as EndpointSlices
	Access        []Access // tried in this sequence; with none the cluster is known to the Store and not reached

	Traffic  policy.Link // how traffic to it is limited, and how much of it is held
	Released string      // when what was held of it was let go last, as its Link has it

	attempt uint64 // how often its Access was another, as counted by the Registry
}

// Access is one address of a cluster's API server with the credentials for it.
type Access struct {
	Source string       // where it comes from, for users, such as "Secret linkerd/cluster-credentials-east"
	Config *rest.Config // trusted: package links rejects what may not come from a Secret
}

// validate rejects a Spec that no cluster can have.
func (s Spec) validate() error {
	if s.Name == "" {
		return errors.New("a cluster needs a name")
	}
	for _, a := range s.Access {
		if a.Config == nil || a.Config.Host == "" {
			return fmt.Errorf("cluster %s: %s names no API server", s.Name, a.Source)
		}
	}
	return nil
}

// sameTransport reports whether both reach the same API server in the same way; their bearer tokens may differ.
func (a Access) sameTransport(o Access) bool {
	c, d := a.Config, o.Config
	return c.Host == d.Host && c.APIPath == d.APIPath && c.Username == d.Username && c.Password == d.Password &&
		c.BearerTokenFile == d.BearerTokenFile && reflect.DeepEqual(c.TLSClientConfig, d.TLSClientConfig)
}

// equal reports whether both reach the same API server with the same credentials; their Sources may differ.
func (a Access) equal(o Access) bool {
	return a.sameTransport(o) && a.Config.BearerToken == o.Config.BearerToken
}

// equal reports whether both want the same, Sources included.
func (s Spec) equal(o Spec) bool {
	sameAccess := s.sameAccess(o)
	s.Access, o.Access = nil, nil
	s.attempt, o.attempt = 0, 0
	return sameAccess && reflect.DeepEqual(s, o)
}

func (s Spec) sameAccess(o Spec) bool {
	same := func(a, b Access) bool { return a.Source == b.Source && a.equal(b) }
	return slices.EqualFunc(s.Access, o.Access, same)
}

// withProxy returns the config with the proxy that requests to a cluster take: for linked ones, none. That
// of the environment is for this process's own network: it would see where linked clusters are, and the
// addresses that may not be dialed would be checked for the proxy only. A kubeconfig with a proxy-url is
// refused.
func withProxy(config *rest.Config, spec Spec) *rest.Config {
	if !spec.Local {
		config = rest.CopyConfig(config)
		config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } //nolint:nilnil // that means none
	}
	return config
}
