package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/links"
)

// LinkVersion is the version of Links that we write.
const LinkVersion = "v1alpha3"

const minTokenDuration = 10 * time.Minute // the least that API servers accept

// anyHost allows every address of an API server: which addresses are allowed is decided by the server.
var anyHost = links.Hosts{Allowed: []string{"0.0.0.0/0", "::/0"}}

func linkCommand(version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "link",
		Short: "Print manifests that link a cluster, or that renew its credentials",
		Long: `Print manifests that link a cluster, or that renew its credentials. --kubeconfig and --context
name the cluster to be linked; apply what is printed to the cluster that links it. The command
applies nothing. It creates a token, and nothing else.`,
	}
	cmd.AddCommand(linkGenCommand(version), linkRotateCommand(version), linkRenewCommand(version))
	return cmd
}

func linkGenCommand(version string) *cobra.Command {
	options := linkOptions{kubeFlags: kubeFlags{version: version}}
	cmd := &cobra.Command{
		Use:   "gen NAME | --fleet FILE",
		Short: "Print the Secret and the Link that link a cluster",
		Long: `Print the Secret and the Link that link a cluster under a name. Use the same name in all clusters.

The Secret is beside the Link, which names it. It holds a token of a ServiceAccount of the linked
cluster: with it one can read that cluster's Services, EndpointSlices and Pods. --into names the
cluster to which both are applied: its Deployment of Fingerpost has the namespace in which it reads
Links. Without --into it is taken for installed like the linked one.`,
		Example: `  fingerpost link gen west --context west --into east | kubectl --context east apply -f -
  fingerpost link gen west --context west --into east --api-server-address https://west.example |
    kubectl --context east apply -f -
  fingerpost link gen --fleet fleet.yaml --dir links`,
		Args: options.nameOrFleet,
		RunE: func(cmd *cobra.Command, args []string) error {
			gateway := []string{"gateway", "gateway-name", "gateway-namespace", "gateway-addresses"}
			options.gatewayRequired = slices.ContainsFunc(gateway, cmd.Flags().Changed)
			if !cmd.Flags().Changed("gateway") {
				options.gateway = options.gatewayRequired || options.preset == linkerdPreset
			}
			return options.run(cmd, args, true)
		},
	}

	options.addLinkFlags(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&options.gateway, "gateway", false,
		"add the addresses of the cluster's gateway to the Link; --preset linkerd does if there is one")
	fs.StringVar(&options.gatewayName, "gateway-name", "linkerd-gateway", "Service of the gateway")
	fs.StringVar(&options.gatewayNamespace, "gateway-namespace", "linkerd-multicluster", "namespace of the gateway")
	fs.StringVar(&options.gatewayAddresses, "gateway-addresses", "",
		"addresses of the gateway, separated by commas, instead of those of its Service")
	return cmd
}

func linkRotateCommand(version string) *cobra.Command {
	options := linkOptions{kubeFlags: kubeFlags{version: version}}

	cmd := &cobra.Command{
		Use:   "rotate NAME | --fleet FILE",
		Short: "Print the Secret of a linked cluster with a new token",
		Long: `Print the Secret of a linked cluster with a new token. When it is applied, Fingerpost uses the old
token until the new one works, so that clients notice nothing. Use the flags that you used with
'fingerpost link gen'.`,
		Example: "  fingerpost link rotate west --context west --into east | kubectl --context east apply -f -",
		Args:    options.nameOrFleet,
		RunE:    func(cmd *cobra.Command, args []string) error { return options.run(cmd, args, false) },
	}
	options.addLinkFlags(cmd)
	return cmd
}

// linkOptions are how a cluster is linked.
type linkOptions struct {
	kubeFlags
	output, preset                                  string
	fleet, dir, into                                string
	controllerNamespace, linkNamespace              string
	presetNamespace                                 string // of Links, if it cannot be found out
	account, accountNamespace                       string
	tokenSecret                                     string
	duration                                        time.Duration
	server                                          string
	trustDomain, clusterDomain                      string
	labelledSecret                                  bool
	gateway, gatewayRequired                        bool
	gatewayName, gatewayNamespace, gatewayAddresses string
}

