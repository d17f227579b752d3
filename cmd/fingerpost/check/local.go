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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/links"
)

// maxSkew is how far two clocks may be apart.
const maxSkew = 10 * time.Second

// alwaysCreated and sometimesCreated are what the chart creates: always, or where its values ask for it.
var (
	alwaysCreated = []string{
		"serviceaccounts", "services", "deployments.apps", "poddisruptionbudgets.policy",
		"roles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io",
		"clusterroles.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io",
	}
	sometimesCreated = []string{"namespaces", "configmaps", "customresourcedefinitions.apiextensions.k8s.io"}
)

// An environment is what is checked: the local cluster, as it is seen from here, its replicas, and the clusters
// linked there.
type environment struct {
	version   string // of this command; empty if it is not to be compared
	access    func() (*rest.Config, error)
	open      func(ctx context.Context) ([]cli.Replica, error)
	direct    func() bool                            // whether open needs no API server
	ways      func([]cli.Replica) ([]cli.Way, error) // to the gRPC servers of replicas
	namespace string                                 // of the mesh's control plane and of Leases; found out if empty
	installed string                                 // namespace in which Fingerpost is looked for; empty for all
	fleet     *cli.FleetCluster                      // what its fleet has of it; nil outside of one

	config *rest.Config         // of the local cluster, once it is connected
	client kubernetes.Interface // likewise
	silent bool                 // the API server did not answer, and is not asked again
}

// run runs all checks, or those before an installation.
func (e *environment) run(ctx context.Context, runner *runner, pre bool) {
	goOn := !pre && e.direct()
	connect := func(ctx context.Context) error {
		err := e.connect(ctx, runner.timeout)
		if err != nil && goOn {
			err = fmt.Errorf("%w\nwhat it would be asked is not checked", err)
		}
		return err
	}
	e.silent = !runner.must(ctx, apiAnswers.decided("the API server answers", connect))
	if e.silent && !goOn {
		return
	}

	checks := []check{
		clocksAgree.decided("its clock agrees with this one", e.asking(e.checkClock)),
		linksServed.decided("Links are served at version "+cli.LinkVersion,
			e.asking(e.checkLinkVersion)),
		leaseNamespace.decided("there is a namespace "+e.namespace+" for Leases",
			e.asking(func(ctx context.Context) error { return e.checkNamespace(ctx, pre) })),
	}
	if pre {
		checks = append(checks, e.preChecks()...)
		checks = append(checks, e.installChecks(alwaysCreated, true)...)
		runner.run(ctx, append(checks, e.installChecks(sometimesCreated, false)...)...)
		return
	}

	runner.run(ctx, checks...)
	runner.run(ctx, e.meshChecks(ctx, runner.timeout)...)
	known := e.checkReplicas(ctx, runner)
	defer cli.CloseAll(known.opened)
	if len(known.pages) > 0 {
		runner.run(ctx, slices.Concat(
			known.clusterChecks(), known.writerChecks(), e.leaseChecks(known), e.linkChecks(known),
			known.serviceChecks(), e.fleetChecks(known))...)
	}
	runner.wait(ctx, known.refresh)
}

// asking returns a check that asks the API server. It does not apply if that does not answer, as another one reports.
func (e *environment) asking(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if e.silent {
			return errSkipped
		}
		return run(ctx)
	}
}

// connect asks the API server for its version, which needs credentials but no permission.
func (e *environment) connect(ctx context.Context, timeout time.Duration) error {
	config, err := e.access()
	if err != nil {
		return err
	}

	e.config = rest.CopyConfig(config)
	e.config.Timeout = timeout
	if e.client, err = kubernetes.NewForConfig(e.config); err != nil {
		return err
	}
	if err := e.client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err != nil {
		return err
	}

	if e.namespace == "" {
		e.namespace = cli.ControllerNamespace(ctx, e.client, e.installed)
	}
	return nil
}

// checkNamespace reports that Leases have no namespace. Without the permission to read it that is not known. Before an
// installation, which may create it, it is a warning.
func (e *environment) checkNamespace(ctx context.Context, pre bool) error {
	_, err := e.client.CoreV1().Namespaces().Get(ctx, e.namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && pre:
		return warningf("the chart is not installed without it, unless that creates it: 'kubectl create namespace "+
			"%s', or name another: controllerNamespace of the chart, and -L here", e.namespace)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("no Lease can be created, so that nothing is written into any cluster: 'kubectl create "+
			"namespace %s', or name another: controllerNamespace of the chart, and -L here", e.namespace)
	case apierrors.IsForbidden(err):
		return errSkipped
	default:
		return err
	}
}

// checkClock compares the API server's clock with ours. A difference within the time of the request is none.
func (e *environment) checkClock(ctx context.Context) error {
	client, err := rest.HTTPClientFor(e.config)
	if err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(e.config)
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
		return warningf("it is %s away from this one: synchronise both clocks (NTP): "+
			"the lifetimes of tokens and Leases depend on them",
			skew.Round(time.Second))
	}
	return nil
}

func (e *environment) checkLinkVersion(context.Context) error {
	groups, err := e.client.Discovery().ServerGroups()
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

		return warningf("they are served at %s only: update the chart that has their CRD, linkerd-multicluster or "+
			"fingerpost with --set crds.links=true", strings.Join(versions, ", "))
	}

	return warningf("there is no CRD of Links, so that only labelled Secrets can link clusters: install the chart " +
		"fingerpost with --set crds.links=true, or linkerd-multicluster, or apply links/crd/links.yaml")
}

// installChecks check that resources may be created in all namespaces.
func (e *environment) installChecks(resources []string, required bool) (checks []check) {
	for _, resource := range resources {
		kind := schema.ParseGroupResource(resource)
		attributes := authorizationv1.ResourceAttributes{Group: kind.Group, Resource: kind.Resource, Verb: "create"}

		run := func(ctx context.Context) error {
			status, err := api.ReviewAccess(ctx, e.client, attributes)
			switch {
			case err != nil || status.Allowed:
				return err
			case required:
				return fmt.Errorf("create %s is not allowed %s", resource, status.Reason)
			default:
				return warningf("create %s is not allowed, which some installations need %s", resource, status.Reason)
			}
		}

		checks = append(checks, mayInstall.decided("you may create "+resource, run))
	}
	return checks
}

// leaseChecks check that each Lease in this cluster that a replica holds or waits for has a holder, and that of
// Linkerd's destination controller if there is one.
func (e *environment) leaseChecks(known *knownReplicas) (checks []check) {
	names := sets.New(linkerd.ExternalWorkloadsLease)
	for _, r := range known.local() {
		names.Insert(r.Page.Writing.Wanted...)
	}

	checks = append(checks, e.installationChecks(known)...)
	for _, name := range sets.List(names) {
		run := e.asking(func(ctx context.Context) error {
			lease, err := e.client.CoordinationV1().Leases(e.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
				return err
			}
			return checkHolder(lease, err, known.leaseUse(name), time.Now())
		})
		checks = append(checks,
			leaseHeld.retried("the Lease "+name+" in this cluster has a holder", run))
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
