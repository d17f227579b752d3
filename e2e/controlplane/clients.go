package controlplane

import (
	"fmt"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// clients are the launcher's own, with all rights, to one address of one API
// server with one CA. A move or a new CA brings new ones.
type clients struct {
	http    *http.Client
	typed   *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

func newClients(config *rest.Config) (*clients, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make clients: %w", err)
	}
	typed, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("make clients: %w", err)
	}
	untyped, err := dynamic.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("make clients: %w", err)
	}
	return &clients{
		http:    client,
		typed:   typed,
		dynamic: untyped,
		mapper:  restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(typed.Discovery())),
	}, nil
}

func (c *clients) close() {
	utilnet.CloseIdleConnectionsFor(c.http.Transport)
}
