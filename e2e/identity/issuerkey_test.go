package identity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
)

// No account of the chart reads the key of the issuer from the API server, whatever the layout, and also where identity
// is Linkerd's own: kubelet alone hands it out, to the Pods that sign.
//
// Two values let it: both have Secrets read in the namespace of the control plane.
func TestIssuerKeyIsKept(t *testing.T) {
	c := controlplane.AllForTest(t, controlplane.Options{Name: "east", Light: true})[0]
	const namespace, whole = "issuer-key", "controlPlane: {enabled: true, "
	for name, test := range map[string]struct {
		set  string
		read []string // the accounts that get, list or watch it
	}{
		"three Deployments": {whole + "layout: three}", nil},
		"one Deployment":    {whole + "layout: one}", nil},
		"Linkerd's identity": {
			whole + "identity: {enabled: false}, policy: {enabled: false}, injector: {enabled: false}}", nil,
		},
		"the place of Linkerd's destination": {
			"controllerNamespace: " + namespace + ", links: {namespace: linkerd-multicluster}", nil,
		},
		"labelled Secrets": {
			whole + "layout: three}, links: {labelledSecrets: true}", []string{"linkerd-destination"},
		},
		"Links beside the issuer": {
			whole + "layout: three}, links: {namespace: " + namespace + "}",
			[]string{"fingerpost-renew", "linkerd-destination"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			accounts := installAccounts(t, c, namespace, "{"+test.set+"}")
			var read []string
			for account := range accounts {
				identity := &controlplane.Identity{Namespace: namespace, Name: account}
				may, err := readsIssuer(t.Context(), c, identity)
				if err != nil {
					t.Fatal(err)
				}
				if may {
					read = append(read, account)
				}
			}
			if slices.Sort(read); !slices.Equal(read, test.read) {
				t.Errorf("%q read the Secret of the issuer, want %q", read, test.read)
			}
		})
	}
}

// installAccounts applies the accounts of a chart's release with all that they may do, and returns their names. All of
// it goes when the test ends.
func installAccounts(t *testing.T, c *controlplane.Cluster, namespace, set string) map[string]bool {
	t.Helper()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(c.Apply(t.Context(), fmt.Appendf(nil, `{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: linkerd-multicluster}}
---
{apiVersion: v1, kind: Secret, metadata: {name: linkerd-identity-issuer, namespace: %[1]s}, stringData: {key.pem: key}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: linkerd-destination, namespace: %[1]s}}
`, namespace)))
	objects, err := charts.Render(t.Context(), charts.Server, namespace, set)
	do(err)

	accounts := map[string]bool{"linkerd-destination": true} // of Linkerd's chart, if not of this one
	resources := map[string]string{
		"ServiceAccount": "serviceaccounts", "Role": "roles.rbac.authorization.k8s.io",
		"RoleBinding":        "rolebindings.rbac.authorization.k8s.io",
		"ClusterRole":        "clusterroles.rbac.authorization.k8s.io",
		"ClusterRoleBinding": "clusterrolebindings.rbac.authorization.k8s.io",
	}
	for _, o := range objects {
		resource := resources[o.GetKind()]
		if resource == "" {
			continue
		}
		if resource == "serviceaccounts" {
			accounts[o.GetName()] = true
		}
		do(c.Apply(t.Context(), charts.Manifest(o)))
		t.Cleanup(func() {
			do(c.Delete(context.WithoutCancel(t.Context()), o.GetNamespace(), resource+"/"+o.GetName()))
		})
	}
	return accounts
}

// readsIssuer reports whether an account gets, lists or watches the Secret of the issuer. It sends the requests.
func readsIssuer(ctx context.Context, c *controlplane.Cluster, account *controlplane.Identity) (bool, error) {
	minted, err := c.Mint(ctx, account)
	if err != nil {
		return false, err
	}
	client, err := kubernetes.NewForConfig(c.Config(minted, ""))
	if err != nil {
		return false, err
	}
	secrets := client.CoreV1().Secrets(account.Namespace)
	issuer := fields.OneTermEqualSelector("metadata.name", "linkerd-identity-issuer")
	one := metav1.ListOptions{FieldSelector: issuer.String()}
	_, getErr := secrets.Get(ctx, "linkerd-identity-issuer", metav1.GetOptions{})
	_, listErr := secrets.List(ctx, one)
	watcher, watchErr := secrets.Watch(ctx, one)
	if watchErr == nil {
		watcher.Stop()
	}
	read := false
	for _, err := range []error{getErr, listErr, watchErr} {
		if err != nil && !apierrors.IsForbidden(err) {
			return false, errors.Join(err, fmt.Errorf("account %s", account.Name))
		}
		read = read || err == nil
	}
	return read, nil
}