func (o *linkOptions) addLinkFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	groupFlags(fs, o.addKubeFlags)
	AddChoice(cmd, &o.output, "output", "o", "", yamlOutput, jsonOutput)
	AddChoice(cmd, &o.preset, "preset", "", "defaults of the flags about accounts, namespaces and gateways, as the "+
		"charts of one of the two have them: ", chartPreset, linkerdPreset)
	fs.StringVar(&o.fleet, "fleet", "",
		"file that names clusters, their contexts, and which of them read which, instead of one cluster")

	fs.StringVar(&o.dir, "dir", "links",
		"directory of a --fleet's manifests: a file for each cluster, to be applied to it")
	fs.StringVar(&o.into, "into", "",
		"context of the cluster to which the manifests are applied, to find out the --link-namespace")
	fs.StringVar(&o.linkNamespace, "link-namespace", "",
		"namespace of the Link and its Secret; empty for that in which Fingerpost reads Links")
	fs.StringVarP(&o.controllerNamespace, "linkerd-namespace", "L", "",
		"namespace of the mesh's control plane; empty for the linked cluster's controllerNamespace, or linkerd")

	fs.BoolVar(&o.labelledSecret, "labelled-secret", false,
		"print the Secret for the --linkerd-namespace as well, with the label by which Linkerd's destination finds it")
	fs.StringVar(&o.account, "service-account-name", "", "ServiceAccount of the token, instead of that of the preset")
	fs.StringVar(&o.accountNamespace, "service-account-namespace", "",
		"namespace of the ServiceAccount, instead of that of the preset")
	fs.DurationVar(&o.duration, "token-duration", 30*24*time.Hour,
		"how long the token is valid, at least 10m; the API server may grant less")
	fs.StringVar(&o.tokenSecret, "token-secret", "",
		"Secret with a token of the ServiceAccount that does not expire, in its namespace, instead of a new "+
			"token")

	fs.StringVar(&o.server, "api-server-address", "",
		"URL by which Fingerpost reaches the API server, if it is not that of your kubeconfig")
	fs.StringVar(&o.trustDomain, "trust-domain", "",
		"trust domain of the cluster's identities, instead of that of its mesh")
	fs.StringVar(&o.clusterDomain, "cluster-domain", "",
		"domain of the cluster's DNS names, instead of that of its mesh")
}

// A manifest has the fields that we set, and no others.
type manifest = map[string]any

// The presets are for the charts of Fingerpost, and for those of Linkerd.
const (
	chartPreset   = "fingerpost"
	linkerdPreset = "linkerd"
)

// usePreset sets what no flag has set as the charts of the preset have it.
func (o *linkOptions) usePreset(cmd *cobra.Command) {
	account, namespace := "fingerpost-link", chartPreset
	if o.preset == linkerdPreset {
		account, namespace = "linkerd-service-mirror-remote-access-default", "linkerd-multicluster"
		o.labelledSecret = o.labelledSecret || !cmd.Flags().Changed("labelled-secret")
	}
	o.account, o.accountNamespace = cmp.Or(o.account, account), cmp.Or(o.accountNamespace, namespace)
	o.presetNamespace = namespace
}

// run prints the manifests of one cluster, or writes those of a fleet.
func (o *linkOptions) run(cmd *cobra.Command, args []string, withLink bool) error {
	o.usePreset(cmd)
	if o.duration < minTokenDuration {
		return usageError(cmd, tooShort(o.duration))
	}
	if o.fleet != "" {
		return o.writeFleet(cmd, withLink)
	}
	if err := checkName(args[0]); err != nil {
		return usageError(cmd, err)
	}

	linked, err := o.open(cmd, args[0], withLink)
	if err != nil {
		return err
	}
	namespace, err := o.linkingNamespace(cmd.Context(), linked)
	if err != nil {
		return err
	}

	manifests, end, err := linked.manifests(cmd.Context(), namespace, false)
	if err != nil {
		return err
	}
	var tokens tokenEnds
	tokens.add(linked.name, end)
	tokens.report(cmd.ErrOrStderr())
	return o.writeManifests(cmd.OutOrStdout(), manifests)
}

