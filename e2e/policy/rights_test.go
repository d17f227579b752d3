package policy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// rightsNamespace is where the accounts are that lack a right.
const rightsNamespace = "rights"

// A right is to list or to watch one kind, or to patch its status.
type right struct {
	of   schema.GroupResource
	verb string
}

func (r right) String() string { return r.verb + " " + r.of.String() }

// chartRules returns the rules of all ClusterRoles that chart fingerpost gives its server with policy. What it has in
// one namespace alone is given to all accounts of rightsNamespace.
func chartRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	const set = "{policy: {enabled: true}, tokenRenewal: {enabled: false}, links: {namespace: " + mesh.Linkerd + "}}"
	objects, err := charts.Render(t.Context(), charts.Server, rightsNamespace, set)
	do(t, err)

	var rules []rbacv1.PolicyRule
	var local []*unstructured.Unstructured // to a namespace
	all := []any{map[string]any{
		"apiGroup": rbacv1.GroupName, "kind": rbacv1.GroupKind, "name": "system:serviceaccounts:" + rightsNamespace,
	}}
	for _, o := range objects {
		switch o.GetKind() {
		case "ClusterRole":
			more, err := charts.Rules(o)
			do(t, err)
			rules = append(rules, more...)
		case "RoleBinding":
			o.Object["subjects"] = all
			local = append(local, o)
		case "Role":
			local = append(local, o)
		}
	}

	shared.apply(t, rightsNamespace, "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS}\n")
	do(t, shared.Apply(t.Context(), charts.Manifest(local...)))
	return rules
}

// rightsOf returns those of the rules that are for policy: to read kinds that answers depend on, and to write statuses.
func rightsOf(rules []rbacv1.PolicyRule) (reads, writes []right) {
	groups := []string{"policy.linkerd.io", "gateway.networking.k8s.io", "workload.linkerd.io"}
	for _, rule := range rules {
		if !slices.Contains(groups, rule.APIGroups[0]) {
			continue
		}
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				r := right{schema.GroupResource{Group: rule.APIGroups[0], Resource: resource}, verb}
				if strings.HasSuffix(resource, "/status") {
					writes = append(writes, r)
				} else {
					reads = append(reads, r)
				}
			}
		}
	}
	return reads, writes
}

// less returns rules without one right.
func less(rules []rbacv1.PolicyRule, r right) (fewer []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			one := rule.DeepCopy()
			one.Resources = []string{resource}
			if resource == r.of.Resource && rule.APIGroups[0] == r.of.Group {
				one.Verbs = slices.DeleteFunc(one.Verbs, func(v string) bool { return v == r.verb })
			}
			if len(one.Verbs) > 0 {
				fewer = append(fewer, *one)
			}
		}
	}
	return fewer
}

// Each right of the chart to read a kind that answers depend on is needed. Without it the replica is not ready, and
// reports which kind is missing; it goes on without the others, and once it has the right it serves policy.
//
// Without a right to write a status none is written, and all else goes on.
func TestRights(t *testing.T) {
	t.Parallel()
	rules := chartRules(t)
	shared.apply(t, "rights-shop", shop)
	reads, writes := rightsOf(rules)
	if len(reads) != 26 || len(writes) != 7 {
		t.Fatalf("the chart has the rights %v, want 2 to read each of 13 kinds, and %v, want those to 7 statuses",
			reads, writes)
	}
	list := slices.DeleteFunc(slices.Clone(reads), func(r right) bool { return r.verb != "list" })
	watch := slices.DeleteFunc(reads, func(r right) bool { return r.verb != "watch" })

	each(t, watch, rules, withoutReading)
	// A list is streamed as the beginning of a watch, and takes the right to watch alone. Older API servers have lists
	// read by pages, and then the right to list counts.
	paged.Store(true)
	each(t, list, rules, withoutReading)
	paged.Store(false)
	each(t, writes, rules, withoutWriting)
}

// each tries rights, some at once.
func each(
	t *testing.T, rights []right, rules []rbacv1.PolicyRule,
	try func(*testing.T, []rbacv1.PolicyRule, right) error,
) {
	t.Helper()
	var wg sync.WaitGroup
	turn := make(chan struct{}, 7)
	for _, r := range rights {
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			began := time.Now()
			if err := try(t, rules, r); err != nil {
				t.Errorf("without the right to %s: %v", r, err)
			}
			t.Logf("without the right to %s: %s", r, time.Since(began).Round(time.Millisecond))
		})
	}
	wg.Wait()
}

// startWithout starts a replica that lacks a right, with an account of that name.
func startWithout(
	ctx context.Context, t *testing.T, rules []rbacv1.PolicyRule, r right,
) (account string, started *replica, err error) {
	t.Helper()
	account = "without-" + strings.NewReplacer(" ", "-", "/", "-").Replace(r.String())
	identity, err := shared.CreateIdentity(ctx, rightsNamespace, account, less(rules, r))
	if err != nil {
		return account, nil, err
	}
	o := options(account, shared.Config(identity, ""))
	o.Policy.Status = r.verb == "patch"
	started, err = start(t, o)
	return account, started, err
}

// withoutReading lets a replica run that lacks a right to read, until that is reported, and then gives it the right.
func withoutReading(t *testing.T, rules []rbacv1.PolicyRule, r right) (err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	account, replica, err := startWithout(ctx, t, rules, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, replica.stop()) }()

	kind := r.of.String()
	err = mesh.Eventually(ctx, func(ctx context.Context) error {
		status, body, err := replica.get(ctx, "/ready")
		if want := "objects of policy (" + kind + ")"; err == nil && (status == http.StatusOK ||
			!strings.Contains(body, "waiting for: "+want)) {
			err = fmt.Errorf("/ready has %d %q, want %q alone", status, body, want)
		}
		return errors.Join(
			err,
			replica.log.contains("A kind cannot be listed", kind, "Forbidden"),
			replica.measures(ctx, fmt.Sprintf(`fingerpost_watch_open{resource=%q,target_cluster="local"} 0`, kind)),
		)
	})
	if err != nil {
		return fmt.Errorf("it is not reported: %w", err)
	}
	if err := replica.discovers(ctx); err != nil {
		return err
	}

	// Tried again after 10 s, and then ever more rarely.
	if _, err := shared.CreateIdentity(ctx, rightsNamespace, account, rules); err != nil {
		return err
	}
	return mesh.Eventually(ctx, replica.isReady)
}

// withoutWriting lets a replica run that lacks a right to write a status, until that is reported.
func withoutWriting(t *testing.T, rules []rbacv1.PolicyRule, r right) (err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, replica, err := startWithout(ctx, t, rules, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, replica.stop()) }()

	return mesh.Eventually(ctx, func(ctx context.Context) error {
		return errors.Join(
			replica.isReady(ctx), replica.discovers(ctx),
			replica.log.contains("permissions are missing", "grant "+r.verb+" on "+r.of.String()),
		)
	})
}

// discovers checks that Destination is served.
func (r *replica) discovers(ctx context.Context) error {
	stream, err := destination.NewDestinationClient(r.destination).GetProfile(ctx,
		&destination.GetDestination{Path: "web.rights-shop.svc.cluster.local:8080"})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		return fmt.Errorf("Destination: %w", err)
	}
	return nil
}
