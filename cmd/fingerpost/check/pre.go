package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/internal/words"
)

// minKubernetes is the oldest version of API servers that the charts take (kubeVersion).
var minKubernetes = version.MustParseGeneric("1.33")

const maxComponents = 50 // Deployments of a control plane that are looked at

// Kinds that are read where they are served.
var (
	meshResources = []schema.GroupResource{
		linkerd.ServiceProfiles, linkerd.ExternalWorkloads, linkerd.Servers, linkerd.ServerAuthorizations,
		linkerd.AuthorizationPolicies, linkerd.MeshTLSAuthentications, linkerd.NetworkAuthentications,
		linkerd.RateLimits, linkerd.EgressNetworks, linkerd.PolicyHTTPRoutes,
	}
	gatewayResources = []schema.GroupResource{linkerd.HTTPRoutes, linkerd.GRPCRoutes}
)

// preChecks check what an installation finds in the cluster, besides what the caller may create.
func (e *environment) preChecks() []check {
	kinds := func(resources []schema.GroupResource, remedy string) func(context.Context) error {
		return e.asking(func(context.Context) error { return e.checkKinds(resources, remedy) })
	}
	return []check{
		versionTaken.decided("Kubernetes is "+minKubernetes.String()+" or newer", e.asking(e.checkVersion)),
		kindsDefined.decided("the kinds of Linkerd are defined", kinds(meshResources,
			"--set crds.mesh=true of chart fingerpost defines them, or Linkerd's chart linkerd-crds")),
		kindsDefined.decided("the kinds of the Gateway API are defined", kinds(gatewayResources,
			"install the standard channel of the Gateway API")),
		certificatesUsable.decided("the mesh has a trust anchor and an issuer", e.asking(
			func(ctx context.Context) error { return e.checkCertificates(ctx, true) })),
		planeKnown.decided("there is a control plane of Linkerd, or there is none", e.asking(e.checkPlane)),
	}
}

func (e *environment) checkVersion(context.Context) error {
	have, err := e.client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	parsed, err := version.ParseGeneric(have.GitVersion)
	switch {
	case err != nil:
		return warningf("the API server has the version %q, which cannot be read", have.GitVersion)
	case !parsed.AtLeast(minKubernetes):
		return fmt.Errorf("it is %s: the charts refuse to be installed", have.GitVersion)
	}
	return detail(have.GitVersion)
}

// checkKinds reports kinds that the API server does not serve. None is required: an absent kind counts as one without
// objects.
func (e *environment) checkKinds(resources []schema.GroupResource, remedy string) error {
	_, lists, err := e.client.Discovery().ServerGroupsAndResources()
	if err != nil && len(lists) == 0 {
		return err
	}

	served := map[schema.GroupResource]bool{}
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		for i := 0; err == nil && i < len(list.APIResources); i++ {
			served[group.WithResource(list.APIResources[i].Name).GroupResource()] = true
		}
	}

	var missing []string
	for _, r := range resources {
		if !served[r] {
			missing = append(missing, r.String())
		}
	}
	if len(missing) > 0 {
		return warningf("not served: %s; %s", words.Some(missing, 3), remedy)
	}
	return nil
}

// checkCertificates reports a mesh that cannot issue identities, or will not for long. That it has no certificates yet
// is a warning before an installation: a chart may make them. Afterwards there is no mesh.
func (e *environment) checkCertificates(ctx context.Context, pre bool) error {
	problem, usable, ends, err := cli.CertificatesOf(ctx, e.client, e.namespace)
	var status apierrors.APIStatus

	switch {
	case errors.As(err, &status) && status.Status().Reason == metav1.StatusReasonForbidden:
		return skipped{"you may not read them"}
	case errors.As(err, &status) && status.Status().Reason == metav1.StatusReasonNotFound && !pre:
		return errSkipped
	case errors.As(err, &status) && status.Status().Reason == metav1.StatusReasonNotFound:
		return warningf("%w: 'fingerpost certs new' makes both", err)
	case err != nil:
		return err
	case problem != "" && usable:
		return warningf("%s", problem)
	case problem != "":
		return errors.New(problem)
	}
	return detail("the first of them ends at " + ends.Format(time.RFC3339))
}

// checkPlane names what there is of a control plane of Linkerd, beside which or in whose place Fingerpost is installed.
func (e *environment) checkPlane(ctx context.Context) error {
	list, err := e.client.AppsV1().Deployments(e.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: linkerd.ComponentLabel, Limit: maxComponents,
	})
	switch {
	case apierrors.IsForbidden(err):
		return skipped{"you may not list Deployments"}
	case err != nil && !apierrors.IsNotFound(err):
		return err
	case err != nil || len(list.Items) == 0:
		return detail("none in namespace " + e.namespace)
	}

	var names []string
	for _, d := range list.Items {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	return detail(strings.Join(names, ", ") + " in namespace " + e.namespace)
}