// A linkable is a cluster to be linked, with options that were found out from it.
type linkable struct {
	linkOptions
	name      string
	config    *rest.Config
	client    kubernetes.Interface
	installed *installation // nil if it has none, or none that can be read
	unread    error         // why not
	spec      manifest      // of Links; nil for none
}

// open reads a cluster to be linked, and reports what is wrong with links to it. It creates nothing.
func (o *linkOptions) open(cmd *cobra.Command, name string, withLink bool) (linked *linkable, err error) {
	linked = &linkable{linkOptions: *o, name: name}
	if linked.config, linked.client, err = linked.connect(); err != nil {
		return nil, err
	}
	ctx := cmd.Context()
	linked.installed, linked.unread = findInstallation(ctx, linked.client, "")

	if err := linked.findOut(ctx); err != nil {
		return nil, err
	}
	if withLink {
		if linked.spec, err = linked.linkSpec(ctx); err != nil {
			return nil, err
		}
	}
	linked.reportProblem(cmd.ErrOrStderr())

	kubeconfig, err := linked.kubeconfig("untried")
	if err != nil {
		return nil, err
	}
	// A server outside of a Pod may accept an address that one in a Pod rejects.
	if _, err := links.Credentials(kubeconfig, links.Hosts{InCluster: true}); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "A server in a Pod rejects the kubeconfig of %s: %s. "+
			"Set --api-server-address, or apiServerAddress in the file of a fleet.\n", name, Printable(err.Error()))
	}
	linked.reportLeftOut(cmd.ErrOrStderr())
	return linked, nil
}

// connect returns the access to the API server of the current context.
func (k *kubeFlags) connect() (*rest.Config, kubernetes.Interface, error) {
	config, err := k.RESTConfig()
	if err != nil {
		return nil, nil, err
	}
	config.Timeout = requestTimeout
	client, err := kubernetes.NewForConfig(config)
	return config, client, err
}

// manifests makes a token, and returns the manifests that link the cluster, with Links in a namespace.
func (l *linkable) manifests(
	ctx context.Context, namespace string, writes bool,
) (all []manifest, end time.Time, err error) {
	token, end, err := l.newToken(ctx)
	if err != nil {
		return nil, end, err
	}
	kubeconfig, err := l.kubeconfig(token)
	if err != nil {
		return nil, end, err
	}

	all = append(all, l.newSecret(namespace, kubeconfig))
	if l.labelledSecret && namespace != l.controllerNamespace {
		all = append(all, l.newSecret(l.controllerNamespace, kubeconfig))
	}
	if l.spec != nil {
		all = append(all, l.newLink(namespace, writes))
	}
	return all, end, nil
}

// reportProblem writes what a server would report of Links, such as of what the gateway's annotations set.
func (l *linkable) reportProblem(to io.Writer) {
	if problem := links.MirroringProblem(l.spec); problem != "" {
		fmt.Fprintf(to, "The Link of %s will have a problem: %s. See the annotations of its gateway %s/%s.\n",
			l.name, Printable(problem), l.gatewayNamespace, l.gatewayName)
	}
}

// reportLeftOut writes what of the user's kubeconfig is not in the printed one, and matters to who uses it: how the API
// server is reached, and who asks. The address, the authority and the name in its certificate are in it.
func (l *linkable) reportLeftOut(to io.Writer) {
	if proxy := proxyOf(l.config); proxy != "" {
		fmt.Fprintf(
			to,
			"The kubeconfig of %s leaves out %s: Fingerpost connects to API servers directly. If %s cannot "+
				"be reached without the proxy, name another address by --api-server-address.\n",
			l.name,
			proxy,
			Printable(cmp.Or(l.server, l.config.Host)),
		)
	}

	var user []string
	for field, isSet := range map[string]bool{
		"user.exec":          l.config.ExecProvider != nil,
		"user.auth-provider": l.config.AuthProvider != nil,
		"user.as":            !reflect.ValueOf(l.config.Impersonate).IsZero(),
		"user.username":      l.config.Username != "",
	} {
		if isSet {
			user = append(user, field)
		}
	}

	slices.Sort(user)
	if len(user) > 0 {
		fmt.Fprintf(to, "The kubeconfig of %s leaves out your %s: in it is the token of ServiceAccount %s/%s.\n",
			l.name, strings.Join(user, ", "), l.accountNamespace, l.account)
	}
}

