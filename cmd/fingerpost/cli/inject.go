package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/inject"
	"github.com/fingerpost/fingerpost/inject/manifests"
	"github.com/fingerpost/fingerpost/internal/words"
)

const manifestHelp = `FILE has documents of YAML or JSON, and Lists are opened. A directory stands for all files below
it that end with .yaml, .yml or .json, a URL (https only) for what is served there, and - for stdin.`

func injectCommand(version string, client *http.Client) *cobra.Command {
	options := injectOptions{kubeFlags: kubeFlags{version: version}, manifestFlags: manifestFlags{client: client}}
	cmd := &cobra.Command{
		Use:   "inject FILE|DIR|URL|-",
		Short: "Add proxies to manifests",
		Long: `Add the annotation to manifests for which the webhook adds a proxy to their Pods, or with --manual
the proxy itself. The result goes to stdout, and a report to stderr.

` + manifestHelp + `

Flags about the proxy become annotations where they differ from the values that the mesh was
installed with. These are read from the cluster, unless --ignore-cluster is given.

An object that has a proxy gets it anew. One with linkerd.io/inject: disabled is left alone. Other
fields, their order and comments stay as they are. A document is left out, and the exit code is 1,
if it cannot be read, or if one of its objects uses the network of its node, has the proxy of
another mesh, has a port of UDP, or keeps its Pods from a token.`,
		Example: `  fingerpost inject web.yaml | kubectl apply -f -
  fingerpost inject deploy/ --proxy-cpu-request 100m --skip-outbound-ports 5432 | kubectl apply -f -
  kubectl get deployment -n shop -o yaml | fingerpost inject --manual - | kubectl apply -f -`,
		Args:              arguments("FILE"),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE:              func(cmd *cobra.Command, args []string) error { return options.run(cmd, args[0]) },
	}

	options.addFlags(cmd)
	return cmd
}

func uninjectCommand(client *http.Client) *cobra.Command {
	flags := manifestFlags{client: client}

	cmd := &cobra.Command{
		Use:   "uninject FILE|DIR|URL|-",
		Short: "Remove proxies from manifests",
		Long: `Remove proxies from manifests: containers, init containers and volumes of Linkerd, and labels and
annotations of linkerd.io/. Annotations of settings (config.linkerd.io/) and that which refuses a
proxy stay. The result goes to stdout, and a report to stderr. No cluster is read.

` + manifestHelp,
		Example:           "  kubectl get deployment -n shop -o yaml | fingerpost uninject - | kubectl apply -f -",
		Args:              arguments("FILE"),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.change(cmd, args[0], manifests.Uninject)
		},
	}

	flags.addFlags(cmd)
	return cmd
}

// manifestFlags are those of commands that change manifests.
type manifestFlags struct {
	client  *http.Client // for URLs; nil for one that bounds what a server may do
	output  string
	verbose bool
}

func (f *manifestFlags) addFlags(cmd *cobra.Command) {
	AddChoice(cmd, &f.output, "output", "o", "", yamlOutput, jsonOutput)
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "report objects that are left alone as well")
}

// injectOptions are how manifests get proxies.
type injectOptions struct {
	kubeFlags
	manifestFlags
	namespace, anchorsFile         string
	manual, ingress, ignoreCluster bool
}

// A settingFlag is a flag that becomes an annotation.
type settingFlag struct{ name, usage string }

// settingFlags have values of any form, which package inject validates as the webhook does.
var settingFlags = []settingFlag{
	{"admin-port", "port of the proxy's metrics and probes"},
	{"control-port", "port of the proxy for tap"},
	{"inbound-port", "port of the proxy for inbound connections"},
	{"outbound-port", "port of the proxy for outbound connections"},
	{"image-pull-policy", "when images are pulled"},
	{"proxy-image", "image of the proxy, without a tag"},
	{"proxy-version", "tag of the proxy's image"},
	{"proxy-log-level", "log level of the proxy"},
	{"proxy-uid", "user of the proxy, by number"},
	{"proxy-gid", "group of the proxy, by number"},
	{"proxy-cpu-request", "CPU that the proxy requests"},
	{"proxy-cpu-limit", "CPU that the proxy may use"},
	{"proxy-memory-request", "memory that the proxy requests"},
	{"proxy-memory-limit", "memory that the proxy may use"},
	{"opaque-ports", "ports whose protocol is not detected, also of Services: numbers, ranges, names"},
	{"skip-inbound-ports", "ports and ranges that bypass the proxy inbound"},
	{"skip-outbound-ports", "ports and ranges that bypass the proxy outbound"},
	{"require-identity-on-inbound-ports", "ports that take mTLS only"},
	{"default-inbound-policy", "who may reach ports that no Server selects"},
	{"wait-before-exit-seconds", "how long the proxy runs on after it was asked to end, in seconds"},
	{"close-wait-timeout", "how long connections may wait for being closed, such as 1m"},
}

