package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/internal/logs"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/serving"
)

// serveOptions are the flags of serve. Names, defaults and meanings are those of Linkerd's destination where
// it has them.
type serveOptions struct {
	app.Options
	access         access
	webhookDir     string
	budgetMiB      int
	queueCapacity  int
	traceCollector string

	peerAuthentication bool
	labelledSecrets    bool
	issuance           issuanceFlags

	notes []note // for the log

	commonOptions
}

// A note is a line for the log.
type note struct {
	message string
	fields  []any
}

// note has a line logged once there is a log.
func (o *serveOptions) note(message string, fields ...any) {
	o.notes = append(o.notes, note{message, fields})
}

// commonOptions are flags of every server of this binary, and of every component of Linkerd.
type commonOptions struct {
	enablePprof         bool
	logLevel, logFormat string
	printVersion        bool
}

func (o *commonOptions) addCommonFlags(fs *flag.FlagSet) {
	fs.BoolVar(&o.enablePprof, "enable-pprof", false, "serve /debug/pprof on the admin server")
	fs.StringVar(&o.logLevel, "log-level", "info", "error, warn, info, debug or trace")
	fs.StringVar(&o.logFormat, "log-format", "plain", "plain or json")
	fs.BoolVar(&o.printVersion, "version", false, "print the version and exit")
}

func (o *serveOptions) addFlags(fs *flag.FlagSet) {
	o.Discovery = linkerd.Defaults()
	o.Discovery.ClusterDomain = ""
	o.Serving = serving.DefaultConfig()

	fs.StringVar(&o.Addr, "addr", ":8086",
		"address of the gRPC server of Linkerd's Destination API; empty, with -policy-addr, for policy alone")
	fs.StringVar(&o.AdminAddr, "metrics-addr", ":9996", "address of the admin server: /metrics, /ping, /live, /ready")
	fs.StringVar(&o.DebugAddr, "debug-addr", "127.0.0.1:9998",
		"address of the debug server, which shows the whole topology: a page for people at /, and JSON; "+
			"empty for none")

	fs.BoolVar(&o.QueueMetrics, "export-queue-metrics", true, "export metrics of work queues, workqueue_*")
	fs.IntVar(&o.queueCapacity, "stream-queue-capacity", 100, "has no effect: streams have no queues")
	fs.StringVar(&o.traceCollector, "trace-collector", "", "has no effect in this version")
	o.Discovery.Flags(fs)
	o.Serving.Flags(fs)
	o.addTLSFlags(fs)
	o.addClusterFlags(fs)
	o.addWriterFlags(fs)
	o.addMirrorFlags(fs)
	o.addPolicyFlags(fs)

	o.addWebhookFlags(fs)
	o.addIdentityFlags(fs)
	o.addCommonFlags(fs)
}

func (o *serveOptions) addTLSFlags(fs *flag.FlagSet) {
	f := &o.TLS
	fs.StringVar(&f.Certificate, "tls-cert-file", "",
		"certificate chain (PEM) of the gRPC server; empty to serve plaintext, as behind a proxy")
	fs.StringVar(&f.Key, "tls-key-file", "", "private key (PEM) of -tls-cert-file")
	fs.StringVar(&f.ClientCA, "tls-client-ca-file", "",
		"authorities (PEM) of the certificates that clients must present; empty to ask for none")
}

