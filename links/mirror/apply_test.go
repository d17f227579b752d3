package mirror

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	term := newTerm(&Mirror{log: logr.Discard(), core: core, metrics: newMetrics()}, nil, nil, nil)
	k := api.Key{Namespace: "shop", Name: "web-east"}
	for name, want := range map[string]*corev1.Service{"changed": mirrored("web-east", "east"), "removed": nil} {
		var taken errNameTaken
		in := &inputs{name: k, existing: service("web-east", plain)}
		if err := term.applyPlan(t.Context(), in, namePlan{service: want}); !errors.As(err, &taken) {
			t.Errorf("to be %s: %v", name, err)
		}
	}
}

// An object that was deleted before its fields are taken over is no missing namespace: the event of its deletion
// enqueues the name.
func TestDeletedBeforeTakeOver(t *testing.T) {
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPatch {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		status := `{"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}`
		return &http.Response{
			StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(status)),
		}, nil
	})}
	core, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "home.test"}, client)
	if err != nil {
		t.Fatal(err)
	}
	term := newTerm(&Mirror{log: logr.Discard(), core: core, metrics: newMetrics()}, nil, nil, nil)
	k, is := api.Key{Namespace: "shop", Name: "web-east"}, mirrored("web-east", "east")
	is.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: fieldManager, Operation: metav1.ManagedFieldsOperationUpdate},
	}
	if err := term.applyService(t.Context(), k, mirrored("web-east", "east"), is, false); err != nil {
		t.Errorf("the Service: %v", err)
	}
	e := &endpoints{ObjectMeta: is.ObjectMeta}
	p := namePlan{endpoints: &endpoints{ObjectMeta: mirrored("web-east", "east").ObjectMeta}}
	if err := term.applyEndpoints(t.Context(), k, p, e); err != nil {
		t.Errorf("the Endpoints: %v", err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
