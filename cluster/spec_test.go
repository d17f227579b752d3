package cluster

import (
	"testing"

	"k8s.io/client-go/rest"
)

// A proxy from the environment is not used for linked clusters.
func TestNoProxy(t *testing.T) {
	config := &rest.Config{Host: "https://east.test"}
	if withProxy(config, Spec{Local: true}).Proxy != nil {
		t.Error("the local cluster is reached without the proxy of the environment")
	}
	linked := withProxy(config, Spec{})
	if linked.Proxy == nil {
		t.Fatal("a proxy from the environment is used")
	}
	if proxy, err := linked.Proxy(nil); proxy != nil || err != nil {
		t.Errorf("proxy %v, %v", proxy, err)
	}
}