// addClusterFlags adds what is about reading clusters.
func (o *serveOptions) addClusterFlags(fs *flag.FlagSet) {
	o.Thresholds = federation.Thresholds{Suspect: 10 * time.Second, Stale: 150 * time.Second}
	fs.StringVar(&o.access.kubeconfig, "kubeconfig", "",
		"kubeconfig of this cluster; empty to use the service account of the Pod")
	fs.StringVar(&o.ClusterName, "cluster-name", "local", "name of this cluster in other clusters")
	fs.StringVar(&o.Discovery.TrustDomain, "identity-trust-domain", "",
		"trust domain of identities in this cluster (cluster.local if empty)")

	fs.StringVar(&o.LinkNamespace, "link-namespace", "", "namespace of Links; empty for all")
	fs.BoolVar(&o.labelledSecrets, "labelled-secrets", true,
		"link clusters by labelled Secrets in -controller-namespace as well; it takes the right to read all Secrets "+
			"there, such as the key of the mesh's issuer")
	const hostsHelp = "names, addresses and CIDRs of API servers that are allowed although they are loopback or " +
		"link-local, separated by commas"
	fs.Func("allow-kubeconfig-hosts", hostsHelp, func(list string) (err error) {
		o.AllowedHosts, err = links.ParseHosts(list)
		return err
	})

	fs.BoolVar(&o.ReadSlices, "enable-endpoint-slices", true,
		"read EndpointSlices; otherwise Endpoints, which have no zones and one address family")
	fs.DurationVar(&o.ProbeInterval, "probe-interval", 5*time.Second,
		"how often a cluster in contact is probed; others are probed each second")
	fs.DurationVar(&o.Thresholds.Suspect, "suspect-after", o.Thresholds.Suspect,
		"how long a cluster may be out of contact before it is Suspect")
	fs.DurationVar(&o.Thresholds.Stale, "stale-after", o.Thresholds.Stale,
		"how long a cluster may be out of contact before it is Stale; its endpoints are kept")
	fs.StringVar(&o.StateDir, "state-dir", "",
		"directory in which the last state of each cluster is kept, for a replica that starts while a cluster is "+
			"unreachable; of one replica alone; empty for none")

	fs.DurationVar(&o.StateMaxAge, "state-max-age", 24*time.Hour,
		"how old the state may be that a replica restores from -state-dir")
	fs.StringVar(&o.Peers.ListenAddr, "peer-addr", "",
		"address at which other replicas ask for the state of clusters that they cannot reach. With -tls-cert-file it "+
			"takes certificates of -tls-client-ca-file; empty for none")
	fs.StringVar(&o.Peers.Addr, "peers", "",
		"host and port of -peer-addr of all replicas, as of a headless Service: they are asked at the start about "+
			"clusters that cannot be reached or that have lost their Links; empty to ask none")

	fs.StringVar(&o.Peers.ServerName, "peer-server-name", "",
		"name in the certificates of -peers; empty for the host")
	fs.StringVar(&o.Peers.TokenFile, "peer-token-file", "",
		"token of this process's ServiceAccount, with the audience "+server.PeerAudience+" (a projected volume), by "+
			"which replicas know each other: -peer-addr answers those that have one of the same account. It takes the "+
			"right to create tokenreviews.authentication.k8s.io")
	fs.BoolVar(&o.peerAuthentication, "peer-authentication", true,
		"answer at -peer-addr only who proves to be a replica, by -peer-token-file; false, as outside of Kubernetes: "+
			"any client that reaches it reads Services, addresses and names of Pods of all clusters")

	fs.IntVar(&o.Budget.Services, "cluster-max-services", 20_000,
		"Services that are kept of a linked cluster; beyond it new ones are rejected, and those accepted before "+
			"stay; 0 for no limit")
	fs.IntVar(&o.Budget.Endpoints, "cluster-max-endpoints", 200_000,
		"endpoints that are kept of a linked cluster, and objects of each other kind; 0 for no limit")
	fs.IntVar(&o.Budget.ServiceEndpoints, "cluster-max-endpoints-per-service", 10_000,
		"endpoints of one Service of a linked cluster that clients get and slices have; those beyond, in the "+
			"EndpointSlices that come last by name, are left out; 0 for no limit")
	fs.IntVar(&o.budgetMiB, "cluster-max-mib", 128,
		"MiB of records that are kept of a linked cluster; what is served from them takes about as much again; "+
			"0 for no limit")
}

