package controlplane

import (
	"context"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// brief is how long these tests wait for an answer that must not come.
const brief = 300 * time.Millisecond

// get asks the API server for something small.
func get(ctx context.Context, client *kubernetes.Clientset) error {
	_, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	return err
}

// getFails wants no answer within a brief time and returns what came instead.
func getFails(t *testing.T, client *kubernetes.Clientset) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	err := get(ctx, client)
	if err == nil {
		t.Fatal("the API server answered")
	}
	return err
}

func clientFor(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	clients, err := newClients(config)
	must(t, err)
	t.Cleanup(clients.close)
	return clients.typed
}

func TestFaults(t *testing.T) {
	cluster := ForTest(t, Options{Name: "faulty"})
	must(t, cluster.Apply(t.Context(), app("faults", 2)))
	_, err := cluster.WaitEndpoints(t.Context(), "faults", "web", 2)
	must(t, err)
	proxy, err := cluster.NewProxy()
	must(t, err)
	viaProxy := clientFor(t, cluster.Config(cluster.Admin(), proxy.URL()))
	// The cluster works if a Deployment gets another pod.
	size := 2
	works := func(t *testing.T) {
		t.Helper()
		size++
		must(t, cluster.Scale(t.Context(), "faults", "web", size))
		_, err := cluster.WaitEndpoints(t.Context(), "faults", "web", size)
		must(t, err)
		must(t, get(t.Context(), viaProxy))
	}

	t.Run("pause", func(t *testing.T) {
		must(t, cluster.Pause())
		if err := getFails(t, viaProxy); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a paused API server gave an error: %v", err)
		}
		must(t, cluster.Continue())
		works(t)
	})

	t.Run("pause etcd", func(t *testing.T) {
		must(t, cluster.Pause(Etcd))
		ctx, cancel := context.WithTimeout(t.Context(), brief)
		defer cancel()
		_, err := viaProxy.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "unwritten"},
		}, metav1.CreateOptions{})
		if err == nil {
			t.Error("a write went through")
		}
		must(t, cluster.Continue(Etcd))
		works(t)
	})

	t.Run("kill and restart", func(t *testing.T) {
		url := cluster.URL()
		must(t, cluster.Kill())
		_ = getFails(t, viaProxy)
		_ = getFails(t, clientFor(t, cluster.AdminConfig()))
		must(t, cluster.Restart(t.Context()))
		if cluster.URL() != url {
			t.Errorf("the restart moved the API server from %s to %s", url, cluster.URL())
		}
		works(t)
	})

	t.Run("kill etcd and restart", func(t *testing.T) {
		must(t, cluster.Kill(Etcd))
		must(t, cluster.Restart(t.Context()))
		works(t)
	})

	t.Run("kill everything and restart", func(t *testing.T) {
		must(t, cluster.Kill(Etcd, APIServer, ControllerManager, Scheduler, Kwok))
		must(t, cluster.Restart(t.Context()))
		works(t)
	})

	t.Run("move", func(t *testing.T) {
		old := clientFor(t, cluster.AdminConfig())
		must(t, cluster.Move(t.Context()))
		_ = getFails(t, old)
		works(t)
	})

	t.Run("replace the CA", func(t *testing.T) {
		must(t, cluster.ReplaceCA(t.Context()))
		var unknown x509.UnknownAuthorityError
		if err := getFails(t, viaProxy); !errors.As(err, &unknown) {
			t.Errorf("a client that trusts the old CA got %v, want %T", err, unknown)
		}
		viaProxy = clientFor(t, cluster.Config(cluster.Admin(), proxy.URL()))
		works(t)
	})
}

// TestProxyBeforeWatch shows what a partition does to a watch: nothing, and
// then it goes on.
func TestProxyBeforeWatch(t *testing.T) {
	cluster := commonCluster(t)
	proxy, err := cluster.NewProxy()
	must(t, err)
	client := clientFor(t, cluster.Config(cluster.Admin(), proxy.URL()))
	watch, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=watched",
	})
	must(t, err)
	defer watch.Stop()

	must(t, proxy.Silence())
	must(t, cluster.Apply(
		t.Context(), []byte(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched"}}`)))
	select {
	case event := <-watch.ResultChan():
		t.Fatalf("an event came through silence: %v", event)
	case <-time.NewTimer(brief).C:
	}
	must(t, proxy.Pass())
	select {
	case event, ok := <-watch.ResultChan():
		if !ok || event.Object.(*corev1.ConfigMap).Name != "watched" {
			t.Errorf("after silence the watch brought %v, want the missed object", event)
		}
	case <-time.NewTimer(10 * time.Second).C:
		t.Error("after silence the watch brought nothing")
	}

	proxy.CutConnections()
	select {
	case event, ok := <-watch.ResultChan():
		if ok {
			t.Errorf("a watch whose connection was cut brought %v", event)
		}
	case <-time.NewTimer(10 * time.Second).C:
		t.Error("a watch whose connection was cut goes on")
	}
	must(t, get(t.Context(), client))
}
