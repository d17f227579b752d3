// Package app builds processes of Fingerpost from parts, and runs them: a replica, with the Store, the Registry of
// clusters, what reads Links, the writers, discovery and the servers; and webhooks alone. It does so once for all who
// run one: commands, and scenarios and tests, which need no flags for it.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/cluster/endpointslice"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/cluster/routestatus"
	"github.com/fingerpost/fingerpost/cluster/ruleset"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/webhook"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/links/mirror"
	"github.com/fingerpost/fingerpost/serving"
)

// Options is everything that an App depends on. Nothing in this package reads flags, files or the
// environment.
type Options struct {
	Version   string       // of the binary
	Replica   string       // name of this replica: no other replica has it
	Config    *rest.Config // access to the local cluster
	InCluster bool         // this process runs in a Pod of the local cluster
	Dial      api.DialFunc // connects to API servers; nil for TCP

	// Of the servers. An empty AdminAddr or DebugAddr is for none. Without Addr nothing of discovery is served, and
	// neither slices, mirrors nor the status of Links are written: it is for policy alone.
	Addr, AdminAddr, DebugAddr string

	Listen       server.ListenFunc // opens the listeners of the servers; nil for TCP
	TLS          server.TLSFiles   // of the gRPC server
	Pprof        bool              // on the admin server
	QueueMetrics bool              // export workqueue_*

	ClusterName   string // of the local cluster
	LinkNamespace string // empty for all
	OnlyLinks     bool   // link clusters, and no labelled Secrets
	AllowedHosts  []string
	ProbeInterval time.Duration
	Thresholds    federation.Thresholds
	Budget        api.Limits    // of each linked cluster
	StateDir      string        // of checkpoints; empty for none
	StateMaxAge   time.Duration // of a state that is restored
	Peers         Peers
	ReadOnly      bool // discovery only: nothing is written into any cluster
	ReadSlices    bool // read EndpointSlices; otherwise Endpoints
	Mirrors       bool // write the Services that Links ask for
	Mirror        mirror.Options
	Lease         lease.Timing // of the Leases under which replicas write
	Installations []string     // namespaces besides that of the control plane in which Leases of installations count
	Writer        endpointslice.Options
	Serving       serving.Config
	Discovery     linkerd.Config
	Policy        PolicyOptions
	Identity      IdentityOptions
	Webhooks      WebhookOptions
}

// PolicyOptions are about how Services may be reached.
type PolicyOptions struct {
	Addr   string // of the gRPC server; empty: nothing of policy is read, served or written
	Flag   string // that has Addr, for errors; empty for -policy-addr
	Rules  rules.Options
	Status bool // write the status of routes, rate limits and EgressNetworks
}

// inside returns what reports whether an address is inside of the clusters; nil if nothing depends on it.
func (o *PolicyOptions) inside() func(netip.Addr) bool {
	if o.Addr == "" {
		return nil
	}
	return o.Rules.InCluster
}

// An App is one replica, with every part built and none started. The fields are for tests.
type App struct {
	*Process

	Store     *federation.Store
	Registry  *cluster.Registry
	Links     *links.Reconciler
	Changes   *changes.Recent
	Serving   *serving.Server
	Discovery *linkerd.Server
	Levels    *rules.Levels      // of policy; nil if nothing of it is read
	Rules     rules.LevelsReader // of the local cluster
	Policy    *policyapi.Server  // nil likewise
	Pages     http.Handler       // of the debug server

	Exported prometheus.Gatherer // Metrics and those of queues, with the label installation

	ready        clusterReadiness
	issuing      *authority                         // of certificates; nil if none are issued
	hooks        server.Certificates                // of webhooks
	objects      atomic.Pointer[ruleset.Reconciler] // that reads those of policy; nil: none does
	installation func() string                      // for people, and unique
}

// New builds a replica. ctx is the one that Run will get: writers ask it whether the replica stops.
func New(ctx context.Context, log logr.Logger, options Options) (*App, error) {
	options.complete()
	app := &App{
		Process: newProcess(log, options.Version, options.Listen, options.Serving.DrainWindow),
		Store:   federation.NewStore(),
		Changes: changes.NewRecent(),
	}
	if err := app.build(ctx, log, options); err != nil {
		app.abandon()
		return nil, err
	}
	return app, nil
}

