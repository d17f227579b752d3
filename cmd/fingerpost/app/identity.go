package app

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/tokenreview"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/certify"
	"github.com/fingerpost/fingerpost/identity/enroll"
	"github.com/fingerpost/fingerpost/serving"
)

// IdentityOptions are about certificates of the mesh: those that a process issues to proxies, and its own.
type IdentityOptions struct {
	Addr string // of the gRPC server; empty: none are issued
	Flag string // that has Addr, for errors; empty for -identity-addr

	Issuer          server.IssuerFiles // the anchors are those of its own certificate, too
	Terms           identity.Terms     // of what is issued
	RequireAudience bool               // refuse tokens that are not for this purpose
	Events          bool               // about certificates, on ServiceAccounts

	// TLS has the servers for proxies present certificates of the mesh. The process issues them to itself if it
	// issues any; else it gets one From the authority at a host and a port, for the account whose token is in a file.
	TLS             bool
	From, TokenFile string
}

// An authority is what issues certificates in a process.
type authority struct {
	*identity.Authority

	serves *certify.Server
	issuer *server.Issuer
}

// addAuthority adds what issuing depends on; nil if nothing is issued.
func (p *Process) addAuthority(
	conn *api.Connection, domain identity.Domain, options IdentityOptions,
) (*authority, error) {
	if options.Addr == "" {
		return nil, nil
	}

	client, err := kubernetes.NewForConfigAndClient(conn.Config, conn.HTTPClient)
	if err != nil {
		return nil, err
	}
	reviews := tokenreview.NewClient(client.AuthenticationV1().TokenReviews())
	right := tokenreview.NewRight(reviews, client)
	issuing := &authority{Authority: identity.NewAuthority(identity.Options{
		Domain: domain, Terms: options.Terms, Reviewer: right, RequireAudience: options.RequireAudience,
	})}

	report := issuerEvents(p.events, domain.Namespace)
	issuing.issuer = server.NewIssuer(p.log, issuing.Authority, options.Issuer, report)
	outcomes := certify.Outcomes{Refused: issuing.issuer.Refused}
	if options.Events {
		leaves := newLeafEvents(p.events)
		outcomes.Issued = leaves.add
		p.Metrics.MustRegister(leaves.dropped)
	}
	issuing.serves = certify.NewServer(p.log, issuing.Authority, outcomes)

	p.Metrics.MustRegister(issuing.serves.Collectors()...)
	p.Metrics.MustRegister(issuing.issuer.Metrics()...)
	p.Metrics.MustRegister(reviews.Collectors()...)
	p.Add(
		Part{Name: "issuer", Run: issuing.issuer.Start, Ready: []server.Condition{issuing.issuer.Usable()}},
		Part{Name: "right to review tokens", Run: right.Start, Ready: []server.Condition{
			server.Lasting("right to review tokens", right.Missing()),
		}},
	)
	return issuing, nil
}

// issuerEvents returns what reports changes of the issuer, on the Deployment that Linkerd's chart has for it.
func issuerEvents(events *recorder, namespace string) func(server.IssuerChange) {
	about := &corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: namespace, Name: "linkerd-identity",
	}
	return func(change server.IssuerChange) {
		kind := corev1.EventTypeNormal
		if change.Warning {
			kind = corev1.EventTypeWarning
		}
		events.Eventf(about, nil, kind, change.Reason, change.Action, "%s", change.Note)
	}
}

// leafEventRate is how many Events about certificates a process sends in a second, on how many accounts. A roll-out of
// all proxies would otherwise fill the API server's store with them.
const leafEventRate = 5

// leafEvents are Events about certificates that were issued.
type leafEvents struct {
	events  *recorder
	limit   *rate.Limiter
	dropped prometheus.Counter
}

func newLeafEvents(events *recorder) *leafEvents {
	return &leafEvents{events, rate.NewLimiter(leafEventRate, leafEventRate), prometheus.NewCounter(
		prometheus.CounterOpts{
			Name: "fingerpost_certify_events_dropped_total",
			Help: "Certificates that were issued without an Event on their ServiceAccount, because there were too " +
				"many, or because the account had one a short time ago.",
		},
	)}
}

// add reports a leaf. It waits for nothing.
func (e *leafEvents) add(leaf *identity.Leaf) {
	account := leaf.Account
	about := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "ServiceAccount", Namespace: account.Namespace, Name: account.Name,
	}
	sent := e.events.record(e.limit, about, nil, corev1.EventTypeNormal, "IssuedLeafCertificate", "Certify",
		"Certificate issued for %s until %s, SHA-256 %x", leaf.Certificate.DNSNames[0],
		leaf.Certificate.NotAfter.UTC().Format(time.RFC3339), sha256.Sum256(leaf.Certificate.Raw))
	if !sent {
		e.dropped.Inc()
	}
}