// switchFlags are those that are true or false.
var switchFlags = []settingFlag{
	{"enable-external-profiles", "ask for ServiceProfiles of names outside of the cluster"},
	{"native-sidecar", "run the proxy as a sidecar of Kubernetes' own"},
	{"enable-debug-sidecar", "add a container with tools to look at traffic"},
}

// oldFlags are former names of flags.
var oldFlags = map[string]string{"proxy-cpu": "proxy-cpu-request", "proxy-memory": "proxy-memory-request"}

// annotationsOfFlags are the annotations whose names differ from those of their flags.
var annotationsOfFlags = map[string]string{
	"require-identity-on-inbound-ports": "config.linkerd.io/proxy-require-identity-inbound-ports",
	"native-sidecar":                    "config.linkerd.io/proxy-enable-native-sidecar",
	"wait-before-exit-seconds":          "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
}

func annotationOfFlag(flag string) string {
	flag = cmp.Or(oldFlags[flag], flag)
	return cmp.Or(annotationsOfFlags[flag], "config.linkerd.io/"+flag)
}

func (o *injectOptions) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	groupFlags(fs, o.addKubeFlags)
	o.manifestFlags.addFlags(cmd)
	fs.BoolVar(&o.manual, "manual", false, "add the proxy itself, instead of the annotation for which the webhook does")
	fs.BoolVar(&o.ingress, "ingress", false, "have the proxy route requests by their authority, as for ingresses")
	fs.BoolVar(&o.ignoreCluster, "ignore-cluster", false,
		"read no cluster: values are those of Linkerd's chart. With --manual give --trust-anchors and --proxy-version")
	fs.StringVar(&o.anchorsFile, "trust-anchors", "",
		"file of the trust anchors of the mesh (PEM), for --manual, instead of those of the cluster")

	fs.StringVarP(&o.namespace, "linkerd-namespace", "L", "linkerd", "namespace of the mesh's control plane")
	fs.StringVarP(&o.namespace, "control-plane-namespace", "l", "linkerd", "the same")
	hide(fs, "control-plane-namespace")

	for _, flag := range settingFlags {
		fs.String(flag.name, "", flag.usage)
	}
	for _, flag := range switchFlags {
		fs.Bool(flag.name, false, flag.usage)
	}
	for old, name := range oldFlags {
		fs.String(old, "", "the same as --"+name)
		hide(fs, old)
	}
}

// hide leaves a flag out of help.
func hide(fs *pflag.FlagSet, name string) { fs.Lookup(name).Hidden = true }

// settings returns the annotations that flags stand for, and the flag of each.
func settings(fs *pflag.FlagSet) (annotations, flags map[string]string) {
	annotations, flags = map[string]string{}, map[string]string{}
	isSetting := func(name string) bool {
		named := func(f settingFlag) bool { return f.name == cmp.Or(oldFlags[name], name) }
		return slices.ContainsFunc(settingFlags, named) || slices.ContainsFunc(switchFlags, named)
	}

	fs.Visit(func(f *pflag.Flag) {
		if isSetting(f.Name) {
			key := annotationOfFlag(f.Name)
			annotations[key], flags[key] = f.Value.String(), f.Name
		}
	})
	return annotations, flags
}

func (o *injectOptions) run(cmd *cobra.Command, from string) error {
	annotations, flags := settings(cmd.Flags())
	if err := o.validate(annotations); err != nil {
		return usageError(cmd, err)
	}
	values, anchors, err := o.mesh(cmd.Context(), annotations)
	if err != nil {
		return err
	}

	var injector *inject.Injector
	if o.manual {
		injector, err = inject.New(values, inject.Options{
			Namespace: o.namespace, Anchors: anchors, CreatedBy: "fingerpost/cli " + o.version,
		})
		if err != nil {
			return err
		}
	}

	injection, err := manifests.NewInjection(values, injector, o.ingress, annotations)
	if bad, is := errors.AsType[*inject.OverrideError](err); is {
		return usageError(cmd, fmt.Errorf("--%s: %w", flags[bad.Key], bad.Err))
	}
	return o.change(cmd, from, injection.Inject)
}

func (o *injectOptions) validate(annotations map[string]string) error {
	switch alone := o.manual && o.ignoreCluster; {
	case alone && o.anchorsFile == "":
		return errors.New("--manual with --ignore-cluster takes --trust-anchors: no proxy can do without")
	case alone && annotations[annotationOfFlag("proxy-version")] == "":
		return errors.New("--manual with --ignore-cluster takes --proxy-version, the tag of the proxy's image")
	case o.anchorsFile != "" && !o.manual:
		return errors.New("--trust-anchors is for --manual")
	}
	return nil
}

