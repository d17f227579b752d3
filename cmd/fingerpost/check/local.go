package check

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/links"
)

// maxSkew is how far two clocks may be apart.
const maxSkew = 10 * time.Second

// A permission is what Fingerpost, or who installs it, may do in a cluster.
type permission struct {
	group, resource string
	required        bool // nothing works without it
}

func (p permission) String() string {
	return schema.GroupResource{Group: p.group, Resource: p.resource}.String()
}

// installPermissions are what the chart creates: always, or where its values ask for it.
var installPermissions = []permission{
	{"", "serviceaccounts", true},
	{"", "services", true},
	{"apps", "deployments", true},
	{"policy", "poddisruptionbudgets", true},
	{"rbac.authorization.k8s.io", "roles", true},
	{"rbac.authorization.k8s.io", "rolebindings", true},
	{"rbac.authorization.k8s.io", "clusterroles", true},
	{"rbac.authorization.k8s.io", "clusterrolebindings", true},
	{"", "namespaces", false},
	{"", "configmaps", false},
	{"apiextensions.k8s.io", "customresourcedefinitions", false},
}

// An environment is what is checked: the local cluster, its replicas, and the clusters linked there.
type environment struct {
	config              func() (*rest.Config, error)
	open                func(ctx context.Context) (all []cli.Replica, done func(), err error)
	fetch               cli.FetchFunc
	controllerNamespace string
}

// run runs all checks, or those before an installation.
func (e *environment) run(ctx context.Context, r *runner, pre bool) {
	const category = "fingerpost-kubernetes"
	local := &localCluster{namespace: e.controllerNamespace}
	connect := func(ctx context.Context) (err error) {
		if local.config, err = e.config(); err != nil {
			return err
		}
		local.config = rest.CopyConfig(local.config)
		local.config.Timeout = r.timeout
		if local.client, err = kubernetes.NewForConfig(local.config); err != nil {
			return err
		}
		return ping(ctx, local.client)
	}
	if !r.must(ctx, check{
		category: category, description: "the API server answers", anchor: "the-api-server-answers", run: connect,
	}) {
		return
	}
	checks := []check{
		{
			category: category, description: "its clock agrees with this one", anchor: "clocks-agree",
			run: func(ctx context.Context) error { return checkClock(ctx, local.config) },
		},
		{
			category: category, description: "Links are served at version " + cli.LinkVersion,
			anchor: "links-are-served",
			run:    func(context.Context) error { return checkLinkVersion(local.client) },
		},
	}
	if pre {
		r.run(ctx, append(checks, installChecks(local.client)...)...)
		return
	}
	r.run(ctx, append(checks, check{
		category: category, description: "there is a namespace " + e.controllerNamespace + " for Leases",
		anchor: "there-is-a-namespace-for-leases", run: local.checkNamespace,
	})...)
	known, done := e.checkReplicas(ctx, r)
	defer done()
	if len(known.pages) > 0 {
		r.run(ctx, slices.Concat(
			known.clusterChecks(), known.writerChecks(), local.leaseChecks(known), local.linkChecks(known),
			known.serviceChecks())...)
	}
	r.wait(ctx, known.refresh)
}

// localCluster is the cluster in which Fingerpost runs, as it is seen from here.
type localCluster struct {
	config    *rest.Config
	client    kubernetes.Interface
	namespace string // of Leases
}

// checkNamespace reports that Leases have no namespace. Without the permission to read it that is not known.
func (l *localCluster) checkNamespace(ctx context.Context) error {
	_, err := l.client.CoreV1().Namespaces().Get(ctx, l.namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("no Lease can be created, so that nothing is written into any cluster: create the "+
			"namespace, or name another: controllerNamespace of the chart, and -L %s here", l.namespace)
	case apierrors.IsForbidden(err):
		return errSkipped
	default:
		return err
	}
}

// ping reads the version of an API server, which needs credentials but no permission.
func ping(ctx context.Context, client kubernetes.Interface) error {
	return client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
}

