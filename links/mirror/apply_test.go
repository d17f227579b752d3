package mirror

import (
	"errors"
	"net/http"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// Whatever was planned, a user's own Service is neither changed nor deleted.
func TestForeignServiceIsNotWritten(t *testing.T) {
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		t.Errorf("%s %s", r.Method, r.URL)
		return nil, errors.New("refused")
	})}
	core, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "home.test"}, client)
	if err != nil {
		t.Fatal(err)
	}
	term := newTerm(&Mirror{log: logr.Discard(), core: core, metrics: newMetrics()}, nil)
	k := api.Key{Namespace: "shop", Name: "web-east"}
	for name, want := range map[string]*corev1.Service{"changed": mirrored("web-east", "east"), "removed": nil} {
		var taken errNameTaken
		if err := term.applyService(t.Context(), k, want, service("web-east", plain), false); !errors.As(err, &taken) {
			t.Errorf("to be %s: %v", name, err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