// proxyOf returns by which setting of the user an API server is reached over a proxy; empty for none.
func proxyOf(config *rest.Config) string {
	if config.Proxy != nil {
		return "cluster.proxy-url"
	}
	request, err := http.NewRequest(http.MethodGet, config.Host, http.NoBody)
	if err != nil {
		return ""
	}
	if proxy, err := http.ProxyFromEnvironment(request); err == nil && proxy != nil {
		return "HTTPS_PROXY of your environment"
	}
	return ""
}

func tooShort(d time.Duration) error {
	return fmt.Errorf("--token-duration %s is too short: API servers make no token for less than %s",
		d, minTokenDuration)
}

func (o *linkOptions) writeManifests(to io.Writer, manifests []manifest) error {
	for i, m := range manifests {
		if i > 0 && o.output == yamlOutput {
			fmt.Fprintln(to, "---")
		}
		if err := printPage(to, m, o.output); err != nil {
			return err
		}
	}
	return nil
}

// findOut sets the namespace of the mesh and the domains that no flag sets to those of the cluster.
func (l *linkable) findOut(ctx context.Context) error {
	installed := cmp.Or(l.installed, &installation{})
	l.controllerNamespace = cmp.Or(l.controllerNamespace, installed.controllerNamespace, "linkerd")
	if l.trustDomain != "" && l.clusterDomain != "" {
		return nil
	}

	mesh := linkerd.Config{
		TrustDomain:   cmp.Or(installed.trustDomain, "cluster.local"), // as the chart has by default
		ClusterDomain: cmp.Or(installed.clusterDomain, "cluster.local"),
	}
	maps := l.client.CoreV1().ConfigMaps(l.controllerNamespace)
	config, err := maps.Get(ctx, linkerd.ConfigName, metav1.GetOptions{})
	switch {
	case err == nil: // the values that Linkerd was installed with
		mesh, err = linkerd.ParseConfig(config.Data[linkerd.ConfigValuesKey])
	case apierrors.IsNotFound(err) && l.preset == chartPreset:
		err = nil
	}

	if err != nil {
		return fmt.Errorf("the configuration of the mesh cannot be read, so set --trust-domain and "+
			"--cluster-domain: %w", err)
	}
	l.trustDomain = cmp.Or(l.trustDomain, mesh.TrustDomain)
	l.clusterDomain = cmp.Or(l.clusterDomain, mesh.ClusterDomain)
	return nil
}

// linkingNamespace returns in which namespace the cluster that links another one reads Links.
func (o *linkOptions) linkingNamespace(ctx context.Context, linked *linkable) (string, error) {
	if o.into == "" || o.linkNamespace != "" {
		installed := cmp.Or(linked.installed, &installation{})
		return cmp.Or(o.linkNamespace, installed.linkNamespace, o.presetNamespace), nil
	}

	linking := &linkable{linkOptions: *o, name: o.into}
	linking.overrides.CurrentContext = o.into
	_, client, err := linking.connect()
	if err != nil {
		return "", fmt.Errorf("--into %s: %w", o.into, err)
	}

	linking.installed, linking.unread = findInstallation(ctx, client, "")
	namespace, err := linking.linksIn()
	if err != nil {
		return "", fmt.Errorf("--into %s: %w", o.into, err)
	}
	return namespace, nil
}

// linksIn returns in which namespace the cluster reads Links.
func (l *linkable) linksIn() (string, error) {
	switch {
	case l.linkNamespace != "":
		return l.linkNamespace, nil
	case l.installed != nil:
		return cmp.Or(l.installed.linkNamespace, l.presetNamespace), nil
	}
	why := cmp.Or(l.unread, errors.New("there is no Deployment of Fingerpost"))
	return "", fmt.Errorf("in which namespace does it read Links? Set --link-namespace: %w", why)
}