func (a *App) build(ctx context.Context, log logr.Logger, options Options) error {
	checkpoints, restored := openCheckpoints(log, options)
	certificate, err := a.openCertificate(log, options)
	if err != nil {
		return err
	}

	a.Registry = cluster.NewRegistry(log, a.Store, cluster.Options{
		Rules: a.newRules(log, options), Inside: options.Policy.inside(),
		ProbeInterval: options.ProbeInterval, Thresholds: options.Thresholds, Budget: options.Budget,
		Endpoints: !options.ReadSlices, Dial: options.Dial, ControllerNamespace: options.Discovery.ControllerNamespace,
		DetailedMetrics: options.Discovery.DetailedMetrics, Checkpoints: checkpoints,
		Peers: newPeers(options, certificate),
	})

	err = a.Registry.Apply(cluster.Spec{
		Name: options.ClusterName, Local: true,
		TrustDomain: options.Discovery.TrustDomain, ClusterDomain: options.Discovery.ClusterDomain,
		Access: []cluster.Access{{Source: "this process's own", Config: options.Config}},
	})
	if err != nil {
		return err
	}

	for _, spec := range restored {
		if err := a.Registry.Apply(spec); err != nil {
			return err
		}
	}

	localConn, err := api.NewConnection(a.Registry.Instrument(options.ClusterName, options.Config), options.Dial)
	if err != nil {
		return err
	}
	a.Registry.AddConnection(options.ClusterName, localConn)
	if err := a.addEvents(localConn); err != nil {
		return err
	}

	a.issuing, err = a.addAuthority(localConn, options.identities(), options.Identity)
	if err != nil {
		return err
	}
	if err := a.addHooks(options, localConn); err != nil {
		return err
	}

	a.ready.localCluster, a.ready.grace, a.ready.statuses =
		options.ClusterName, options.Discovery.FirstSyncGrace, a.Registry.Statuses
	if err := a.addLinks(log, options, localConn); err != nil {
		return err
	}
	if err := a.addWriters(ctx, log, options, localConn); err != nil {
		return err
	}
	if err := a.addChanges(log, options, localConn); err != nil {
		return err
	}

	a.Serving = serving.NewServer(log, options.Serving)
	a.Discovery = linkerd.NewServer(log, a.Serving, a.Store, options.Discovery)
	if a.Levels != nil {
		a.Rules = a.Levels.In(a.Store, federation.Cluster(options.ClusterName))
		a.Policy = policyapi.NewServer(log, a.Serving, a.Rules, &options.Policy.Rules)
		a.Metrics.MustRegister(ruleset.NewCollector(a.Rules), a.Policy.Metric())
	}

	a.Metrics.MustRegister(a.Registry, a.Ready.Metric())
	a.Metrics.MustRegister(a.Serving.Collectors()...)
	a.Metrics.MustRegister(a.Discovery.Collectors()...)
	return a.addServers(log, options, localConn, certificate)
}

// openCertificate returns what the servers for clients and for other replicas present; nil if they serve plaintext.
func (a *App) openCertificate(log logr.Logger, options Options) (*server.Certificate, error) {
	switch {
	case options.Identity.TLS, options.Identity.From != "":
		return issuedCertificate(log, options, func() *authority { return a.issuing }), nil
	case options.TLS.Certificate == "":
		return nil, nil
	case options.TLS.ClientCA == "" && options.Peers.Addr+options.Peers.ListenAddr != "":
		return nil, errors.New("other replicas need authorities of clients: both sides present certificates")
	}

	certificate, err := server.OpenCertificate(log, "grpc", options.TLS)
	if err != nil {
		return nil, fmt.Errorf("-tls-cert-file, -tls-key-file, -tls-client-ca-file: %w", err)
	}
	return certificate, nil
}

// identities are those of the mesh of the local cluster.
func (o *Options) identities() identity.Domain {
	return identity.Domain{Namespace: o.Discovery.ControllerNamespace, TrustDomain: o.Discovery.TrustDomain}
}

// openCheckpoints returns where checkpoints are kept, and the linked clusters that have one: they are known before
// Links are.
func openCheckpoints(log logr.Logger, options Options) (*checkpoint.Dir, []cluster.Spec) {
	if options.StateDir == "" {
		return nil, nil
	}
	dir := checkpoint.NewDir(options.StateDir, options.StateMaxAge)
	if err := dir.Clean(); err != nil {
		log.Error(err, "Files that are half written cannot be deleted", "directory", options.StateDir)
	}

	headers, err := dir.Headers()
	if err != nil {
		log.Error(err, "Checkpoints cannot be read: the state of clusters that are unreachable is not restored")
	}

	var specs []cluster.Spec
	for _, h := range headers {
		if !h.Local && h.Cluster != options.ClusterName {
			specs = append(specs, cluster.RestoredSpec(h))
		}
	}
	return dir, specs
}