// idleConnection is how long a connection of a proxy that asks for nothing is kept: it asks again after hours.
const idleConnection = time.Minute

// callBuffer is the size of buffers of a connection over which one call is made: both messages fit.
const callBuffer = 4 << 10

// addIdentityServer adds the gRPC server of an authority to a process whose other gRPC servers are like it. Clients are
// asked for no certificate: those that come for their first one have none.
func (p *Process) addIdentityServer(a *authority, options IdentityOptions, of server.GRPCOptions) {
	of.Name, of.Flag, of.Addr = "identity", cmp.Or(options.Flag, "-identity-addr"), options.Addr
	of.Register, of.Certificate = a.serves.Register, nil
	of.Idle, of.Buffers = idleConnection, callBuffer
	if options.TLS {
		of.Certificate = server.IssuedCertificate(p.log, server.Issued{
			Server: "identity", From: thisProcess, Anchors: options.Issuer.Anchors, Clients: tls.NoClientCert,
			Obtain: a.issueOwn(a.Domain().Authority()),
		})
		p.addCertificate("certificate of identity", of.Certificate)
	}
	listener := server.NewGRPC(p.log, of)
	p.Add(Part{Name: "identity server", Run: listener.Start, Ready: []server.Condition{listener.Listens()}})
}

// thisProcess is who issues the certificates of an authority's own process.
const thisProcess = "this process"

// issueOwn returns what issues a certificate to the authority's own process.
func (a *authority) issueOwn(name string) server.Obtain {
	return func(context.Context, *x509.CertPool) (*tls.Certificate, error) { return a.IssueOwn(name) }
}

// addCertificate adds what renews a certificate of servers.
func (p *Process) addCertificate(name string, of *server.Certificate) {
	p.Metrics.MustRegister(of.Metrics()...)
	p.Add(Part{Name: name, Run: of.Start, Ready: of.Conditions()})
}

// issuedCertificate returns the certificate that servers for proxies present, which is issued by this process or by
// another one. Their clients may have certificates of the mesh. issuing is called once the process runs.
func issuedCertificate(log logr.Logger, options Options, issuing func() *authority) *server.Certificate {
	domain, own := options.identities(), options.Identity
	as := server.Issued{Server: "mesh", Anchors: own.Issuer.Anchors, Clients: tls.VerifyClientCertIfGiven}

	if own.From != "" {
		client := &enroll.Client{
			Addr: own.From, Domain: domain, Token: fileToken("-identity-token-file", own.TokenFile),
			Dial: options.Peers.Dial,
		}
		as.From, as.Obtain = own.From, client.Obtain
		return server.IssuedCertificate(log, as)
	}

	as.From = thisProcess
	as.Obtain = func(ctx context.Context, anchors *x509.CertPool) (*tls.Certificate, error) {
		return issuing().issueOwn(domain.Destination())(ctx, anchors)
	}
	return server.IssuedCertificate(log, as)
}

// AuthorityOptions is everything that a process which issues certificates, and does nothing else, depends on.
type AuthorityOptions struct {
	Version   string       // of the binary
	Config    *rest.Config // access to the local cluster
	Dial      api.DialFunc // connects to the API server; nil for TCP
	Listen    server.ListenFunc
	AdminAddr string // of the admin server, empty for none
	Pprof     bool   // on the admin server
	Domain    identity.Domain
	Serving   serving.Config
	Identity  IdentityOptions
}

// NewAuthority builds a process that issues certificates, and does nothing else.
func NewAuthority(log logr.Logger, options AuthorityOptions) (*Process, error) {
	process := newProcess(log, options.Version, options.Listen, options.Serving.DrainWindow)
	if err := process.addAuthorityServer(options); err != nil {
		process.abandon()
		return nil, fmt.Errorf("issue certificates: %w", err)
	}
	process.Metrics.MustRegister(process.Ready.Metric())
	process.addAdmin(options.AdminAddr, process.Metrics, options.Pprof)
	return process, nil
}

// addAuthorityServer adds an authority with its server, and what both depend on.
func (p *Process) addAuthorityServer(options AuthorityOptions) error {
	conn, err := api.NewConnection(options.Config, options.Dial)
	if err != nil {
		return err
	}
	if err := p.addEvents(conn); err != nil {
		return err
	}

	issuing, err := p.addAuthority(conn, options.Domain, options.Identity)
	if err == nil && issuing == nil {
		err = errors.New("there is no address for that")
	}
	if err != nil {
		return err
	}

	calls := serving.NewServer(p.log, options.Serving)
	p.Metrics.MustRegister(calls.Collectors()...)
	p.addIdentityServer(issuing, options.Identity, server.GRPCOptions{
		Listen: options.Listen, On: calls, Ready: p.Ready, Metrics: server.NewGRPCMetrics(p.Metrics),
	})
	return nil
}
