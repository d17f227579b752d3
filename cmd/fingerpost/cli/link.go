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
	"k8s.io/apimachinery/pkg/util/validation"
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
		Use:   "gen NAME | --fleet NAME[=CONTEXT],...",
		Short: "Print the Secret and the Link that link a cluster",
		Long: `Print the Secret and the Link that link a cluster under a name. Use the same name in all clusters.

The Secret is beside the Link, which names it. It holds a token of a ServiceAccount of the linked
cluster: with it one can read that cluster's Services, EndpointSlices and Pods. --into names the
cluster to which both are applied: its Deployment of Fingerpost tells in which namespace it reads
Links. Without --into it is taken for installed like the linked one.`,
		Example: `  fingerpost link gen west --context west --into east | kubectl --context east apply -f -
  fingerpost link gen west --context west --into east --api-server-address https://west.example |
    kubectl --context east apply -f -
  fingerpost link gen --fleet east,west,north=admin@north --dir links`,
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
		Use:   "rotate NAME | --fleet NAME[=CONTEXT],...",
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
	fleet                                           []string // NAME or NAME=CONTEXT
	dir, into                                       string
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
	fs.StringSliceVar(&o.fleet, "fleet", nil,
		"link these clusters with each other, each by the context of its name, or NAME=CONTEXT, instead of one")

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
	if len(o.fleet) > 0 {
		return o.writeFleet(cmd, withLink)
	}
	if err := o.checkName(args[0]); err != nil {
		return usageError(cmd, err)
	}

	manifests, err := o.manifestsFor(cmd, args[0], withLink)
	if err != nil {
		return err
	}
	return o.writeManifests(cmd.OutOrStdout(), manifests)
}

// manifestsFor returns the manifests that link a cluster.
func (o *linkOptions) manifestsFor(cmd *cobra.Command, name string, withLink bool) ([]manifest, error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
	defer cancel()
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}

	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if err := o.findOut(ctx, client); err != nil {
		return nil, err
	}

	var link manifest
	if withLink {
		if link, err = o.newLink(ctx, client, name); err != nil { // before there is a token that nothing uses
			return nil, err
		}
	}

	o.reportProblem(cmd.ErrOrStderr(), name, link)
	token, expires, err := o.newToken(ctx, client)
	if err != nil {
		return nil, err
	}

	kubeconfig, err := o.newKubeconfig(name, config, token)
	if err != nil {
		return nil, err
	}

	// A server outside of a Pod may accept an address that one in a Pod rejects.
	if _, err := links.Credentials(kubeconfig, links.Hosts{InCluster: true}); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "A server in a Pod rejects the kubeconfig of %s: %s. "+
			"Set --api-server-address.\n", name, Printable(err.Error()))
	}

	o.reportLeftOut(cmd.ErrOrStderr(), name, config)
	manifests := []manifest{o.newSecret(name, o.linkNamespace, kubeconfig)}
	if o.labelledSecret && o.linkNamespace != o.controllerNamespace {
		manifests = append(manifests, o.newSecret(name, o.controllerNamespace, kubeconfig))
	}
	if withLink {
		manifests = append(manifests, link)
	}

	if !expires.IsZero() {
		end := expires.UTC().Format(time.RFC3339)
		fmt.Fprintf(cmd.ErrOrStderr(), "The token of %s is valid until %s: 'fingerpost link rotate' prints a new one, "+
			"and 'fingerpost link renew' keeps it valid.\n", name, end)
	}
	return manifests, nil
}

// reportProblem writes what a server would report of the Link, such as of what the gateway's annotations set.
func (o *linkOptions) reportProblem(to io.Writer, name string, link manifest) {
	spec, _ := link["spec"].(manifest)
	if problem := links.MirroringProblem(spec); problem != "" {
		fmt.Fprintf(to, "The Link of %s will have a problem: %s. See the annotations of its gateway %s/%s.\n",
			name, Printable(problem), o.gatewayNamespace, o.gatewayName)
	}
}