// addHooks adds the admission webhooks, if they have an address.
func (a *App) addHooks(options Options, localConn *api.Connection) (err error) {
	var injection *webhook.Injection
	if len(options.Webhooks.Addrs) > 0 {
		namespace := options.Discovery.ControllerNamespace
		injection, err = a.addInjection(localConn, namespace, options.Webhooks.Inject)
	}
	if err == nil {
		a.hooks, err = a.addWebhooks(options.Webhooks, a.exists, injection)
	}
	return err
}

// newRules returns what reads the objects of policy of the local cluster; nil if nothing does.
func (a *App) newRules(log logr.Logger, options Options) func(federation.Cluster) cluster.Reader {
	if options.Policy.Addr == "" {
		return nil
	}
	a.Levels = rules.NewLevels(a.Store)
	return func(local federation.Cluster) cluster.Reader {
		others := ruleset.Clusters{TrustDomains: a.Registry.AcceptedTrustDomains, Membership: a.Links.Membership}
		reader := ruleset.NewReconciler(log, local, a.Levels, &options.Policy.Rules, others)
		a.objects.Store(reader)
		return reader
	}
}

// exists reports for webhooks whether there is an object of policy in the local cluster, if that is known.
func (a *App) exists(of rules.Reference) (exists, known bool) {
	if reader := a.objects.Load(); reader != nil {
		return reader.Exists(of)
	}
	return false, false
}

// complete sets what follows from other options.
func (o *Options) complete() {
	o.Discovery.Cluster = federation.Cluster(o.ClusterName)
	o.Writer.Namespace, o.Writer.Local = o.Discovery.ControllerNamespace, o.ClusterName
	if !o.ReadSlices {
		o.Writer.External, o.Writer.Federated = false, false
	}
	if o.Addr == "" {
		o.Mirrors, o.Writer.External, o.Writer.Federated = false, false, false
	}
	o.Mirrors = o.Mirrors && !o.ReadOnly

	if r := &o.Policy.Rules; o.Policy.Addr != "" {
		r.Identity = rules.IdentityDomain{
			ControlPlane: o.Discovery.ControllerNamespace, Domain: o.Discovery.TrustDomain,
		}
		r.ClusterDomain = o.Discovery.ClusterDomain
		r.OpaquePorts = rules.ListOf(o.Discovery.DefaultOpaquePorts)
	}
}

// addLinks adds what reads Links and links clusters.
func (a *App) addLinks(log logr.Logger, options Options, localConn *api.Connection) (err error) {
	listed := func() {
		a.ready.linksListed.Store(true)
		a.Store.MarkClustersListed()
	}

	labelled := options.Discovery.ControllerNamespace
	if options.OnlyLinks {
		labelled = ""
	}
	a.Links, err = links.NewReconciler(log, localConn, a.Registry, a.events, listed, links.Options{
		ClusterName: options.ClusterName, TrustDomain: options.Discovery.TrustDomain,
		ControllerNamespace: labelled, LinkNamespace: options.LinkNamespace, Mirrors: options.Mirrors,
		Hosts: links.Hosts{InCluster: options.InCluster, Allowed: options.AllowedHosts},
	})
	if err != nil {
		return err
	}

	a.Metrics.MustRegister(a.Links.Collectors()...)
	return nil
}

// addWriters adds what writes into clusters, unless nothing is to be written. Without a Lease this process belongs to
// no installation.
func (a *App) addWriters(ctx context.Context, log logr.Logger, options Options, localConn *api.Connection) error {
	if options.ReadOnly {
		a.installation = func() string { return "" }
		return nil
	}

	mirrors, err := mirror.New(log, a.Store, a.Registry, a.Links, localConn, options.Mirror)
	if err != nil {
		return err
	}

	campaign := apply.NewCampaign(log, a.Registry, apply.Options{
		Namespace: options.Writer.Namespace, Installations: options.Installations,
		Local: options.ClusterName, Replica: options.Replica,
		Timing: options.Lease, Stop: ctx.Done(),
	})
	a.installation = campaign.DisplayName
	options.Writer.Links, options.Writer.Events = a.Links, a.events
	writer := endpointslice.NewWriter(a.Store, a.Registry, options.Writer)
	writer.AddTo(campaign)
	a.Registry.Engage(writer.Engage)

	campaign.Add(apply.OwnLease, apply.Task{
		Name: "status of Links", Wanted: func(s cluster.Spec) bool { return s.Local && options.Addr != "" },
		Run: cutting(localConn, func(term context.Context, t *apply.Target) error {
			return a.Links.WriteStatus(term, t.Permissions, t.Failures("statuses"))
		}),
	})

	if options.Mirrors {
		campaign.Add(apply.OwnLease, apply.Task{
			Name: "mirror Services", Wanted: isLocal,
			Run: cutting(localConn, func(term context.Context, t *apply.Target) error {
				return mirrors.Run(term, t.Conn, t.Permissions, t.Failures("mirrors"))
			}),
		})
		a.Registry.Engage(mirrors.Engage)
	}

	a.addStatuses(options, campaign)
	a.Registry.Engage(campaign.Engage)
	a.Metrics.MustRegister(writer.Collectors()...)
	a.Metrics.MustRegister(mirrors.Collectors()...)
	return nil
}

