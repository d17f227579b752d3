package controlplane

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAudit(t *testing.T) {
	cluster := commonCluster(t)
	id, err := cluster.CreateIdentity(t.Context(), "audited", "reader", ReadRules())
	must(t, err)
	config := cluster.Config(id, "")
	config.UserAgent = "audit-test"
	client := clientFor(t, config)
	_, err = client.CoreV1().Services("audited").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	_ = second(client.CoreV1().Secrets("audited").Get(t.Context(), "none", metav1.GetOptions{}))

	var mine, all []Request
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must(t, until(ctx, func(context.Context) error {
		var err error
		all, err = cluster.Requests()
		must(t, err)
		mine = slices.DeleteFunc(slices.Clone(all), func(r Request) bool { return r.UserAgent != "audit-test" })
		if len(mine) < 2 {
			return errors.New("the log lacks my requests")
		}
		return nil
	}))
	user := "system:serviceaccount:audited:reader"
	want := []Request{
		{
			User:      user,
			UserAgent: "audit-test",
			Verb:      "list",
			URI:       "/api/v1/namespaces/audited/services",
			Resource:  "services",
			Namespace: "audited",
			Code:      http.StatusOK,
		},
		{
			User:      user,
			UserAgent: "audit-test",
			Verb:      "get",
			URI:       "/api/v1/namespaces/audited/secrets/none",
			Resource:  "secrets",
			Namespace: "audited",
			Name:      "none",
			Code:      http.StatusForbidden,
		},
	}
	if diff := cmp.Diff(want, mine, cmpopts.IgnoreFields(Request{}, "Time")); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	for _, request := range all {
		if strings.HasPrefix(request.User, "system:kube-") || request.User == "kwok" {
			t.Errorf("the log has a request of the control plane itself: %+v", request)
		}
	}
}

func TestNoAuditLog(t *testing.T) {
	cluster := ForTest(t, Options{Light: true})
	if _, err := cluster.Requests(); err == nil || !strings.Contains(err.Error(), "Options.Audit") {
		t.Errorf("requests of a cluster without an audit log: %v, want the way out", err)
	}
}