// newToken returns a token of the ServiceAccount, and when it expires; zero for never.
func (l *linkable) newToken(ctx context.Context) (token string, expires time.Time, err error) {
	if l.tokenSecret != "" {
		token, err := l.readToken(ctx)
		return token, time.Time{}, err
	}
	created, err := createToken(ctx, l.client, l.accountNamespace, l.account, nil, l.duration)
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("there is no ServiceAccount %s/%s for the token: "+
			"install chart fingerpost-link there, or name another one; "+
			"--preset linkerd has that of Linkerd's chart", l.accountNamespace, l.account)
	}
	return created.Token, created.ExpirationTimestamp.Time, err
}

// createToken creates a token of a ServiceAccount, for the API server if there are no audiences.
func createToken(
	ctx context.Context, client kubernetes.Interface, namespace, account string, audiences []string,
	valid time.Duration,
) (authenticationv1.TokenRequestStatus, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: audiences, ExpirationSeconds: new(int64(valid.Seconds())),
	}}
	accounts := client.CoreV1().ServiceAccounts(namespace)
	created, err := accounts.CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		err = fmt.Errorf("create a token of ServiceAccount %s/%s: %w", namespace, account, err)
		return authenticationv1.TokenRequestStatus{}, err
	}
	return created.Status, nil
}

// readToken returns the token of the ServiceAccount in a Secret.
func (l *linkable) readToken(ctx context.Context) (string, error) {
	secret, err := l.client.CoreV1().Secrets(l.accountNamespace).Get(ctx, l.tokenSecret, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("--token-secret: %w", err)
	}
	token := secret.Data[corev1.ServiceAccountTokenKey]
	ofAccount := secret.Type == corev1.SecretTypeServiceAccountToken &&
		secret.Annotations[corev1.ServiceAccountNameKey] == l.account
	if !ofAccount || len(token) == 0 {
		return "", fmt.Errorf("--token-secret: %s/%s holds no token of ServiceAccount %s/%s",
			secret.Namespace, secret.Name, l.accountNamespace, l.account)
	}
	return string(token), nil
}

// kubeconfig returns a kubeconfig with inline data only.
func (l *linkable) kubeconfig(token string) ([]byte, error) {
	config := rest.CopyConfig(l.config)
	if config.Insecure {
		return nil, errors.New("your kubeconfig does not verify the API server, which Fingerpost rejects: " +
			"add a certificate-authority")
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("your kubeconfig: %w", err)
	}

	k := clientcmdapi.NewConfig()
	k.Clusters[l.name] = &clientcmdapi.Cluster{
		Server:                   cmp.Or(l.server, config.Host),
		CertificateAuthorityData: config.CAData,
		TLSServerName:            config.ServerName,
	}
	k.AuthInfos[l.account] = &clientcmdapi.AuthInfo{Token: token}
	k.Contexts[l.name] = &clientcmdapi.Context{Cluster: l.name, AuthInfo: l.account}
	k.CurrentContext = l.name
	return writeKubeconfig(k)
}

// writeKubeconfig returns the text of a kubeconfig, which Fingerpost accepts unless it does not allow the host.
func writeKubeconfig(config *clientcmdapi.Config) ([]byte, error) {
	b, err := clientcmd.Write(*config)
	if err != nil {
		return nil, err
	}
	_, err = links.Credentials(b, anyHost)
	return b, err
}

// secretName is that of the Secret of a linked cluster, as Linkerd has it.
func secretName(cluster string) string { return "cluster-credentials-" + cluster }

// newSecret returns the Secret of a kubeconfig. The one beside the Link is found by its name, and the one in the
// namespace of the mesh's control plane by its label. Without its Link a labelled Secret links the cluster alone, so
// that the other one has no label.
func (l *linkable) newSecret(namespace string, kubeconfig []byte) manifest {
	meta := manifest{"name": secretName(l.name), "namespace": namespace, "annotations": manifest{
		links.TrustDomainAnnotation:   l.trustDomain,
		links.ClusterDomainAnnotation: l.clusterDomain,
	}}
	if l.labelledSecret && namespace == l.controllerNamespace {
		meta["labels"] = manifest{links.ClusterNameLabel: l.name}
	}
	return manifest{
		"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": string(links.SecretType),
		"data": manifest{links.KubeconfigKey: kubeconfig},
	}
}