// reportLeftOut writes what of the user's kubeconfig is not in the printed one, and matters to who uses it: how the API
// server is reached, and who asks. The address, the authority and the name in its certificate are in it.
func (o *linkOptions) reportLeftOut(to io.Writer, name string, config *rest.Config) {
	if proxy := proxyOf(config); proxy != "" {
		fmt.Fprintf(
			to,
			"The kubeconfig of %s leaves out %s: Fingerpost connects to API servers directly. If %s cannot "+
				"be reached without the proxy, name another address by --api-server-address.\n",
			name,
			proxy,
			Printable(cmp.Or(o.server, config.Host)),
		)
	}

	var user []string
	for field, isSet := range map[string]bool{
		"user.exec":          config.ExecProvider != nil,
		"user.auth-provider": config.AuthProvider != nil,
		"user.as":            !reflect.ValueOf(config.Impersonate).IsZero(),
		"user.username":      config.Username != "",
	} {
		if isSet {
			user = append(user, field)
		}
	}

	slices.Sort(user)
	if len(user) > 0 {
		fmt.Fprintf(to, "The kubeconfig of %s leaves out your %s: in it is the token of ServiceAccount %s/%s.\n",
			name, strings.Join(user, ", "), o.accountNamespace, o.account)
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

func (o *linkOptions) checkName(name string) error {
	switch problems := validation.IsDNS1123Label(name); {
	case len(problems) > 0:
		return fmt.Errorf("%q cannot name a cluster: a name has up to 63 small letters, digits and dashes, as in "+
			"-cluster-name", name)
	case o.duration < minTokenDuration:
		return tooShort(o.duration)
	}
	return nil
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

// findOut sets the namespaces and domains that no flag sets to those of the installations.
func (o *linkOptions) findOut(ctx context.Context, client kubernetes.Interface) error {
	linked, _ := findInstallation(ctx, client) // it may have none, or not be readable: then there are the presets
	if linked == nil {
		linked = &installation{}
	}

	o.controllerNamespace = cmp.Or(o.controllerNamespace, linked.controllerNamespace, "linkerd")
	if o.linkNamespace == "" {
		linking, err := o.linkingInstallation(ctx)
		if err != nil {
			return fmt.Errorf("in which namespace does the cluster of --into %s read Links? "+
				"Set --link-namespace: %w", o.into, err)
		}
		o.linkNamespace = cmp.Or(linking.linkNamespace, linked.linkNamespace, o.presetNamespace)
	}
	return o.setDomains(ctx, client, linked)
}

// linkingInstallation returns the installation to which the manifests are applied, if --into names one.
func (o *linkOptions) linkingInstallation(ctx context.Context) (*installation, error) {
	if o.into == "" {
		return &installation{}, nil
	}
	flags := o.kubeFlags
	flags.overrides.CurrentContext = o.into
	config, err := flags.RESTConfig()
	if err != nil {
		return nil, err
	}

	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	found, err := findInstallation(ctx, client)
	if err == nil && found == nil {
		err = errors.New("it has no Deployment of Fingerpost")
	}
	return found, err
}

// setDomains sets the domains that no flag sets to those of the cluster's mesh.
func (o *linkOptions) setDomains(ctx context.Context, client kubernetes.Interface, linked *installation) error {
	if o.trustDomain != "" && o.clusterDomain != "" {
		return nil
	}

	mesh := linkerd.Config{
		TrustDomain:   cmp.Or(linked.trustDomain, "cluster.local"), // as the chart has by default
		ClusterDomain: cmp.Or(linked.clusterDomain, "cluster.local"),
	}
	config, err := client.CoreV1().ConfigMaps(o.controllerNamespace).Get(ctx, linkerd.ConfigName, metav1.GetOptions{})
	switch {
	case err == nil: // the values that Linkerd was installed with
		mesh, err = linkerd.ParseConfig(config.Data[linkerd.ConfigValuesKey])
	case apierrors.IsNotFound(err) && o.preset == chartPreset:
		err = nil
	}

	if err != nil {
		return fmt.Errorf("the configuration of the mesh cannot be read, so set --trust-domain and "+
			"--cluster-domain: %w", err)
	}
	o.trustDomain = cmp.Or(o.trustDomain, mesh.TrustDomain)
	o.clusterDomain = cmp.Or(o.clusterDomain, mesh.ClusterDomain)
	return nil
}

// newToken returns a token of the ServiceAccount, and when it expires; zero for never.
func (o *linkOptions) newToken(
	ctx context.Context,
	client kubernetes.Interface,
) (token string, expires time.Time, err error) {
	if o.tokenSecret != "" {
		token, err := o.readToken(ctx, client)
		return token, time.Time{}, err
	}
	created, err := createToken(ctx, client, o.accountNamespace, o.account, nil, o.duration)
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("there is no ServiceAccount %s/%s for the token: "+
			"install chart fingerpost-link there, or name another one; "+
			"--preset linkerd has that of Linkerd's chart", o.accountNamespace, o.account)
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
func (o *linkOptions) readToken(ctx context.Context, client kubernetes.Interface) (string, error) {
	secret, err := client.CoreV1().Secrets(o.accountNamespace).Get(ctx, o.tokenSecret, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("--token-secret: %w", err)
	}
	token := secret.Data[corev1.ServiceAccountTokenKey]
	ofAccount := secret.Type == corev1.SecretTypeServiceAccountToken &&
		secret.Annotations[corev1.ServiceAccountNameKey] == o.account
	if !ofAccount || len(token) == 0 {
		return "", fmt.Errorf("--token-secret: %s/%s holds no token of ServiceAccount %s/%s",
			secret.Namespace, secret.Name, o.accountNamespace, o.account)
	}
	return string(token), nil
}

// newKubeconfig returns a kubeconfig with inline data only.
func (o *linkOptions) newKubeconfig(name string, config *rest.Config, token string) ([]byte, error) {
	if config.Insecure {
		return nil, errors.New("your kubeconfig does not verify the API server, which Fingerpost rejects: " +
			"add a certificate-authority")
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("your kubeconfig: %w", err)
	}

	server := cmp.Or(o.server, config.Host)
	k := clientcmdapi.NewConfig()
	k.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   server,
		CertificateAuthorityData: config.CAData,
		TLSServerName:            config.ServerName,
	}
	k.AuthInfos[o.account] = &clientcmdapi.AuthInfo{Token: token}
	k.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: o.account}
	k.CurrentContext = name
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
func (o *linkOptions) newSecret(name, namespace string, kubeconfig []byte) manifest {
	meta := manifest{"name": secretName(name), "namespace": namespace, "annotations": manifest{
		links.TrustDomainAnnotation:   o.trustDomain,
		links.ClusterDomainAnnotation: o.clusterDomain,
	}}
	if o.labelledSecret && namespace == o.controllerNamespace {
		meta["labels"] = manifest{links.ClusterNameLabel: name}
	}
	return manifest{
		"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": string(links.SecretType),
		"data": manifest{links.KubeconfigKey: kubeconfig},
	}
}

func (o *linkOptions) newLink(ctx context.Context, client kubernetes.Interface, name string) (manifest, error) {
	spec := manifest{
		"targetClusterName": name, "targetClusterDomain": o.clusterDomain,
		"targetClusterLinkerdNamespace": o.controllerNamespace,
		"remoteDiscoverySelector":       selectLabel(linkerd.ExportedLabel, "remote-discovery"),
		"federatedServiceSelector":      selectLabel(linkerd.FederatedLabel, "member"),
		"clusterCredentialsSecret":      secretName(name),
	}

	if o.gateway {
		gateway, err := client.CoreV1().Services(o.gatewayNamespace).Get(ctx, o.gatewayName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && !o.gatewayRequired:
		case err != nil:
			return nil, fmt.Errorf("the gateway (--gateway=false for none): %w", err)
		default:
			if err := o.addGateway(spec, gateway); err != nil {
				return nil, fmt.Errorf("gateway %s/%s (--gateway=false for none): %w",
					gateway.Namespace, gateway.Name, err)
			}
			spec["selector"] = selectLabel(linkerd.ExportedLabel, "true")
		}
	}

	annotations := manifest{linkerd.CreatedByAnnotation: "fingerpost/cli " + o.version}
	return manifest{
		"apiVersion": links.Group + "/" + LinkVersion, "kind": "Link",
		"metadata": manifest{"name": name, "namespace": o.linkNamespace, "annotations": annotations},
		"spec":     spec,
	}, nil
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
