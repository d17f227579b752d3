package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/links"
)

// requestTimeout bounds a request to an API server, and all those about one Secret.
const requestTimeout = 20 * time.Second

// A renewer replaces tokens in the Secrets of linked clusters by new ones of the same ServiceAccounts. It
// reaches a linked cluster with the kubeconfig of its Secret, and needs no other access to it.
type renewer struct {
	kubeFlags
	namespaces []string
	duration   time.Duration // of new tokens; 0 for that of the old one
	hosts      links.Hosts
	force      bool
	allowed    string
}

func linkRenewCommand(version string) *cobra.Command {
	renewer := renewer{kubeFlags: kubeFlags{version: version}}
	cmd := &cobra.Command{
		Use:   "renew [NAME...]",
		Short: "Replace tokens of linked clusters that are past half of their life",
		Long: `Replace tokens of linked clusters that are past half of their life, in the Secrets of this cluster
(--context), or in those of the named clusters only. A CronJob of chart fingerpost runs it, unless
tokenRenewal.enabled is false.

A new token is of the same ServiceAccount as the old one, and is created with the old one: in the
linked cluster the account must be permitted to create tokens of itself, as chart fingerpost-link
permits it. The Secret is replaced
only if it has not changed meanwhile. Clients of Fingerpost notice nothing: the old token is used
until the new one works. Tokens without an end and client certificates are left as they are.`,
		Example: "  fingerpost link renew\n  fingerpost link renew west --force --context east",
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := renewer.validate(); err != nil {
				return usageError(cmd, err)
			}
			return renewer.run(cmd, names)
		},
	}

	fs := cmd.Flags()
	groupFlags(fs, renewer.addKubeFlags)

	fs.StringSliceVarP(&renewer.namespaces, "namespace", "n", nil,
		"namespaces of the Secrets; empty for those in which the cluster's Fingerpost reads Links and labelled Secrets")
	fs.DurationVar(&renewer.duration, "token-duration", 0,
		"how long new tokens are valid, at least 10m; 0 for as long as the old ones")
	renewer.hosts.InCluster = os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	fs.StringVar(&renewer.allowed, "allow-kubeconfig-hosts", "", "hosts of kubeconfigs, as for 'fingerpost serve'")
	fs.BoolVar(&renewer.force, "force", false, "replace tokens of any age that end")
	return cmd
}

// validate checks the flags, and reads what they hold.
func (r *renewer) validate() (err error) {
	if r.duration != 0 && r.duration < minTokenDuration {
		return tooShort(r.duration)
	}
	if r.hosts.Allowed, err = links.ParseHosts(r.allowed); err != nil {
		return fmt.Errorf("--allow-kubeconfig-hosts: %w", err)
	}
	for _, namespace := range r.namespaces {
		if len(validation.ValidateNamespaceName(namespace, false)) > 0 {
			return fmt.Errorf("--namespace: %q names no namespace", namespace)
		}
	}
	return nil
}

// run renews the tokens of all Secrets. What fails for one does not keep the others from being renewed.
func (r *renewer) run(cmd *cobra.Command, names []string) error {
	_, client, err := r.connect()
	if err != nil {
		return err
	}
	if err := r.findNamespaces(cmd.Context(), client); err != nil {
		return err
	}
	secrets, failed := r.secrets(cmd.Context(), client)
	secrets = slices.DeleteFunc(secrets, func(s corev1.Secret) bool {
		return len(names) > 0 && !slices.Contains(names, clusterOf(&s))
	})

	missing := sets.New(names...)
	results := make([]string, len(secrets))
	errs := make([]error, len(secrets))
	var wg sync.WaitGroup // one cluster that does not respond must not keep others from being renewed
	for i := range secrets {
		missing.Delete(clusterOf(&secrets[i]))
		wg.Go(func() { results[i], errs[i] = r.renew(cmd.Context(), client, &secrets[i]) })
	}

	wg.Wait()
	for i := range secrets {
		what := fmt.Sprintf("%s (Secret %s/%s)", clusterOf(&secrets[i]), secrets[i].Namespace, secrets[i].Name)
		if errs[i] != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", what, errs[i]))
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", Printable(what), results[i])
	}

	for _, name := range sets.List(missing) {
		failed = errors.Join(failed, WithExitCode(ExitNotFound, fmt.Errorf("no Secret is of cluster %q", name)))
	}
	return failed
}