// addWriterFlags adds what is about EndpointSlices, and about the Leases under which replicas write.
func (o *serveOptions) addWriterFlags(fs *flag.FlagSet) {
	fs.BoolVar(&o.ReadOnly, "read-only", false,
		"discovery only: write nothing into any cluster, neither slices, mirrors and the status of Links nor Leases "+
			"and Events (default true outside of a Pod)")
	fs.BoolVar(&o.Writer.External, "external-workload-slices", true,
		"write the EndpointSlices of ExternalWorkloads into every cluster that permits it")
	fs.BoolVar(&o.Writer.Federated, "federated-slices", true,
		"write endpoints of other clusters as EndpointSlices, for Services that ask for it, into this cluster "+
			"and those whose Link asks for it")
	fs.IntVar(&o.Writer.MaxSlices, "max-slices-per-source", 100,
		"EndpointSlices of one Service with endpoints of one other cluster; beyond it none is created, existing ones "+
			"are kept up to date, and the Link has a condition; 0 for no limit")

	const installationsHelp = "namespaces of other control planes that write into the same clusters, besides " +
		"-controller-namespace, separated by commas: Leases of installations count there only, so name none in which " +
		"others than admins create Leases"
	fs.Func("installation-namespaces", installationsHelp, func(list string) (err error) {
		o.Installations, err = parseNamespaces(list)
		return err
	})

	timing := &o.Lease
	fs.DurationVar(&timing.Duration, "lease-duration", 6*time.Second,
		"how long after its last renewal another replica may take a Lease; a minute at most")
	fs.DurationVar(&timing.Renew, "lease-renew-interval", 2*time.Second,
		"how often the holder of a Lease renews it")
	fs.DurationVar(&timing.Fence, "lease-fence", 4500*time.Millisecond,
		"how long after the last successful renewal the holder stops writing")
}

func (o *serveOptions) addMirrorFlags(fs *flag.FlagSet) {
	o.Mirrors = true
	const mirrorHelp = "write the Services that Links ask for into this cluster: on, or off. Fingerpost leaves a " +
		"Link to Linkerd's service mirror while that holds the Link's Lease (default on)"
	fs.Func("mirror-services", mirrorHelp, func(text string) error {
		if text != "on" && text != "off" {
			return fmt.Errorf("%q is neither on nor off; on leaves a Link to Linkerd's service mirror while "+
				"that holds its Lease", text)
		}
		o.Mirrors = text == "on"
		return nil
	})

	fs.IntVar(&o.Mirror.MaxServices, "max-mirrors-per-link", 1000,
		"Services that are mirrored from one linked cluster; beyond it none is created, existing ones are kept up to "+
			"date, and the Link has a condition; 0 for no limit")
	const excludeHelp = "keys of labels and annotations that are not copied onto mirrored and federated Services, " +
		"besides those of known controllers (docs/mirror.md), separated by commas; foo/* for all that begin with foo/"
	fs.Func("mirror-exclude-keys", excludeHelp, func(list string) (err error) {
		o.Mirror.Exclude, err = parseExcludedKeys(list)
		return err
	})

	fs.BoolVar(&o.Mirror.Headless, "mirror-headless-services", false,
		"mirror headless Services as such, with a Service for each named instance; otherwise as Services with a "+
			"cluster IP")
	fs.BoolVar(&o.Mirror.CreateNamespaces, "mirror-create-namespaces", false,
		"create missing namespaces of mirrored Services")
	fs.BoolVar(&o.Mirror.Probe, "mirror-probe-gateways", false,
		"probe gateways as their Links define it; needs a sidecar, because gateways require mTLS")
}

