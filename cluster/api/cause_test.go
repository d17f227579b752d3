package api_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// What has refused a request is found out from what an API server answers, in its own words.
func TestCauseOf(t *testing.T) {
	slices := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	forbidden := func(text string) error { return apierrors.NewForbidden(slices, "web-x", errors.New(text)) }
	ending := apierrors.NewForbidden(slices, "web-x",
		errors.New("unable to create new content in namespace shop because it is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	internal := func(text string) error { return apierrors.NewInternalError(errors.New(text)) }
	dial := &url.Error{Op: "Post", URL: "https://10.0.0.1/apis", Err: errors.New("connect: connection refused")}
	untrusted := &url.Error{Op: "Post", URL: "https://10.0.0.1", Err: x509.UnknownAuthorityError{}}

	for _, c := range []struct {
		name, text string
		err        error
		want       api.Reason
	}{
		{
			"quota", "quota small is exceeded: requested: count/endpointslices.discovery.k8s.io=1, used: 5, limited: 5",
			forbidden("exceeded quota: small, requested: count/endpointslices.discovery.k8s.io=1, used: 5, limited: 5"),
			api.QuotaExceeded,
		},
		{
			"policy", "denied by admission policy slices.corp.example, binding all: no slices\x20of others",
			forbidden("ValidatingAdmissionPolicy 'slices.corp.example' with binding 'all' denied request: no slices\n" +
				"of others"),
			api.DeniedByPolicy,
		},
		{
			"webhook", "denied by webhook guard.corp.example: not today",
			apierrors.NewBadRequest(`admission webhook "guard.corp.example" denied the request: not today`),
			api.DeniedByWebhook,
		},
		{
			"webhook without an explanation", "denied by webhook guard.corp.example: without explanation",
			apierrors.NewBadRequest(`admission webhook "guard.corp.example" denied the request without explanation`),
			api.DeniedByWebhook,
		},
		{
			"webhook away", `webhook guard.corp.example does not answer: failed to call webhook: Post "https://guard": EOF`,
			internal(`failed calling webhook "guard.corp.example": failed to call webhook: Post "https://guard": EOF`),
			api.WebhookFails,
		},
		{
			"full disk", "its storage fails: etcdserver: mvcc: database space exceeded",
			internal("etcdserver: mvcc: database space exceeded"), api.StorageFails,
		},
		{
			"no right", `endpointslices.discovery.k8s.io "web-x" is forbidden: User "fp" cannot create resource`,
			forbidden(`User "fp" cannot create resource`), api.Forbidden,
		},
		{
			"namespace", `endpointslices.discovery.k8s.io "web-x" is forbidden: unable to create new content in ` +
				"namespace shop because it is being terminated", ending, api.NamespaceEnds,
		},
		{"busy", "slow down", apierrors.NewTooManyRequests("slow down", 1), api.Overloaded},
		{
			"conflict", `Operation cannot be fulfilled on endpointslices.discovery.k8s.io "web-x": changed`,
			apierrors.NewConflict(slices, "web-x", errors.New("changed")), api.Conflicting,
		},
		{"unavailable", "etcd is away", apierrors.NewServiceUnavailable("etcd is away"), api.NotReady},
		{"no answer", "connect: connection refused", dial, api.Unreachable},
		{"other authority", "an authority that is not trusted has issued the certificate", untrusted, api.Untrusted},
		{"probe", "no", &api.ProbeError{Reason: api.OverBudget, Err: errors.New("no")}, api.OverBudget},
		{"nothing", "it gives no reason", errors.New(""), api.Unreachable},
		{"end", "context deadline exceeded", context.DeadlineExceeded, api.Unreachable},
		{
			"several", "quota small is exceeded: used: 5 (and 2 more)",
			errors.Join(fmt.Errorf("create a slice: %w", forbidden("exceeded quota: small, used: 5")), dial, dial),
			api.QuotaExceeded,
		},
	} {
		if got := api.CauseOf(c.err); got.Reason != c.want || got.Text != c.text {
			t.Errorf("%s: %s: %q\nwant %s: %q", c.name, got.Reason, got.Text, c.want, c.text)
		}
	}
}

// What others wrote is bounded and can be printed.
func TestCauseIsBounded(t *testing.T) {
	hostile := &apierrors.StatusError{ErrStatus: metav1.Status{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: "exceeded quota: \x1b[31m" + strings.Repeat("é\n", 10_000) + ", used",
	}}
	got := api.CauseOf(hostile)
	if len(got.Text) > 512 || strings.ContainsAny(got.Text, "\x1b\n") || got.Reason != api.QuotaExceeded {
		t.Errorf("%s: %d bytes: %q", got.Reason, len(got.Text), got.Text)
	}
}