// addStatuses adds what writes the status of routes, rate limits and EgressNetworks, if that is asked for.
func (a *App) addStatuses(options Options, campaign *apply.Campaign) {
	if a.Levels == nil || !options.Policy.Status {
		return
	}
	writer := routestatus.New(a.Levels)
	writer.AddTo(campaign)
	a.Metrics.MustRegister(writer.Collectors()...)
}

func isLocal(s cluster.Spec) bool { return s.Local }

// cutting returns a task that writes over a connection, of which nothing that waits is sent after the term. The Elector
// does that for the connection of the Target only.
func cutting(
	conn *api.Connection, run func(context.Context, *apply.Target) error,
) func(context.Context, *apply.Target) error {
	return func(term context.Context, t *apply.Target) error {
		defer context.AfterFunc(term, conn.CutWrites)()
		return run(term, t)
	}
}

// addServers adds what listens, and all that runs, to the process.
func (a *App) addServers(
	log logr.Logger, options Options, localConn *api.Connection, certificate *server.Certificate,
) error {
	all := prometheus.Gatherers{a.Metrics}
	if options.QueueMetrics {
		all = append(all, a.Registry.QueueMetrics())
	}

	a.Exported = server.Labelled(all, "installation", a.installation)

	a.Pages = debug.Handler(debug.Sources{
		Store: a.Store, Registry: a.Registry, Links: a.Links, Discovery: a.Discovery, Policy: a.Policy,
		Changes: a.Changes,
		Cluster: options.ClusterName, Namespace: options.Discovery.ControllerNamespace,
		Installations: options.Installations, Replica: options.Replica, Version: options.Version,
		ReadOnly: options.ReadOnly,
		Unreadable: func() map[string]string {
			all := certificate.Unreadable()
			maps.Copy(all, a.hooks.Unreadable())
			if a.issuing != nil {
				maps.Copy(all, a.issuing.issuer.Unreadable())
			}
			return all
		},
	})
	a.addGRPC(log, options, certificate)

	a.Add(
		Part{Name: "Links", Run: a.Links.Start, Ready: []server.Condition{a.ready.links()}},
		Part{Name: "debug server", Run: a.newHTTP("debug", options.DebugAddr, a.Pages).Start},
		Part{Name: "clusters", Run: a.Registry.Start, Ready: a.ready.clusters()},
	)
	a.addAdmin(options.AdminAddr, a.Exported, options.Pprof)
	if certificate != nil {
		a.addCertificate("certificate", certificate)
	}
	return a.addPeerServer(log, options, localConn, certificate)
}

// addGRPC adds the gRPC servers: of discovery, of policy and of identity. What one serves is unknown to the others.
func (a *App) addGRPC(log logr.Logger, options Options, certificate *server.Certificate) {
	of := server.GRPCOptions{
		Listen: options.Listen, Certificate: certificate,
		On: a.Serving, Ready: a.Ready, Metrics: server.NewGRPCMetrics(a.Metrics),
	}

	if options.Addr != "" {
		of.Name, of.Flag, of.Addr = "gRPC", "-addr", options.Addr
		of.Register = func(s grpc.ServiceRegistrar) { pb.RegisterDestinationServer(s, a.Discovery) }
		discovery := server.NewGRPC(log, of)
		a.Add(Part{Name: "gRPC server", Run: discovery.Start, Ready: []server.Condition{discovery.Listens()}})
	}

	if a.issuing != nil {
		a.addIdentityServer(a.issuing, options.Identity, of)
	}
	if options.Policy.Addr != "" {
		of.Name, of.Flag, of.Addr = "policy", cmp.Or(options.Policy.Flag, "-policy-addr"), options.Policy.Addr
		of.Register = a.Policy.Register
		policy := server.NewGRPC(log, of)
		listed := a.ready.rules(a.Levels, a.Rules)
		a.Add(Part{Name: "policy server", Run: policy.Start, Ready: []server.Condition{listed, policy.Listens()}})
	}
}
