package status_test

import (
	"testing"

	"go.uber.org/goleak"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns a connection to an API server, and a client over it.
func connect(t *testing.T, network *apitest.Network, server *apitest.Server) (*api.Connection, dynamic.Interface) {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(server.Kubeconfig(server.Token())))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := api.NewConnection(config, network.Dial)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfigAndClient(conn.Config, conn.HTTPClient)
	if err != nil {
		t.Fatal(err)
	}
	return conn, client
}