// mesh returns what the mesh was installed with. Anchors are read for --manual only.
func (o *injectOptions) mesh(
	ctx context.Context, annotations map[string]string,
) (values *inject.Values, anchors string, err error) {
	if o.anchorsFile != "" {
		if anchors, err = readAnchors(o.anchorsFile); err != nil {
			return nil, "", WithExitCode(ExitUsage, fmt.Errorf("--trust-anchors: %w", err))
		}
	}
	if o.ignoreCluster {
		return inject.Defaults(annotations[annotationOfFlag("proxy-version")]), anchors, nil
	}

	_, client, err := o.connect()
	if err != nil {
		return nil, "", err
	}

	maps := client.CoreV1().ConfigMaps(o.namespace)
	config, err := maps.Get(ctx, linkerd.ConfigName, metav1.GetOptions{})
	if err != nil {
		return nil, "", fmt.Errorf("the values of the mesh (--linkerd-namespace, or --ignore-cluster): %w", err)
	}
	if values, err = inject.ParseValues([]byte(config.Data[linkerd.ConfigValuesKey])); err != nil {
		return nil, "", fmt.Errorf("ConfigMap %s/%s: %w", o.namespace, linkerd.ConfigName, err)
	}
	if o.manual && anchors == "" {
		anchors, err = meshAnchors(ctx, maps, values)
	}
	return values, anchors, err
}

// meshAnchors returns the trust anchors of a mesh (PEM).
func meshAnchors(ctx context.Context, maps typedcorev1.ConfigMapInterface, values *inject.Values) (string, error) {
	anchors := string(values.IdentityTrustAnchorsPEM)
	roots, err := maps.Get(ctx, linkerd.AnchorsName, metav1.GetOptions{})
	switch {
	case err == nil:
		anchors = roots.Data[linkerd.AnchorsKey]
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("the trust anchors of the mesh: %w", err)
	}

	if _, err := linkerd.ParseAnchors(anchors); err != nil {
		return "", fmt.Errorf("the trust anchors of the mesh (--trust-anchors FILE for others): %w", err)
	}
	return anchors, nil
}

// readAnchors reads a file of trust anchors.
func readAnchors(path string) (string, error) {
	const most = 1 << 20 // bytes

	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()

	text, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return "", err
	}
	_, err = linkerd.ParseAnchors(string(text))
	return string(text), err
}

// A changed is what has become of all documents.
type changed struct {
	cmd      *cobra.Command
	flags    *manifestFlags
	by       func(*manifests.Document) ([]manifests.Report, error)
	printed  int // documents
	failures int
}

// change prints what becomes of manifests. What cannot be changed is reported and left out, and the rest is printed.
func (f *manifestFlags) change(
	cmd *cobra.Command, from string, by func(*manifests.Document) ([]manifests.Report, error),
) error {
	all := &changed{cmd: cmd, flags: f, by: by}
	sources := &sources{client: f.client, stdin: cmd.InOrStdin(), left: maxManifests}

	err := sources.each(cmd.Context(), from, all.read)
	switch {
	case errors.Is(err, errSource):
		return usageError(cmd, err)
	case err != nil:
		return err
	}
	if all.failures > 0 {
		return WithExitCode(ExitNo, fmt.Errorf("%s %s left out",
			words.Count(all.failures, "document"), words.Are(all.failures)))
	}
	return nil
}

// read prints what becomes of the documents of one source.
func (c *changed) read(name string, from io.Reader) error {
	documents := manifests.NewReader(from)
	for {
		document, err := documents.Read()
		unread, is := errors.AsType[*manifests.DocumentError](err)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case is:
			c.fail(name, unread.Number, unread.Err)
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		}

		reports, err := c.by(document)
		if err != nil {
			c.fail(name, document.Number, err)
			continue
		}
		if err := c.print(document); err != nil {
			return err
		}
		c.report(reports)
	}
}

func (c *changed) fail(name string, number int, err error) {
	c.failures++
	fmt.Fprintf(c.cmd.ErrOrStderr(), "× %s, document %d: %s\n", Printable(name), number, Printable(err.Error()))
}

func (c *changed) print(document *manifests.Document) error {
	encode, between := document.YAML, "---\n"
	if c.flags.output == jsonOutput {
		encode, between = document.JSON, ""
	}

	text, err := encode()
	if err != nil || len(text) == 0 {
		return err
	}
	if c.printed > 0 && !strings.HasPrefix(string(text), "---") {
		text = append([]byte(between), text...)
	}

	if text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	c.printed++
	_, err = c.cmd.OutOrStdout().Write(text)
	return err
}

func (c *changed) report(reports []manifests.Report) {
	to := c.cmd.ErrOrStderr()
	for _, report := range reports {
		for _, finding := range report.Findings {
			fmt.Fprintf(to, "‼ %s: %s\n", Printable(report.Object()), Printable(finding))
		}
		if report.Result != manifests.Unchanged || c.flags.verbose {
			fmt.Fprintln(to, Printable(report.String()))
		}
	}
}