// newLink returns a Link. writes is whether EndpointSlices may be written into the linked cluster.
func (l *linkable) newLink(namespace string, writes bool) manifest {
	annotations := manifest{linkerd.CreatedByAnnotation: "fingerpost/cli " + l.version}
	if writes {
		annotations[links.SlicesKey] = links.SlicesEnabled
	}
	return manifest{
		"apiVersion": links.Group + "/" + LinkVersion, "kind": "Link",
		"metadata": manifest{"name": l.name, "namespace": namespace, "annotations": annotations},
		"spec":     l.spec,
	}
}

func (l *linkable) linkSpec(ctx context.Context) (manifest, error) {
	spec := manifest{
		"targetClusterName": l.name, "targetClusterDomain": l.clusterDomain,
		"targetClusterLinkerdNamespace": l.controllerNamespace,
		"remoteDiscoverySelector":       selectLabel(linkerd.ExportedLabel, "remote-discovery"),
		"federatedServiceSelector":      selectLabel(linkerd.FederatedLabel, "member"),
		"clusterCredentialsSecret":      secretName(l.name),
	}
	if !l.gateway {
		return spec, nil
	}

	gateway, err := l.client.CoreV1().Services(l.gatewayNamespace).Get(ctx, l.gatewayName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !l.gatewayRequired:
		return spec, nil
	case err != nil:
		return nil, fmt.Errorf("the gateway (--gateway=false for none): %w", err)
	}
	if err := l.addGateway(spec, gateway); err != nil {
		return nil, fmt.Errorf("gateway %s/%s (--gateway=false for none): %w", gateway.Namespace, gateway.Name, err)
	}
	spec["selector"] = selectLabel(linkerd.ExportedLabel, "true")
	return spec, nil
}

func selectLabel(key, value string) manifest { return manifest{"matchLabels": manifest{key: value}} }

// addGateway adds the addresses, the identity and the probe of a gateway to the spec of a Link.
func (o *linkOptions) addGateway(spec manifest, gateway *corev1.Service) error {
	addresses := o.gatewayAddresses
	if addresses == "" {
		var all []string
		for _, ingress := range gateway.Status.LoadBalancer.Ingress {
			all = append(all, cmp.Or(ingress.IP, ingress.Hostname))
		}
		if addresses = strings.Join(all, ","); addresses == "" {
			return errors.New("it has no address of a load balancer: set --gateway-addresses")
		}
	}

	identity := gateway.Annotations[linkerd.GatewayIdentityAnnotation]
	if identity == "" {
		return errors.New("it has no annotation " + linkerd.GatewayIdentityAnnotation)
	}

	port, err := gatewayPort(gateway, "mc-gateway")
	if err != nil {
		return err
	}
	spec["gatewayAddress"], spec["gatewayPort"], spec["gatewayIdentity"] = addresses, port, identity
	path := gateway.Annotations[linkerd.ProbePathAnnotation]
	if path == "" {
		return nil
	}

	probe, err := gatewayPort(gateway, "mc-probe")
	if err != nil {
		return err
	}

	period := cmp.Or(gateway.Annotations[linkerd.ProbePeriodAnnotation], "3")
	probeSpec := manifest{"path": path, "port": probe, "period": withUnit(period)}
	if timeout := gateway.Annotations[linkerd.ProbeTimeoutAnnotation]; timeout != "" {
		probeSpec["timeout"] = withUnit(timeout)
	}
	if threshold := gateway.Annotations[linkerd.ProbeFailureThresholdAnnotation]; threshold != "" {
		probeSpec["failureThreshold"] = threshold
	}
	spec["probeSpec"] = probeSpec
	return nil
}

// withUnit makes a duration of a bare number of seconds, as annotations of gateways have it.
func withUnit(duration string) string {
	if _, err := strconv.Atoi(duration); err == nil {
		return duration + "s"
	}
	return duration
}

// gatewayPort returns the number by which other clusters reach a port of a gateway.
func gatewayPort(gateway *corev1.Service, name string) (string, error) {
	for _, p := range gateway.Spec.Ports {
		switch {
		case p.Name != name:
		case gateway.Spec.Type == corev1.ServiceTypeNodePort:
			return strconv.Itoa(int(p.NodePort)), nil
		default:
			return strconv.Itoa(int(p.Port)), nil
		}
	}
	return "", fmt.Errorf("it has no port %s", name)
}
