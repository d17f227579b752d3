package controlplane

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestIdentityMayReadAndNoMore(t *testing.T) {
	cluster := commonCluster(t)
	id, err := cluster.CreateIdentity(t.Context(), "linkerd-multicluster", "remote-access", ReadRules())
	must(t, err)
	secret, err := cluster.client().typed.CoreV1().Secrets(id.Namespace).Get(t.Context(), id.Secret, metav1.GetOptions{})
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
		"list secrets":     second(client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})),
		"list nodes":       second(client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})),
		"get a ConfigMap":  second(client.CoreV1().ConfigMaps("linkerd").Get(t.Context(), "other", metav1.GetOptions{})),
		"create a Service": second(client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{}, metav1.CreateOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

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
