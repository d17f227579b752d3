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
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/endpointslice"
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

// An environment is what is checked: the local cluster, which the kubeconfig names, its replicas, and the
// clusters linked there.
type environment struct {
	cli.ReplicaFlags
	controllerNamespace string
}

// run runs all checks, or those before an installation.
func (e *environment) run(ctx context.Context, r *runner, pre bool) {
	r.beginCategory("fingerpost-kubernetes")
	var config *rest.Config
	var client kubernetes.Interface
	connect := func(ctx context.Context) (err error) {
		if config, err = e.RESTConfig(); err != nil {
			return err
		}
		config.Timeout = r.timeout
		if client, err = kubernetes.NewForConfig(config); err != nil {
			return err
		}
		return ping(ctx, client)
	}
	if !r.runCheck(ctx, check{description: "the API server answers", anchor: "the-api-server-answers", run: connect}) {
		return
	}
	r.runCheck(ctx, check{
		description: "its clock agrees with this one", anchor: "clocks-agree",
		run: func(ctx context.Context) error { return checkClock(ctx, config) },
	})
	linksServed := r.runCheck(ctx, check{
		description: "Links are served at version " + cli.LinkVersion, anchor: "links-are-served",
		run: func(context.Context) error { return checkLinkVersion(client) },
	})
	if pre {
		checkInstallPermissions(ctx, r, client)
		return
	}
	known, done := e.checkReplicas(ctx, r)
	defer done()
	if len(known.pages) > 0 {
		checkClusters(ctx, r, known)
		checkServices(ctx, r, known)
	}
	if linksServed && len(known.pages) > 0 {
		r.beginCategory("fingerpost-links")
		r.runCheck(ctx, check{
			description: "every Link is read", anchor: "every-link-is-read", retry: true,
			run: func(ctx context.Context) error { return checkLinksRead(ctx, config, client, known) },
		})
	}
	r.beginCategory("fingerpost-leases")
	e.checkLeases(ctx, r, client, known)
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

func checkInstallPermissions(ctx context.Context, r *runner, client kubernetes.Interface) {
	r.beginCategory("fingerpost-install")
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
		r.runCheck(ctx, check{description: "you may create " + p.String(), anchor: "you-may-install", run: run})
	}
}

// reviewAccess asks the API server whether the client may do something in all namespaces.
func reviewAccess(
	ctx context.Context, client kubernetes.Interface, p permission, verb string,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	attributes := authorizationv1.ResourceAttributes{Group: p.group, Resource: p.resource, Verb: verb}
	return api.ReviewAccess(ctx, client, attributes)
}

// checkLinksRead reports the Links that no replica reads.
func checkLinksRead(
	ctx context.Context, config *rest.Config, client kubernetes.Interface, known *knownReplicas,
) error {
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	groups, err := client.Discovery().ServerGroups()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == links.Group })
	if i < 0 {
		return errSkipped // there is no CRD, as was reported
	}
	version := groups.Groups[i].PreferredVersion.Version
	list, err := untyped.Resource(linkerd.Links.WithVersion(version)).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return permanentWarningf("Links cannot be listed with your permissions: %w", err)
	case err != nil:
		return err
	}
	if err := known.refresh(ctx); err != nil {
		return err
	}
	var unread []string
	for _, link := range list.Items {
		if !known.readsLink(link.GetNamespace(), link.GetName()) {
			unread = append(unread, link.GetNamespace()+"/"+link.GetName())
		}
	}
	if len(unread) == 0 {
		return nil
	}
	return warningf("%s: not in the namespace that -link-namespace names", strings.Join(unread, ", "))
}

// checkLeases checks that each Lease in this cluster that a replica holds or waits for has a holder, and that of
// Linkerd's destination controller if there is one.
func (e *environment) checkLeases(
	ctx context.Context, r *runner, client kubernetes.Interface, known *knownReplicas,
) {
	wanted := known.wantedLeases()
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(wanted, endpointslice.ExternalLease)))) {
		run := func(ctx context.Context) error {
			lease, err := client.CoordinationV1().Leases(e.controllerNamespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
				return err
			}
			return checkHolder(lease, err, slices.Contains(wanted, name), time.Now())
		}
		r.runCheck(ctx, check{
			description: "the Lease " + name + " in this cluster has a holder", anchor: "a-lease-has-a-holder",
			retry: true, run: run,
		})
	}
}

// checkHolder returns what is wrong with a Lease, or with the error of reading it. A Lease without a holder
// is a warning if it is needed.
func checkHolder(lease *coordinationv1.Lease, getErr error, needed bool, now time.Time) error {
	switch {
	case getErr != nil && !needed:
		return errSkipped
	case apierrors.IsNotFound(getErr):
		return warningf("there is no such Lease: no replica writes EndpointSlices there")
	case getErr != nil:
		return permanentWarningf("it cannot be read from here: %w", getErr)
	}
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
		if !needed {
			return errSkipped // its holder released it
		}
		return warningf("it has no holder: no replica writes EndpointSlices there")
	}
	holder := *spec.HolderIdentity
	if spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return warningf("%s holds it without an end", holder)
	}
	end := spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second)
	if past := now.Sub(end); past > maxSkew {
		return warningf("%s held it until %s ago, and it has no new holder: no replica writes EndpointSlices there",
			holder, past.Round(time.Second))
	}
	return nil
}
