package controlplane

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestIdentityMayReadAndNoMore(t *testing.T) {
	cluster := commonCluster(t)
	id, err := cluster.CreateIdentity(t.Context(), "linkerd-multicluster", "remote-access", ReadRules())
	must(t, err)
	secret, err := cluster.client().typed.CoreV1().Secrets(id.Namespace).Get(t.Context(), id.Secret,
		metav1.GetOptions{})
	must(t, err)
	if secret.Type != corev1.SecretTypeServiceAccountToken {
		t.Errorf("the token is in a Secret of type %s, want one that lasts", secret.Type)
	}

	config, err := clientcmd.RESTConfigFromKubeConfig(cluster.Kubeconfig(id, ""))
	must(t, err)
	client := clientFor(t, config)
	_, err = client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	_, err = client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	_, err = client.CoreV1().ConfigMaps("linkerd").Get(t.Context(), "linkerd-config", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("get linkerd-config: %v, want not found", err)
	}
	for what, err := range map[string]error{
		"list secrets": second(client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})),
		"list nodes":   second(client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})),
		"get a ConfigMap": second(client.CoreV1().ConfigMaps("linkerd").Get(t.Context(), "other",
			metav1.GetOptions{})),
		"create a Service": second(client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{},
			metav1.CreateOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestDeny(t *testing.T) {
	cluster := commonCluster(t)
	id, err := cluster.CreateIdentity(t.Context(), "denied", "reader", ReadRules())
	must(t, err)
	proxy, err := cluster.NewProxy()
	must(t, err)
	client := clientFor(t, cluster.Config(id, proxy.URL()))
	list := func() error {
		return second(client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{}))
	}
	watch := func() (watch.Interface, error) {
		return client.DiscoveryV1().EndpointSlices("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	}
	open, err := watch()
	must(t, err)
	defer open.Stop()

	const verb, resource = "watch", "endpointslices.discovery.k8s.io"
	for range 2 { // it makes no difference when it is denied already
		must(t, cluster.Deny(t.Context(), id, verb, resource))
	}
	for range open.ResultChan() { // until the cut connection ends it
	}
	must(t, list())
	if _, err := watch(); !apierrors.IsForbidden(err) {
		t.Errorf("a watch that is denied: %v, want forbidden", err)
	}
	other, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	other.Stop()

	must(t, cluster.Allow(t.Context(), id, verb, resource))
	open, err = watch()
	must(t, err)
	open.Stop()
}

func TestExpire(t *testing.T) {
	cluster := commonCluster(t)
	account, err := cluster.CreateIdentity(t.Context(), "expired", "reader", ReadRules())
	must(t, err)
	proxy, err := cluster.NewProxy()
	must(t, err)
	list := func(client *kubernetes.Clientset) error {
		return second(client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}))
	}
	brief, err := cluster.Certify(account, 5*time.Second)
	must(t, err)
	config, err := clientcmd.RESTConfigFromKubeConfig(cluster.Kubeconfig(brief, proxy.URL()))
	must(t, err)
	client := clientFor(t, config)
	must(t, list(client))
	if err := second(client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})); !apierrors.IsForbidden(err) {
		t.Errorf("list secrets: %v, want forbidden, as for the account", err)
	}
	watch, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	must(t, err)
	defer watch.Stop()

	must(t, cluster.Expire(t.Context(), brief))
	for range watch.ResultChan() { // until the cut connection ends it
	}
	if err := list(client); !apierrors.IsUnauthorized(err) {
		t.Errorf("a list with an expired certificate: %v, want unauthorized", err)
	}
	renewed, err := cluster.Certify(brief, time.Hour)
	must(t, err)
	must(t, list(clientFor(t, cluster.Config(renewed, ""))))
}

func TestRevoke(t *testing.T) {
	t.Parallel() // it mostly waits
	revoke(t, commonCluster(t))
}

func TestRevokeInLightCluster(t *testing.T) {
	t.Parallel()
	revoke(t, ForTest(t, Options{Light: true}))
}

// revoke uses a token, mints another, and revokes the first.
func revoke(t *testing.T, cluster *Cluster) {
	t.Helper()
	first, err := cluster.CreateIdentity(t.Context(), "revoked", "reader", ReadRules())
	must(t, err)
	other, err := cluster.Mint(t.Context(), first)
	must(t, err)
	if first.Token == other.Token {
		t.Fatal("two tokens are the same")
	}
	proxy, err := cluster.NewProxy()
	must(t, err)
	list := func(client *kubernetes.Clientset) error {
		return second(client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}))
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(cluster.Kubeconfig(first, proxy.URL()))
	must(t, err)
	client := clientFor(t, config)
	must(t, list(client))
	watch, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	must(t, err)
	defer watch.Stop()

	must(t, cluster.Revoke(t.Context(), first))
	// The first request may go into the connection that was cut.
	must(t, until(t.Context(), func(context.Context) error {
		err := list(client)
		switch {
		case err == nil:
			t.Error("a list with a revoked token succeeded")
			return nil
		case apierrors.IsUnauthorized(err):
			return nil
		default:
			return err
		}
	}))
	for range watch.ResultChan() { // until the cut connection ends it
	}
	must(t, list(clientFor(t, cluster.Config(other, ""))))
}
