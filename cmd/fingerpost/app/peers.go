package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	typed "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/transport"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/cluster/tokenreview"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
)

// Peers are the other replicas.
type Peers struct {
	ListenAddr string // of the server that they ask; empty for none
	Addr       string // host and port at which all of them listen; empty to ask none
	ServerName string // in their certificates
	TokenFile  string // of the token by which they know each other; empty: any client is answered

	Lookup func(ctx context.Context, host string) ([]string, error) // nil for DNS
	Dial   api.DialFunc                                             // nil for TCP
}

// peerReviews is how many tokens a second are reviewed for requests of other replicas.
const peerReviews = 50

// newPeers returns how other replicas are asked; nil if they are not. With a certificate they are asked over TLS.
func newPeers(options Options, certificate *server.Certificate) *checkpoint.Peers {
	if options.Peers.Addr == "" {
		return nil
	}

	lookup, secure := options.Peers.Lookup, certificate != nil
	token := fileToken("-peer-token-file", options.Peers.TokenFile)
	if lookup == nil {
		lookup = net.DefaultResolver.LookupHost
	}

	return &checkpoint.Peers{
		Addr: options.Peers.Addr, Lookup: lookup, Secure: secure, MaxAge: options.StateMaxAge,
		Client: func() (*http.Client, error) {
			plain := &http.Transport{DialContext: options.Peers.Dial}
			if secure {
				config, err := certificate.ClientConfig(options.Peers.ServerName)
				if err != nil {
					return nil, err
				}
				plain.TLSClientConfig = config
			}

			client := &http.Client{
				Transport:     plain,
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			}
			if token != nil {
				client.Transport = authorized{plain, token}
			}
			return client, nil
		},
	}
}

// fileToken returns what reads a token from a file, in which it is replaced before it expires; nil without a file.
func fileToken(flag, path string) func() (string, error) {
	if path == "" {
		return nil
	}
	source := transport.NewCachedFileTokenSource(path)
	return func() (string, error) {
		token, err := source.Token()
		if err != nil {
			return "", fmt.Errorf("%s: %w", flag, err)
		}
		return token.AccessToken, nil
	}
}

// authorized sends a token with each request.
type authorized struct {
	*http.Transport
	token func() (string, error)
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return a.Transport.RoundTrip(r)
}

// addPeerServer adds what other replicas ask, if they may.
func (a *App) addPeerServer(
	log logr.Logger, options Options, localConn *api.Connection, certificate *server.Certificate,
) error {
	if options.Peers.ListenAddr == "" {
		return nil
	}

	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fingerpost_peer_requests_total",
		Help: "Requests of other replicas for the state of clusters, by the code of the answer: 401 and 403 are of " +
			"others.",
	}, []string{"code"})
	a.Metrics.MustRegister(requests)
	handler := checkpoint.Handler(a.Registry.FindPublished, a.Registry.PublishedClusters, server.Caller)

	if token := fileToken("-peer-token-file", options.Peers.TokenFile); token != nil {
		client, err := typed.NewForConfigAndClient(localConn.Config, localConn.HTTPClient)
		if err != nil {
			return err
		}

		own := &server.OwnAccount{
			Log: log, Token: token,
			Reviewer: tokenreview.New(client.TokenReviews(), server.PeerAudience, peerReviews),
		}
		handler = own.Wrap(handler)
		a.Add(Part{Name: "review of its own token", Run: own.Start})
	}

	peers := a.newHTTP("peer", options.Peers.ListenAddr, promhttp.InstrumentHandlerCounter(requests, handler))
	if certificate != nil {
		peers.TLS = certificate.ServerConfig(tls.VersionTLS13)
	}
	a.Add(Part{Name: "peer server", Run: peers.Start})
	return nil
}