// checkClock compares the API server's clock with ours. A difference within the time of the request is none.
func checkClock(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("version").String(), nil)
	if err != nil {
		return err
	}
	sent := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	skew := api.MeasureSkew(sent, time.Now(), response.Header)
	if skew.Abs() > maxSkew {
		return warningf("it is %s away from this one: tokens and Leases depend on clocks, so set both by NTP",
			skew.Round(time.Second))
	}
	return nil
}

func checkLinkVersion(client kubernetes.Interface) error {
	groups, err := client.Discovery().ServerGroups()
	if err != nil {
		return err
	}
	for _, g := range groups.Groups {
		if g.Name != links.Group {
			continue
		}
		var versions []string
		for _, v := range g.Versions {
			if v.Version == cli.LinkVersion {
				return nil
			}
			versions = append(versions, v.Version)
		}
		return warningf(
			"they are served at %s only: apply links/crd/links.yaml, or a newer linkerd-multicluster chart",
			strings.Join(versions, ", "),
		)
	}
	return warningf("there is no CRD of Links, so that only labelled Secrets can link clusters: apply " +
		"links/crd/links.yaml")
}

func installChecks(client kubernetes.Interface) (checks []check) {
	for _, p := range installPermissions {
		run := func(ctx context.Context) error {
			status, err := reviewAccess(ctx, client, p, "create")
			switch {
			case err != nil || status.Allowed:
				return err
			case p.required:
				return fmt.Errorf("create %s is not allowed %s", p, status.Reason)
			default:
				return warningf("create %s is not allowed, which some installations need %s", p, status.Reason)
			}
		}
		checks = append(checks, check{
			category: "fingerpost-install", description: "you may create " + p.String(),
			anchor: "you-may-install", run: run,
		})
	}
	return checks
}

// reviewAccess asks the API server whether the client may do something in all namespaces.
func reviewAccess(
	ctx context.Context, client kubernetes.Interface, p permission, verb string,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	attributes := authorizationv1.ResourceAttributes{Group: p.group, Resource: p.resource, Verb: verb}
	return api.ReviewAccess(ctx, client, attributes)
}

// leaseChecks check that each Lease in this cluster that a replica holds or waits for has a holder, and that of
// Linkerd's destination controller if there is one.
func (l *localCluster) leaseChecks(known *knownReplicas) (checks []check) {
	all := append(known.wantedLeases(), linkerd.ExternalWorkloadsLease)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(all))) {
		run := func(ctx context.Context) error {
			lease, err := l.client.CoordinationV1().Leases(l.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
				return err
			}
			return checkHolder(lease, err, known.leaseUse(name), time.Now())
		}
		checks = append(checks, check{
			category: "fingerpost-writers", description: "the Lease " + name + " in this cluster has a holder",
			anchor: "a-lease-has-a-holder", retry: true, run: run,
		})
	}
	return checks
}

// leaseUse is what replicas report of a Lease in the local cluster.
type leaseUse struct {
	wanted bool // one of them holds it or waits for it
	held   bool // one of them holds it
	shared bool // programs of others may hold it
}

// checkHolder returns what is wrong with a Lease, or with the error of reading it. A Lease without a holder
// is a warning if it is wanted.
func checkHolder(lease *coordinationv1.Lease, getErr error, use leaseUse, now time.Time) error {
	switch {
	case getErr != nil && !use.wanted:
		return errSkipped
	case apierrors.IsNotFound(getErr):
		return warningf("there is no such Lease: no replica writes there")
	case getErr != nil:
		return permanentWarningf("it cannot be read from here: %w", getErr)
	}
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
		if !use.wanted {
			return errSkipped // its holder released it
		}
		return warningf("it has no holder: no replica writes there")
	}
	holder := *spec.HolderIdentity
	if spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return warningf("%s holds it without an end", holder)
	}
	end := spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second)
	if past := now.Sub(end); past > maxSkew {
		return warningf("%s held it until %s ago, and it has no new holder: no replica writes there",
			holder, past.Round(time.Second))
	}
	if use.wanted && !use.held && !use.shared {
		return warningf("%s holds it, which none of the replicas that respond does: none of them writes. If it is no "+
			"replica that is starting or stopping, delete the Lease", holder)
	}
	return detail(holder)
}