// addPolicyFlags adds what is about Linkerd's policy API.
func (o *serveOptions) addPolicyFlags(fs *flag.FlagSet) {
	policy, rule := &o.Policy, &o.Policy.Rules
	rule.ClusterNetworks, rule.DefaultPolicy = defaultClusterNetworks(), rules.AllUnauthenticated

	fs.StringVar(&policy.Addr, "policy-addr", "",
		"address of the gRPC server of Linkerd's policy API, for inbound and outbound traffic; empty: nothing of "+
			"policy is read, served or written")
	fs.BoolVar(&policy.Status, "policy-status", true,
		"write the status of routes, rate limits and EgressNetworks, while this replica holds the Lease for it, which "+
			"Linkerd's policy controller has too")

	fs.Var((*networksValue)(&rule.ClusterNetworks), "cluster-networks",
		"networks and addresses that are inside of the cluster, separated by commas: an EgressNetwork is for "+
			"others alone, and ServerAuthorizations without networks, and default policies of that name, are for these")
	fs.Var((*policyValue)(&rule.DefaultPolicy), "default-inbound-policy",
		"who may reach ports of Pods that no Server selects, and that have no annotation: "+policyNames())
	fs.Var((*networksValue)(&rule.ProbeNetworks), "probe-networks",
		"networks and addresses from which kubelets probe, separated by commas: probes of Pods are let in from there, "+
			"whatever else is; empty: nothing is let in as a probe")

	fs.StringVar(&rule.EgressNamespace, "global-egress-network-namespace", "linkerd-egress",
		"namespace whose EgressNetworks are for clients of namespaces that have none")
	fs.BoolVar(&rule.GRPCAppProtocol, "policy-app-protocol-grpc", true,
		"take the appProtocol grpc of a Service's port for HTTP/2; otherwise it is opaque, as to Linkerd")
	fs.BoolVar(&rule.AllowRequestHeaders, "allow-l5d-request-headers", false,
		"let clients set timeouts and retries of a request by its l5d-* headers, where a route is in force")
}

// addWebhookFlags adds what is about admission webhooks.
func (o *serveOptions) addWebhookFlags(fs *flag.FlagSet) {
	o.Webhooks.Profiles, o.Webhooks.Policy, o.Webhooks.Flag = true, true, "-webhook-tls-dir"

	fs.Func("webhook-addr",
		"addresses of admission webhooks, with TLS 1.3, separated by commas: each reviews ServiceProfiles, objects of "+
			"policy and routes; empty for none", func(list string) error {
			o.Webhooks.Addrs = nil

			for addr := range strings.SplitSeq(list, ",") {
				if addr = strings.TrimSpace(addr); addr == "" {
					continue
				}
				if _, _, err := net.SplitHostPort(addr); err != nil {
					return fmt.Errorf("%q is no address such as :8443", addr)
				}
				o.Webhooks.Addrs = append(o.Webhooks.Addrs, addr)
			}
			return nil
		})
	fs.StringVar(&o.webhookDir, "webhook-tls-dir", "/var/run/linkerd/tls",
		"directory of the certificate of -webhook-addr, tls.crt, and its key, tls.key; several, separated by commas, "+
			"where API servers reach it by several names; read again when they change")

	fs.StringVar(&o.Webhooks.Inject.Values, "injector-values", "",
		"file of the values that the mesh was installed with, as the ConfigMap linkerd-config has them: the webhooks "+
			"at -webhook-addr then add proxies to Pods; empty for no injection; read again when it changes")
	fs.StringVar(&o.Webhooks.Inject.Anchors, "injector-trust-anchors", anchorsFile,
		"file of the trust anchors of the mesh (PEM), for -injector-values; read again when it changes")
	addServiceFlags(fs, &o.Webhooks.Inject)
}

// A networksValue is a list of networks as a flag.
type networksValue []rules.Network

// Set reads networks and addresses, separated by commas. A bad one is an error, which quotes it: without it more or
// less would count than is meant.
func (v *networksValue) Set(list string) error {
	var networks []rules.Network

	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		network, err := rules.ParseNetwork(item, nil)
		if err != nil {
			return err
		}
		networks = append(networks, network)
	}
	*v = networks
	return nil
}

// String returns the list.
func (v *networksValue) String() string {
	var items []string
	for _, network := range *v {
		items = append(items, network.Block().String())
	}
	return strings.Join(items, ",")
}