// findNamespaces sets the namespaces, unless a flag does, to those that the installation reads.
func (r *renewer) findNamespaces(ctx context.Context, client kubernetes.Interface) error {
	if len(r.namespaces) > 0 {
		return nil
	}
	installed, err := findInstallation(ctx, client, "")
	if err == nil && installed == nil {
		err = errors.New("there is no Deployment of Fingerpost")
	}
	if err != nil {
		return fmt.Errorf("in which namespaces are the Secrets? Set --namespace: %w", err)
	}

	all := []string{cmp.Or(installed.linkNamespace, chartPreset), cmp.Or(installed.controllerNamespace, linkerdPreset)}
	r.namespaces = slices.Compact(all)
	return nil
}

// secrets returns the Secrets with kubeconfigs; those of other namespaces also if one cannot be listed.
func (r *renewer) secrets(ctx context.Context, client kubernetes.Interface) (all []corev1.Secret, failed error) {
	for _, namespace := range r.namespaces {
		list, err := client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "type=" + string(links.SecretType),
		})
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("list Secrets in namespace %s: %w", namespace, err))
			continue
		}
		all = append(all, list.Items...)
	}
	return all, failed
}

// clusterOf returns the cluster that the kubeconfig in a Secret reaches.
func clusterOf(secret *corev1.Secret) string {
	return cmp.Or(secret.Labels[links.ClusterNameLabel], strings.TrimPrefix(secret.Name, secretName("")))
}

// renew replaces the token of one Secret, if it is past half of its life, and returns what was done.
func (r *renewer) renew(ctx context.Context, local kubernetes.Interface, secret *corev1.Secret) (string, error) {
	kubeconfig := secret.Data[links.KubeconfigKey]
	config, err := links.Credentials(kubeconfig, r.hosts)
	if err != nil {
		return "", err
	}
	issued, ends := api.Validity(config)
	if config.BearerToken == "" || ends.IsZero() {
		return "its credentials do not end", nil
	}

	token, err := parseToken(config.BearerToken)
	if err != nil {
		return "", err
	}
	if !r.force && time.Until(ends) > ends.Sub(issued)/2 {
		return "valid until " + ends.UTC().Format(time.RFC3339), nil
	}

	conn, err := api.NewConnection(config, nil) // which bounds what it receives, and follows no redirect
	if err != nil {
		return "", err
	}
	defer conn.Close()
	linked, err := kubernetes.NewForConfigAndClient(conn.Config, conn.HTTPClient)
	if err != nil {
		return "", err
	}

	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	valid := cmp.Or(r.duration, max(ends.Sub(issued), minTokenDuration))
	created, err := createToken(ctx, linked, token.namespace, token.account, token.audiences, valid)
	if err != nil {
		return "", err
	}

	renewed, err := replaceToken(kubeconfig, created.Token)
	if err != nil {
		return "", err
	}
	secret.Data[links.KubeconfigKey] = renewed // with the resourceVersion that was read: nothing is overwritten
	if _, err := local.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return "", err
	}
	return "renewed, valid until " + created.ExpirationTimestamp.UTC().Format(time.RFC3339), nil
}

// A token is what a ServiceAccount's token states. Nothing is verified: the API server does that.
type token struct {
	namespace, account string
	audiences          []string
}

// parseToken reads a JWT.
func parseToken(text string) (t token, err error) {
	_, rest, _ := strings.Cut(text, ".")
	encoded, _, _ := strings.Cut(rest, ".")
	payload, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return t, fmt.Errorf("its token: %w", err)
	}

	var claims struct {
		Subject   string          `json:"sub"`
		Audiences json.RawMessage `json:"aud"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return t, fmt.Errorf("its token: %w", err)
	}

	account, is := strings.CutPrefix(claims.Subject, "system:serviceaccount:")
	t.namespace, t.account, _ = strings.Cut(account, ":")
	if !is || len(validation.ValidateNamespaceName(t.namespace, false)) > 0 ||
		len(validation.ValidateServiceAccountName(t.account, false)) > 0 {
		return t, fmt.Errorf("its token is of %q, which is no ServiceAccount", claims.Subject)
	}
	if json.Unmarshal(claims.Audiences, &t.audiences) != nil {
		t.audiences = nil // one that is no list: the API server's own is the default
	}
	return t, nil
}

// replaceToken returns a kubeconfig with another token of its user.
func replaceToken(kubeconfig []byte, token string) ([]byte, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo].Token = token
	return writeKubeconfig(config)
}