// defaultClusterNetworks are the private networks of IPv4, and that of carriers: the default of Linkerd's policy
// controller.
func defaultClusterNetworks() []rules.Network {
	var v networksValue
	if err := v.Set("10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16"); err != nil {
		panic(err) // they are constant
	}
	return v
}

// A policyValue is the name of a default policy as a flag.
type policyValue rules.DefaultPolicy

// Set reads a name.
func (v *policyValue) Set(name string) error {
	policy, known := rules.ParseDefaultPolicy(name)
	if !known {
		return fmt.Errorf("%q is none of %s", name, policyNames())
	}
	*v = policyValue(policy)
	return nil
}

// String returns the name.
func (v *policyValue) String() string { return rules.DefaultPolicy(*v).String() }

func policyNames() string {
	var names []string
	for policy := rules.AllUnauthenticated; policy <= rules.Audit; policy++ {
		names = append(names, policy.String())
	}
	return strings.Join(names, ", ") + " and " + rules.Deny.String()
}

func parseNamespaces(list string) (names []string, err error) {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return nil, fmt.Errorf("%q is no namespace: %s", name, strings.Join(problems, "; "))
		}
		names = append(names, name)
	}
	return names, nil
}

func parseExcludedKeys(list string) (keys []string, err error) {
	for key := range strings.SplitSeq(list, ",") {
		if key = strings.TrimSpace(key); key == "" {
			continue
		}
		if i := strings.IndexByte(key, '*'); i >= 0 && (i < len(key)-1 || !strings.HasSuffix(key, "/*")) {
			return nil, fmt.Errorf("%q is no key: a star may stand at the end only, after a slash", key)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// validate sets what follows from other options, and rejects combinations that cannot be served.
func (o *serveOptions) validate() error {
	if o.Discovery.ClusterDomain == "" {
		o.Discovery.ClusterDomain = "cluster.local"
	}
	if o.Discovery.TrustDomain == "" {
		o.Discovery.TrustDomain = "cluster.local"
	}
	o.OnlyLinks = !o.labelledSecrets

	switch {
	case !o.ReadSlices && o.Discovery.IPv6:
		return errors.New("-enable-ipv6 needs -enable-endpoint-slices")
	case o.queueCapacity <= 0:
		return errors.New("-stream-queue-capacity must be greater than 0")
	case len(validation.IsDNS1123Label(o.ClusterName)) > 0:
		return fmt.Errorf("-cluster-name must be a DNS label, small letters, digits and dashes, and not %q",
			o.ClusterName)
	case o.Addr == "" && o.Policy.Addr == "":
		return errors.New("-addr must not be empty without -policy-addr: it is where clients reach the gRPC server, " +
			"such as :8086")
	case o.Policy.Addr != "" && len(o.Policy.Rules.ClusterNetworks) == 0:
		return errors.New("-cluster-networks must not be empty: without what is inside of the cluster its own " +
			"addresses would count as egress")
	case o.Policy.Addr != "" && len(validation.IsDNS1123Label(o.Policy.Rules.EgressNamespace)) > 0:
		return fmt.Errorf("-global-egress-network-namespace must be a namespace, and not %q",
			o.Policy.Rules.EgressNamespace)
	case o.ProbeInterval <= 0:
		return errors.New("-probe-interval must be greater than 0")
	case o.Mirror.MaxServices < 0:
		return errors.New("-max-mirrors-per-link must not be negative")
	case o.Writer.MaxSlices < 0:
		return errors.New("-max-slices-per-source must not be negative")
	case o.Budget.Services < 0 || o.Budget.Endpoints < 0 || o.Budget.ServiceEndpoints < 0 || o.budgetMiB < 0:
		return errors.New("-cluster-max-services, -cluster-max-endpoints, -cluster-max-endpoints-per-service and " +
			"-cluster-max-mib must not be negative")
	case o.Thresholds.Suspect <= o.ProbeInterval:
		return fmt.Errorf("-suspect-after (%s) must be greater than -probe-interval (%s)",
			o.Thresholds.Suspect, o.ProbeInterval)
	case o.Thresholds.Stale <= o.Thresholds.Suspect:
		return fmt.Errorf("-stale-after (%s) must be greater than -suspect-after (%s)",
			o.Thresholds.Stale, o.Thresholds.Suspect)
	}
	if err := validateServices(o.Webhooks.Inject); err != nil {
		return err
	}

	o.Budget.Bytes = int64(o.budgetMiB) << 20
	if o.webhookDir != "" {
		o.Webhooks.TLS = webhookFiles(o.webhookDir)
	}
	if o.Peers.Addr != "" {
		host, _, err := net.SplitHostPort(o.Peers.Addr)
		if err != nil {
			return fmt.Errorf("-peers must be a host and a port: %w", err)
		}
		o.Peers.ServerName = cmp.Or(o.Peers.ServerName, host)
	}

	if o.Peers.Addr+o.Peers.ListenAddr != "" && o.TLS.Certificate != "" && o.TLS.ClientCA == "" {
		return errors.New("-peer-addr and -peers need -tls-client-ca-file beside -tls-cert-file: " +
			"both sides present certificates")
	}

	switch asks := o.Peers.Addr+o.Peers.ListenAddr != ""; {
	case !o.peerAuthentication:
		o.Peers.TokenFile = ""
	case asks && o.Peers.TokenFile == "":
		return errors.New(
			"-peer-addr and -peers need -peer-token-file, by which replicas know each other: outside of " +
				"Kubernetes set -peer-authentication=false, and let nothing else reach -peer-addr",
		)
	}

	err := errors.Join(o.TLS.Validate(), o.Discovery.Validate(), o.Serving.Validate(), o.Lease.Validate(),
		o.validateIdentity())
	if err != nil {
		return err
	}

	o.Pprof, o.Replica = o.enablePprof, os.Getenv("HOSTNAME")
	if o.Replica == "" {
		name, err := os.Hostname()
		o.Replica = name
		if o.ReadSlices && name == "" {
			return fmt.Errorf("this replica has no name: HOSTNAME is not set, and the host has no name (%w)", err)
		}
	}
	return nil
}

// logWarnings logs what is accepted, but may not be intended.
func (o *serveOptions) logWarnings(log logr.Logger, given map[string]bool) {
	for _, n := range o.notes {
		log.Info(n.message, n.fields...)
	}

	o.issuance.logWarnings(log)
	if !given["cluster-domain"] {
		log.Info("-cluster-domain is not set", "using", o.Discovery.ClusterDomain)
	}
	if !given["identity-trust-domain"] {
		log.Info("-identity-trust-domain is not set", "using", o.Discovery.TrustDomain)
	}
	if given["stream-queue-capacity"] {
		log.Info("-stream-queue-capacity has no effect: streams have no queues, and a slow client gets the " +
			"newest state when it reads again")
	}

	if o.Peers.ListenAddr != "" && !o.peerAuthentication {
		logs.Warn(log, "Any client that reaches -peer-addr reads Services, addresses and names of Pods of all "+
			"clusters, because -peer-authentication is off",
			"addr", o.Peers.ListenAddr, "certificates", o.TLS.ClientCA != "")
	}
	if o.traceCollector != "" {
		log.Info("-trace-collector has no effect in this version", "collector", o.traceCollector)
	}
}

// singleDashed are the commands whose flags may have one dash.
var singleDashed = []string{"serve", "destination", "policy", "identity", "sp-validator", "proxy-injector"}

// doubleDashes adds a dash to the flags of servers that have one, as Linkerd's components accept both.
func doubleDashes(args []string) []string {
	if len(args) == 0 || !slices.Contains(singleDashed, args[0]) {
		return args
	}

	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "--" {
			break
		}
		if len(arg) > 2 && arg[0] == '-' && arg[1] != '-' && !strings.ContainsAny(arg[1:2], "0123456789.") {
			args[i] = "-" + arg
		}
	}
	return args
}
